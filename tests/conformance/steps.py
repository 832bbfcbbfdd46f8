"""The steps that scenarios are made of; README.md describes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import Message

from tests.conformance.checking import Step, check, expected_to_be, readable
from tests.conformance.matching import mismatch
from tests.conformance.roundtrips import roundtrip
from tests.conformance.surroundings import SURROUNDINGS, seen, stats
from tests.conformance.templates import look_up
from tests.conformance.world import Failed, Started, World

__all__ = ["run_step"]

_WITHIN_S: Final = 60.0
_POLL_S: Final = 0.02
_STILL_S: Final = 1.0
_MODIFIERS: Final = {"request", "requests", "half_close", "timeout_ms", "as", "client"}
_EXPECTATIONS: Final = {"expect", "events", "error", "save"}
_MODIFIERS_OF_WAITING: Final = {"within_s", "match", "field", "le"}
_POOL: Final = descriptor_pool.Default()


async def run_step(world: World, step: Step) -> None:
    """Do one step.

    Raises:
        Failed: if what is expected does not come.
        RunnerFailed: if the runner breaks the protocol, ends, or does not answer.
    """
    names = set(step) - _MODIFIERS - _EXPECTATIONS - _MODIFIERS_OF_WAITING
    if len(names) != 1 or not names <= set(_ACTIONS):
        raise Failed(f"a step is one action with its modifiers, not {sorted(step)}")
    await _ACTIONS[next(iter(names))](world, step)


async def _connect(world: World, step: Step) -> None:
    options = dict(world.render(step["connect"]) or {})
    name = options.pop("name", "a")
    check(world, step, await world.connect(name, options), None)


async def _close(world: World, step: Step) -> None:
    check(world, step, await world.close(step["close"]), None)


async def _call(world: World, step: Step) -> None:
    path = step["call"]
    service, _, name = path.partition("/")
    method = _POOL.FindServiceByName(f"clag.v1.{service}").methods_by_name[name]
    asked = message_factory.GetMessageClass(method.input_type)
    fields: dict[str, Any] = {"method": f"clag.v1.{path}"}
    if method.client_streaming:
        fields["requests"] = [world.encode(asked, one) for one in world.render(step["requests"])]
    else:
        fields["request"] = world.encode(asked, step.get("request"))
    await _command(world, step, "call", fields, message_factory.GetMessageClass(method.output_type))


async def _retrieve(world: World, step: Step) -> None:
    fields = {"request": world.encode(pb.RetrieveRequest, step["retrieve"])}
    await _command(world, step, "retrieve", fields, pb.RetrieveResponse)


async def _context(world: World, step: Step) -> None:
    fields = {"request": world.encode(pb.GetContextRequest, {"retrieve": step["context"]})}
    await _command(world, step, "context", fields, pb.GetContextResponse)


async def _answer(world: World, step: Step) -> None:
    fields = {"request": world.encode(pb.AnswerRequest, step["answer"])}
    await _command(world, step, "answer", fields, pb.AnswerResponse)


async def _watch(world: World, step: Step) -> None:
    options = dict(step["watch"])
    limit = {"limit": options.pop("limit")} if "limit" in options else {}
    await _command(
        world, step, "watch", {"request": world.encode(pb.WatchRequest, options), **limit}, pb.WatchResponse
    )


async def _ingest(world: World, step: Step) -> None:
    fields = dict(world.render(step["ingest"]))
    if "items" in fields:
        fields["items"] = [world.encode(types_pb2.MemoryInput, item) for item in fields["items"]]
    await _command(world, step, "ingest", fields, None)


async def _text(world: World, step: Step) -> None:
    await _command(world, step, "text", {"value": world.render(step["text"])}, None)


async def _command(
    world: World, step: Step, operation: str, fields: dict[str, Any], response: type[Message] | None
) -> None:
    for key in ("timeout_ms", "half_close"):
        if key in step:
            fields[key] = step[key]
    fields.setdefault("name", world.render(step.get("client", "a")))
    started = Started(await world.send(operation, **fields), response)
    if "as" in step:
        world.started[world.render(step["as"])] = started
    else:
        check(world, step, await started.pending.answer(_within(step)), response)


async def _await(world: World, step: Step) -> None:
    started = world.started[world.render(step["await"])]
    check(world, step, await started.pending.answer(_within(step)), started.response)


async def _to_target(world: World, step: Step) -> None:
    operation = "resume" if "resume" in step else "cancel"
    target = world.started[world.render(step[operation])].pending.number
    check(world, step, await (await world.send(operation, target=target)).answer(20), None)


async def _until(world: World, step: Step) -> None:
    """Ask again and again until what is asked matches."""
    what = step["until"]
    deadline = time.monotonic() + _within(step)
    while (sentence := mismatch(await _observed(world, what), world.render(step["match"]))) is not None:
        if time.monotonic() > deadline:
            raise Failed(f"after {_within(step):g} s, {what}: {sentence}")
        await asyncio.sleep(_POLL_S)


async def _still(world: World, step: Step) -> None:
    """Wait until a number does not grow any more, and compare it."""
    last, since = -1, time.monotonic()
    deadline = since + _within(step)
    while time.monotonic() - since < _STILL_S:
        now = look_up(step["field"], await _observed(world, step["still"]))
        if now != last:
            last, since = now, time.monotonic()
        if time.monotonic() > deadline:
            raise Failed(f"{step['field']} still grows after {_within(step):g} s, it is {last}")
        await asyncio.sleep(_POLL_S)
    expected_to_be(last, world.render(step["match"]), step["field"])


async def _observed(world: World, what: Mapping[str, str]) -> Any:
    ((kind, name),) = world.render(what).items()
    match kind:
        case "progress":
            target = world.started[name].pending.number
            answer = await (await world.send("progress", target=target)).answer(20)
            return answer.ok or answer.error
        case "events":
            started = world.started[name]
            return [readable(event, started.response) for event in started.pending.events]
        case "double":
            return seen(world)
        case "stored":
            return await asyncio.to_thread(stats, world, name)
    raise Failed(f"nothing is known of {kind}")


async def _for_each(world: World, step: Step) -> None:
    loop = step["for_each"]
    for value in world.render(loop["in"]):
        world.variables[loop["name"]] = value
        for one in loop["steps"]:
            try:
                await run_step(world, one)
            except Failed as failure:
                raise Failed(f"{loop['name']} {value}: {failure}") from None


async def _retry_until_error(world: World, step: Step) -> None:
    """Do a step again and again, and pass over its successes, until it fails as it says."""
    deadline = time.monotonic() + _within(step)
    while True:
        try:
            await run_step(world, step["retry_until_error"])
        except Failed:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(_POLL_S)
        else:
            return


async def _pause(_world: World, step: Step) -> None:
    await asyncio.sleep(step["pause_ms"] / 1_000)


def _within(step: Step) -> float:
    return float(step.get("within_s", _WITHIN_S))


_ACTIONS: Final[dict[str, Callable[[World, Step], Awaitable[None]]]] = {
    **SURROUNDINGS,
    "answer": _answer,
    "await": _await,
    "call": _call,
    "cancel": _to_target,
    "close": _close,
    "connect": _connect,
    "context": _context,
    "for_each": _for_each,
    "ingest": _ingest,
    "pause_ms": _pause,
    "resume": _to_target,
    "retrieve": _retrieve,
    "retry_until_error": _retry_until_error,
    "roundtrip": roundtrip,
    "still": _still,
    "text": _text,
    "until": _until,
    "watch": _watch,
}
