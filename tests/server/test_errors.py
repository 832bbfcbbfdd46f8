"""The table of errors: complete, small, and precise."""

from __future__ import annotations

import inspect

import grpc
import pytest
from clag.v1 import types_pb2
from google.rpc import error_details_pb2, status_pb2

from clag_server.api import errors as edge
from clag_server.contract.codec import MalformedMessage
from clag_server.models import api as models
from clag_server.types import errors
from clag_server.types.errors import FieldViolation

EXPECTED = [
    *(kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.ClagError)),
    *(kind for _, kind in inspect.getmembers(edge, inspect.isclass) if issubclass(kind, errors.ClagError)),
    MalformedMessage,
    models.ModelUnavailableError,
    models.ModelTimeoutError,
    models.ModelRequestRefusedError,
    models.WrongShapeError,
]


def details(failure: edge.Failure) -> dict[str, object]:
    status = status_pb2.Status.FromString(failure.status())
    found: dict[str, object] = {"code": status.code, "message": status.message}
    for packed in status.details:
        for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest, error_details_pb2.RetryInfo):
            message = kind()
            if packed.Unpack(message):
                found[kind.__name__] = message
    return found


@pytest.mark.parametrize("kind", [kind for kind in EXPECTED if kind is not errors.ClagError])
def test_every_expected_error_has_a_row_of_its_own_or_of_its_parent(kind: type[Exception]) -> None:
    error = kind.__new__(kind)
    Exception.__init__(error, "what went wrong")
    row = next((k for k in kind.__mro__ if k in edge._TABLE), None)
    assert row is not None
    assert edge._TABLE[row].code is not grpc.StatusCode.INTERNAL


def test_wrong_fields_are_listed_one_by_one() -> None:
    failure = edge.failure_of(
        errors.InvalidField(FieldViolation("memory.text", "is empty"), FieldViolation("memory.tags[1]", "is long"))
    )
    found = details(failure)
    assert failure.code is grpc.StatusCode.INVALID_ARGUMENT
    info, bad = found["ErrorInfo"], found["BadRequest"]
    assert isinstance(info, error_details_pb2.ErrorInfo)
    assert isinstance(bad, error_details_pb2.BadRequest)
    assert (info.domain, info.reason) == ("clag", "ERROR_REASON_INVALID_FIELD")
    assert [v.field for v in bad.field_violations] == ["memory.text", "memory.tags[1]"]


def test_details_stay_within_four_kibibytes_and_say_what_was_left_out() -> None:
    violations = [FieldViolation(f"memory.tags[{n}]", "é" * 2_000) for n in range(200)]
    failure = edge.failure_of(errors.InvalidField(*violations))
    found = details(failure)
    info, bad = found["ErrorInfo"], found["BadRequest"]
    assert isinstance(info, error_details_pb2.ErrorInfo)
    assert isinstance(bad, error_details_pb2.BadRequest)
    assert len(failure.status()) * 4 / 3 <= 4096
    assert len(bad.field_violations) + int(info.metadata["violations_left_out"]) == 200


def test_a_lone_surrogate_in_a_message_does_not_break_the_answer() -> None:
    found = details(edge.failure_of(errors.NotFound("memory", "arm \ud83d stuck")))
    assert "arm ? stuck" in str(found["message"])


def test_errors_that_pass_say_when_to_try_again() -> None:
    found = details(edge.failure_of(models.ModelUnavailableError("it loads", retry_after_s=2.5)))
    retry = found["RetryInfo"]
    assert isinstance(retry, error_details_pb2.RetryInfo)
    assert retry.retry_delay.ToTimedelta().total_seconds() == 2.5


def test_a_gap_says_where_to_go_on() -> None:
    info = details(edge.failure_of(errors.SequenceGap(expected=7, got=9)))["ErrorInfo"]
    assert isinstance(info, error_details_pb2.ErrorInfo)
    assert info.metadata["next_seq"] == "7"


def test_an_unexpected_error_is_internal_and_tells_nothing_but_an_incident_id(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failure = edge.failure_of(RuntimeError("the password is hunter2"))
    found = details(failure)
    assert failure.code is grpc.StatusCode.INTERNAL
    assert "hunter2" not in str(found)
    incident = failure.metadata["incident_id"]
    assert incident in failure.message
    logged = capsys.readouterr()
    assert incident in logged.out + logged.err


def test_reasons_are_names_of_the_contract() -> None:
    for row in edge._TABLE.values():
        assert types_pb2.ErrorReason.Name(row.reason).startswith("ERROR_REASON_")
        assert row.reason != types_pb2.ErrorReason.ERROR_REASON_UNSPECIFIED
