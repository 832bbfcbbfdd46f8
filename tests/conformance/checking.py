"""Answers compared with what the steps of a scenario expect."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, TypeAlias

from google.protobuf import json_format
from google.protobuf.message import Message

from tests.conformance.matching import mismatch
from tests.conformance.runner_process import Answer
from tests.conformance.templates import look_up
from tests.conformance.world import Failed, World

__all__ = ["Step", "check", "expected_to_be", "readable"]

Step: TypeAlias = Mapping[str, Any]


def check(world: World, step: Step, answer: Answer, response: type[Message] | None) -> None:
    """Compare an answer with what its step expects, and keep what the step saves of it.

    Args:
        world: whose variables are filled in and added to.
        step: what was done.
        answer: what came.
        response: the type of the messages in it; None where it has none.

    Raises:
        Failed: at the first difference, and for an error that is not expected.
    """
    events = [readable(event, response) for event in answer.events]
    if "error" in step:
        if answer.error is None:
            raise Failed(f"no error, expected {step['error']}; the answer is {str(answer.ok)[:300]}")
        expected_to_be(answer.error, world.render(step["error"]), "error")
    elif answer.error is not None:
        raise Failed(f"error {answer.error}")
    ok = readable(answer.ok or {}, response)
    if "expect" in step:
        expected_to_be(ok, world.render(step["expect"]), "answer")
    if "events" in step:
        expected_to_be(events, world.render(step["events"]), "events")
    whole = {**ok, "events": events, "error": answer.error}
    for name, path in step.get("save", {}).items():
        try:
            world.variables[name] = look_up(path, whole)
        except (KeyError, IndexError):
            raise Failed(f"the answer has no {path}: {str(whole)[:300]}") from None


def readable(told: Mapping[str, Any], response: type[Message] | None) -> dict[str, Any]:
    """An answer or event with its message in the place of the bytes."""
    if response is None or "response" not in told:
        return dict(told)
    message = response.FromString(base64.b64decode(told["response"], validate=True))
    read = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {**{key: value for key, value in told.items() if key != "response"}, **read}


def expected_to_be(actual: Any, expected: Any, where: str) -> None:
    """Raise Failed, with `where` in the sentence, unless a value matches."""
    sentence = mismatch(actual, expected, where)
    if sentence is not None:
        raise Failed(sentence)
