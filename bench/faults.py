"""`python -m bench faults`: each drill breaks one thing under a real server and ends with recovery and zero loss.

After a drill the server has to serve, store, answer and bring its index to READY, and everything acknowledged has
to be there once and in its place, through the contract and in the files. A drill that this machine does not allow
is skipped with the reason, and not counted.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clag_client import ClagError

from bench import faults_disk, faults_index, faults_server
from bench.crash_ledger import Verdict
from bench.faults_site import NotRecovered, Site, Skipped
from bench.store_support import ServerGone, kept_on_failure


@dataclass(frozen=True, slots=True)
class Drill:
    """One drill, and the place that it needs.

    Attributes:
        name: What breaks.
        run: Breaks it; returns what was seen.
        settings: Of the server.
        index: Sizes and times of the index.
        mount: Directory under the drill's own that is a file system of its own, "" for none.
        mib: Size of that.
    """

    name: str
    run: Callable[[Site], Awaitable[str]]
    settings: Mapping[str, str] = field(default_factory=dict)
    index: Mapping[str, float] = field(default_factory=dict)
    mount: str = ""
    mib: int = 0


_EMBEDDER = faults_server.local_embedder()

DRILLS = (
    Drill("index process killed", faults_index.killed),
    Drill("index process hung", faults_index.hung, index={"read_timeout_s": 2.0, "write_timeout_s": 4.0}),
    Drill("index files torn", faults_index.torn),
    Drill("index files missing", faults_index.missing),
    Drill("index gone", faults_index.gone),
    Drill("disk of the catalog full", faults_disk.full, mount="data", mib=64),
    Drill("disk of the index full", faults_index.disk_full, mount="data/index", mib=24),
    Drill("catalog turned read-only", faults_disk.read_only),
    Drill("log deleted after a stop", faults_disk.log_deleted),
    Drill("model worker killed", faults_server.worker_killed, settings=_EMBEDDER),
    Drill("model worker hung", faults_server.worker_hung, settings=_EMBEDDER),
    Drill("clock set back an hour", faults_server.clock_back),
    Drill("second server", faults_server.second_server),
    Drill("second server past the lock", faults_server.copied_lock),
)


async def main(*, quick: bool, only: str = "") -> int:
    """Run the drills (with `quick` the first three) whose name holds `only`; returns the exit code."""
    no_mounts = faults_disk.own_mounts()
    drills = recovered = lost = 0
    chosen = [drill for drill in DRILLS if only in drill.name][: 3 if quick else None]
    for drill in chosen:
        started = time.perf_counter()
        try:
            with kept_on_failure("faults") as root:
                done = await _one(drill, root, no_mounts)
        except (NotRecovered, ServerGone, ClagError, TimeoutError) as failed:
            drills += 1
            print(f"{drill.name}: NOT RECOVERED: {failed!r}", flush=True)
            continue
        if isinstance(done, Skipped):
            print(f"{drill.name}: skipped ({done})", flush=True)
            continue
        verdict, seen = done
        drills += 1
        lost += verdict.lost
        recovered += verdict.clean
        print(f"{drill.name}: {_judged(verdict)}, {time.perf_counter() - started:.1f} s: {seen}", flush=True)
        print("\n".join(verdict.faults[:10]), end="\n" if verdict.faults else "", file=sys.stderr)
    print(f"faults: drills {drills}, recovered {recovered}, lost {lost}")
    return 0 if recovered == drills and not lost else 1


async def _one(drill: Drill, root: Path, no_mounts: str) -> tuple[Verdict, str] | Skipped:
    """Run one drill and judge what is left; `no_mounts` says why it cannot have a file system of its own."""
    if drill.mount and no_mounts:
        return Skipped(no_mounts)
    with contextlib.ExitStack() as stack:
        if drill.mount:
            stack.enter_context(faults_disk.mounted(root / drill.mount, mib=drill.mib))
        site = Site(root, drill.settings, drill.index)
        try:
            seen = await drill.run(site)
            return await site.recovered(), seen
        except Skipped as skipped:
            return skipped
        finally:
            await site.server.close()


def _judged(verdict: Verdict) -> str:
    if verdict.clean:
        return "recovered, lost 0"
    return f"lost {verdict.lost}, doubled {verdict.doubled}, misplaced {verdict.misplaced}"
