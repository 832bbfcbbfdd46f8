"""The vector index: one Milvus collection per namespace, one partition per cluster; derived, rebuildable."""
