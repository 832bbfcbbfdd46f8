"""Readers of evaluation data. Each takes the path of the user's own copy; no data is part of this project."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from clag_eval.data import DataError, Dataset
from clag_eval.loaders.chats import read_chats
from clag_eval.loaders.chunks import read_chunks
from clag_eval.loaders.jsonl import read_jsonl
from clag_eval.loaders.locomo import read_locomo

__all__ = ["KINDS", "load"]


def _hotpotqa(path: Path) -> Dataset:
    return read_chunks(path, "hotpotqa")


def _bioasq(path: Path) -> Dataset:
    return read_chunks(path, "bioasq")


KINDS: Final[dict[str, Callable[[Path], Dataset]]] = {
    "locomo": read_locomo,
    "hotpotqa": _hotpotqa,
    "bioasq": _bioasq,
    "realtalk": read_chats,
    "jsonl": read_jsonl,
}
"""Reader by kind, as written before the colon of `--data KIND:PATH`."""


def load(spec: str) -> Dataset:
    """Read `KIND:PATH`.

    Raises:
        DataError: The kind is not known, or the path does not hold such data.
    """
    kind, colon, path = spec.partition(":")
    if not colon or kind not in KINDS:
        raise DataError(f"{spec!r} is not KIND:PATH with a kind of {', '.join(KINDS)}")
    try:
        data = KINDS[kind](Path(path).expanduser())
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: not JSON ({error.msg}, line {error.lineno})") from None
    except KeyError as error:
        raise DataError(f"{path}: not {kind} data, field {error} is missing") from None
    except (TypeError, AttributeError) as error:
        raise DataError(f"{path}: not {kind} data ({error})") from None
    if not data.questions:
        raise DataError(f"{path}: no question with evidence")
    return data
