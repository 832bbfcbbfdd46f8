"""The language model and the embedder: protocols, the model worker and its client, and the model cache.

`api` is what the domain sees. Nothing that the server imports from here imports torch or transformers; only
`worker` and the modules whose names start with `torch_` do, in a process of their own.
"""
