"""Filters mean the same in SQL as the same tree evaluated in Python, and their values are only ever data."""

from __future__ import annotations

import asyncio
import operator
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clag_server.catalog.api import Catalog
from clag_server.catalog.filters import written_number
from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.types.cluster import PlacementPlan
from clag_server.types.errors import InvalidField
from clag_server.types.filters import And, Comparison, Filter, FilterField, Not, Operator, Or
from clag_server.types.memory import AttributeValue, Memory, MemoryKind, MemoryState, NewMemory
from tests.catalog import support

NOW = support.NOW
HOSTILE = ['") or true or ("', "x'] or id not in ['zzz", "../../../../victim", "a%", "a_", '"; drop table memories']

TEXT_FIELDS = {
    FilterField.MEMORY_ID,
    FilterField.SESSION_ID,
    FilterField.SPEAKER,
    FilterField.TASK,
    FilterField.TEXT,
    FilterField.SUPERSEDED_BY,
}

texts = st.sampled_from(["", "a", "A", "ab", "abc", "猫", "1", "true", "é", '"q"', "[", *HOSTILE])
numbers = st.one_of(
    st.sampled_from([0, 1, -1, 2, 2**53 + 1, 2**63 - 1, -(2**63)]),
    st.sampled_from([0.0, 1.0, 0.1, 0.30000000000000004, 1e300, 5e-324, -2.5, 123456789.12345679]),
    st.floats(allow_nan=False, allow_infinity=False),
)
lists = st.lists(texts, max_size=3).map(tuple)
values: st.SearchStrategy[AttributeValue] = st.one_of(texts, numbers, st.booleans(), lists)
names = st.sampled_from(
    ["n", "s", "namespace", "id", "cluster_id", "vector", "$meta", 'we"ird', "$.n", "a.b", "猫", ""]
)

memories = st.builds(
    NewMemory,
    text=texts,
    memory_id=st.sampled_from(["", "m1", "m2", "m3"]),
    supersedes=st.lists(st.sampled_from(["m1", "m2", "m3"]), max_size=2).map(tuple),
    kind=st.sampled_from(MemoryKind),
    task=texts,
    speaker=texts,
    session_id=texts,
    tags=lists,
    attributes=st.dictionaries(names, values, max_size=4),
    importance=st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0])),
    event_time_ns=st.one_of(st.none(), st.integers(-3, 3)),
    expire_time_ns=st.one_of(st.none(), st.integers(-3, 3)),
)

operand = st.one_of(values, st.none(), st.lists(st.one_of(texts, numbers, st.booleans()), max_size=3).map(tuple))
comparisons = st.builds(
    Comparison,
    field=st.one_of(st.none(), st.sampled_from(FilterField)),
    attribute=names,
    operator=st.sampled_from(Operator),
    value=operand,
)
trees: st.SearchStrategy[Filter] = st.recursive(
    comparisons,
    lambda part: st.one_of(
        st.lists(part, max_size=3).map(lambda parts: And(tuple(parts))),
        st.lists(part, max_size=3).map(lambda parts: Or(tuple(parts))),
        part.map(Not),
    ),
    max_leaves=6,
)

_ORDER: Mapping[Operator, Callable[[Any, Any], bool]] = {
    Operator.EQ: operator.eq,
    Operator.NE: operator.ne,
    Operator.LT: operator.lt,
    Operator.LE: operator.le,
    Operator.GT: operator.gt,
    Operator.GE: operator.ge,
}


def matches(where: Filter, memory: Memory) -> bool:
    """Evaluate a tree in plain Python."""
    if isinstance(where, And):
        return all(matches(part, memory) for part in where.parts)
    if isinstance(where, Or):
        return any(matches(part, memory) for part in where.parts)
    if isinstance(where, Not):
        return not matches(where.part, memory)
    if where.field is FilterField.TAG:
        return tag_matches(where, memory.tags + memory.evolved_tags)
    stored = field_of(where, memory)
    if where.operator is Operator.EXISTS:
        return stored is not None
    if stored is None:
        return where.operator is Operator.NE and fits(where)
    if where.field is None and where.operator is Operator.IN and isinstance(where.value, tuple):
        numbers = [number for value in where.value if (number := written_number(value)) is not None]
        return compare(Operator.IN, stored, (*where.value, *numbers))
    return compare(where.operator, stored, where.value)


def fits(where: Comparison) -> bool:
    """Whether a comparison's value is of its field's type (an attribute takes any)."""
    if where.field is None:
        return where.value is not None
    return sort_of(where.value) is (str if where.field in TEXT_FIELDS else float)


def field_of(where: Comparison, memory: Memory) -> AttributeValue | None:
    if where.field is None:
        return memory.attributes.get(where.attribute)
    stored: dict[FilterField, AttributeValue | None] = {
        FilterField.MEMORY_ID: memory.memory_id or None,
        FilterField.CLUSTER_ID: memory.cluster,
        FilterField.SESSION_ID: memory.session_id or None,
        FilterField.SPEAKER: memory.speaker or None,
        FilterField.TASK: memory.task or None,
        FilterField.KIND: int(memory.kind),
        FilterField.STATE: int(memory.state),
        FilterField.EVENT_TIME: memory.event_time_ns,
        FilterField.CREATE_TIME: memory.create_time_ns,
        FilterField.UPDATE_TIME: memory.update_time_ns,
        FilterField.EXPIRE_TIME: memory.expire_time_ns,
        FilterField.IMPORTANCE: memory.importance,
        FilterField.CONFIDENCE: memory.confidence,
        FilterField.TEXT: memory.text or None,
        FilterField.EPISODE_ID: memory.episode,
        FilterField.SUPERSEDED_BY: memory.superseded_by or None,
    }
    return stored[where.field]


def tag_matches(where: Comparison, tags: tuple[str, ...]) -> bool:
    if where.operator is Operator.EXISTS:
        return bool(tags)
    if where.operator is Operator.NE:
        return isinstance(where.value, str) and where.value not in tags
    if where.operator is Operator.CONTAINS:
        return where.value in tags
    return any(compare(where.operator, tag, where.value) for tag in tags)


def compare(op: Operator, stored: AttributeValue, value: Any) -> bool:
    if op is Operator.IN:
        return isinstance(value, tuple) and any(compare(Operator.EQ, stored, one) for one in value)
    if op is Operator.CONTAINS:
        return isinstance(stored, str | tuple) and isinstance(value, str) and value in stored
    if isinstance(stored, tuple) and isinstance(value, str) and op in {Operator.EQ, Operator.NE}:
        return (value in stored) is (op is Operator.EQ)
    if value is None or sort_of(stored) is not sort_of(value):
        return False
    if sort_of(stored) in {bool, tuple} and op not in {Operator.EQ, Operator.NE}:
        return False
    return _ORDER[op](stored, value)


def sort_of(value: object) -> type:
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


async def place_some(catalog: Catalog, ns: int, keys: list[int]) -> None:
    """Put memories into cluster 1 and episode 2; the others have neither."""
    plan = PlacementPlan(
        clusters=[support.cluster(1, count=len(keys))],
        episodes=[support.episode(2, 1, [support.unit(key) for key in keys], is_open=True)],
        placements=[support.placement(key, 1, 2) for key in keys],
    )
    await catalog.apply_plan(ns, plan, now_ns=NOW + 1)


async def assert_same(items: list[NewMemory], wheres: list[Filter]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        catalog = SqliteCatalog(Path(folder) / "catalog.db", readers=1)
        await catalog.open()
        try:
            ns = (await support.namespace(catalog)).ns
            stored = await support.store(catalog, ns, items)
            await place_some(catalog, ns, [item.key for item in stored if item.key is not None][::2])
            everything = (await catalog.list_memories(ns, where=None, after=0, limit=1000)).memories
            for where in wheres:
                found = (await catalog.list_memories(ns, where=where, after=0, limit=1000)).memories
                assert [m.key for m in found] == [m.key for m in everything if matches(where, m)], where
        finally:
            await catalog.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(memories, min_size=1, max_size=12), st.lists(trees, min_size=10, max_size=25))
def test_a_filter_selects_what_python_would(items: list[NewMemory], wheres: list[Filter]) -> None:
    asyncio.run(assert_same(items, wheres))


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=5, max_size=40))
def test_a_stored_double_equals_itself(floats: list[float]) -> None:
    items = [NewMemory(text="x", attributes={"n": value}) for value in floats]
    asyncio.run(assert_same(items, [Comparison(None, "n", Operator.EQ, value) for value in floats]))


async def test_values_of_another_type_never_match(catalog: Catalog, ns: int) -> None:
    await support.store(catalog, ns, [NewMemory(text="x", attributes={"a": 1, "b": True, "c": "1"})])

    async def found(attribute: str, value: AttributeValue) -> int:
        where = Comparison(None, attribute, Operator.EQ, value)
        return len((await catalog.list_memories(ns, where=where, after=0, limit=5)).memories)

    assert [await found("a", 1), await found("a", 1.0), await found("b", True), await found("c", "1")] == [1] * 4
    assert [await found("a", True), await found("a", "1"), await found("b", 1), await found("c", 1)] == [0] * 4


async def test_in_matches_numbers_that_are_written_in_its_strings(catalog: Catalog, ns: int) -> None:
    await support.store(
        catalog, ns, [NewMemory(text="x", attributes={"a": value}) for value in (5, 5.5, "5", True, "x")]
    )
    where = Comparison(None, "a", Operator.IN, ("5", "5.5", "true", "NaN"))
    found = (await catalog.list_memories(ns, where=where, after=0, limit=9)).memories
    assert [memory.attributes["a"] for memory in found] == [5, 5.5, "5"]


async def test_a_caller_attribute_never_changes_the_scope(catalog: Catalog, ns: int) -> None:
    other = (await support.namespace(catalog, "other")).ns
    await support.store(catalog, other, [NewMemory(text="x", attributes={"namespace": ns, "id": "1", "ns": ns})])
    for attribute in ("namespace", "ns", "id"):
        where = Or((Comparison(None, attribute, Operator.EXISTS, None), And(())))
        assert (await catalog.list_memories(ns, where=where, after=0, limit=5)).memories == []
        assert (await catalog.matching_keys(ns, where, limit=5)).keys.tolist() == []


async def test_matching_keys_are_embedded_memories_with_their_episodes(catalog: Catalog, ns: int) -> None:
    keys = await support.store_keys(catalog, ns, 4)
    plan = PlacementPlan(
        clusters=[support.cluster(1, count=2)],
        episodes=[support.episode(7, 1, [support.unit(keys[1]), support.unit(keys[3])], is_open=True)],
        placements=[support.placement(keys[3], 1, 7), support.placement(keys[1], 1, 7)],
    )
    await catalog.apply_plan(ns, plan, now_ns=NOW)
    found = await catalog.matching_keys(ns, And(()), limit=10)
    assert (found.keys.tolist(), found.episodes.tolist()) == ([keys[1], keys[3]], [7, 7])
    assert (await catalog.matching_keys(ns, And(()), limit=1)).keys.tolist() == [keys[1]]
    state = Comparison(FilterField.STATE, "", Operator.EQ, int(MemoryState.EMBEDDED))
    in_cluster = Comparison(FilterField.CLUSTER_ID, "", Operator.IN, (1, 2))
    assert len((await catalog.matching_keys(ns, And((state, in_cluster)), limit=9)).keys) == 2


async def test_a_tree_of_many_parts_works_and_one_of_too_many_is_refused(catalog: Catalog, ns: int) -> None:
    await support.store_keys(catalog, ns, 1)
    part = Comparison(FilterField.SESSION_ID, "", Operator.EQ, "s")
    many = And((part,) * 255)
    assert len((await catalog.list_memories(ns, where=many, after=0, limit=5)).memories) == 1
    deep: Filter = part
    for _ in range(14):
        deep = Not(And((deep, part)))
    with pytest.raises(InvalidField):
        await catalog.list_memories(ns, where=deep, after=0, limit=5)
    attribute: Filter = Comparison(None, "a", Operator.NE, "x")
    for _ in range(7):
        attribute = Not(And((attribute, part)))
    assert len((await catalog.list_memories(ns, where=Not(attribute), after=0, limit=5)).memories) == 1
    with pytest.raises(InvalidField):
        await catalog.list_memories(ns, where=And((part,) * 256), after=0, limit=5)
