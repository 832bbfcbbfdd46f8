"""The domain: what a memory system does, in the paper's words, without gRPC, SQL or torch."""
