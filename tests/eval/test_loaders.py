from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from clag_eval.data import DataError, limited, shuffled
from clag_eval.loaders import load
from tests.eval import samples

_SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
_LOCOMO = Path(os.environ.get("CLAG_DATA", _SHARED)) / "locomo" / "locomo10.json"


def test_evidence_of_locomo_is_read_however_it_is_written(tmp_path: Path) -> None:
    (pool,) = load(f"locomo:{samples.locomo(tmp_path / 'l.json')}").pools
    assert [question.evidence for question in pool.questions] == [
        ("D1:1",),
        ("D1:3",),
        ("D2:1", "D2:2"),
        ("D2:3",),
    ]


def test_a_locomo_question_without_evidence_is_left_out_and_counted(tmp_path: Path) -> None:
    data = load(f"locomo:{samples.locomo(tmp_path / 'l.json')}")
    assert (data.questions, data.left_out) == (4, 1)


def test_answers_of_locomo_are_texts_and_unanswerable_questions_have_none(tmp_path: Path) -> None:
    (pool,) = load(f"locomo:{samples.locomo(tmp_path / 'l.json')}").pools
    assert [question.answer for question in pool.questions] == ["north pier", "40", "rye", None]


def test_a_turn_of_locomo_has_its_sessions_time_and_its_images_caption(tmp_path: Path) -> None:
    (pool,) = load(f"locomo:{samples.locomo(tmp_path / 'l.json')}").pools
    bread = pool.memories[3]
    assert bread.text.endswith("on Fridays. [image: a loaf on a table]")
    assert (bread.session, bread.time) == ("session_2", datetime(2023, 5, 12, 9, 5, tzinfo=UTC))


def test_chunks_keep_their_order_and_have_no_speaker_and_no_time(tmp_path: Path) -> None:
    (pool,) = load(f"bioasq:{samples.chunks(tmp_path / 'b.json')}").pools
    assert [memory.id for memory in pool.memories] == [f"0:{row}" for row in range(6)]
    assert {(memory.speaker, memory.time) for memory in pool.memories} == {("", None)}
    assert pool.questions[0].evidence == ("0:0", "0:1")


def test_a_directory_of_chats_is_a_pool_a_file(tmp_path: Path) -> None:
    message = {"speaker": "Ada", "clean_text": "Hello", "date_time": "29.12.2023, 20:14:02", "dia_id": "D1:01"}
    chat = {"session_1": [message], "qa": [{"question": "Who greets?", "answer": "Ada", "evidence": "D1:1"}]}
    for name in ("chat_a", "chat_b"):
        (tmp_path / f"{name}.json").write_text(json.dumps(chat), "utf-8")
    data = load(f"realtalk:{tmp_path}")
    assert [pool.name for pool in data.pools] == ["chat_a", "chat_b"]
    assert data.pools[0].memories[0].time == datetime(2023, 12, 29, 20, 14, 2, tzinfo=UTC)
    assert data.pools[0].questions[0].evidence == ("D1:1",)


def test_json_lines_are_parted_by_pool(tmp_path: Path) -> None:
    data = load(f"jsonl:{samples.lines(tmp_path)}")
    found = [(pool.name, len(pool.memories), len(pool.questions)) for pool in data.pools]
    assert found == [("p0", 6, 2), ("p1", 6, 2)]


def test_the_examples_stream_of_the_product_can_be_evaluated_as_it_is() -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "warehouse_robot"
    data = load(f"jsonl:{example}")
    assert data.questions == 20


@pytest.mark.parametrize("spec", ["locomo", "unknown:x.json", ":x"])
def test_data_that_is_not_named_as_kind_and_path_is_refused_with_the_kinds(spec: str) -> None:
    with pytest.raises(DataError, match=r"locomo, hotpotqa, bioasq, realtalk, jsonl"):
        load(spec)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.json: No such file"):
        load(f"locomo:{tmp_path / 'nothing.json'}")


@pytest.mark.parametrize("text", ["{", "[1]", '[{"sample_id": 1}]', "{}"])
def test_a_file_of_another_form_is_refused_without_a_traceback(tmp_path: Path, text: str) -> None:
    path = tmp_path / "l.json"
    path.write_text(text, "utf-8")
    with pytest.raises(DataError, match=r"l\.json"):
        load(f"locomo:{path}")


def test_fewer_questions_are_spread_over_the_whole_pool(tmp_path: Path) -> None:
    data = limited(load(f"locomo:{samples.locomo(tmp_path / 'l.json')}"), questions=2)
    assert [question.id for question in data.pools[0].questions] == ["q001", "q003"]


def test_an_unknown_pool_is_refused_with_the_names_that_there_are(tmp_path: Path) -> None:
    data = load(f"jsonl:{samples.lines(tmp_path)}")
    with pytest.raises(DataError, match="p0, p1"):
        limited(data, only=("p9",))


def test_shuffling_keeps_the_memories_loses_sessions_and_is_the_same_for_a_seed(tmp_path: Path) -> None:
    data = load(f"locomo:{samples.locomo(tmp_path / 'l.json')}")
    once, again = shuffled(data, 3), shuffled(data, 3)
    assert once == again
    assert {memory.id for memory in once.pools[0].memories} == {memory.id for memory in data.pools[0].memories}
    assert [memory.id for memory in once.pools[0].memories] != [memory.id for memory in data.pools[0].memories]
    assert {memory.session for memory in once.pools[0].memories} == {""}


@pytest.mark.skipif(not _LOCOMO.exists(), reason="locomo10.json not found; set CLAG_DATA to the data folder")
def test_all_of_locomo_is_1982_questions_on_5882_turns() -> None:
    data = load(f"locomo:{_LOCOMO}")
    assert (data.questions, data.left_out, data.memories) == (1982, 4, 5882)
