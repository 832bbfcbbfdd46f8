"""Notes that belong together by what they are used for, not by their words: who puts them together?

Each group has notes of one use, a note of the same use in other words, notes that share words with it but not the
use, and notes about something else. Run with the real models:

    python -m tests.memory.use_pairs [MODEL CACHE]
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.memory.cluster_service import EditOptions
from clag_server.memory.config import IngestConfig, OrganizeConfig, RetrieveConfig
from clag_server.memory.profiles import due
from clag_server.memory.registry import Models
from clag_server.memory.system import MemorySystem
from clag_server.models.config import ModelsConfig
from clag_server.models.factory import build_models
from clag_server.types.competence import TrustPolicy
from clag_server.types.ingest import AckLevel
from clag_server.types.memory import Annotator
from clag_server.types.namespace import NamespaceSettings, RoutingUnit
from clag_server.types.routing import Strategy
from tests.memory.builders import new
from tests.memory.index_double import ScanIndex

GROUPS = Path(__file__).parent / "use_pairs.json"


@dataclass(frozen=True, slots=True)
class Group:
    """One group: a purpose, and notes by the part that they play."""

    language: str
    purpose: str
    first: Sequence[str]
    second: str
    lure: Sequence[str]
    other: Sequence[str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one group: whether the note came to those of its use, or to those that share its words."""

    group: Group
    together: bool
    lured: bool
    voted: bool


def groups() -> list[Group]:
    """Return the test set."""
    return [Group(**one) for one in json.loads(GROUPS.read_text(encoding="utf-8"))]


async def prepare(models: Models, path: Path, wanted: Sequence[Group]) -> None:
    """Store the known notes of each group in a namespace of its own, one cluster for each part."""
    # Nothing is near enough, so every note founds a cluster; those of a part are merged by hand.
    async with _system(models, path, OrganizeConfig(strategy=Strategy.COSINE, cluster_cosine=2.0)) as system:
        for number, group in enumerate(wanted):
            name = _name(number)
            settings = NamespaceSettings(purpose=group.purpose, routing_unit=RoutingUnit.MEMORY)
            await system.whole.create(name, settings, embedding_model="")
            for part, notes in (("first", group.first), ("lure", group.lure), ("other", group.other)):
                clusters = [await _store(system, name, f"{part}{n}", note) for n, note in enumerate(notes)]
                await system.cluster_edits.merge(name, clusters[0], clusters[1:], EditOptions())
            state = (await system.registry.pipeline(name, create=False)).state
            while any(due(cluster) for cluster in state.map.clusters.values()):  # noqa: ASYNC110 - the map tells nobody
                await asyncio.sleep(0.01)


async def route(models: Models, path: Path, wanted: Sequence[Group], organize: OrganizeConfig) -> list[Outcome]:
    """Store the last note of each group and look where it goes. `path` is as `prepare` left it."""
    outcomes = []
    async with _system(models, path, organize) as system:
        for number, group in enumerate(wanted):
            name = _name(number)
            cluster = await _store(system, name, "second", group.second)
            first, _ = await system.get_memory(name, "first0", embedding=False, fresh_revision=0)
            lure, _ = await system.get_memory(name, "lure0", embedding=False, fresh_revision=0)
            second, _ = await system.get_memory(name, "second", embedding=False, fresh_revision=0)
            voted = second.routing is not None and second.routing.vote is not None
            outcomes.append(Outcome(group, cluster == first.cluster, cluster == lure.cluster, voted))
    return outcomes


async def _store(system: MemorySystem, name: str, memory_id: str, text: str) -> int:
    """Store a note in a session of its own; returns its cluster once nothing awaits the SLM."""
    note = new(text, memory_id, session_id=memory_id)
    await system.create_memory(name, note, request_id="", level=AckLevel.ORGANIZED)
    state = (await system.registry.pipeline(name, create=False)).state
    while state.map.undecided or state.lock.locked():  # noqa: ASYNC110 - the map tells nobody
        await asyncio.sleep(0.01)
    memory, _ = await system.get_memory(name, memory_id, embedding=False, fresh_revision=0)
    return memory.cluster or 0


def _name(number: int) -> str:
    return f"use-{number}"


@asynccontextmanager
async def _system(models: Models, path: Path, organize: OrganizeConfig) -> AsyncIterator[MemorySystem]:
    catalog = SqliteCatalog(path / "catalog.db")
    system = MemorySystem(
        catalog=catalog,
        index=ScanIndex(catalog),
        models=models,
        data_dir=path,
        ingest=IngestConfig(),
        organize=replace(organize, trust=TrustPolicy.FULL, annotate=Annotator.TERMS),
        retrieve=RetrieveConfig(),
    )
    await system.start()
    await system.registry.resumed()
    try:
        yield system
    finally:
        await system.stop()


async def _report(cache: Path) -> None:
    wanted = groups()
    models = build_models(ModelsConfig(cache=cache))
    await models.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            prepared = Path(folder) / "prepared"
            prepared.mkdir()
            await prepare(models, prepared, wanted)
            for strategy in (Strategy.COSINE, Strategy.AGENTIC):
                path = Path(folder) / strategy
                shutil.copytree(prepared, path)
                found = await route(models, path, wanted, OrganizeConfig(strategy=strategy))
                together, lured = sum(one.together for one in found), sum(one.lured for one in found)
                asked = sum(one.voted for one in found)
                sys.stdout.write(
                    f"{strategy}: {together} of {len(found)} with those of the same use, {lured} with those that "
                    f"share words, {asked} with the SLM's say\n"
                )
    finally:
        await models.stop()


if __name__ == "__main__":
    asyncio.run(_report(Path(sys.argv[1] if len(sys.argv) > 1 else "~/.cache/clag/models").expanduser()))
