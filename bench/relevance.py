"""What tells a question that the memories speak of from one that they do not, and where the threshold belongs.

Every pool is asked its own questions and those of another pool, through the product's own retrieval; what speaks
for an answer is gathered as `Answer` gathers it. A logistic regression over half of the pools gives the weights,
the other half what they are worth. Data is read where it lies; pools that are not there are left out.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from clag.v1 import memory_service_pb2 as pb
from numpy.typing import NDArray

from bench.load import stream
from bench.relevance_data import ADVERSARIAL, ANSWERABLE, Pool, chunk_pools, locomo_pools
from bench.server import running_server, temporary_root
from clag_server.catalog.sqlite import SqliteCatalog
from clag_server.memory.lexical import tokens
from clag_server.memory.relevance import Evidence, evidence_of, relevance
from clag_server.memory.system import MemorySystem
from clag_server.models.factory import build_models
from clag_server.server import models_config
from clag_server.settings import load
from clag_server.types.retrieval import MemoryHits, RetrieveQuery, SlmUse
from clag_server.vectors.index import MilvusIndex

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
SIGNALS = (("cosine", "coverage"), ("cosine",), ("coverage",))


@dataclass(frozen=True, slots=True)
class Measured:
    """What spoke for an answer to one question, and how it stood to its pool."""

    data: str
    pool: str
    kind: str
    cosine: float
    coverage: float
    margin: float
    """The best hit's cosine over the mean of the others', in their deviations."""

    @property
    def relevance(self) -> float:
        return relevance(Evidence(self.cosine, self.coverage))


async def main(*, quick: bool, data_dir: Path, limit: int = 0, report: Path | None = None) -> None:
    """Measure, fit, and print; `limit` pools of each data set, 0 for all."""
    found: list[Measured] = []
    for data, pools in _pools(data_dir, limit=limit or (2 if quick else 0)):
        found += await _measure(data, pools)
        print(f"{data}: {len(found)} questions so far", flush=True)
    if report is not None:
        _write(report, found)
    if found:
        _print_signals(found)
        _print_fit(found)
        _print_thresholds(found)


def _pools(data_dir: Path, *, limit: int) -> Iterator[tuple[str, list[Pool]]]:
    chunks = {"hotpotqa": "hotpotqa/hotpot_200.json", "bioasq": "bioasq/bioasq_chunked_gold_context.json"}
    try:
        yield "locomo", list(locomo_pools(data_dir, limit=limit))
    except OSError as absent:
        print(f"skipped locomo: {absent.strerror}")
    for name, path in chunks.items():
        try:
            yield name, list(chunk_pools(data_dir / path, name, limit=limit))
        except OSError as absent:
            print(f"skipped {name}: {absent.strerror}")


async def _measure(data: str, pools: Sequence[Pool]) -> list[Measured]:
    """Store the pools on a server of their own, and ask all of a system on the same stores."""
    with temporary_root() as root:
        async with running_server(root, {"models.slm": ""}) as server:
            for pool in pools:
                await stream_pool(server.address, pool)
        settings = load({"storage.data_dir": root / "data", "models.slm": "", "organize.probe_auto": "false"})
        catalog = SqliteCatalog(settings.storage.data_dir / "catalog.db")
        models = build_models(models_config(settings.models))
        system = MemorySystem(
            catalog=catalog,
            index=MilvusIndex(catalog, settings.storage.data_dir),
            models=models,
            data_dir=settings.storage.data_dir,
            ingest=settings.ingest,
            organize=settings.organize,
            retrieve=settings.retrieve,
        )
        await models.start()
        await system.start()
        try:
            return [one for pool in pools for one in await _asked(system, data, pool)]
        finally:
            await system.stop()
            await models.stop()


async def stream_pool(address: str, pool: Pool) -> None:
    """Store a pool in a namespace of its name."""
    await stream(address, pool.name.lower(), list(pool.items), pb.ACK_LEVEL_ORGANIZED)


async def _asked(system: MemorySystem, data: str, pool: Pool) -> list[Measured]:
    state = (await system.registry.pipeline(pool.name.lower(), create=False)).state
    turns = asyncio.Semaphore(8)

    async def ask(text: str, kind: str) -> Measured:
        async with turns:
            query = RetrieveQuery(pool.name.lower(), text, slm_use=SlmUse.NEVER)
            hits = [h async for s in system.retrieve(query) if isinstance(s, MemoryHits) for h in s.hits]
            frequency, documents = await state.catalog.document_frequency(state.ns, sorted(set(tokens(text))))
            evidence = evidence_of(text, hits, frequency, documents, dense=True)
            cosines = sorted((hit.parts.dense for hit in hits), reverse=True)
            rest = np.array(cosines[1:])
            margin = (cosines[0] - float(rest.mean())) / max(float(rest.std()), 1e-3)
            return Measured(data, pool.name, kind, evidence.cosine or 0.0, evidence.coverage or 0.0, margin)

    return list(await asyncio.gather(*(ask(one.text, one.kind) for one in pool.posed)))


def _write(report: Path, found: Sequence[Measured]) -> None:
    report.write_text("\n".join(json.dumps(asdict(one)) for one in found), encoding="utf-8")


def _print_signals(found: Sequence[Measured]) -> None:
    print("\narea under the curve, own questions against those of ...")
    groups: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    for one in found:
        groups[one.data, one.kind].append(one)
    for (data, kind), others in groups.items():
        if kind == ANSWERABLE:
            continue
        own = groups[data, ANSWERABLE]
        areas = [
            f"{name} {_area([getattr(o, name) for o in own], [getattr(o, name) for o in others]):.3f}"
            for name in ("cosine", "coverage", "margin", "relevance")
        ]
        print(f"  {data:9} {kind:22} {len(own):5} / {len(others):5}: {', '.join(areas)}")


def _print_fit(found: Sequence[Measured]) -> None:
    """Fit on every other pool; adversarial questions are left out, since no signal of these can tell them."""
    usable = [one for one in found if one.kind != ADVERSARIAL]
    pools = sorted({one.pool for one in usable})
    half = set(pools[::2])
    print("\nweights of ..., and of 1 (each data set and both sides weigh the same)")
    for signals in SIGNALS:
        weights = fitted([one for one in usable if one.pool in half], signals)
        whole = _shown(fitted(usable, signals))
        print(f"  {' and '.join(signals)}: {_shown(weights)} on half of the pools, {whole} on all")
        for data, kind in sorted({(one.data, one.kind) for one in found}):
            rows = [one for one in found if (one.data, one.kind) == (data, kind) and one.pool not in half]
            if rows:
                likely = 1 / (1 + np.exp(-_values(rows, signals) @ weights))
                shares = "  ".join(f"{(likely >= threshold).mean():5.1%}" for threshold in THRESHOLDS)
                print(f"    {data:9} {kind:22} {len(rows):5} of the other half, answered: {shares}")


def _values(rows: Sequence[Measured], signals: Sequence[str]) -> NDArray[np.float64]:
    return np.array([[*(getattr(one, name) for name in signals), 1.0] for one in rows])


def _shown(weights: NDArray[np.float64]) -> str:
    return ", ".join(f"{value:.2f}" for value in weights)


def _print_thresholds(found: Sequence[Measured]) -> None:
    print("\nshare answered by threshold of `relevance`, as it is in this version")
    kinds = sorted({(one.data, one.kind) for one in found})
    print("  " + " " * 34 + "  ".join(f"{threshold:5.2f}" for threshold in THRESHOLDS))
    for data, kind in kinds:
        scores = np.array([one.relevance for one in found if (one.data, one.kind) == (data, kind)])
        shares = "  ".join(f"{(scores >= threshold).mean():5.1%}" for threshold in THRESHOLDS)
        print(f"  {data:9} {kind:22}  {shares}")


def fitted(
    rows: Sequence[Measured], signals: Sequence[str], *, rounds: int = 50, ridge: float = 1e-3
) -> NDArray[np.float64]:
    """Return weights of the signals and of 1 by logistic regression (Newton's method)."""
    x = _values(rows, signals)
    y = np.array([float(one.kind == ANSWERABLE) for one in rows])
    groups = Counter((one.data, one.kind == ANSWERABLE) for one in rows)
    weigh = np.array([len(rows) / groups[one.data, one.kind == ANSWERABLE] / len(groups) for one in rows])
    w = np.zeros(x.shape[1])
    for _ in range(rounds):
        p = 1 / (1 + np.exp(-x @ w))
        gradient = x.T @ (weigh * (y - p)) - ridge * w
        curvature = (x * (weigh * p * (1 - p))[:, None]).T @ x + ridge * np.eye(len(w))
        w = w + np.linalg.solve(curvature, gradient)
    return w


def _area(positive: Sequence[float], negative: Sequence[float]) -> float:
    """Return the chance that one of the first is above one of the second; ties count half."""
    both = np.concatenate([positive, negative])
    order = np.argsort(both, kind="stable")
    ranks = np.empty(len(both))
    ranks[order] = np.arange(1, len(both) + 1)
    for value in np.unique(both):
        same = both == value
        ranks[same] = ranks[same].mean()
    n = len(positive)
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * len(negative)))
