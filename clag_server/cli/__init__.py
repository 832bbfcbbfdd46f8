"""The command line. Each command is one module; none of them imports torch or the vector index."""
