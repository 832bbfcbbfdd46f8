"""What a client was told, and the check that a store kept to it.

Every memory of the crash benchmark carries a mark in its text, `k<serial>v<version>`, so a copy that the store made
can be told from the original, and an old version from a new one. The ledger is written before a request goes out
and when its answer is there; what was sent and not answered may be there or not, but never twice.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_MARK = re.compile(r"\bk(\d+)v(\d+)\b")


def mark(serial: int, version: int) -> str:
    """The word that tells a memory and its version from all others."""
    return f"k{serial}v{version}"


def read_mark(text: str) -> tuple[int, int] | None:
    """Serial and version in a text; None when it has no mark."""
    found = _MARK.search(text)
    return None if found is None else (int(found[1]), int(found[2]))


@dataclass(slots=True)
class Entry:
    """One memory as the client knows it. Versions count from 0; `acked` is -1 before the first answer."""

    serial: int
    memory_id: str = ""
    sent: int = 0
    acked: int = -1
    deleting: bool = False
    deleted: bool = False

    @property
    def settled(self) -> bool:
        """Whether it was acknowledged, has a known id, and nobody deletes it."""
        return self.acked >= 0 and bool(self.memory_id) and not self.deleting


@dataclass(frozen=True, slots=True)
class Seen:
    """One memory as the store has it; `misplaced` says what is wrong with its place, "" when nothing is."""

    memory_id: str
    text: str
    misplaced: str = ""


@dataclass(slots=True)
class Verdict:
    """How often the store broke its word, and the first of what it did."""

    lost: int = 0
    doubled: int = 0
    misplaced: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.misplaced)

    def lose(self, fault: str) -> None:
        self.lost += 1
        self.faults.append(f"lost: {fault}")

    def double(self, fault: str) -> None:
        self.doubled += 1
        self.faults.append(f"doubled: {fault}")

    def misplace(self, fault: str) -> None:
        self.misplaced += 1
        self.faults.append(f"misplaced: {fault}")

    def add(self, other: Verdict) -> None:
        self.lost += other.lost
        self.doubled += other.doubled
        self.misplaced += other.misplaced
        self.faults += other.faults


class Ledger:
    """All memories that a client sent, by serial."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.acks = 0
        """Answers that promised something: memories stored, changed, deleted."""

    def new(self, memory_id: str = "") -> Entry:
        """Make the entry of a memory that is about to be sent."""
        entry = Entry(len(self.entries), memory_id)
        self.entries[entry.serial] = entry
        return entry

    def stored(self, serial: int, memory_id: str = "") -> None:
        """Note that a memory was acknowledged; an empty id is not known (the outcome was lost)."""
        entry = self.entries[serial]
        if entry.acked < 0:
            entry.acked = 0
            self.acks += 1
        entry.memory_id = entry.memory_id or memory_id

    def updated(self, entry: Entry, version: int) -> None:
        """Note that a new version was acknowledged."""
        entry.acked = max(entry.acked, version)
        self.acks += 1

    def deleted(self, entry: Entry) -> None:
        """Note that a delete was acknowledged."""
        if not entry.deleted:
            entry.deleting = entry.deleted = True
            self.acks += 1

    def settled(self) -> list[Entry]:
        """Memories that must be there."""
        return [entry for entry in self.entries.values() if entry.settled]

    def learn(self, seen: Iterable[Seen]) -> None:
        """Take over ids that the client was never told, so that these memories take part in deletes and updates."""
        for one in seen:
            marked = read_mark(one.text)
            if marked is not None and marked[0] in self.entries:
                entry = self.entries[marked[0]]
                entry.memory_id = entry.memory_id or one.memory_id


def verify(ledger: Ledger, seen: Iterable[Seen]) -> Verdict:
    """Hold everything that a store has against the ledger."""
    verdict = Verdict()
    found: dict[int, list[tuple[int, Seen]]] = defaultdict(list)
    for one in seen:
        if one.misplaced:
            verdict.misplace(f"{one.memory_id}: {one.misplaced}")
        marked = read_mark(one.text)
        if marked is None or marked[0] not in ledger.entries:
            verdict.double(f"{one.memory_id} was never sent")
        else:
            found[marked[0]].append((marked[1], one))
    for entry in ledger.entries.values():
        _judge(entry, found.get(entry.serial, []), verdict)
    return verdict


def _judge(entry: Entry, copies: list[tuple[int, Seen]], verdict: Verdict) -> None:
    for _, extra in copies[1:]:
        verdict.double(f"serial {entry.serial} is there again as {extra.memory_id}")
    if entry.deleted:
        for _, back in copies[:1]:
            verdict.double(f"{back.memory_id} was deleted and is back")
        return
    if not copies:
        if entry.acked >= 0 and not entry.deleting:
            verdict.lose(f"serial {entry.serial} ({entry.memory_id or 'id not known'}) is not there")
        return
    version, one = copies[0]
    if entry.memory_id and one.memory_id != entry.memory_id:
        verdict.lose(f"serial {entry.serial} is {one.memory_id}, the client was told {entry.memory_id}")
    if not max(entry.acked, 0) <= version <= entry.sent:
        verdict.lose(f"{one.memory_id} has version {version}, acknowledged {entry.acked}, sent {entry.sent}")


def closing_line(kills: int, ledgers: Mapping[str, Ledger], verdict: Verdict) -> str:
    """The line that the benchmark ends with."""
    acks = sum(ledger.acks for ledger in ledgers.values())
    return (
        f"crash: kills {kills}, acked {acks}, lost {verdict.lost}, doubled {verdict.doubled}, "
        f"misplaced {verdict.misplaced}"
    )
