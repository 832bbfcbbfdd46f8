"""The size of the data directory is measured as seldom as it is expensive."""

from __future__ import annotations

from pathlib import Path

import pytest

from clag_server.ops import directories
from clag_server.ops.directories import DirectorySize


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_size_is_measured_again_after_twenty_times_what_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    walks = 0
    measure = directories.directory_bytes

    def slow(path: Path) -> int:
        nonlocal walks
        walks += 1
        clock.now_s += 3.0
        return measure(path)

    monkeypatch.setattr(directories, "directory_bytes", slow)
    size = DirectorySize(tmp_path, clock)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_bytes(b"x" * 700)
    assert size() == 700
    (tmp_path / "b").write_bytes(b"x" * 50)
    clock.now_s += 59.0
    assert (size(), walks) == (700, 1)
    clock.now_s += 2.0
    assert (size(), walks) == (750, 2)


def test_a_cheap_size_is_at_most_a_second_old(tmp_path: Path) -> None:
    clock = Clock()
    size = DirectorySize(tmp_path, clock)
    assert size() == 0
    (tmp_path / "a").write_bytes(b"x")
    assert size() == 0
    clock.now_s += 1.1
    assert size() == 1
