"""Collecting garbage waits until the server is open, and leaves the process as it was."""

from __future__ import annotations

import gc

import pytest

from clag_server.ops.garbage import collected_when_open, settle


def test_nothing_is_collected_until_the_server_is_open_and_what_it_began_with_never() -> None:
    before = gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()
    with collected_when_open():
        assert not gc.isenabled()
        settle()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 1_000
        assert gc.get_threshold()[0] > before[1][0]
    assert (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()) == before


def test_a_start_that_fails_leaves_collecting_as_it_was() -> None:
    before = gc.isenabled()
    with pytest.raises(RuntimeError), collected_when_open():
        raise RuntimeError
    assert gc.isenabled() is before
