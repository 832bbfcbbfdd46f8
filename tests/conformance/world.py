"""What the steps of a scenario work on: the runner, servers, the proxy, variables, commands in progress."""

from __future__ import annotations

import base64
import copy
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.message import Message

from tests.conformance.double import Behaviour, Double, serving
from tests.conformance.failures import CODES
from tests.conformance.proxy import Proxy
from tests.conformance.runner_process import Answer, Pending, RunnerProcess
from tests.conformance.scenario import Scenario
from tests.conformance.servers import Server, Servers
from tests.conformance.templates import rendered

__all__ = ["Failed", "Started", "World", "message_of"]

_POOL = descriptor_pool.Default()


class Failed(Exception):
    """The client did not do what the scenario expects."""


@dataclass(frozen=True, slots=True)
class Started:
    """A command in progress, and the type of the messages in its answers (None where it has none)."""

    pending: Pending
    response: type[Message] | None


def message_of(type_name: str) -> type[Message]:
    """Return the class of a message, named as in the contract."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(type_name))


class World:
    """What one run of a scenario has. An async context manager: it connects at first and cleans up at last.

    Args:
        scenario: the scenario.
        runner: the language's runner, started.
        servers: where servers come from.

    Attributes:
        variables: by name, for the scenario's texts.
        started: commands in progress that the scenario named.
    """

    def __init__(
        self,
        scenario: Scenario,
        runner: RunnerProcess,
        restart: Callable[[], Awaitable[RunnerProcess]],
        servers: Servers,
    ) -> None:
        self.scenario = scenario
        self.runner = runner
        self.restart = restart
        self.variables: dict[str, Any] = {}
        self.started: dict[str, Started] = {}
        self.double: Double | None = None
        self.proxy: Proxy | None = None
        self._server: Server | None = None
        self._servers = servers
        self._stack = AsyncExitStack()
        self._clients: set[str] = set()

    @property
    def server(self) -> Server:
        """The real server."""
        if self._server is None:
            raise Failed("the scenario has no real server")
        return self._server

    async def __aenter__(self) -> Self:
        self.variables |= {
            "ns": f"c-{uuid.uuid4().hex[:16]}",
            "unique": uuid.uuid4().hex[:16],
            "tls": self._servers.certificates.variables,
            "language": self.runner.language.name,
            "lone": {"high": "arm \ud83d stuck", "low": "arm \udc00 stuck", "swapped": "arm \udc00\ud83d stuck"},
            "reasons": [{"name": name, "code": code.name} for name, code in CODES.items()],
        }
        try:
            await self._serve()
            if self.scenario.connect:
                await self.connect("a", {})
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for name in sorted(self._clients) if self.runner.alive else ():
                await (await self.runner.send("close", name=name)).answer(20)
        finally:
            await self._stack.aclose()

    async def send(self, operation: str, **fields: Any) -> Pending:
        """Send a command to the runner."""
        return await self.runner.send(operation, **fields)

    async def connect(self, name: str, options: Mapping[str, Any]) -> Answer:
        """Connect a client, unless told where to: to the socket where the language has them, else to TCP."""
        fields = dict(options)
        if "target" not in fields:
            unix = "unix" in self.runner.features and not self.scenario.server.tls
            fields["target"] = self.variables["server"]["unix" if unix else "tcp"]
            if not unix:
                fields.setdefault("token", self.variables["server"]["token"])
        answer = await (await self.send("connect", name=name, **fields)).answer(30)
        if answer.ok is not None:
            self._clients.add(name)
        return answer

    async def close(self, name: str) -> Answer:
        """Close a client."""
        self._clients.discard(name)
        return await (await self.send("close", name=name)).answer(30)

    async def kill_runner(self) -> None:
        """Kill the runner, as a client that crashes."""
        await self.runner.kill()
        self._clients.clear()

    async def start_runner(self) -> None:
        """Start another one."""
        self.runner = await self.restart()

    def at_last(self, action: Callable[[], Awaitable[None]]) -> None:
        """Do something when the scenario is over."""
        self._stack.push_async_callback(action)

    async def through_proxy(self) -> Proxy:
        """Return the proxy before the server; made at the first call."""
        if self.proxy is None:
            port = int(self.variables["server"]["tcp"].rpartition(":")[2])
            self.proxy = await self._stack.enter_async_context(Proxy(port))
            self.variables["proxy"] = {"tcp": f"127.0.0.1:{self.proxy.port}"}
        return self.proxy

    def render(self, value: Any) -> Any:
        """Fill in the variables of a value."""
        return rendered(value, self.variables)

    def encode(self, kind: type[Message], value: Any) -> str:
        """Make a message from what a scenario says, and return it as base64."""
        given = self.render(value)
        if isinstance(given, bytes):
            return base64.b64encode(given).decode("ascii")
        message = json_format.ParseDict(given or {}, kind())
        return base64.b64encode(message.SerializeToString()).decode("ascii")

    async def _serve(self) -> None:
        kind = self.scenario.server
        if kind.kind == "double":
            # A copy: the double uses up its faults, and the scenario is played again for the next language.
            self.double = Double(Behaviour(**copy.deepcopy(dict(kind.double))))
            self.variables["server"] = await self._stack.enter_async_context(serving(self.double))
        elif kind.kind == "real":
            if kind.fresh:
                self._server = await self._servers.fresh(kind)
                self._stack.push_async_callback(self._server.close)
            elif kind.alone:
                self._server = await self._stack.enter_async_context(self._servers.alone(kind))
            else:
                self._server = await self._servers.shared(kind)
            self.variables["server"] = self._server.variables
