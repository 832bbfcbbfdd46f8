"""The step that sends messages through a language's own classes."""

from __future__ import annotations

import base64
from typing import Final

from google.protobuf.message import DecodeError, Message

from tests.conformance.checking import Step
from tests.conformance.runner_process import Answer
from tests.conformance.samples import samples
from tests.conformance.world import Failed, World, message_of

__all__ = ["roundtrip"]

WITHIN_S: Final = 60.0


async def roundtrip(world: World, step: Step) -> None:
    """Send messages through the language's own classes and compare what comes back, unknown fields included."""
    wanted = step["roundtrip"]
    if "type" in wanted:
        kind = message_of(f"clag.v1.{wanted['type']}")
        made = [kind.FromString(base64.b64decode(world.encode(kind, wanted["message"])))]
    else:
        made = list(samples(wanted["kind"], seed=wanted.get("seed", 0), count=wanted.get("count", 1)))
    pending = []
    for message in made:
        data = base64.b64encode(message.SerializeToString()).decode("ascii")
        pending.append(await world.send("roundtrip", type=message.DESCRIPTOR.full_name, data=data))
    wrong = []
    for message, sent in zip(made, pending, strict=True):
        sentence = _difference(message, await sent.answer(WITHIN_S))
        if sentence is not None:
            wrong.append(f"{message.DESCRIPTOR.name}: {sentence}")
    if wrong:
        raise Failed(f"{len(wrong)} of {len(made)} messages came back changed; {'; '.join(wrong[:3])}")


def _difference(message: Message, answer: Answer) -> str | None:
    if answer.ok is None:
        return f"error {answer.error}"
    try:
        back = type(message).FromString(base64.b64decode(answer.ok["data"], validate=True))
    except (DecodeError, ValueError) as error:
        return f"what came back cannot be read: {error}"
    # Maps have no order on the wire, and NaN is not equal to itself: the canonical bytes are compared.
    if back.SerializeToString(deterministic=True) == message.SerializeToString(deterministic=True):
        return None
    for field, value in message.ListFields():
        if repr(getattr(back, field.name)) != repr(value):
            return f"field {field.name} is {getattr(back, field.name)!r:.120}, was {value!r:.120}"
    return f"it has {back.ByteSize()} bytes, had {message.ByteSize()}"
