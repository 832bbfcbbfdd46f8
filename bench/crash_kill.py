"""Who is killed, and when: at a random moment, or as soon as the store is seen at a certain work."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import sqlite3
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import psutil
from clag.v1 import admin_service_pb2 as admin_pb
from clag_client import AsyncClient, ClagError

from bench.crash_texts import NAMESPACE
from bench.store_support import INDEX_CHILD, StoreServer

_PATIENCE_S: Final = 2.5
_POLL_S: Final = 0.002


class Victim(Enum):
    """Who is killed."""

    ALL = "server and children at one moment"
    SERVER = "server alone"
    INDEX = "index child alone"


class Moment(Enum):
    """When. The values of those seen in the catalog are the question that is asked of it."""

    RANDOM = ""
    COMMITTED = "SELECT EXISTS (SELECT 1 FROM index_ops)"
    """Committed and not yet applied to the index."""
    EMBEDDING = "SELECT EXISTS (SELECT 1 FROM memories WHERE state <> 4 AND state = 1)"
    ORGANIZING = "SELECT EXISTS (SELECT 1 FROM memories WHERE state <> 4 AND state IN (2, 3))"
    REBUILDING = "the index says that it is rebuilding"
    REEMBEDDING = "SELECT EXISTS (SELECT 1 FROM operations WHERE kind = 3 AND state IN (1, 2))"
    """The server came back with another embedder and was asked to embed everything again."""
    STARTING = "the server has not opened yet"


@dataclass(frozen=True, slots=True)
class Plan:
    """One kill: let clients work, wait for the moment, wait a little more, kill."""

    victim: Victim
    moment: Moment
    after_s: float
    work_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.victim.value}, {self.moment.name}, {self.after_s * 1000:.0f} ms after"


def planned(rng: random.Random) -> Plan:
    """Choose a kill."""
    moment = rng.choices(list(Moment), [8, 5, 3, 4, 3, 3, 3])[0]
    victim = rng.choices(list(Victim), [5, 3, 2])[0]
    if moment is Moment.REEMBEDDING:
        return Plan(rng.choice((Victim.ALL, Victim.SERVER)), moment, rng.uniform(0.0, 1.2))
    if moment is Moment.STARTING:
        return Plan(Victim.ALL, moment, rng.uniform(0.05, 3.0))
    if moment is Moment.RANDOM:
        return Plan(victim, moment, rng.uniform(0.05, 2.0))
    after_s = rng.choice((0.0, rng.uniform(0.0, 0.05), rng.uniform(0.0, 0.3)))
    return Plan(victim, moment, after_s, 0.0 if moment is Moment.REBUILDING else rng.uniform(0.5, 2.0))


def before_start(plan: Plan, server: StoreServer) -> None:
    """Prepare a start that is to be killed in a rebuild: the index is gone."""
    if plan.moment is Moment.REBUILDING:
        shutil.rmtree(server.data_dir / "index", ignore_errors=True)


async def strike(plan: Plan, server: StoreServer, client: AsyncClient) -> bool:
    """Wait for the moment and kill; returns whether the moment was seen (else the kill came all the same)."""
    await asyncio.sleep(plan.work_s)
    seen = await _moment(plan.moment, server.catalog, client)
    await asyncio.sleep(plan.after_s)
    if plan.victim is Victim.SERVER:
        await server.kill()
    elif plan.victim is Victim.ALL:
        await server.power_cut()
    else:
        child = server.child(INDEX_CHILD)
        if child is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    return seen


async def _moment(moment: Moment, catalog: Path, client: AsyncClient) -> bool:
    if moment in (Moment.RANDOM, Moment.STARTING):
        return True
    until = time.monotonic() + _PATIENCE_S
    if moment is Moment.REBUILDING:
        while time.monotonic() < until:
            with contextlib.suppress(ClagError):
                stats = await client.stats(NAMESPACE, timeout_s=2)
                if stats.index.state == admin_pb.INDEX_STATE_REBUILDING:
                    return True
            await asyncio.sleep(_POLL_S)
        return False
    # A reader beside the server, as a backup would be; it cannot write, so it cannot recover anything either.
    with contextlib.closing(sqlite3.connect(f"file:{catalog}?mode=ro", uri=True)) as connection:
        while time.monotonic() < until:
            if connection.execute(moment.value).fetchone()[0]:
                return True
            await asyncio.sleep(_POLL_S)
    return False
