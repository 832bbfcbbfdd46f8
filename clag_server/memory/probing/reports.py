"""Outcomes of the competence probe as JSON: in an operation, and in one file a model in the data directory.

A file is replaced as a whole. One that cannot be read is no outcome: the log says so, and the model is probed
again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from clag_server.types.competence import FULL_WEIGHT, ChoiceForm, FormResult, ProbeReport, Skill, SkillResult
from clag_server.types.operation import JsonValue

__all__ = ["ReportFolder", "report_from", "report_to"]

_log = structlog.get_logger(__name__)

_SHARES = ("accuracy", "low", "high", "baseline", "valid_rate", "position_bias")


class ReportFolder:
    """Where outcomes are kept.

    Args:
        folder: Made when the first outcome is kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, identity: str, version: str) -> ProbeReport | None:
        """Return the outcome for a model and a version of the probe; None when there is none that can be read."""
        path = self._path(identity, version)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            _log.warning("probe outcome cannot be read", file=path.name, reason=str(error))
            return None
        try:
            kept = json.loads(text)
            report, whose = report_from(kept["report"]), kept["identity"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            _log.warning("probe outcome is damaged and not used", file=path.name, reason=type(error).__name__)
            return None
        return report if (whose, report.version) == (identity, version) else None

    def keep(self, identity: str, report: ProbeReport) -> None:
        """Keep an outcome, in place of an older one. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(identity, report.version)
        text = json.dumps({"identity": identity, "report": report_to(report)}, indent=2)
        part = path.with_suffix(".part")
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)

    def _path(self, identity: str, version: str) -> Path:
        name = hashlib.sha256(f"{identity}\n{version}".encode()).hexdigest()[:32]
        return self._folder / f"{name}.json"


def report_to(report: ProbeReport) -> dict[str, JsonValue]:
    """Return an outcome as JSON values."""
    return {
        "model": report.model,
        "version": report.version,
        "skills": [{**_marks_to(one), "skill": one.skill.name} for one in report.skills],
        "decisions_per_second": report.decisions_per_second,
        "time_ns": report.time_ns,
        "forms": [{**_marks_to(one), "form": one.form.name} for one in report.forms],
        "form": report.form.name,
    }


def report_from(values: Mapping[str, Any]) -> ProbeReport:
    """Return the outcome in JSON values.

    Raises:
        ValueError, KeyError, TypeError: It is none, or a number in it cannot be.
    """
    return ProbeReport(
        model=_text(values["model"]),
        version=_text(values["version"]),
        skills=tuple(_skill(one) for one in values["skills"]),
        decisions_per_second=_number(values["decisions_per_second"], math.inf),
        time_ns=_whole(values["time_ns"]),
        # Operations of servers before there were other forms are kept too.
        forms=tuple(_form(one) for one in values.get("forms", ())),
        form=ChoiceForm[values.get("form", ChoiceForm.CHANNEL.name)],
    )


def _marks_to(one: SkillResult | FormResult) -> dict[str, JsonValue]:
    return {
        **{name: float(getattr(one, name)) for name in (*_SHARES, "weight")},
        "questions": one.questions,
    }


def _skill(values: Mapping[str, Any]) -> SkillResult:
    return SkillResult(skill=Skill[values["skill"]], **_marks(values, SkillResult))


def _form(values: Mapping[str, Any]) -> FormResult:
    return FormResult(form=ChoiceForm[values["form"]], **_marks(values, FormResult))


def _marks(values: Mapping[str, Any], of: type[SkillResult | FormResult]) -> dict[str, Any]:
    """Return the numbers that both kinds of marks have. Raises ValueError for what is none of that kind."""
    known = {field.name for field in dataclasses.fields(of)}
    if not isinstance(values, dict) or set(values) != known:
        raise ValueError("not the marks of a skill or a form")
    shares = {name: _number(values[name], 1.0) for name in _SHARES}
    return {**shares, "questions": _whole(values["questions"]), "weight": _number(values["weight"], FULL_WEIGHT)}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("not a whole number")
    return value


def _number(value: object, most: float) -> float:
    """Return a finite number from 0 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("not a number")
    if not 0 <= value <= most:
        raise ValueError("out of bounds")
    return float(value)
