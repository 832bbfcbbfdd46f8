"""The outcome of the competence probe, from domain to protobuf."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from clag.v1 import admin_service_pb2 as pb

from clag_server.api.convert_values import time_to
from clag_server.types.competence import FormResult, ProbeReport, SkillResult

if TYPE_CHECKING:
    from clag.v1.admin_service_pb2 import ChoiceForm as FormPb
    from clag.v1.admin_service_pb2 import ProbeSkill as SkillPb

__all__ = ["probe_to"]


def probe_to(report: ProbeReport) -> pb.ProbeResult:
    """The message of an outcome."""
    return pb.ProbeResult(
        model=report.model,
        skills=[_skill(one) for one in report.skills],
        decisions_per_second=report.decisions_per_second,
        time=time_to(report.time_ns),
        forms=[_form(one) for one in report.forms],
        routing_form=cast("FormPb.ValueType", int(report.form)),
    )


def _skill(marks: SkillResult) -> pb.SkillResult:
    return pb.SkillResult(
        skill=cast("SkillPb.ValueType", int(marks.skill)),
        questions=marks.questions,
        accuracy=marks.accuracy,
        accuracy_low=marks.low,
        accuracy_high=marks.high,
        baseline_accuracy=marks.baseline,
        valid_rate=marks.valid_rate,
        position_bias=marks.position_bias,
        weight=marks.weight,
    )


def _form(marks: FormResult) -> pb.FormResult:
    return pb.FormResult(
        form=cast("FormPb.ValueType", int(marks.form)),
        questions=marks.questions,
        accuracy=marks.accuracy,
        accuracy_low=marks.low,
        accuracy_high=marks.high,
        baseline_accuracy=marks.baseline,
        valid_rate=marks.valid_rate,
        position_bias=marks.position_bias,
        weight=marks.weight,
    )
