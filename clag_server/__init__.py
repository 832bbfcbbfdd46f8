"""CLAG: a memory sidecar for small-language-model agents."""

__version__ = "0.1.0"
