"""The state of a remote model server and the way of every call to it: line, try, back off, try again, give up.

One background task owns the state. It probes the server at the start; it is woken when the circuit breaker opens
and probes again, with growing waits, until the server answers. So the "half-open" request of the breaker is a probe
and never a caller's, and a server that was replaced by another one is known for what it can do before it is used.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from clag_server.models.errors import (
    ModelError,
    ModelRequestRefusedError,
    ModelTimeoutError,
    ModelUnavailableError,
    WrongShapeError,
)
from clag_server.models.remote_breaker import Backoff, CircuitBreaker
from clag_server.models.remote_config import RemoteConfig, RemoteConfigError, parse_address
from clag_server.models.remote_failure import FailureKind, RemoteFailure
from clag_server.models.remote_gate import PriorityGate
from clag_server.models.remote_http import RemoteHttp, read_api_key
from clag_server.models.remote_probe import Capabilities, probe
from clag_server.models.status import EngineState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from clag_server.models.api import Priority

__all__ = ["RemoteLink", "Timed"]

_log = structlog.get_logger("clag.models")

_LASTING: Final = frozenset({FailureKind.REFUSED, FailureKind.NOT_OFFERED, FailureKind.FORBIDDEN})
"""Failures of a probe that waiting does not heal: somebody must change a setting or the server."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timed:
    """When a call waited and ran, in seconds."""

    queue_s: float
    """In the line, and between tries."""
    compute_s: float
    """The try that gave the answer."""


class RemoteLink:
    """A remote server: its state, and calls with everything around them.

    Args:
        config: The server and the bounds.
        backoff: Waits between tries; by default from the configuration, with full jitter.
        sleep: How waits are waited; tests record them instead.

    Raises:
        RemoteConfigError: The address or the key file cannot be used.
    """

    def __init__(
        self,
        config: RemoteConfig,
        *,
        backoff: Backoff | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.config = config
        self._address = parse_address(config.url)
        read_api_key(config)  # a wrong file refuses the start, not the first call
        self._backoff = backoff or Backoff(config.backoff_base_s, config.backoff_cap_s)
        self._probe_backoff = Backoff(config.breaker_open_s, config.breaker_cap_s, self._backoff.uniform)
        self._sleep = sleep
        self.http = RemoteHttp(config, self._address)
        self.gate = PriorityGate(max(config.concurrency, 1), config.max_queue)
        self._breaker = CircuitBreaker(config.breaker_failures)
        self.state = EngineState.LOADING
        self.reason = "the model server is being asked what it can do"
        self.probes = 0
        self.probe_s = 0.0
        self.outages = 0
        self._capabilities: Capabilities | None = None
        self._settled = asyncio.Event()
        self._broken = asyncio.Event()
        self._heard_at_s = 0.0
        self._next_probe_at_s = 0.0
        self._task: asyncio.Task[None] | None = None
        self._exchanges: set[asyncio.Future[Any]] = set()
        self._stopped = False

    def start(self) -> None:
        """Begin to probe; returns at once."""
        if self._address.clear_text:
            _log.warning("memories go to the model server unencrypted", url=self._address.base, advice="use https")
        self._task = asyncio.create_task(self._keep_probed(), name="remote model server probe")
        self._task.add_done_callback(self._probing_ended)

    async def stop(self) -> None:
        """Stop probing and close the connections; calls in flight fail with `ModelUnavailableError`."""
        self._stopped = True
        self._set(EngineState.ABSENT, "the server is stopping")
        running = [*self._exchanges]
        for exchange in running:
            exchange.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*running, return_exceptions=True)
        await self.http.close()

    async def capabilities(self) -> Capabilities:
        """Wait for the first probe's outcome and return what the server can do.

        Raises:
            ModelUnavailableError: It does not answer now.
        """
        await self._settled.wait()
        if self.state is not EngineState.READY or self._capabilities is None:
            raise self._unavailable()
        return self._capabilities

    def _unavailable(self) -> ModelUnavailableError:
        lasting = self.state is EngineState.ABSENT
        wait_s = None if lasting else max(self._next_probe_at_s - time.monotonic(), 0.0) + 0.5
        return ModelUnavailableError(f"{self.config.model}: {self.reason}", wait_s)

    async def call(
        self, work: Callable[[Capabilities], Awaitable[T]], *, priority: Priority, deadline_s: float | None
    ) -> tuple[T, Timed]:
        """Run one exchange with the server, several times if it must be.

        Args:
            work: The exchange; raises `RemoteFailure`.
            priority: Place in the line.
            deadline_s: Bound of everything together; None takes the configuration's.

        Raises:
            ModelError: One of the kinds that `SlmEngine` names.
        """
        asked_at_s = time.monotonic()
        limit_s = self.config.call_timeout_s if deadline_s is None else min(deadline_s, self.config.call_timeout_s)
        try:
            async with asyncio.timeout(limit_s):
                result, compute_s = await self._tries(work, priority, asked_at_s + limit_s)
        except TimeoutError:
            raise ModelTimeoutError(limit_s) from None
        return result, Timed(max(time.monotonic() - asked_at_s - compute_s, 0.0), compute_s)

    async def _tries(
        self, work: Callable[[Capabilities], Awaitable[T]], priority: Priority, until_s: float
    ) -> tuple[T, float]:
        failures = 0
        while True:
            await self.capabilities()
            async with self.gate.place(priority):
                # Asked again: the server may have gone, or come back as another one, while the call stood in line.
                found = await self.capabilities()
                began_at_s = time.monotonic()
                try:
                    result = await self._try(work, found, began_at_s)
                except RemoteFailure as failed:
                    failure = failed
                else:
                    return result, time.monotonic() - began_at_s
            failures += 1
            wait_s = self._backoff.wait_s(failures, failure.retry_after_s)
            if not failure.again or failures >= self.config.attempts:
                raise _as_model_error(failure, self.config.model)
            if time.monotonic() + wait_s >= until_s:
                # The wait would end after the deadline: the caller can use the time for its fallback.
                raise _as_model_error(failure, self.config.model)
            _log.debug("model server call is tried again", reason=failure.reason, failures=failures, wait_s=wait_s)
            await self._sleep(wait_s)

    async def _try(self, work: Callable[[Capabilities], Awaitable[T]], found: Capabilities, began_at_s: float) -> T:
        # A task of its own, so that `stop` can end an exchange without ending its caller.
        exchange = asyncio.ensure_future(work(found))
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._exchanges.discard)
        try:
            result = await exchange
        except RemoteFailure as failure:
            if failure.against_server:
                self._count(failure.reason)
            elif failure.kind in (FailureKind.FORBIDDEN, FailureKind.NOT_OFFERED):
                self._away(failure.reason)
            else:
                self._heard()
            raise
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._stopped and caller is not None and not caller.cancelling():
                raise self._unavailable() from None
            # A caller's short deadline says nothing about the server, a long silence does.
            silent_s = time.monotonic() - max(began_at_s, self._heard_at_s)
            if silent_s >= self.config.silence_s:
                self._count(f"no answer for {silent_s:.0f} s")
            raise
        self._heard()
        return result

    def _heard(self) -> None:
        self._heard_at_s = time.monotonic()
        self._breaker.succeeded()

    def _count(self, reason: str) -> None:
        if self._breaker.failed(reason):
            self._away(f"{self.config.breaker_failures} failures one after the other, the last: {reason}")

    def _away(self, reason: str) -> None:
        if self.state is EngineState.READY:
            self.outages += 1
            _log.warning(
                "model server is not used until it answers a probe", model=self.config.model, reason=reason
            )
            self._set(EngineState.DEGRADED, reason)
            self._broken.set()

    def _set(self, state: EngineState, reason: str) -> None:
        self.state, self.reason = state, reason
        self._settled.set()
        if state is not EngineState.READY:
            self.gate.fail_waiting(self._unavailable())

    def _probing_ended(self, task: asyncio.Task[None]) -> None:
        """A fault of ours in the probe must not leave callers waiting for ever."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the probe of the model server failed", exc_info=error)
            self._set(EngineState.ABSENT, f"a fault in the probe of the model server: {type(error).__name__}")

    async def _keep_probed(self) -> None:
        failures = 0
        while True:
            try:
                await self._probe()
            except RemoteFailure as failure:
                failures += 1
                wait_s = self._probe_backoff.wait_s(failures, failure.retry_after_s)
                self._not_ready(failure, wait_s)
            else:
                failures = 0
                await self._broken.wait()
                wait_s = self._probe_backoff.wait_s(1)
                self._next_probe_at_s = time.monotonic() + wait_s
            await self._sleep(wait_s)

    async def _probe(self) -> None:
        """Ask the server what it can do, and be READY.

        Raises:
            RemoteFailure: It does not answer, or not with this model and key.
        """
        began_at_s = time.monotonic()
        try:
            self.http.set_key(read_api_key(self.config))
        except RemoteConfigError as error:
            raise RemoteFailure(FailureKind.FORBIDDEN, str(error)) from error
        found = await probe(self.http, self.config.model)
        self.probe_s = time.monotonic() - began_at_s
        self.probes += 1
        self._capabilities = found
        self._broken.clear()
        self._heard()
        self._set(EngineState.READY, "")
        _log.info(
            "model server answers",
            model=self.config.model,
            objects_by=sorted(form.value for form in found.forms),
            scores_by=found.scores.value if found.scores else "none",
            scores_reason=found.scores_reason,
            took_s=round(self.probe_s, 2),
        )

    def _not_ready(self, failure: RemoteFailure, wait_s: float) -> None:
        lasting = failure.kind in _LASTING
        state = EngineState.ABSENT if lasting else EngineState.DEGRADED
        if (state, failure.reason) != (self.state, self.reason):  # once a reason, not once a probe
            _log.warning("model server does not answer", model=self.config.model, reason=failure.reason)
        self._next_probe_at_s = time.monotonic() + wait_s
        self._set(state, failure.reason)


def _as_model_error(failure: RemoteFailure, model: str) -> ModelError:
    match failure.kind:
        case FailureKind.REFUSED:
            return ModelRequestRefusedError(f"{model}: {failure.reason}")
        case FailureKind.GARBLED:
            return WrongShapeError("an answer of the OpenAI interface", failure.reason)
        case FailureKind.FORBIDDEN | FailureKind.NOT_OFFERED:
            return ModelUnavailableError(f"{model}: {failure.reason}")
        case FailureKind.DOWN | FailureKind.BUSY:
            return ModelUnavailableError(f"{model}: {failure.reason}", failure.retry_after_s or 1.0)
