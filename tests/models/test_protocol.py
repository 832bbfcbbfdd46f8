"""Frames survive the way to the worker and back; anything else is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clag_server.models import protocol

texts = st.text(st.characters(exclude_categories=["Cs"]))
frames = st.one_of(
    st.builds(protocol.Embed, st.integers(0, 2**40), st.integers(0, 2), st.lists(texts)),
    st.builds(
        protocol.ChooseBatch,
        st.integers(0, 2**40),
        st.integers(0, 2),
        st.lists(texts),
        st.lists(st.lists(st.lists(texts, min_size=2, max_size=2))),
    ),
    st.builds(
        protocol.Generate,
        st.integers(0, 2**40),
        st.integers(0, 2),
        texts,
        st.none() | texts,
        st.integers(1, 10**6),
    ),
    st.builds(protocol.Failed, st.integers(0, 2**40), st.booleans(), texts),
)


@given(frames)
def test_a_frame_is_read_back_as_it_was_written(frame: protocol.Frame) -> None:
    data = protocol.encode(frame)
    assert protocol.frame_length(data[:4]) == len(data) - 4
    assert protocol.decode(data[4:]) == frame


@given(st.binary(max_size=200))
def test_bytes_that_are_no_frame_are_refused(data: bytes) -> None:
    with pytest.raises(protocol.FrameError):
        protocol.decode(data)


def test_a_length_past_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(protocol.FrameError, match="the limit is"):
        protocol.frame_length(struct.pack(">I", protocol.MAX_FRAME_BYTES + 1))


def test_vectors_whose_bytes_do_not_fit_their_shape_are_refused() -> None:
    with pytest.raises(protocol.FrameError):
        protocol.Vectors(1, 2, 3, b"\0" * 20, 1, 0.0).array()
