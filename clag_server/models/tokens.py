"""Tokenizing text that people wrote: control tokens in it are plain text (case T2).

Works on `tokenizer.json` with the `tokenizers` library alone, so that the server counts tokens as the worker
does, without torch or transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["FileTokenCounter", "PlainTokenizer", "WordTokenCounter"]


class PlainTokenizer:
    """A tokenizer for untrusted text.

    Args:
        folder: Model folder with a `tokenizer.json`.

    Raises:
        FileNotFoundError: No `tokenizer.json` there.
        ValueError: The file is not a tokenizer.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"no tokenizer.json in {folder}")
        try:
            self._plain = Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"{path} is not a tokenizer: {error}") from error
        # The file of all-MiniLM-L6-v2 asks for padding to 128 and truncation at 128: both are ours to decide.
        self._plain.no_padding()
        self._plain.no_truncation()
        # Text such as `<|im_start|>` is split like any other text instead of becoming a control token.
        self._plain.encode_special_tokens = True

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self._plain.get_vocab_size(with_added_tokens=True))

    def encode(self, texts: Sequence[str], *, frame: bool = False) -> list[list[int]]:
        """Return the token ids of each text.

        Args:
            texts: The texts.
            frame: Add what the model puts around a text (`[CLS] ... [SEP]`).
        """
        return [list(one.ids) for one in self._plain.encode_batch_fast(list(texts), add_special_tokens=frame)]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, control tokens left out."""
        return str(self._plain.decode(list(ids), skip_special_tokens=True))


class FileTokenCounter:
    """Counts tokens with a model's own tokenizer."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = PlainTokenizer(folder)

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text."""
        return [len(ids) for ids in self._tokenizer.encode(texts)]


class WordTokenCounter:
    """Counts without a model: four UTF-8 bytes a token, the usual average of English text.

    Used where no language model is configured, and by the scripted backend.
    """

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the estimated number of tokens of each text."""
        return [-(-len(text.encode("utf-8", "replace")) // 4) for text in texts]
