"""A bad model cannot spoil it: evidence recall with language models that are random, biased, real, or an oracle.

Each model organizes the same conversations on a server of its own, and is then asked to choose among clusters for
every question, where the server lets it. What differs is only the model: how far it is trusted is what the
competence probe says, or that of a perfect model (`trust=full`). Recall is measured as users get it, without the
model's choice (what routing and evolution alone did), and with at most one cluster to look into.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from clag.v1 import admin_service_pb2 as admin_pb
from clag_client import AsyncClient

from bench.grouping_data import DATA_DIR, Corpus, corpora
from bench.grouping_report import Report, Result, table
from bench.grouping_run import probed, slm_ready
from bench.server import running_server, temporary_root
from bench.spoil_measure import TOP, measured
from bench.spoil_models import double, in_place_of_the_slm

MODELS: Final = ("random", "first", "oracle", "smollm2-135m-instruct")
DATA: Final = ("locomo:conv-26", "locomo:conv-30")
TRUSTS: Final = ("probe", "full")
BASELINE: Final = "none"

_GOALS: Final = {"probe": 1.0, "full": 5.0}
"""Points of recall that a bad model may cost."""
_GAIN: Final = 2.0
"""Points of recall that an oracle is to gain."""
_QUICK_MEMORIES: Final = 200
_COLUMNS: Final = {
    "recall": f"recall@{TOP}",
    "recall_unasked": "no choice",
    "recall_of_1": "1 cluster",
    "choices": "choices",
    "clusters": "clusters",
    "by_slm": "by SLM",
    "pairs_together": "pairs",
    "routing_weight": "w routing",
    "selection_weight": "w selection",
    "superseded": "superseded",
    "seconds": "seconds",
}


async def main(
    *,
    quick: bool,
    slm: str | None = None,
    models: Sequence[str] = MODELS,
    data: Sequence[str] = DATA,
    data_dir: Path = DATA_DIR,
    limit: int = 0,
    trusts: Sequence[str] = TRUSTS,
    report: Path | None = None,
) -> None:
    """Organize each conversation with each model, ask its questions, and print what the model did to recall."""
    wanted = [*models, *([slm] if slm and slm not in models else [])]
    if quick:
        wanted = [name for name in wanted if double(name) is not None]
    found, absent = corpora(data[:1] if quick else data, data_dir, limit=limit or (_QUICK_MEMORIES if quick else 0))
    for reason in absent:
        print(f"skipped {reason}", flush=True)
    if not found:
        return
    kept = Report(report)
    # The probe's questions are not the conversation's: an oracle of the one knows nothing of the other.
    cases = [(BASELINE, BASELINE)]
    cases += [(model, trust) for model in wanted for trust in trusts if (model, trust) != ("oracle", "probe")]
    for model, trust in cases:
        await _run(kept, found, model, trust)
    names = [_name(model, trust) for model, trust in cases]
    for corpus in found:
        print(f"\n{corpus.name}: {len(corpus.items)} memories, {len(corpus.questions)} questions")
        print(table({name: kept[_key(corpus, name)] for name in names}, _COLUMNS))
    print()
    losses = {name: _loss(kept, found, name) for name in names[1:]}
    for model, trust in cases[1:]:
        name = _name(model, trust)
        print(verdict(model, trust, losses[name], kept[_key(found[0], name)]))
    shown = ", ".join(f"{name} {-lost:+.1f}" for name, lost in losses.items())
    print(
        f"spoil: points of recall@{TOP} against no model, {sum(len(c.questions) for c in found)} questions: {shown}"
    )


async def _run(kept: Report, found: Sequence[Corpus], model: str, trust: str) -> None:
    """Measure what the report does not have yet of one model, on one server that is probed once."""
    name = _name(model, trust)
    for corpus in (one for one in found if _key(one, name) in kept):
        print(f"{_key(corpus, name)}: taken from the report", flush=True)
    missing = [corpus for corpus in found if _key(corpus, name) not in kept]
    if not missing:
        return
    stand_in = double(model)
    with temporary_root() as root, in_place_of_the_slm(stand_in):
        async with running_server(root, _settings(model, trust)) as server, AsyncClient(server.address) as client:
            await slm_ready(client)
            weights = await _earned(client) if trust == "probe" else {}
            for corpus in missing:

                async def result(corpus: Corpus = corpus) -> Result:
                    return dict(await measured(client, corpus, stand_in)) | weights

                await kept.run(_key(corpus, name), result)


async def _earned(client: AsyncClient) -> dict[str, float]:
    """Examine the model before the first memory; returns the weight that its word earned at each choice."""
    weights = {one.skill: one.weight for one in (await probed(client)).skills}
    return {
        "routing_weight": weights[admin_pb.PROBE_SKILL_ROUTING],
        "selection_weight": weights[admin_pb.PROBE_SKILL_SELECTION],
    }


def verdict(model: str, trust: str, lost: float, result: Result) -> str:
    """Say in a line what a model cost or gained, and whether that meets the goal.

    Args:
        model: The model.
        trust: How far it was trusted.
        lost: Points of recall that it cost against no model, over all questions.
        result: One run of it.
    """
    name = _name(model, trust)
    if model == "oracle":
        met = "met" if -lost >= _GAIN else "missed"
        return f"{name}: gains {-lost:.1f} points of recall@{TOP} (goal at least {_GAIN:g}: {met})"
    met = "met" if lost <= _GOALS[trust] else "missed"
    line = f"{name}: costs {lost:.1f} points of recall@{TOP} (goal at most {_GOALS[trust]:g}: {met})"
    if trust != "probe":
        return line
    routing, selection = float(result["routing_weight"]), float(result["selection_weight"])
    line += f"; the probe gave its word the weights {routing:g} for routing, {selection:g} for selection"
    if model in ("first", "last"):
        line += f" (goal 0: {'met' if routing == selection == 0 else 'missed'})"
    return line


def _loss(kept: Report, found: Sequence[Corpus], name: str) -> float:
    """Return the points of recall that a model cost, over all questions of all conversations."""
    lost = sum(
        len(corpus.questions)
        * (float(kept[_key(corpus, BASELINE)]["recall"]) - float(kept[_key(corpus, name)]["recall"]))
        for corpus in found
    )
    return 100 * lost / sum(len(corpus.questions) for corpus in found)


def _settings(model: str, trust: str) -> dict[str, object]:
    if model == BASELINE:
        return {"models.slm": "", "organize.trust": "none"}
    # A double takes the place of whatever model the settings name.
    settings: dict[str, object] = {
        "organize.trust": trust,
        "organize.probe_auto": False,
        "organize.slm_behind_s": 86_400.0,
    }
    if double(model) is None:
        settings["models.slm"] = model
        # A real one writes for minutes what takes no part in choosing.
        settings["organize.annotate"] = "terms"
    elif trust == "full":
        # What is trusted writes, too.
        settings["organize.annotate"] = "slm"
    return settings


def _name(model: str, trust: str) -> str:
    return BASELINE if model == BASELINE else f"{model}/{trust}"


def _key(corpus: Corpus, name: str) -> str:
    return f"{corpus.name}[{len(corpus.items)}]/{name}"
