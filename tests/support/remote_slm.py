"""A remote language model on a double server, whose waits are written down and not waited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from clag_server.models.api import EngineState
from clag_server.models.remote import RemoteSlm
from clag_server.models.remote_breaker import Backoff
from clag_server.models.remote_config import RemoteConfig
from clag_server.models.remote_link import RemoteLink
from tests.support.openai_double import OpenAiDouble, Request


class Waits:
    """Stands for `asyncio.sleep`: notes each wait; while `held`, none ends."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._free = asyncio.Event()
        self._free.set()

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await asyncio.sleep(0)
        await self._free.wait()

    def hold(self) -> None:
        self._free.clear()

    def release(self) -> None:
        self._free.set()


class Remote:
    def __init__(self, slm: RemoteSlm, link: RemoteLink, waits: Waits, double: OpenAiDouble) -> None:
        self.slm, self.link, self.waits, self.double = slm, link, waits, double

    @property
    def asked(self) -> list[Request]:
        """Requests after the probe."""
        return self.double.requests


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that other tasks bring about; the test's timeout is the bound."""
    while not condition():  # noqa: ASYNC110  # conditions are states of several objects, none with an event
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def connected(
    double: OpenAiDouble, config: RemoteConfig | None = None, *, ready: bool = True
) -> AsyncIterator[Remote]:
    """Connect to a double that serves already; with `ready` the probe is over and its requests are forgotten."""
    waits = Waits()
    wanted = replace(config, url=double.url) if config else RemoteConfig(double.url, "tiny")
    # The upper bound of the jitter, so that waits can be compared.
    link = RemoteLink(wanted, backoff=Backoff(1.0, 8.0, lambda _, most: most), sleep=waits)
    slm = RemoteSlm(link)
    await slm.start()
    try:
        if ready:
            await until(lambda: slm.status.state is not EngineState.LOADING)
            assert slm.status.state is EngineState.READY, slm.status.reason
            double.requests.clear()
        yield Remote(slm, link, waits, double)
    finally:
        await slm.stop()
