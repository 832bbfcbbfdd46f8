"""One run: each pool is organized once a way of grouping, and all methods answer the same questions on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from clag.v1 import admin_service_pb2 as admin_pb
from clag.v1 import memory_service_pb2 as pb
from clag_client import AsyncClient, ClagError
from numpy.typing import NDArray

from clag_eval.answers import bleu_1, token_f1
from clag_eval.asking import Answered, ask, not_served
from clag_eval.data import Dataset, Question
from clag_eval.methods import LAYOUTS, Budgets, Found, Method, layout_of, made
from clag_eval.metrics import K, recall_of, score
from clag_eval.rows import Block, Kept, PoolMap, Reply, Row
from clag_eval.serving import ServerChoice, served
from clag_eval.stored import EvaluationError, StoredPool, namespace_of, store

__all__ = ["Progress", "RunFacts", "RunOptions", "run"]

_NO_SLM: Final = (admin_pb.MODEL_STATE_DISABLED, admin_pb.MODEL_STATE_UNSPECIFIED)
_POLL_S: Final = 0.5

Progress = Callable[[str, int, int], None]
"""Hears what is being done, how many questions are done, and how many there are in all."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What is compared, and how.

    Attributes:
        methods: Names of methods.
        budgets: Token budgets.
        slm_use: Whether the language model takes part in retrieval.
        answers: Whether it is asked for answers.
    """

    methods: tuple[str, ...]
    budgets: Budgets
    slm_use: pb.SlmUse.ValueType
    answers: bool = False


@dataclass(slots=True)
class RunFacts:
    """What was measured with: names of models, the server's version, and what could not be measured."""

    embedder: str = ""
    slm: str = ""
    version: str = ""
    contract_hash: str = ""
    probe: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Take note of something once."""
        if text not in self.notes:
            self.notes.append(text)


async def run(data: Dataset, options: RunOptions, choice: ServerChoice, kept: Kept, progress: Progress) -> RunFacts:
    """Evaluate what is not kept yet; the blocks are in `kept` afterwards.

    Raises:
        EvaluationError: A server fails, or does not hold what was sent.
        DataError: A method is not known.
        ClagError: A call fails.
    """
    facts = RunFacts()
    methods = dict(zip(options.methods, made(options.methods, options.budgets), strict=True))
    embeddings: dict[str, NDArray[np.float32]] = {}
    total = data.questions * len(methods)
    for layout in LAYOUTS:
        wanted = [name for name in methods if layout_of(name) == layout]
        if choice.addresses and layout not in choice.addresses:
            for name in wanted:
                facts.note(f"{name} was left out: it needs a server with organize.strategy = {layout}")
            continue
        left = [pool for pool in data.pools if any(not kept.has(pool.name, methods[name].name) for name in wanted)]
        if not left:
            continue
        async with served(choice, layout) as client:
            await _describe(client, options, facts)
            for pool in left:
                progress(f"{pool.name}: organizing ({layout})", sum(len(one.rows) for one in kept.blocks), total)
                stored = await store(
                    client,
                    namespace_of(f"{data.name}-{layout}", pool.name),
                    pool,
                    slm_use=options.slm_use,
                    vectors=embeddings.get(pool.name),
                )
                embeddings[pool.name] = stored.vectors
                for name in wanted:
                    if kept.has(pool.name, methods[name].name):
                        continue
                    mapped = pool is data.pools[0] and name == wanted[-1] and layout == LAYOUTS[0]
                    block = await _measure(stored, methods[name], options, facts, kept, progress, total)
                    kept.add(replace(block, drawn=_map(stored)) if mapped else block)
    for block in kept.blocks:
        for text in block.notes:
            facts.note(text)
    return facts


async def _describe(client: AsyncClient, options: RunOptions, facts: RunFacts) -> None:
    """Note what the server is, and have its language model probed where it is to take part."""
    info = await client.server_info()
    facts.embedder, facts.version, facts.contract_hash = info.embedder.name, info.version, info.contract_hash
    if options.slm_use == pb.SLM_USE_NEVER:
        return
    if info.slm.state in _NO_SLM:
        raise EvaluationError("the server has no language model; use --slm never, or name one with --model")
    facts.slm = info.slm.name
    if not info.HasField("probe"):
        operation = await client.run_probe()
        while not operation.HasField("end_time"):
            await asyncio.sleep(_POLL_S)
            request = admin_pb.GetOperationRequest(operation_id=operation.operation_id)
            answer = await client.admin.GetOperation(request, metadata=client.metadata, timeout=30.0)
            operation = answer.operation
        if operation.state != admin_pb.OPERATION_STATE_SUCCEEDED:
            facts.note(f"the competence probe did not succeed: {operation.error.message}")
        info = await client.server_info()
    facts.probe = {
        admin_pb.ProbeSkill.Name(one.skill).removeprefix("PROBE_SKILL_").lower(): one.weight
        for one in info.probe.skills
    }


async def _measure(
    stored: StoredPool,
    method: Method,
    options: RunOptions,
    facts: RunFacts,
    kept: Kept,
    progress: Progress,
    total: int,
) -> Block:
    """Ask all questions of a pool under one method."""
    await method.prepare(stored)
    before = (await stored.client.server_info()).slm.work
    rows: list[Row] = []
    notes: list[str] = []
    done = sum(len(one.rows) for one in kept.blocks)
    for question in stored.pool.questions:
        found = await method.find(stored, question)
        rows.append(_row(question, found, await _reply(stored, question, found, method, options, notes)))
        progress(f"{stored.pool.name}: {method.name}", done + len(rows), total)
    work = (await stored.client.server_info()).slm.work
    for text in notes:
        facts.note(text)
    return Block(
        pool=stored.pool.name,
        method=method.name,
        memories=len(stored.pool.memories),
        clusters=len(stored.clusters),
        organize_seconds=stored.seconds,
        organize_slm_calls=stored.slm_calls,
        organize_slm_tokens=stored.slm_tokens,
        slm_calls=work.calls - before.calls,
        slm_tokens_in=work.tokens_in - before.tokens_in,
        slm_tokens_out=work.tokens_out - before.tokens_out,
        rows=tuple(rows),
        notes=tuple(notes),
    )


async def _reply(
    stored: StoredPool,
    question: Question,
    found: Found,
    method: Method,
    options: RunOptions,
    notes: list[str],
) -> Reply | None:
    if not options.answers or notes:
        return None
    budget = options.budgets.window if method.name == "full" else options.budgets.answer
    try:
        answered = await ask(stored, question, found.contexts[budget], budget=budget)
    except ClagError as error:
        if not not_served(error):
            raise
        notes.append(f"no answers: the server does not serve Answer ({error.message})")
        return None
    return _scored(answered, question)


def _scored(answered: Answered, question: Question) -> Reply:
    right = question.answer
    return Reply(
        text=answered.text,
        refused=answered.refused,
        prompt_tokens=answered.prompt_tokens,
        answer_tokens=answered.answer_tokens,
        seconds=answered.seconds,
        f1=None if right is None else token_f1(answered.text, right),
        bleu_1=None if right is None else bleu_1(answered.text, right),
    )


def _row(question: Question, found: Found, reply: Reply | None) -> Row:
    return Row(
        question=question.id,
        category=question.category,
        scores=score(found.ranked, question.evidence),
        picked=found.space.picked,
        clusters=found.space.clusters,
        net=found.space.net,
        evidence={budget: recall_of(ids, question.evidence) for budget, ids in found.contexts.items()},
        tokens=dict(found.tokens),
        seconds=found.seconds,
        ranked=found.ranked[:K],
        reply=reply,
    )


def _map(stored: StoredPool) -> PoolMap:
    """Lay a pool out in the plane: the two directions in which its embeddings differ most."""
    names = list(stored.clusters)
    number = {name: index for index, name in enumerate(names)}
    centered = stored.vectors - stored.vectors.mean(axis=0)
    _, _, directions = np.linalg.svd(centered, full_matrices=False)
    plane = centered @ directions[:2].T
    return PoolMap(
        pool=stored.pool.name,
        points=[
            (round(float(x), 4), round(float(y), 4), number.get(stored.cluster_of[memory.id], -1))
            for (x, y), memory in zip(plane, stored.pool.memories, strict=True)
        ],
        titles=[stored.clusters[name].title for name in names],
    )
