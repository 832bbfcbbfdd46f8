"""A case study: one question, the clusters picked and pruned, what each method found, what was answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from clag.v1 import memory_service_pb2 as pb
from clag_client import ClagError

from clag_eval.asking import Answered, ask, not_served
from clag_eval.data import DataError, Memory, Pool, Question
from clag_eval.markdown import table
from clag_eval.methods import Budgets, Found, layout_of, made
from clag_eval.metrics import K, score
from clag_eval.serving import ServerChoice, served
from clag_eval.stored import StoredPool, namespace_of, store
from clag_eval.tokens import spoken_date

__all__ = ["Case", "Told", "chosen_question", "study", "written"]

_SHOWN: Final = 12
"""Pruned clusters that are listed, the best."""
_EXCERPT: Final = 60
"""Characters of a memory that are quoted."""


@dataclass(frozen=True, slots=True)
class Told:
    """One method's part."""

    method: str
    found: Found
    answered: Answered | None


@dataclass(frozen=True, slots=True)
class Case:
    """One question under several methods; `why_no_answers` is empty where answers were not asked for, or given."""

    data: str
    pool: Pool
    question: Question
    told: tuple[Told, ...]
    slm: str
    why_no_answers: str = ""


def chosen_question(pool: Pool, wanted: str) -> Question:
    """Return a question by its id; empty takes the first with evidence of two memories or more.

    Raises:
        DataError: There is none.
    """
    for question in pool.questions:
        if question.id == wanted or (not wanted and len(question.evidence) > 1):
            return question
    raise DataError(f"{pool.name} has no question {wanted!r}" if wanted else f"{pool.name} has no such question")


async def study(
    data: str,
    pool: Pool,
    question: Question,
    methods: Sequence[str],
    choice: ServerChoice,
    *,
    slm_use: pb.SlmUse.ValueType,
    budgets: Budgets,
) -> Case:
    """Ask one question of each method.

    Raises:
        EvaluationError: A server fails.
        DataError: A method is not known.
        ClagError: A call fails.
    """
    told: dict[str, Told] = {}
    why, slm = "", ""
    for layout in dict.fromkeys(layout_of(name) for name in methods):
        async with served(choice, layout) as client:
            slm = (await client.server_info()).slm.name if slm_use != pb.SLM_USE_NEVER else ""
            name = namespace_of(f"{data}-{layout}", pool.name)
            stored = await store(client, name, pool, slm_use=slm_use)
            wanted = [one for one in methods if layout_of(one) == layout]
            for name, method in zip(wanted, made(wanted, budgets), strict=True):
                await method.prepare(stored)
                found = await method.find(stored, question)
                budget = budgets.window if name == "full" else budgets.answer
                answered = None
                if slm and not why:
                    answered, why = await _asked(stored, question, found.contexts[budget], budget)
                told[name] = Told(name, found, answered)
    return Case(data, pool, question, tuple(told[name] for name in methods), slm, why)


async def _asked(
    stored: StoredPool, question: Question, ids: Sequence[str], budget: int
) -> tuple[Answered | None, str]:
    try:
        return await ask(stored, question, ids, budget=budget), ""
    except ClagError as error:
        if not not_served(error):
            raise
        return None, f"The server does not serve answers: {error.message}"


def written(case: Case) -> str:
    """Write a case as a Markdown page."""
    by_id = {memory.id: memory for memory in case.pool.memories}
    question = case.question
    parts = [
        "# A question from end to end",
        _source(case),
        f"**Question** ({question.id}, category {question.category or 'none'}): {question.text}",
    ]
    if question.answer is not None:
        parts.append(f"**Right answer**: {question.answer}")
    parts += ["**Evidence**:", *(_quoted(by_id[one]) for one in question.evidence)]
    for told in case.told:
        if told.found.selection is not None and told.method == "clag":
            parts += ["## Clusters", *_clusters(told.found.selection)]
    parts += ["## What each method found", table([_line(told, question) for told in case.told], None)]
    for told in case.told:
        parts += [f"### `{told.method}`", _hits(told, question, by_id)]
    if case.why_no_answers:
        parts.append(case.why_no_answers)
    elif not case.slm:
        parts.append("No language model was asked for an answer (`--slm never`).")
    return "\n\n".join(parts) + "\n"


def _source(case: Case) -> str:
    held = f"{case.pool.name}: {len(case.pool.memories):,} memories"
    return (
        f"Made by `clag-eval case` from {case.data}, {held}. "
        "Memories are quoted in part, for illustration; the data has its own licence."
    )


def _clusters(selection: pb.ClusterSelection) -> list[str]:
    space = selection.search_space
    picked = [one for one in selection.candidates if one.selected]
    pruned = [one for one in selection.candidates if not one.selected]
    rows = [_cluster(one) for one in (*picked, *pruned[:_SHOWN])]
    return [
        f"{space.memories_total:,} memories in {space.clusters_total} clusters and {space.episodes_total} episodes "
        f"-> {space.memories_in_picked_episodes:,} memories in {space.episodes_picked} episodes of "
        f"{space.clusters_selected} clusters. {len(pruned)} clusters were weighed and pruned"
        + (f", of which {_SHOWN} are shown:" if len(pruned) > _SHOWN else ":"),
        table(rows, None),
    ]


def _cluster(one: pb.ClusterCandidate) -> dict[str, str]:
    return {
        "cluster": one.title.replace("|", "/"),
        "score": f"{one.score:.2f}",
        "memories": f"{one.memory_count}",
        "picked": f"{one.memories_picked}" if one.selected else "pruned",
        "why": one.reason.replace("|", "/"),
    }


def _line(told: Told, question: Question) -> dict[str, str]:
    found = score(told.found.ranked, question.evidence)
    line = {
        "method": f"`{told.method}`",
        "evidence in the first ten": f"{round(found.recall * len(question.evidence))} of {len(question.evidence)}",
        "memories searched": f"{100 * told.found.space.picked:.0f}%",
    }
    if told.answered is not None:
        said = "(refused)" if told.answered.refused else told.answered.text.replace("|", "/").replace("\n", " ")
        line |= {"prompt tokens": f"{told.answered.prompt_tokens}", "answer": said}
    return line


def _hits(told: Told, question: Question, by_id: dict[str, Memory]) -> str:
    return "\n".join(
        f"{rank}. {'**evidence** ' if name in question.evidence else ''}{_excerpt(by_id[name])}"
        for rank, name in enumerate(told.found.ranked[:K], start=1)
    )


def _quoted(memory: Memory) -> str:
    return f"> {memory.id}: {_excerpt(memory)}"


def _excerpt(memory: Memory) -> str:
    text = " ".join(memory.text.split())
    cut = text if len(text) <= _EXCERPT else text[:_EXCERPT].rsplit(" ", 1)[0] + " ..."
    date = spoken_date(memory)
    return f"{f'[{date}] ' if date else ''}{f'{memory.speaker}: ' if memory.speaker else ''}{cut}"
