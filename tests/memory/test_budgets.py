"""A language model is asked as often as the budget allows, and a slow one falls behind for a bounded time."""

from __future__ import annotations

import pytest

from clag_server.memory.budgets import SlmBudget
from clag_server.memory.config import OrganizeConfig

S_NS = 10**9
HOUR_NS = 3_600 * S_NS


def budget(*, per_hour: int = 0, behind_s: float = 600.0) -> SlmBudget:
    return SlmBudget(OrganizeConfig(slm_calls_per_hour=per_hour, slm_behind_s=behind_s))


def test_without_a_bound_every_call_is_granted() -> None:
    assert budget().grant(10_000, now_ns=0, patient=False) == 10_000


def test_an_hours_worth_may_be_used_at_once_and_comes_back_evenly() -> None:
    one = budget(per_hour=60)
    assert one.grant(100, now_ns=0, patient=False) == 60
    assert one.grant(1, now_ns=30 * S_NS, patient=False) == 0
    assert one.grant(5, now_ns=150 * S_NS, patient=False) == 2
    assert one.grant(100, now_ns=10 * HOUR_NS, patient=False) == 60


def test_a_clock_that_is_set_back_grants_nothing_more() -> None:
    one = budget(per_hour=60)
    one.grant(60, now_ns=HOUR_NS, patient=False)
    assert one.grant(1, now_ns=0, patient=False) == 0


def test_in_any_hour_no_more_than_twice_the_bound_is_granted() -> None:
    one = budget(per_hour=30)
    granted = sum(one.grant(3, now_ns=minute * 60 * S_NS, patient=False) for minute in range(60))
    assert 30 <= granted <= 60


def test_a_backlog_that_lasts_too_long_is_done_without_the_model_until_it_is_gone() -> None:
    one = budget(behind_s=600)
    one.looked(more=True, now_ns=0)
    assert one.grant(64, now_ns=600 * S_NS, patient=False) == 64
    one.looked(more=True, now_ns=601 * S_NS)
    assert one.grant(64, now_ns=601 * S_NS, patient=False) == 0
    one.looked(more=False, now_ns=602 * S_NS)
    assert one.grant(3, now_ns=602 * S_NS, patient=False) == 3


def test_what_may_wait_is_asked_about_however_long_it_takes() -> None:
    one = budget(behind_s=600)
    one.looked(more=True, now_ns=0)
    assert one.grant(64, now_ns=HOUR_NS, patient=True) == 64


@pytest.mark.parametrize("age_s", [601, 10**6])
def test_with_no_bound_on_the_backlog_the_model_is_asked_for_ever(age_s: int) -> None:
    one = budget(behind_s=0)
    one.looked(more=True, now_ns=0)
    assert one.grant(64, now_ns=age_s * S_NS, patient=False) == 64
