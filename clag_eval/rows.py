"""What a run keeps: a row for each question and method, a block of them for each finished pool and method."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from clag_eval.data import DataError
from clag_eval.metrics import Scores

__all__ = ["Block", "Kept", "PoolMap", "Reply", "Row"]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer and its scores, 0 to 1; the scores are None where the data has no right answer."""

    text: str
    refused: bool
    prompt_tokens: int
    answer_tokens: int
    seconds: float
    f1: float | None
    bleu_1: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One question under one method.

    Attributes:
        question: Its id.
        category: Its category.
        scores: What its first ten hits are worth.
        picked: Share of the pool in the picked episodes.
        clusters: Share in the selected clusters.
        net: Share that the net added.
        evidence: Recall in a context, by token budget.
        tokens: Tokens of that context, by budget.
        seconds: Time to the ten best.
        ranked: These ten.
        reply: The answer, where one was asked for.
    """

    question: str
    category: str
    scores: Scores
    picked: float
    clusters: float
    net: float
    evidence: Mapping[int, float]
    tokens: Mapping[int, int]
    seconds: float | None
    ranked: tuple[str, ...]
    reply: Reply | None = None

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self:
        """Make one of its JSON form."""
        values = dict(record)
        values["scores"] = Scores(**values["scores"])
        values["evidence"] = {int(key): value for key, value in values["evidence"].items()}
        values["tokens"] = {int(key): value for key, value in values["tokens"].items()}
        values["ranked"] = tuple(values["ranked"])
        values["reply"] = Reply(**values["reply"]) if values["reply"] is not None else None
        return cls(**values)


@dataclass(frozen=True, slots=True)
class PoolMap:
    """A pool's memories in the plane: rows of x, y and the number of a cluster, and the clusters' titles."""

    pool: str
    points: Sequence[tuple[float, float, int]]
    titles: Sequence[str]


@dataclass(frozen=True, slots=True)
class Block:
    """One method on one pool.

    Attributes:
        pool: The pool.
        method: The method.
        memories: Memories of the pool.
        clusters: Active clusters of its server's grouping.
        organize_seconds: What storing and organizing took (once for all methods of one grouping).
        organize_slm_calls: Calls of the language model for that.
        organize_slm_tokens: Tokens read and written in them.
        slm_calls: Calls of the language model while its questions were asked.
        slm_tokens_in: Tokens read in them.
        slm_tokens_out: Tokens written in them.
        rows: A row for each question.
        drawn: The pool's map, where this block has it.
        notes: What could not be measured, and why.
    """

    pool: str
    method: str
    memories: int
    clusters: int
    organize_seconds: float
    organize_slm_calls: int
    organize_slm_tokens: int
    slm_calls: int
    slm_tokens_in: int
    slm_tokens_out: int
    rows: tuple[Row, ...]
    drawn: PoolMap | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self:
        """Make one of its JSON form."""
        values = dict(record)
        values["rows"] = tuple(Row.read(one) for one in values["rows"])
        values["notes"] = tuple(values["notes"])
        values["drawn"] = PoolMap(**values["drawn"]) if values["drawn"] is not None else None
        return cls(**values)


@dataclass(slots=True)
class Kept:
    """Finished blocks, kept in a file so that a run that was broken off goes on where it was.

    Attributes:
        path: The file; None keeps nothing.
        settings: What the blocks depend on; a file of other settings is refused.
        blocks: All finished blocks.
    """

    path: Path | None
    settings: Mapping[str, Any]
    blocks: list[Block] = field(default_factory=list)

    def open(self) -> None:
        """Read what is there.

        Raises:
            DataError: The file is of a run with other settings.
        """
        if self.path is None or not self.path.exists():
            return
        lines = self.path.read_text("utf-8").splitlines()
        for number, line in enumerate(lines):
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                if number == len(lines) - 1:
                    break  # the run ended while it wrote this
                damage = f"{self.path}: line {number + 1} is damaged; delete the file to start again"
                raise DataError(damage) from None
            if number == 0:
                if record != json.loads(json.dumps(self.settings)):
                    raise DataError(f"{self.path} is of a run with other settings; delete it to start again")
                continue
            self.blocks.append(Block.read(record))
        self._write_all(self.path)

    def add(self, block: Block) -> None:
        """Keep a finished block."""
        self.blocks.append(block)
        if self.path is None:
            return
        if not self.path.exists():
            self._write_all(self.path)
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(asdict(block)))

    def has(self, pool: str, method: str) -> bool:
        """Return whether a block is finished."""
        return any(block.pool == pool and block.method == method for block in self.blocks)

    def discard(self) -> None:
        """Remove the file: the report has it all."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _write_all(self, path: Path) -> None:
        path.write_text(_line(self.settings) + "".join(_line(asdict(one)) for one in self.blocks), "utf-8")


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"
