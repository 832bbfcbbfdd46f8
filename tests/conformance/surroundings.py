"""Steps on what is around the client: servers, the network, the runner itself, what the server has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
from clag.v1 import admin_service_pb2 as admin_pb
from clag.v1 import memory_service_pb2 as pb
from clag.v1 import types_pb2
from google.protobuf import json_format

from tests.conformance.checking import Step, expected_to_be
from tests.conformance.proxy import Mode
from tests.conformance.world import Failed, World
from tests.support.ingest import store

__all__ = ["SURROUNDINGS", "seen", "stats"]


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
    expected_to_be(seen(world), world.render(step["double"]), "what the server saw")


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


def seen(world: World) -> dict[str, Any]:
    """What the double saw, and how many items it has of each stream."""
    assert world.double is not None
    noted = {name: getattr(world.double.seen, name) for name in world.double.seen.__dataclass_fields__}
    return {**noted, "streams": {name: len(texts) for name, texts in world.double.seen.stored.items()}}


def stats(world: World, namespace: str) -> dict[str, Any]:
    """The real server's counters of a namespace. Blocks."""
    told = world.server.stubs.admin.GetStats(admin_pb.GetStatsRequest(namespace=namespace), timeout=30)
    return json_format.MessageToDict(
        told, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


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


def _texts(world: World, namespace: str) -> list[str]:
    request, texts = pb.ListMemoriesRequest(namespace=namespace, page_size=1_000), []
    while True:
        page = world.server.stubs.memory.ListMemories(request, timeout=30)
        texts += [memory.text for memory in page.memories]
        if not page.next_page_token:
            return texts
        request.page_token = page.next_page_token


SURROUNDINGS: Final[dict[str, Callable[[World, Step], Awaitable[None]]]] = {
    "double": _double,
    "export_held": _export_held,
    "given": _given,
    "gone": _gone,
    "proxy": _proxy,
    "runner": _runner,
    "server": _server,
    "stored": _stored,
}
