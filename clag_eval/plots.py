"""Plots of a run: search space against recall, evidence against tokens, latency, the map of one pool's clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from clag_eval.data import DataError

__all__ = ["draw"]

_SIZE: Final = (6.4, 4.0)
_LEGEND: Final = 12
"""Clusters that are named; the largest."""

_RIGHT: Final = 60
"""Share of memories searched from which labels stand to the left of their points."""


def draw(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw what the document has into a folder; returns the files.

    Raises:
        DataError: The library is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        raise DataError("plots need one more package: pip install 'clag-server[eval]'") from None
    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "clag-eval"  # the same document makes the same file
    folder.mkdir(parents=True, exist_ok=True)
    name = "".join(c if c.isalnum() else "-" for c in str(document["run"]["data"])).strip("-")
    drawn = [
        _searched(document["summary"], folder / f"{name}-searched.svg"),
        _evidence(document["summary"], folder / f"{name}-evidence.svg"),
    ]
    if any(row.get("latency_p50_ms") for row in document["summary"]):
        drawn.append(_latency(document["summary"], folder / f"{name}-latency.svg"))
    if document.get("cluster_map"):
        drawn.append(_clusters(document["cluster_map"], folder / f"{name}-clusters.svg"))
    return drawn


def _searched(summary: Sequence[Mapping[str, Any]], path: Path) -> Path:
    figure, axes = _figure()
    named: dict[tuple[float, float], list[str]] = {}
    for row in summary:
        x, y = row["search_space"], row["recall@10"]
        axes.scatter(x, y, s=36, color="#2f5d8a")
        named.setdefault((round(x / 6), round(y / 4)), []).append(row["method"])
    for row in summary:  # methods that lie on one another share a label
        names = named.pop((round(row["search_space"] / 6), round(row["recall@10"] / 4)), None)
        if names:
            left = row["search_space"] > _RIGHT
            place, side = ((-7, -3), "right") if left else ((7, -3), "left")
            spot = (row["search_space"], row["recall@10"])
            axes.annotate(", ".join(names), spot, place, textcoords="offset points", ha=side, fontsize="small")
    axes.set(xlabel="memories searched, %", ylabel="evidence recall@10, %", xlim=(0, 104), ylim=(-3, 100))
    return _saved(figure, path)


def _evidence(summary: Sequence[Mapping[str, Any]], path: Path) -> Path:
    import matplotlib as mpl

    figure, axes = _figure()
    colors = mpl.colormaps["tab20"]
    ticks: set[int] = set()
    for place, row in enumerate(summary):
        budgets = sorted(int(key.partition("@")[2]) for key in row if key.startswith("evidence@"))
        ticks.update(budgets)
        shown = [row[f"evidence@{budget}"] for budget in budgets]
        axes.plot(
            [row[f"tokens@{budget}"] for budget in budgets],
            shown,
            marker="o",
            markersize=4,
            color=colors(place % 20),
            label=row["method"],
        )
    axes.set(xlabel="tokens of context", ylabel="evidence in it, %", ylim=(-3, 100))
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(ticks), [f"{tick:,}" for tick in sorted(ticks)])
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _saved(figure, path)


def _latency(summary: Sequence[Mapping[str, Any]], path: Path) -> Path:
    figure, axes = _figure()
    timed = [row for row in summary if row.get("latency_p50_ms")]
    names = [row["method"] for row in timed]
    axes.bar(names, [row["latency_p95_ms"] for row in timed], label="p95", color="#c9d6e8")
    axes.bar(names, [row["latency_p50_ms"] for row in timed], label="p50", color="#2f5d8a", width=0.5)
    axes.set(ylabel="ms to the ten best, over the socket")
    axes.legend()
    return _saved(figure, path)


def _clusters(drawn: Mapping[str, Any], path: Path) -> Path:
    import matplotlib as mpl

    figure, axes = _figure()
    colors = mpl.colormaps["tab20"]
    members: dict[int, list[tuple[float, float]]] = {}
    for x, y, cluster in drawn["points"]:
        members.setdefault(cluster, []).append((x, y))
    by_size = sorted(members, key=lambda cluster: -len(members[cluster]))
    for place, cluster in enumerate(by_size):
        title = drawn["titles"][cluster] if cluster >= 0 else "no cluster"
        label = f"{title} ({len(members[cluster])})" if place < _LEGEND else None
        xs, ys = zip(*members[cluster], strict=True)
        axes.scatter(xs, ys, s=7, color=colors(place % 20), label=label)
    axes.legend(fontsize=6, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.set(title=f"{drawn['pool']}: {len(members)} clusters", xticks=[], yticks=[])
    return _saved(figure, path)


def _figure() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    return figure, figure.add_subplot()


def _saved(figure: Any, path: Path) -> Path:
    figure.savefig(path, format="svg", metadata={"Date": None})
    return path
