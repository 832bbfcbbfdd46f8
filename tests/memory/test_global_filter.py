"""A question to the whole namespace under a filter: as many hits as asked for, where so many are permitted."""

from __future__ import annotations

from pathlib import Path

import pytest

from clag_server.memory import safety_net
from clag_server.types.filters import Comparison, FilterField, Operator
from clag_server.types.retrieval import MemoryHits, RetrieveMode, RetrieveQuery
from tests.memory.system import NAMESPACE, remember, system_on

WANTED = 6


@pytest.mark.parametrize("few_permitted", [0, 2_000])
async def test_a_filter_whose_memories_are_far_from_the_question_still_fills_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_permitted: int
) -> None:
    monkeypatch.setattr(safety_net, "_GLOBAL_DENSE", 5)  # the nearest are all forbidden
    monkeypatch.setattr(safety_net, "_FEW_PERMITTED", few_permitted)
    async with system_on(tmp_path) as system:
        await remember(system, [f"the pallet in aisle {n}" for n in range(20)])
        far = [f"violin sonata number {n}" for n in range(8)]
        await remember(system, far, session="music", first=20, tags=("rare",))
        query = RetrieveQuery(
            NAMESPACE,
            "where is the pallet",
            mode=RetrieveMode.GLOBAL,
            max_memories=WANTED,
            where=Comparison(field=FilterField.TAG, attribute="", operator=Operator.EQ, value="rare"),
        )
        stages = [stage async for stage in system.retrieve(query)]
    hits = [hit for stage in stages if isinstance(stage, MemoryHits) for hit in stage.hits]
    assert len(hits) == WANTED
    assert {hit.memory.tags for hit in hits} == {("rare",)}
