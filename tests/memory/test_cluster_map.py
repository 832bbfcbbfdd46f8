"""A map that is loaded from the catalog knows all that one knows that grew step by step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clag_server.memory.centroids import rows_of_one, unit
from clag_server.memory.cluster_map import ClusterMap
from clag_server.memory.config import OrganizeConfig
from clag_server.memory.routing_candidates import choice_for
from clag_server.types.cluster import Episode

DIM = 4


def episode(number: int, session: str, first: int, last: int, *, is_open: bool = False) -> Episode:
    return Episode(
        episode=number,
        session_id=session,
        cluster=1,
        vector_sum=np.full(DIM, number, dtype=np.float32),
        memory_count=last - first + 1,
        first_position=first,
        last_position=last,
        open=is_open,
        last_time_ns=0,
    )


EPISODES = [
    episode(1, "s", 0, 9),
    episode(2, "t", 0, 4),
    episode(3, "s", 10, 19),
    episode(4, "s", 20, 24, is_open=True),
]


def test_a_late_memory_finds_its_run_in_a_loaded_map_as_in_one_that_grew() -> None:
    grown = ClusterMap(DIM, (), ())
    for one in EPISODES:
        grown.put_episode(one)
    loaded = ClusterMap(DIM, EPISODES, ())
    for position in range(26):
        expected = [run.episode for run in grown.runs_around("s", position)]
        assert [run.episode for run in loaded.runs_around("s", position)] == expected
    assert [run.episode for run in loaded.runs_around("s", 12)] == [3]


def test_every_episode_of_a_loaded_map_can_be_removed() -> None:
    loaded = ClusterMap(DIM, EPISODES, ())
    for one in EPISODES:
        loaded.remove_episode(one.episode)
    assert (loaded.memory_count, loaded.episodes, loaded.open_episodes) == (0, {}, {})
    assert loaded.runs_around("s", 12) == ()


def test_vectors_read_as_one_matrix_are_taken_as_they_are_and_others_put_together() -> None:
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    flat = np.frombuffer(whole.tobytes(), dtype=np.float32).reshape(3, 4)
    for matrix in (whole, flat):
        found = rows_of_one(list(matrix))
        assert found is not None
        assert np.shares_memory(found, matrix)
        assert np.array_equal(found, matrix)
    # In another order, with one that is not of it, fewer of them, its columns: they are not the matrix.
    strangers = [whole[0], np.array(whole[1]), whole[2]]
    for vectors in (list(whole[::-1]), strangers, list(whole[:2]), list(whole.T)):
        assert rows_of_one(vectors) is None
    for order in ([0, 1, 2], [2, 0, 1]):
        episodes = [replace(EPISODES[i], vector_sum=whole[i]) for i in order]
        table = ClusterMap(DIM, episodes, ()).episode_centroids
        for i in order:
            assert np.allclose(table.get(EPISODES[i].episode), unit(whole[i]))


def test_nothing_is_chosen_for_an_episode_whose_cluster_went_meanwhile() -> None:
    emptied = ClusterMap(DIM, (), ())
    assert choice_for(emptied, OrganizeConfig(), EPISODES[0]) is None
