"""Outcomes of the probe are kept for one model and one version, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clag_server.memory.probing.reports import ReportFolder, report_from, report_to
from clag_server.types.competence import ProbeReport, Skill, SkillResult

REPORT = ProbeReport(
    model="model-1",
    version="v1",
    skills=tuple(SkillResult(skill, 60, 0.75, 0.63, 0.84, 0.5, 1.0, 0.1, 2.0) for skill in Skill),
    decisions_per_second=4.5,
    time_ns=1_700_000_000_000_000_000,
)


def test_an_outcome_is_read_as_it_was_kept(tmp_path: Path) -> None:
    folder = ReportFolder(tmp_path / "probe")
    assert folder.load("model-1 abc", "v1") is None
    folder.keep("model-1 abc", REPORT)
    assert ReportFolder(tmp_path / "probe").load("model-1 abc", "v1") == REPORT


def test_another_model_or_version_has_no_outcome(tmp_path: Path) -> None:
    folder = ReportFolder(tmp_path)
    folder.keep("model-1 abc", REPORT)
    assert folder.load("model-1 abd", "v1") is None
    assert folder.load("model-1 abc", "v2") is None


def test_a_file_under_another_models_name_is_not_believed(tmp_path: Path) -> None:
    folder = ReportFolder(tmp_path)
    folder.keep("model-1", REPORT)
    (mine,) = tmp_path.glob("*.json")
    folder.keep("model-2", REPORT)
    (other,) = set(tmp_path.glob("*.json")) - {mine}
    other.write_text(mine.read_text("utf-8"), "utf-8")
    assert folder.load("model-2", "v1") is None


def _without_skills(values: dict[str, Any]) -> None:
    del values["report"]["skills"]


def _with_a_weight_of(weight: object) -> Callable[[dict[str, Any]], None]:
    def damage(values: dict[str, Any]) -> None:
        values["report"]["skills"][0]["weight"] = weight

    return damage


@pytest.mark.parametrize(
    "damage", [_without_skills, *map(_with_a_weight_of, (1e9, -1, "4", None, True, float("nan")))]
)
def test_a_damaged_outcome_counts_as_none(tmp_path: Path, damage: Callable[[dict[str, Any]], None]) -> None:
    folder = ReportFolder(tmp_path)
    folder.keep("model-1", REPORT)
    (path,) = tmp_path.glob("*.json")
    values = json.loads(path.read_text("utf-8"))
    damage(values)
    path.write_text(json.dumps(values), "utf-8")
    assert folder.load("model-1", "v1") is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_a_file_that_is_no_outcome_counts_as_none(tmp_path: Path, content: bytes) -> None:
    folder = ReportFolder(tmp_path)
    folder.keep("model-1", REPORT)
    (path,) = tmp_path.glob("*.json")
    path.write_bytes(content)
    assert folder.load("model-1", "v1") is None
    folder.keep("model-1", REPORT)
    assert folder.load("model-1", "v1") == REPORT


def test_an_outcome_survives_the_way_through_an_operation() -> None:
    assert report_from(json.loads(json.dumps(report_to(REPORT)))) == REPORT
