"""Values at the edge: embeddings, times, revisions and ids keep what they mean."""

from __future__ import annotations

import numpy as np
import pytest
from clag.v1 import types_pb2
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from clag_server.api.convert_filter import filter_from
from clag_server.api.convert_values import (
    EmbeddingShape,
    attribute_from,
    attribute_to,
    cluster_id,
    cluster_number,
    embedding_from,
    fresh_revision,
    revision,
    time_from,
    time_to,
)
from clag_server.api.errors import PageTokenMismatch
from clag_server.api.paging import page_token, resume_after, resume_after_number, scope_of
from clag_server.types.errors import InvalidField
from clag_server.types.filters import Comparison, FilterField, Operator
from clag_server.types.memory import AttributeValue

times = st.integers(-(2**63), 2**63 - 1)


@given(times)
def test_a_time_survives_to_the_nanosecond(ns: int) -> None:
    stamp = time_to(ns)
    assert 0 <= stamp.nanos < 1_000_000_000
    assert time_from(Timestamp.FromString(stamp.SerializeToString())) == ns


@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1.0, 1e19, 1e37])
def test_an_embedding_of_any_length_is_normalised(scale: float) -> None:
    vector = embedding_from([3.0 * scale, 4.0 * scale], dim=2, field="embedding")
    assert vector is not None
    assert vector.dtype == np.float32
    assert vector == pytest.approx([0.6, 0.8], rel=1e-5)


@pytest.mark.parametrize(("numbers", "word"), [([1.0], "has 1 numbers"), ([0.0, 0.0], "all zero")])
def test_an_embedding_without_length_or_direction_is_refused(numbers: list[float], word: str) -> None:
    with pytest.raises(EmbeddingShape, match=word):
        embedding_from(numbers, dim=2, field="embedding")


@given(st.text(max_size=20), st.integers(0, 2**63 - 1))
def test_a_revision_is_read_back_in_its_namespace_only(namespace: str, number: int) -> None:
    read = types_pb2.ReadOptions(at_least_as_fresh=revision(namespace, number))
    assert fresh_revision(namespace, read) == number
    with pytest.raises(InvalidField, match="not a revision"):
        fresh_revision(f"{namespace}-b", read)


@given(st.integers(0, 2**53))
def test_a_cluster_id_is_read_back(number: int) -> None:
    assert cluster_number(cluster_id(number)) == number


@pytest.mark.parametrize("public_id", ["", "c", "c-1", "C1", "1", "c1 ", "c٣", "c" + "9" * 30])
def test_what_no_cluster_can_be_called_is_none(public_id: str) -> None:
    assert cluster_number(public_id) is None


@given(
    st.one_of(
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.text(st.characters(codec="utf-8"), max_size=10),
        st.lists(st.text(st.characters(codec="utf-8"), max_size=5), max_size=3).map(tuple),
    )
)
def test_an_attribute_keeps_its_type_and_value(value: AttributeValue) -> None:
    back = attribute_from(attribute_to(value))
    assert back == value
    assert type(back) is type(value)


def test_page_tokens_hold_numbers_and_names() -> None:
    scope = scope_of("List", "namespace")
    assert resume_after_number(scope, page_token(scope, 7), start=0) == 7
    assert resume_after(scope, page_token(scope, "acme-corp")) == "acme-corp"
    assert resume_after_number(scope, "", start=-1) == -1
    assert page_token(scope, None) == ""


@pytest.mark.parametrize("after", [7, 123_456, "acme-corp", "0123456789abcdef0123456789abcdef.2.41.900"])
def test_a_page_token_that_is_cut_or_altered_anywhere_is_refused(after: int | str) -> None:
    scope = scope_of("List", "namespace")
    token = page_token(scope, after)
    cut = [token[:end] for end in range(1, len(token))]
    altered = [
        token[:at] + letter + token[at + 1 :]
        for at in range(len(token))
        for letter in "Ab7_"
        if token[at] != letter
    ]
    for damaged in (*cut, *altered, token + "A", token + "="):
        with pytest.raises(PageTokenMismatch):
            resume_after(scope, damaged)


def nested(depth: int) -> types_pb2.Filter:
    """A filter of so many levels."""
    tree = types_pb2.Filter(
        comparison=types_pb2.Comparison(
            field=types_pb2.FilterField.FILTER_FIELD_TAG, op=types_pb2.FilterOperator.FILTER_OPERATOR_EXISTS
        )
    )
    for _ in range(depth - 1):
        tree = types_pb2.Filter(negation=tree)
    return tree


def test_filters_are_bounded_in_depth_and_size_with_the_limit_named() -> None:
    filter_from(nested(8))
    with pytest.raises(InvalidField, match="more than 8 levels"):
        filter_from(nested(9))
    wide = types_pb2.Filter(all=types_pb2.FilterList(filters=[nested(1)] * 128))
    with pytest.raises(InvalidField, match="more than 128 nodes"):
        filter_from(wide)


@pytest.mark.parametrize(
    ("field", "operator", "value"),
    [
        ("IMPORTANCE", "EQ", types_pb2.AttributeValue(string_value="high")),
        ("SPEAKER", "EQ", types_pb2.AttributeValue(int_value=3)),
        ("SPEAKER", "IN", types_pb2.AttributeValue(string_value="anna")),
        ("EVENT_TIME", "LT", types_pb2.AttributeValue(int_value=3)),
        ("EXPIRE_TIME", "LT", types_pb2.AttributeValue(string_value="soon")),
        ("EPISODE_ID", "EQ", types_pb2.AttributeValue(int_value=3)),
        ("SUPERSEDED_BY", "EQ", types_pb2.AttributeValue(bool_value=True)),
        ("TEXT", "EQ", types_pb2.AttributeValue(string_value="only parts are compared")),
    ],
)
def test_an_operand_of_the_wrong_type_is_refused_with_its_field(
    field: str, operator: str, value: types_pb2.AttributeValue
) -> None:
    comparison = types_pb2.Comparison(
        field=types_pb2.FilterField.Value(f"FILTER_FIELD_{field}"),
        op=types_pb2.FilterOperator.Value(f"FILTER_OPERATOR_{operator}"),
        value=value,
    )
    with pytest.raises(InvalidField) as caught:
        filter_from(types_pb2.Filter(comparison=comparison))
    assert caught.value.violations[0].field.startswith("filter.comparison")


def test_every_field_of_the_contract_can_be_compared() -> None:
    names = {name.removeprefix("FILTER_FIELD_") for name, _ in types_pb2.FilterField.items()} - {"UNSPECIFIED"}
    assert names == set(FilterField.__members__)
    for name in names - {"TEXT"}:
        comparison = types_pb2.Comparison(
            field=types_pb2.FilterField.Value(f"FILTER_FIELD_{name}"),
            op=types_pb2.FilterOperator.FILTER_OPERATOR_EXISTS,
        )
        assert filter_from(types_pb2.Filter(comparison=comparison)) == Comparison(
            FilterField[name], "", Operator.EXISTS, None
        )


@pytest.mark.parametrize(("public_id", "number"), [("e12", 12), ("e", -1), ("c12", -1), ("12", -1), ("", -1)])
def test_an_episode_id_that_cannot_exist_matches_nothing(public_id: str, number: int) -> None:
    comparison = types_pb2.Comparison(
        field=types_pb2.FilterField.FILTER_FIELD_EPISODE_ID,
        op=types_pb2.FilterOperator.FILTER_OPERATOR_EQ,
        value=types_pb2.AttributeValue(string_value=public_id),
    )
    expected = Comparison(FilterField.EPISODE_ID, "", Operator.EQ, number)
    assert filter_from(types_pb2.Filter(comparison=comparison)) == expected


@pytest.mark.parametrize("operator", ["IN", "CONTAINS"])
def test_times_have_no_list_operators(operator: str) -> None:
    comparison = types_pb2.Comparison(
        field=types_pb2.FilterField.FILTER_FIELD_UPDATE_TIME,
        op=types_pb2.FilterOperator.Value(f"FILTER_OPERATOR_{operator}"),
        time_value=Timestamp(seconds=1),
    )
    with pytest.raises(InvalidField, match=operator):
        filter_from(types_pb2.Filter(comparison=comparison))
