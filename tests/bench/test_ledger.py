"""The check of the crash benchmark notices each way in which a store can break its word."""

from __future__ import annotations

from bench.crash_ledger import Ledger, Seen, Verdict, mark, read_mark, verify


class FakeStore:
    """A store that keeps what it is given, until a test makes it fail."""

    def __init__(self, memories: int) -> None:
        self.ledger = Ledger()
        self.rows: list[Seen] = []
        for _ in range(memories):
            entry = self.ledger.new()
            self.rows.append(Seen(f"id-{entry.serial}", f"robot saw {mark(entry.serial, 0)} twice"))
            self.ledger.stored(entry.serial, f"id-{entry.serial}")

    def verdict(self) -> Verdict:
        return verify(self.ledger, self.rows)


def counts(verdict: Verdict) -> tuple[int, int, int]:
    return verdict.lost, verdict.doubled, verdict.misplaced


def test_a_store_that_keeps_everything_is_clean() -> None:
    store = FakeStore(5)
    assert store.verdict().clean
    assert store.ledger.acks == 5


def test_an_acknowledged_memory_that_is_gone_is_lost() -> None:
    store = FakeStore(5)
    del store.rows[2]
    assert counts(store.verdict()) == (1, 0, 0)


def test_a_memory_that_is_there_twice_is_doubled_whatever_its_id() -> None:
    store = FakeStore(5)
    store.rows.append(Seen("made-by-the-server", store.rows[3].text))
    assert counts(store.verdict()) == (0, 1, 0)


def test_a_memory_in_no_cluster_is_misplaced() -> None:
    store = FakeStore(5)
    store.rows[1] = Seen(store.rows[1].memory_id, store.rows[1].text, "it is in no cluster")
    assert counts(store.verdict()) == (0, 0, 1)


def test_a_memory_under_another_id_than_the_client_was_told_is_lost() -> None:
    store = FakeStore(2)
    store.rows[0] = Seen("another", store.rows[0].text)
    assert counts(store.verdict()) == (1, 0, 0)


def test_a_memory_that_was_sent_and_never_acknowledged_may_be_there_once_or_not() -> None:
    store = FakeStore(1)
    entry = store.ledger.new()
    assert store.verdict().clean
    store.rows.append(Seen("x", mark(entry.serial, 0)))
    assert store.verdict().clean
    store.rows.append(Seen("y", mark(entry.serial, 0)))
    assert counts(store.verdict()) == (0, 1, 0)


def test_a_deleted_memory_that_comes_back_is_doubled() -> None:
    store = FakeStore(3)
    store.ledger.deleted(store.ledger.entries[0])
    assert counts(store.verdict()) == (0, 1, 0)
    del store.rows[0]
    assert store.verdict().clean


def test_a_delete_without_an_answer_leaves_both_possible() -> None:
    store = FakeStore(3)
    store.ledger.entries[0].deleting = True
    assert store.verdict().clean
    del store.rows[0]
    assert store.verdict().clean


def test_an_acknowledged_update_that_is_undone_is_lost() -> None:
    store = FakeStore(2)
    entry = store.ledger.entries[0]
    entry.sent = 1
    assert store.verdict().clean
    store.ledger.updated(entry, 1)
    assert counts(store.verdict()) == (1, 0, 0)
    store.rows[0] = Seen("id-0", mark(0, 1))
    assert store.verdict().clean


def test_a_memory_that_nobody_sent_is_doubled() -> None:
    store = FakeStore(1)
    store.rows.append(Seen("ghost", "no mark at all"))
    store.rows.append(Seen("ghost-2", mark(99, 0)))
    assert counts(store.verdict()) == (0, 2, 0)


def test_ids_that_the_client_was_never_told_are_learnt_from_the_store() -> None:
    store = FakeStore(1)
    entry = store.ledger.new()
    store.ledger.stored(entry.serial)
    assert entry not in store.ledger.settled()
    store.ledger.learn([Seen("told-late", mark(entry.serial, 0))])
    assert entry in store.ledger.settled()
    assert entry.memory_id == "told-late"


def test_marks_are_read_as_whole_words() -> None:
    assert read_mark(f"a {mark(12, 3)} b") == (12, 3)
    assert read_mark("ak12v3") is None
