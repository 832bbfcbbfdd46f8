"""Reading back what a server holds."""

from __future__ import annotations

from clag.v1 import cluster_service_pb2, types_pb2
from clag.v1 import memory_service_pb2 as pb

from tests.support.process import Stubs


def ask(stubs: Stubs, namespace: str, text: str, **more: object) -> list[pb.MemoryHit]:
    """Hits of a question."""
    request = pb.RetrieveRequest(namespace=namespace, query=pb.Query(text=text), **more)  # type: ignore[arg-type]
    frames = list(stubs.memory.Retrieve(request, timeout=30))
    assert frames[-1].WhichOneof("stage") == "done"
    return [hit for frame in frames for hit in frame.memories.hits]


def get(stubs: Stubs, namespace: str, memory_id: str) -> types_pb2.Memory:
    """One memory."""
    request = pb.GetMemoryRequest(namespace=namespace, memory_id=memory_id)
    return stubs.memory.GetMemory(request, timeout=20).memory


def clusters(stubs: Stubs, namespace: str) -> list[types_pb2.Cluster]:
    """All clusters of a namespace."""
    request = cluster_service_pb2.ListClustersRequest(namespace=namespace)
    return list(stubs.cluster.ListClusters(request, timeout=20).clusters)


def listed(stubs: Stubs, namespace: str, *, page_size: int = 0) -> list[types_pb2.Memory]:
    """All memories of a namespace, over all pages."""
    found: list[types_pb2.Memory] = []
    token = ""
    while True:
        request = pb.ListMemoriesRequest(namespace=namespace, page_size=page_size, page_token=token)
        page = stubs.memory.ListMemories(request, timeout=20)
        found.extend(page.memories)
        token = page.next_page_token
        if not token:
            return found
