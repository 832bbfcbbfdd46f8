"""What the server tells its model worker at the start."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WorkerSettings"]


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What the server tells its worker, as JSON on the command line."""

    embedder: str | None
    """Folder of the embedder; None when embeddings are not served."""
    slm: str | None
    """Folder of the language model; None when there is none."""
    device: str
    dtype: str
    threads: int
    embed_tokens: int
    embed_windows: int
    embed_batch_tokens: int
    choose_text_tokens: int
    choose_head_tokens: int
    choose_batch_tokens: int
    prefix_cache_mib: int
    context_tokens: int
    prefill_tokens: int
    slots: int

    def __post_init__(self) -> None:
        if self.threads < 0 or self.embed_tokens < 8 or self.embed_windows < 1 or self.context_tokens < 16:
            raise ValueError(f"settings of the model worker out of range: {self}")
