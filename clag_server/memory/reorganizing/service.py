"""Re-organization as an operation: asked for once, durable, resumed, applied once or not at all.

    sampling -> planning -> checking, up to three times (the SLM, the SLM asked otherwise, vectors) -> applying

The plan is saved with the operation before it is applied. It is applied in one transaction together with its
result, kept under the operation's id, so that a restart finds out whether that happened.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import structlog

from clag_server.catalog.api import Catalog
from clag_server.catalog.api_clusters import EditAnswer
from clag_server.memory.config import OrganizeConfig
from clag_server.memory.edit_commit import commit_draft
from clag_server.memory.namespace import NamespaceState
from clag_server.memory.operations import OperationRun, Operations, new_operation
from clag_server.memory.pipeline import NamespacePipeline
from clag_server.memory.registry import Models, NamespaceRegistry
from clag_server.memory.reorganizing.applying import Application, apply_to
from clag_server.memory.reorganizing.layout import look
from clag_server.memory.reorganizing.naming import name
from clag_server.memory.reorganizing.plan import Plan, plan_from, plan_to, shown
from clag_server.memory.reorganizing.planning import Planning
from clag_server.types.errors import NotFound, OperationRunning, Overloaded
from clag_server.types.operation import BASE, JsonValue, Operation, OperationKind

__all__ = ["ReorganizeRequest", "Reorganizing"]

_log = structlog.get_logger(__name__)

_TRIES = 5
"""Times that a namespace may be changed as a whole while its plan waits to be applied."""


@dataclass(frozen=True, slots=True)
class ReorganizeRequest:
    """What is asked for: whether only to plan, about how many clusters (0: as it comes), which (none: all).

    `trigger` is why it started by itself, "" for a client's wish.
    """

    dry_run: bool = False
    target: int = 0
    clusters: tuple[int, ...] = ()
    trigger: str = ""


class Reorganizing:
    """Begins and runs REORGANIZE operations.

    Args:
        registry: The namespaces at work.
        catalog: The system of record.
        operations: Runs them.
        models: The models.
        config: Thresholds.
        now_ns: The wall clock.
    """

    def __init__(
        self,
        registry: NamespaceRegistry,
        *,
        catalog: Catalog,
        operations: Operations,
        models: Models,
        config: OrganizeConfig,
        now_ns: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._catalog = catalog
        self._operations = operations
        self._planning = Planning(models, config)
        self._config = config
        self._now_ns = now_ns
        self._asking = asyncio.Lock()
        operations.register(OperationKind.REORGANIZE, self._run)

    async def begin(self, namespace: str, request: ReorganizeRequest, *, request_id: str = "") -> Operation:
        """Begin a re-organization; with a known request id, return the one that it began.

        Raises:
            NotFound: there is no such namespace, or no such cluster in it.
            EmbedderMismatch: the namespace is of another embedder, or being embedded again.
            OperationRunning: one runs on the namespace.
            RequestIdReused: the request id came with another request.
        """
        async with self._asking:
            state = (await self._registry.pipeline(namespace, create=False)).state
            operation = new_operation(
                OperationKind.REORGANIZE,
                ns=state.ns,
                namespace=namespace,
                request={
                    "dry_run": request.dry_run,
                    "target": request.target,
                    "clusters": list[JsonValue](sorted(request.clusters)),
                    "trigger": request.trigger,
                },
                now_ns=self._now_ns(),
                request_id=request_id,
            )
            running = await self._operations.unfinished(state.ns, [OperationKind.REORGANIZE])
            if running is not None and not (request_id and running.request_id == request_id):
                raise OperationRunning(running.operation_id)
            if running is None:
                missing = [number for number in request.clusters if number not in state.map.clusters]
                known = bool(request_id) and await self._known(state.ns, request_id)
                if missing and not known:
                    raise NotFound("cluster", f"c{missing[0]}")
            return await self._operations.submit(operation)

    async def _known(self, ns: int, request_id: str) -> bool:
        """Whether a request id began an operation: its clusters may be gone since."""
        return any(one.request_id == request_id for one in await self._operations.list(ns=ns, before="", limit=100))

    async def _run(self, run: OperationRun) -> Mapping[str, JsonValue]:
        request = _request_of(run.operation)
        pipeline = await self._registry.pipeline(run.operation.namespace, create=False)
        applied = await self._applied(run.operation, pipeline.state)
        if applied is not None:
            return applied
        plan = await self._plan(run, pipeline.state, request)
        if request.dry_run:
            told = _result(plan, shown(plan.steps), moved=plan.moved, revision=await self._catalog.revision())
            return {**told, "dry_run": True}
        return await self._apply(run, plan, request)

    async def _plan(self, run: OperationRun, state: NamespaceState, request: ReorganizeRequest) -> Plan:
        """Return the plan: the one that was saved, or a new one, which is saved."""
        saved = run.operation.progress.get("plan")
        if isinstance(saved, dict):
            return plan_from(saved)
        base = run.operation.progress.get(BASE) or (None if request.dry_run else await self._base(state))
        begun: dict[str, JsonValue] = {} if base is None else {BASE: base}
        await run.report("sampling", done=0, total=0, progress=begun, durable=True)
        plan = await self._planning.plan(run, state, only=request.clusters, target=request.target)
        await run.report("applying", done=0, total=1, progress={**begun, "plan": plan_to(plan)}, durable=True)
        return plan

    async def _base(self, state: NamespaceState) -> dict[str, JsonValue]:
        rows = await self._catalog.stats(state.ns)
        return {
            "created": rows.created,
            "episodes": state.map.next_numbers[1],
            "clusters": rows.clusters,
            "time_ns": self._now_ns(),
        }

    async def _apply(self, run: OperationRun, plan: Plan, request: ReorganizeRequest) -> Mapping[str, JsonValue]:
        """Apply what holds of the plan. From here on nothing stops it: half a plan is no plan."""
        run.stop_if_asked()
        for left in reversed(range(_TRIES)):
            pipeline = await self._registry.pipeline(run.operation.namespace, create=False)
            state = pipeline.state
            named = await name(state, await look(state.map, self._config, request.clusters), plan)
            try:
                async with state.editing():
                    application = apply_to(
                        state.map,
                        named.plan,
                        named.profiles,
                        cluster_max=self._config.cluster_max,
                        now_ns=self._now_ns(),
                        operation_id=run.operation.operation_id,
                    )
                    if not application.changes:
                        return _result(plan, [], moved=0, revision=await self._catalog.revision())
                    result, revision = await self._commit(
                        run.operation, pipeline, plan, application, request.target
                    )
            except Overloaded:
                if not left:
                    raise
                continue
            pipeline.edited()
            kept = {key: value for key, value in run.operation.progress.items() if key == BASE}
            run.operation = replace(run.operation, progress=kept)  # its plan is done and may be large
            return {**result, "revision": revision}
        raise Overloaded(f'namespace "{run.operation.namespace}"')

    async def _commit(
        self, operation: Operation, pipeline: NamespacePipeline, plan: Plan, application: Application, target: int
    ) -> tuple[dict[str, JsonValue], int]:
        state, draft = pipeline.state, application.draft
        told: dict[str, JsonValue] = {}

        def answer(numbers: Mapping[int, int]) -> EditAnswer:
            real = {old: numbers.get(new, new) for old, new in application.numbers.items()}
            steps = [
                replace(
                    step,
                    target=real.get(step.target, step.target),
                    sources=tuple(real.get(number, number) for number in step.sources),
                )
                for step in application.steps
            ]
            after = draft.active_clusters()
            missed = _missed(plan, after, target)
            done = replace(plan, clusters_after=after, missed=missed)
            told.update(_result(done, shown(steps), moved=draft.moved, revision=0))
            return EditAnswer(_answer_id(operation), _digest(operation), json.dumps(told))

        revision, _ = await commit_draft(state, self._catalog, draft, answer)
        _log.info(
            "clusters re-organized",
            namespace=operation.namespace,
            steps=len(application.steps),
            left_out=len(plan.steps) - len(application.steps),
            moved=draft.moved,
        )
        return told, revision

    async def _applied(self, operation: Operation, state: NamespaceState) -> Mapping[str, JsonValue] | None:
        """Return the result of an earlier run that was stopped after its commit."""
        text = await self._catalog.edit_answer(state.ns, _answer_id(operation), _digest(operation))
        if text is None:
            return None
        result: dict[str, JsonValue] = json.loads(text)
        return {**result, "revision": await self._catalog.revision()}


def _request_of(operation: Operation) -> ReorganizeRequest:
    asked = operation.request
    target, clusters = asked.get("target"), asked.get("clusters")
    return ReorganizeRequest(
        dry_run=asked.get("dry_run") is True,
        target=target if isinstance(target, int) else 0,
        clusters=tuple(n for n in clusters if isinstance(n, int)) if isinstance(clusters, list) else (),
        trigger=str(asked.get("trigger", "")),
    )


def _result(plan: Plan, steps: list[JsonValue], *, moved: int, revision: int) -> dict[str, JsonValue]:
    return {
        "steps": steps,
        "clusters_before": plan.clusters_before,
        "clusters_after": plan.clusters_after,
        "moved": moved,
        "by": int(plan.by),
        "attempts": plan.attempts,
        "dropped": plan.dropped,
        "missed": plan.missed,
        "revision": revision,
    }


def _missed(plan: Plan, after: int, target: int) -> str:
    """Say why there are not as many clusters as were asked for: what was planned, or what came since."""
    if not target or after == target:
        return ""
    if plan.missed and after == plan.clusters_after:
        return plan.missed
    return f"there are {after} clusters, not {target}: clusters or memories changed while the plan was made"


def _answer_id(operation: Operation) -> str:
    """Name the result among the answers of edits; it is longer than a client's request id may be."""
    return f"what the re-organization of clusters did, as the operation {operation.operation_id} tells"


def _digest(operation: Operation) -> bytes:
    return hashlib.sha256(operation.operation_id.encode()).digest()
