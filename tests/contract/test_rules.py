"""What the rules of the contract refuse, and how they say it."""

from __future__ import annotations

from typing import Any

import pytest
from clag.v1 import types_pb2
from hypothesis import given

from clag_server.contract.pool import strict_class
from clag_server.contract.violations import MAX_VIOLATIONS, embedding_violation, violations
from tests.contract.strategies import memory_inputs


def make(name: str, **fields: Any) -> Any:
    return strict_class(f"clag.v1.{name}")(**fields)


def broken(message: Any) -> dict[str, str]:
    return {found.field: found.description for found in violations(message)}


@given(memory_inputs())
def test_an_input_within_the_limits_breaks_no_rule(item: types_pb2.MemoryInput) -> None:
    strict = strict_class("clag.v1.MemoryInput").FromString(item.SerializeToString())
    assert violations(strict) == ()


@pytest.mark.parametrize(
    ("fields", "path", "said"),
    [
        ({"text": ""}, "text", "1 byte"),
        ({"text": "x" * 32_769}, "text", "32768 bytes"),
        ({"text": "猫" * 11_000}, "text", "32768 bytes"),
        ({"text": "frame\x00 12 ok"}, "text", "NUL"),
        ({"text": "a", "tags": ["fine", "b\x00"]}, "tags[1]", "NUL"),
        ({"text": "a", "tags": [""]}, "tags[0]", "1 byte"),
        ({"text": "a", "tags": ["t"] * 33}, "tags", "32"),
        ({"text": "a", "speaker": "s" * 129}, "speaker", "128 bytes"),
        ({"text": "a", "memory_id": "../../victim"}, "memory_id", "must be at most 128 of A-Z a-z 0-9"),
        ({"text": "a", "memory_id": "x" * 129}, "memory_id", "must be at most 128 of"),
        ({"text": "a", "supersedes": ["ok", ""]}, "supersedes[1]", "must be 1 to 128 of"),
        ({"text": "a", "memory_id": "m", "supersedes": ["x", "m"]}, "supersedes", "itself"),
        ({"text": "a", "kind": 99}, "kind", "defined"),
        ({"text": "a", "importance": 1.5}, "importance", "1"),
        ({"text": "a", "importance": float("nan")}, "importance", "1"),
        ({"text": "a", "event_time": {"seconds": 9_214_646_400}}, "event_time", "2262"),
        ({"text": "a", "expire_time": {"seconds": -9_214_560_001}}, "expire_time", "1678"),
        ({"text": "a", "expire_time": {"nanos": 2_000_000_000}}, "expire_time.nanos", "2000000000"),
        ({"text": "a", "event_time": {"seconds": 2**62}}, "event_time", "2262"),
        ({"text": "a", "embedding": [1.0, float("nan")]}, "embedding[1]", "nan"),
        ({"text": "a", "embedding": [float("inf"), 0.0]}, "embedding[0]", "inf"),
        ({"text": "a", "embedding": [0.0, 0.0]}, "embedding", "zero"),
        ({"text": "a", "embedding": [1.0] * 4_097}, "embedding", "4096"),
    ],
)
def test_a_bad_input_is_refused_with_the_field_and_the_limit(fields: dict[str, Any], path: str, said: str) -> None:
    found = broken(make("MemoryInput", **fields))
    assert list(found) == [path]
    assert said in found[path]


def test_attributes_are_refused_by_key_and_by_value() -> None:
    item = make("MemoryInput", text="a")
    item.attributes["load"].double_value = float("inf")
    item.attributes["none"].SetInParent()
    item.attributes["k\x00"].bool_value = True
    found = broken(item)
    assert set(found) == {'attributes["load"].double_value', 'attributes["none"].value', 'attributes["k\\u0000"]'}
    assert "key" in found['attributes["k\\u0000"]']


def test_attributes_named_like_our_own_fields_are_plain_data() -> None:
    item = make("MemoryInput", text="a")
    for key in ("namespace", "id", "cluster_id", "vector", "$meta", '") or true or ("'):
        item.attributes[key].string_value = "x"
    assert violations(item) == ()


def test_a_huge_but_finite_embedding_is_allowed() -> None:
    assert embedding_violation([3e38, 3e38], field="embedding") is None
    assert embedding_violation([1e-30, 0.0], field="embedding") is None


@pytest.mark.parametrize("namespace", ["", " ", "A", "-a", "a/b", "../x", "a" * 64, "a_b", "a\n"])
def test_a_namespace_that_is_no_name_is_refused_everywhere(namespace: str) -> None:
    for name in ("GetMemoryRequest", "DeleteMemoryRequest", "ListMemoriesRequest", "RetrieveRequest", "IngestOpen"):
        assert "namespace" in broken(make(name, namespace=namespace)), name


@pytest.mark.parametrize("memory_id", ["", " ", "a b", "x\x00"])
def test_deleting_without_a_proper_id_is_refused(memory_id: str) -> None:
    assert "memory_id" in broken(make("DeleteMemoryRequest", namespace="a", memory_id=memory_id))


def test_asking_for_too_many_memories_is_refused_with_the_limit() -> None:
    request = make("RetrieveRequest", namespace="a", query={"text": "x"}, max_memories=1_000)
    assert "256" in broken(request)["max_memories"]


def test_page_sizes_are_left_to_be_clamped() -> None:
    assert violations(make("ListMemoriesRequest", namespace="a", page_size=10**9)) == ()


def test_a_query_needs_words_or_numbers() -> None:
    assert broken(make("RetrieveRequest", namespace="a", query={})) == {"query": "text or embedding must be set"}
    assert "query" in broken(make("RetrieveRequest", namespace="a"))
    assert violations(make("RetrieveRequest", namespace="a", query={"embedding": [1.0]})) == ()


@pytest.mark.parametrize(
    "text", ["```", "the of", "()", "a|b/c", '"unbalanced', "*", "NEAR(", "title:", "😀", "q" * 32_768]
)
def test_a_query_of_any_characters_is_plain_text(text: str) -> None:
    assert violations(make("RetrieveRequest", namespace="a", query={"text": text})) == ()


def test_a_batch_is_not_refused_for_its_items() -> None:
    frame = make("IngestRequest")
    frame.batch.first_seq = 1
    frame.batch.items.add(text="")
    frame.batch.items.add(text="ok", embedding=[float("nan")])
    assert violations(frame) == ()
    assert set(broken(frame.batch.items[0])) == {"text"}


def test_a_batch_is_refused_for_its_own_limits() -> None:
    frame = make("IngestRequest")
    frame.batch.items.extend([make("MemoryInput", text="a")] * 257)
    assert set(broken(frame)) == {"batch.first_seq", "batch.items"}
    assert "256" in broken(frame)["batch.items"]
    assert set(broken(make("IngestRequest"))) == {"frame"}


def test_a_violation_deep_in_a_filter_is_named_by_its_path() -> None:
    request = make("ListMemoriesRequest", namespace="a")
    comparison = request.filter.all.filters.add().negation.comparison
    comparison.field = types_pb2.FILTER_FIELD_EVENT_TIME
    comparison.op = types_pb2.FILTER_OPERATOR_LT
    comparison.time_value.nanos = -2_000_000_000
    assert set(broken(request)) == {"filter.all.filters[0].negation.comparison.time_value.nanos"}


def test_an_error_stays_small_however_much_is_wrong() -> None:
    item = make("MemoryInput", text="a")
    for number in range(60):
        item.attributes["k" * 5_000 + str(number)].SetInParent()
    found = violations(item)
    assert len(found) == MAX_VIOLATIONS
    assert sum(len(one.field) + len(one.description) for one in found) < 4_096


def test_a_prefix_makes_paths_those_of_the_request() -> None:
    found = violations(make("MemoryInput", text="", tags=[""]), prefix="memory.")
    assert [one.field for one in found] == ["memory.text", "memory.tags[0]"]
