"""The steps that scenarios are made of; README.md describes them."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import grpc
from clag.v1 import admin_service_pb2 as admin_pb
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError, Message

from tests.conformance.matching import mismatch
from tests.conformance.proxy import Mode
from tests.conformance.runner_process import Answer
from tests.conformance.samples import samples
from tests.conformance.templates import look_up
from tests.conformance.world import Failed, Started, World, message_of
from tests.support.ingest import store

__all__ = ["run_step"]

Step: TypeAlias = Mapping[str, Any]

_WITHIN_S: Final = 45.0
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
    _check(world, step, await world.connect(name, options), None)


async def _close(world: World, step: Step) -> None:
    _check(world, step, await world.close(step["close"]), None)


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
        _check(world, step, await started.pending.answer(_within(step)), response)


async def _await(world: World, step: Step) -> None:
    started = world.started[world.render(step["await"])]
    _check(world, step, await started.pending.answer(_within(step)), started.response)


async def _to_target(world: World, step: Step) -> None:
    operation = "resume" if "resume" in step else "cancel"
    target = world.started[world.render(step[operation])].pending.number
    _check(world, step, await (await world.send(operation, target=target)).answer(20), None)


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
    seen, since = -1, time.monotonic()
    deadline = since + _within(step)
    while time.monotonic() - since < _STILL_S:
        now = look_up(step["field"], await _observed(world, step["still"]))
        if now != seen:
            seen, since = now, time.monotonic()
        if time.monotonic() > deadline:
            raise Failed(f"{step['field']} still grows after {_within(step):g} s, it is {seen}")
        await asyncio.sleep(_POLL_S)
    _expected(seen, world.render(step["match"]), step["field"])


async def _observed(world: World, what: Mapping[str, str]) -> Any:
    ((kind, name),) = world.render(what).items()
    match kind:
        case "progress":
            target = world.started[name].pending.number
            answer = await (await world.send("progress", target=target)).answer(20)
            return answer.ok or answer.error
        case "events":
            started = world.started[name]
            return [_readable(event, started.response) for event in started.pending.events]
        case "double":
            return _seen(world)
        case "stored":
            return await asyncio.to_thread(_stats, world, name)
    raise Failed(f"nothing is known of {kind}")


async def _server(world: World, step: Step) -> None:
    match step["server"]:
        case "kill":
            await world.server.kill()
        case "start":
            await world.server.start()
        case "terminate":
            await world.server.terminate()
        case "ask_to_end":
            world.server.ask_to_end()
        case "ended":
            await world.server.ended()
        case {"script": script}:
            world.server.follow(world.render(script))
        case other:
            raise Failed(f"a server does not {other}")


async def _proxy(world: World, step: Step) -> None:
    proxy = await world.through_proxy()
    wanted = step["proxy"] or {}
    if "mode" in wanted:
        proxy.mode = Mode(wanted["mode"])
    proxy.delay_s = wanted.get("delay_ms", proxy.delay_s * 1_000) / 1_000
    if wanted.get("cut"):
        proxy.cut()


async def _runner(world: World, step: Step) -> None:
    match step["runner"]:
        case "kill":
            await world.kill_runner()
        case "start":
            await world.start_runner()
        case other:
            raise Failed(f"a runner does not {other}")


async def _double(world: World, step: Step) -> None:
    if step["double"] == "release":
        assert world.double is not None
        world.double.release()
        return
    _expected(_seen(world), world.render(step["double"]), "what the server saw")


async def _given(world: World, step: Step) -> None:
    """Store and organize memories without the client that is looked at."""
    wanted = world.render(step["given"])
    items = [json_format.ParseDict(item, types_pb2.MemoryInput()) for item in wanted["memories"]]
    await asyncio.to_thread(_made, world, wanted["namespace"])
    level = pb.AckLevel.Value(f"ACK_LEVEL_{wanted.get('level', 'ORGANIZED')}")
    await asyncio.to_thread(
        store,
        world.server.stubs,
        wanted["namespace"],
        items,
        stream_id=wanted.get("stream_id", "given"),
        level=level,
    )


async def _gone(world: World, step: Step) -> None:
    """Delete namespaces without the client that is looked at, so that others have room."""
    for namespace in world.render(step["gone"]):
        await asyncio.to_thread(_deleted, world, namespace)


async def _export_held(world: World, step: Step) -> None:
    """Begin an export without the client that is looked at, and finish it when the scenario is over."""
    request = admin_pb.ExportRequest(namespace=world.render(step["export_held"]))
    call = world.server.stubs.admin.Export(request, timeout=120)
    await asyncio.to_thread(next, call)

    async def finish() -> None:
        await asyncio.to_thread(list, call)

    world.at_last(finish)


async def _stored(world: World, step: Step) -> None:
    """Compare what the server has with what was sent: every text, once, in order."""
    wanted = world.render(step["stored"])
    texts = await asyncio.to_thread(_texts, world, wanted["namespace"])
    expected = wanted["texts"]
    if texts != expected:
        place = next((n for n, pair in enumerate(zip(texts, expected, strict=False)) if pair[0] != pair[1]), None)
        raise Failed(f"the server has {len(texts)} memories, expected {len(expected)}; first difference at {place}")


async def _roundtrip(world: World, step: Step) -> None:
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
        sentence = _difference(message, await sent.answer(_WITHIN_S))
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


def _check(world: World, step: Step, answer: Answer, response: type[Message] | None) -> None:
    events = [_readable(event, response) for event in answer.events]
    if "error" in step:
        if answer.error is None:
            raise Failed(f"no error, expected {step['error']}; the answer is {str(answer.ok)[:300]}")
        _expected(answer.error, world.render(step["error"]), "error")
    elif answer.error is not None:
        raise Failed(f"error {answer.error}")
    ok = _readable(answer.ok or {}, response)
    if "expect" in step:
        _expected(ok, world.render(step["expect"]), "answer")
    if "events" in step:
        _expected(events, world.render(step["events"]), "events")
    whole = {**ok, "events": events, "error": answer.error}
    for name, path in step.get("save", {}).items():
        try:
            world.variables[name] = look_up(path, whole)
        except (KeyError, IndexError):
            raise Failed(f"the answer has no {path}: {str(whole)[:300]}") from None


def _readable(told: Mapping[str, Any], response: type[Message] | None) -> dict[str, Any]:
    """An answer or event with its message in the place of the bytes."""
    if response is None or "response" not in told:
        return dict(told)
    message = response.FromString(base64.b64decode(told["response"], validate=True))
    read = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {**{key: value for key, value in told.items() if key != "response"}, **read}


def _expected(actual: Any, expected: Any, where: str) -> None:
    sentence = mismatch(actual, expected, where)
    if sentence is not None:
        raise Failed(sentence)


def _seen(world: World) -> dict[str, Any]:
    assert world.double is not None
    seen = {name: getattr(world.double.seen, name) for name in world.double.seen.__dataclass_fields__}
    return {**seen, "streams": {name: len(texts) for name, texts in world.double.seen.stored.items()}}


def _within(step: Step) -> float:
    return float(step.get("within_s", _WITHIN_S))


def _made(world: World, namespace: str) -> None:
    try:
        world.server.stubs.admin.CreateNamespace(admin_pb.CreateNamespaceRequest(namespace=namespace), timeout=30)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.ALREADY_EXISTS:
            raise


def _deleted(world: World, namespace: str) -> None:
    admin = world.server.stubs.admin
    begun = admin.DeleteNamespace(admin_pb.DeleteNamespaceRequest(namespace=namespace), timeout=30).operation
    for _ in admin.WatchOperation(admin_pb.WatchOperationRequest(operation_id=begun.operation_id), timeout=60):
        pass


def _stats(world: World, namespace: str) -> dict[str, Any]:
    stats = world.server.stubs.admin.GetStats(admin_pb.GetStatsRequest(namespace=namespace), timeout=30)
    return json_format.MessageToDict(
        stats, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def _texts(world: World, namespace: str) -> list[str]:
    request, texts = pb.ListMemoriesRequest(namespace=namespace, page_size=1_000), []
    while True:
        page = world.server.stubs.memory.ListMemories(request, timeout=30)
        texts += [memory.text for memory in page.memories]
        if not page.next_page_token:
            return texts
        request.page_token = page.next_page_token


_ACTIONS: Final[dict[str, Callable[[World, Step], Awaitable[None]]]] = {
    "answer": _answer,
    "await": _await,
    "call": _call,
    "cancel": _to_target,
    "close": _close,
    "connect": _connect,
    "context": _context,
    "double": _double,
    "export_held": _export_held,
    "for_each": _for_each,
    "gone": _gone,
    "given": _given,
    "ingest": _ingest,
    "pause_ms": _pause,
    "proxy": _proxy,
    "resume": _to_target,
    "retrieve": _retrieve,
    "retry_until_error": _retry_until_error,
    "roundtrip": _roundtrip,
    "runner": _runner,
    "server": _server,
    "still": _still,
    "stored": _stored,
    "text": _text,
    "until": _until,
    "watch": _watch,
}
