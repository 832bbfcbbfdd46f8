from __future__ import annotations

from pathlib import Path

import pytest

from clag_eval.data import DataError
from clag_eval.metrics import score
from clag_eval.rows import Block, Kept, PoolMap, Reply, Row

_SETTINGS = {"data": "locomo", "budgets": [512]}


def _block(pool: str, method: str = "clag") -> Block:
    row = Row(
        question="q1",
        category="2",
        scores=score(["a", "b"], ["b"]),
        picked=0.2,
        clusters=0.5,
        net=0.01,
        evidence={512: 1.0},
        tokens={512: 480},
        seconds=0.012,
        ranked=("a", "b"),
        reply=Reply("north", refused=False, prompt_tokens=9, answer_tokens=1, seconds=0.1, f1=0.5, bleu_1=None),
    )
    drawn = PoolMap(pool, [(0.1, 0.2, 0)], ["Boats"])
    return Block(pool, method, 6, 2, 1.5, 0, 0, 3, 40, 2, (row,), drawn, ("a note",))


def test_a_run_that_was_broken_off_finds_its_finished_pools_again(tmp_path: Path) -> None:
    path = tmp_path / "run.json.partial"
    first = Kept(path, _SETTINGS)
    first.open()
    first.add(_block("a"))
    first.add(_block("b"))
    again = Kept(path, _SETTINGS)
    again.open()
    assert again.has("a", "clag")
    assert not again.has("a", "rag")
    assert [block.pool for block in again.blocks] == ["a", "b"]
    assert again.blocks[0].rows == _block("a").rows
    assert again.blocks[0].notes == ("a note",)


def test_a_block_that_was_being_written_when_the_run_ended_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "run.json.partial"
    first = Kept(path, _SETTINGS)
    first.add(_block("a"))
    first.add(_block("b"))
    path.write_text(path.read_text("utf-8")[:-40], "utf-8")
    again = Kept(path, _SETTINGS)
    again.open()
    again.add(_block("c"))
    last = Kept(path, _SETTINGS)
    last.open()
    assert [block.pool for block in last.blocks] == ["a", "c"]


def test_a_run_with_other_settings_does_not_go_on_with_a_file_and_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "run.json.partial"
    Kept(path, _SETTINGS).add(_block("a"))
    with pytest.raises(DataError, match="other settings; delete it"):
        Kept(path, {**_SETTINGS, "budgets": [1024]}).open()


def test_damage_inside_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "run.json.partial"
    kept = Kept(path, _SETTINGS)
    kept.add(_block("a"))
    kept.add(_block("b"))
    lines = path.read_text("utf-8").splitlines()
    path.write_text("\n".join([lines[0], "{", lines[2]]), "utf-8")
    with pytest.raises(DataError, match="line 2 is damaged"):
        Kept(path, _SETTINGS).open()


def test_without_a_file_blocks_are_kept_in_memory_alone() -> None:
    kept = Kept(None, _SETTINGS)
    kept.open()
    kept.add(_block("a"))
    kept.discard()
    assert kept.has("a", "clag")
