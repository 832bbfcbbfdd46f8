"""`python -m bench crash --kills N`: kill a real server again and again, and hold it to what it acknowledged.

One data directory grows over the whole run. While clients stream, create, update, delete and regroup memories, the
server is killed: all of it at one moment, the server alone, or the index's process alone; at random, between a
commit and its application to the index, in embedding, in organizing, in a rebuild of the index, while another model
embeds everything again, in its start, and in the migration of an older catalog. After each kill the files are
checked by brute force as the kill left them, the server starts again, clients resume and send again what had no
answer, and what they were told is checked through the contract.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

from bench.crash_catalog import copied, look
from bench.crash_kill import Moment, Victim, before_start, planned, strike
from bench.crash_ledger import Ledger, Verdict, closing_line, verify
from bench.crash_load import Load
from bench.crash_migration import killed_in_migration
from bench.crash_reembed import embed_again, operations_ended, with_other_embedder
from bench.crash_texts import NAMESPACE
from bench.crash_verify import full_check, spot_check
from bench.store_support import Knobs, StoreServer, index_ready, kept_on_failure

_SETTINGS: Final = {
    # Small clusters and short episodes: splits, routing and profiles happen all the time.
    "organize.cluster_max": "60",
    "organize.episode_idle_s": "2",
    # To the scripted embedder the date that every text begins with is a third of a short text.
    "organize.cluster_cosine": "0.45",
}
_INDEX: Final = {
    "flush_rows": 40,
    "batch_rows": 40,
    "idle_s": 0.2,
    "max_age_s": 1.0,
    "page_rows": 128,
    "rebuild_bytes": 32_768,
}
_MIGRATIONS: Final = 6
_SHOWN: Final = 20


class Broken(Exception):
    """The store broke its word; what it did was printed."""


async def main(*, quick: bool, kills: int = 0, seed: int | None = None) -> int:
    """Run; returns the exit code: 1 when anything acknowledged was lost, doubled or misplaced."""
    kills = kills or (5 if quick else 100)
    seed = random.randrange(2**31) if seed is None else seed
    print(f"crash: seed {seed}", flush=True)
    total = Verdict()
    ledger = Ledger()
    done = 0
    try:
        with kept_on_failure("crash") as root:
            migrations = min(_MIGRATIONS, 1 + kills // 20)
            total.add(await killed_in_migration(root / "migration", migrations, random.Random(seed)))
            done += migrations
            run = _Run(root / "store", ledger, seed, total)
            try:
                await run.run(kills - migrations)
            finally:
                done += run.kills
            _keep_data_of(total)
    except Broken:
        print("\n".join(total.faults[:_SHOWN]), file=sys.stderr)
    print(closing_line(done, {"store": ledger}, total))
    return 0 if total.clean else 1


def _keep_data_of(verdict: Verdict) -> None:
    if not verdict.clean:
        raise Broken


class _Run:
    """One growing data directory, its server and its clients."""

    def __init__(self, root: Path, ledger: Ledger, seed: int, total: Verdict) -> None:
        self.kills = 0
        self._server = StoreServer(root, _SETTINGS, knobs=Knobs(index=_INDEX))
        self._ledger = ledger
        self._seed = seed
        self._total = total
        self._by_plan: Counter[str] = Counter()

    async def run(self, kills: int) -> None:
        try:
            await self._server.start()
            async with self._server.client() as client:
                unserved = (await client.server_info()).unimplemented
                load = Load(client, self._ledger, random.Random(self._seed + 1), unserved)
                load.begin()
                try:
                    for number in range(kills):
                        await self._one(number, load)
                finally:
                    await load.end()
            async with self._server.client() as client:
                await index_ready(client, NAMESPACE)
                self._judge(await full_check(client, self._ledger), "the last look")
            await self._server.stop()
            self._judge_files("after the last stop")
        finally:
            await self._server.close()
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(self._by_plan.items()))
        work = ", ".join(f"{name} {count}" for name, count in sorted(load.done.items()))
        print(f"kills by victim and moment (+ where the moment was seen): {kinds}\nanswered calls: {work}")

    async def _one(self, number: int, load: Load) -> None:
        """Kill once, check the files, start again, check through the contract."""
        rng = random.Random(f"{self._seed} {number}")
        plan = planned(rng)
        where = f"kill {number + 1} ({plan}; seed {self._seed})"
        started = time.perf_counter()
        if plan.moment in (Moment.STARTING, Moment.REBUILDING):
            load.hold()
            await load.idle()
            await self._server.power_cut()
            before_start(plan, self._server)
            await self._server.spawn()
            if plan.moment is Moment.REBUILDING:
                await self._server.serving()
        if plan.moment is Moment.REEMBEDDING:
            await self._change_embedder(load)
        async with self._server.client() as client:
            load.calls = client
            load.go_on()
            seen = await strike(plan, self._server, client)
            load.hold()
            await load.idle()
        self.kills += 1
        self._by_plan[f"{plan.victim.name}/{plan.moment.name}{'+' if seen else ''}"] += 1
        if plan.victim is not Victim.INDEX:
            self._judge_files(where)
            await self._server.start()
        async with self._server.client() as client:
            load.calls = client
            await load.resolve()
            self._judge(await spot_check(client, self._ledger, rng), where)
            if plan.victim is Victim.INDEX:
                await index_ready(client, NAMESPACE)
        size = len(self._ledger.entries)
        print(f"{where}: ok, {size} memories sent, {time.perf_counter() - started:.1f} s", flush=True)

    async def _change_embedder(self, load: Load) -> None:
        """Restart with another embedder and start the re-embedding that is to be killed."""
        load.hold()
        await load.idle()
        async with self._server.client() as client:
            await operations_ended(client)
        await self._server.power_cut()
        with_other_embedder(self._server)
        await self._server.start()
        async with self._server.client() as client:
            await embed_again(client)

    def _judge_files(self, where: str) -> None:
        with copied(self._server.catalog) as connection:
            seen, verdict = look(connection, NAMESPACE)
        self._ledger.learn(seen)
        verdict.add(verify(self._ledger, seen))
        self._judge(verdict, f"{where}, files")

    def _judge(self, verdict: Verdict, where: str) -> None:
        """Count, and end the run at the first broken word: what is found later may only follow from it."""
        verdict.faults = [f"{where}: {fault}" for fault in verdict.faults]
        self._total.add(verdict)
        _keep_data_of(verdict)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(quick=False)))
