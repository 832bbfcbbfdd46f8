"""Supervised children are restarted, stopped, and gone when their parent is gone."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from clag_server.children import (
    ChildFailedError,
    ChildNotReadyError,
    ChildState,
    Launch,
    RestartPolicy,
    SupervisedProcess,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

REPOSITORY = Path(__file__).resolve().parents[2]
ENV = {"PYTHONPATH": str(REPOSITORY)}
QUICK = RestartPolicy(first_delay_s=0.01, max_delay_s=0.05)


@asynccontextmanager
async def kept(*args: str, **options: Any) -> AsyncIterator[SupervisedProcess]:
    options.setdefault("policy", QUICK)
    child = SupervisedProcess("example", "tests.children.example_child", args, ENV, **options)
    await child.start()
    try:
        yield child
    finally:
        await child.stop()


def pid_of(child: SupervisedProcess) -> int:
    pid = child.status.pid
    assert pid is not None
    return pid


async def gone(pid: int) -> None:
    async with asyncio.timeout(20):
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_child_becomes_ready_and_its_message_reaches_the_parent() -> None:
    heard: list[dict[str, object]] = []

    async def on_ready(info: dict[str, object]) -> None:
        heard.append(info)

    async with kept("serve", on_ready=on_ready) as child:
        await child.wait_ready(30)
        assert child.status.state is ChildState.READY
        assert heard == [{"port": 4711}]


async def test_a_killed_child_is_started_again_and_the_reason_is_reported() -> None:
    seen: list[tuple[ChildState, str]] = []
    async with kept("serve", on_change=lambda s: seen.append((s.state, s.reason))) as child:
        await child.wait_ready(30)
        first = pid_of(child)
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(30):
            async for status in child.changes():
                if status.state is ChildState.READY and status.pid != first:
                    break
        assert child.status.restarts == 1
        assert any(state is ChildState.BACKOFF and "SIGKILL" in reason for state, reason in seen)


async def test_a_child_that_fails_at_first_is_ready_after_a_restart(tmp_path: Path) -> None:
    async with kept("die-first", str(tmp_path / "marker")) as child:
        await child.wait_ready(30)
        assert child.status.restarts == 1


async def test_delays_between_starts_grow_and_a_child_that_never_works_is_given_up() -> None:
    delays: list[float] = []

    async def no_wait(delay_s: float) -> None:
        delays.append(delay_s)

    policy = RestartPolicy(first_delay_s=1.0, factor=2.0, max_delay_s=3.0, jitter=0.0, max_failures=4)
    async with kept("crash", policy=policy, sleep=no_wait) as child:
        with pytest.raises(ChildFailedError, match="cannot read the weights"):
            await child.wait_ready(60)
        assert delays == [1.0, 2.0, 3.0]
        assert child.status.state is ChildState.FAILED
        assert "cannot read the weights" in child.last_output


async def test_a_fault_that_the_child_calls_permanent_is_not_retried() -> None:
    async with kept("fatal") as child:
        with pytest.raises(ChildFailedError, match="the data folder is locked"):
            await child.wait_ready(30)
        assert child.status.restarts == 0


async def test_a_child_that_never_gets_ready_is_started_again() -> None:
    async with kept("mute", ready_timeout_s=0.5) as child:
        async with asyncio.timeout(30):
            async for status in child.changes():
                if status.state is ChildState.BACKOFF:
                    break
        assert "not ready after 0.5 s" in status.reason
        with pytest.raises(ChildNotReadyError):
            await child.wait_ready(0.1)


async def test_a_child_that_cannot_be_used_counts_as_failed() -> None:
    async def refuse(_: dict[str, object]) -> None:
        raise ConnectionRefusedError("nobody listens")

    async with kept("serve", on_ready=refuse, policy=RestartPolicy(max_failures=1)) as child:
        with pytest.raises(ChildFailedError, match="nobody listens"):
            await child.wait_ready(30)


async def test_stopping_ends_a_child_that_ignores_the_polite_signal() -> None:
    async with kept("stubborn", stop_grace_s=0.2) as child:
        await child.wait_ready(30)
        pid = pid_of(child)
    await gone(pid)
    assert child.status.state is ChildState.STOPPED


async def test_stopping_during_the_start_leaves_no_process_behind() -> None:
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    child = SupervisedProcess("example", "tests.children.example_child", ["serve"], ENV)
    await child.start()
    await asyncio.sleep(0)
    await child.stop()
    after = {p.pid for p in psutil.Process().children(recursive=True)}
    assert after <= before


async def test_a_restart_on_request_gives_its_reason() -> None:
    async with kept("serve") as child:
        await child.wait_ready(30)
        await child.restart("no answer for 60 s")
        async with asyncio.timeout(30):
            async for status in child.changes():
                if status.state is ChildState.BACKOFF:
                    break
                assert status.state is ChildState.READY
        assert status.reason == "no answer for 60 s"


async def test_the_children_of_a_stopped_child_end_with_it() -> None:
    grandchild: list[int] = []

    async def on_ready(info: dict[str, object]) -> None:
        grandchild.append(int(str(info["grandchild"])))

    async with kept("grandchild", on_ready=on_ready) as child:
        await child.wait_ready(30)
    await gone(grandchild[0])


async def test_output_without_line_ends_is_bounded_and_the_last_line_is_kept() -> None:
    async with kept("noisy") as child:
        await child.wait_ready(30)
        async with asyncio.timeout(20):
            while "last words" not in child.last_output:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert sum(len(line) for line in child.last_output) < 10_000


async def test_a_socket_given_at_the_launch_is_inherited_and_closed_in_the_parent() -> None:
    ours, theirs = socket.socketpair()
    async with kept("serve", on_launch=lambda: Launch(inherit=[theirs])) as child:
        await child.wait_ready(30)
        assert theirs.fileno() == -1
    ours.settimeout(20)
    assert ours.recv(1) == b"", "the child's end is closed with the child"
    ours.close()


@pytest.mark.parametrize(
    "what",
    [
        "serve",
        pytest.param(
            "stuck",
            marks=pytest.mark.skipif(
                not sys.platform.startswith("linux"), reason="only Linux signals a stuck child"
            ),
        ),
    ],
)
async def test_killing_the_parent_ends_the_child(what: str) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.children.example_parent",
        what,
        stdout=asyncio.subprocess.PIPE,
        cwd=REPOSITORY,
        env={**os.environ, **ENV},
    )
    assert parent.stdout is not None
    line = b""
    while not line.strip().isdigit():
        line = await parent.stdout.readline()
        assert line, "the parent ended before its child was ready"
    child = int(line)
    assert psutil.pid_exists(child)
    parent.kill()
    await parent.wait()
    await gone(child)


def test_delays_stay_bounded_for_a_child_that_fails_all_day() -> None:
    policy = RestartPolicy(max_delay_s=30.0, jitter=0.2)
    rng = random.Random(1)  # noqa: S311
    assert all(24.0 <= policy.delay_s(n, rng) <= 36.0 for n in (10, 2_000, 100_000))
