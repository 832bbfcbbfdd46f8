"""The table and the plot of the scale benchmark: Markdown into `docs/scale.md`, SVG beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "scale.md"
PLOT = DOCS / "img" / "scale.svg"


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured at one size. Pairs in milliseconds are p50 and p99."""

    size: int
    clusters: int
    episodes: int
    stored_rate: float | None
    searchable_rate: float | None
    organized_rate: float | None
    two_stage_ms: tuple[float, float]
    global_ms: tuple[float, float]
    server_mib: float
    children_mib: float
    serving_s: float
    answer_s: float
    ready_s: float
    catalog_mib: float
    index_mib: float

    def line(self) -> str:
        """One line for people who wait."""
        return (
            f"{self.size:,} memories, {self.clusters:,} clusters, {self.episodes:,} episodes: "
            f"stored {_rate(self.stored_rate)}/s, searchable {_rate(self.searchable_rate)}/s, "
            f"organized {_rate(self.organized_rate)}/s; two-stage p50 {self.two_stage_ms[0]:.1f} p99 "
            f"{self.two_stage_ms[1]:.1f} ms, global p50 {self.global_ms[0]:.1f} p99 {self.global_ms[1]:.1f} ms; "
            f"server {self.server_mib:,.0f} MiB, children {self.children_mib:,.0f} MiB; "
            f"serves after {self.serving_s:.2f} s, answers after {self.answer_s:.2f} s, index ready after "
            f"{self.ready_s:.2f} s; catalog {self.catalog_mib:,.0f} MiB, index {self.index_mib:,.0f} MiB"
        )


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}"


_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("memories", lambda r: f"{r.size:,}"),
    ("clusters", lambda r: f"{r.clusters:,}"),
    ("episodes", lambda r: f"{r.episodes:,}"),
    ("stored/s", lambda r: _rate(r.stored_rate)),
    ("searchable/s", lambda r: _rate(r.searchable_rate)),
    ("organized/s", lambda r: _rate(r.organized_rate)),
    ("two-stage p50 / p99 ms", lambda r: f"{r.two_stage_ms[0]:.1f} / {r.two_stage_ms[1]:.1f}"),
    ("global p50 / p99 ms", lambda r: f"{r.global_ms[0]:.1f} / {r.global_ms[1]:.1f}"),
    ("server MiB", lambda r: f"{r.server_mib:,.0f}"),
    ("index process MiB", lambda r: f"{r.children_mib:,.0f}"),
    ("first answer s", lambda r: f"{r.answer_s:.2f}"),
    ("index ready s", lambda r: f"{r.ready_s:.2f}"),
    ("catalog MiB", lambda r: f"{r.catalog_mib:,.0f}"),
    ("index MiB", lambda r: f"{r.index_mib:,.0f}"),
)


def table(rows: Sequence[Row]) -> str:
    """A Markdown table."""
    lines = [
        "| " + " | ".join(name for name, _ in _COLUMNS) + " |",
        "|" + "---:|" * len(_COLUMNS),
        *("| " + " | ".join(cell(row) for _, cell in _COLUMNS) + " |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


_WIDTH, _HEIGHT, _LEFT, _TOP, _INNER_W, _INNER_H = 560, 340, 64, 40, 360, 240
_FONT = 'font-family="sans-serif" font-size="12" fill="#222"'
_LINES: tuple[tuple[str, str, Callable[[Row], float]], ...] = (
    ("two-stage p50", "#0b6e4f", lambda r: r.two_stage_ms[0]),
    ("two-stage p99", "#7fb69e", lambda r: r.two_stage_ms[1]),
    ("global p50", "#b3541e", lambda r: r.global_ms[0]),
    ("global p99", "#dda57f", lambda r: r.global_ms[1]),
)


def plot(rows: Sequence[Row]) -> str:
    """Latency over size, both logarithmic, as SVG; needs two rows or more."""
    values = [value(row) for row in rows for _, _, value in _LINES]
    low, high = 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))
    first, last = rows[0].size, rows[-1].size

    def x(size: float) -> float:
        return _LEFT + _INNER_W * math.log(size / first) / math.log(last / first)

    def y(ms: float) -> float:
        return _TOP + _INNER_H * (1 - math.log(ms / low) / math.log(high / low))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="22" font-size="14">Retrieval over the socket, milliseconds</text>',
    ]
    tick = low
    while tick <= high:
        parts.append(f'<path d="M{_LEFT} {y(tick):.1f}h{_INNER_W}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:,}</text>')
        tick *= 10
    parts += [
        f'<text x="{x(row.size):.1f}" y="{_TOP + _INNER_H + 20}" text-anchor="middle">{row.size:,}</text>'
        for row in rows
    ]
    middle = _LEFT + _INNER_W / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 14}" text-anchor="middle">memories in the namespace</text>')
    for number, (name, colour, value) in enumerate(_LINES):
        points = " ".join(f"{x(row.size):.1f},{y(value(row)):.1f}" for row in rows)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x(r.size):.1f}" cy="{y(value(r)):.1f}" r="3" fill="{colour}"/>' for r in rows]
        legend = _TOP + 20 * number + 8
        parts.append(f'<path d="M{_LEFT + _INNER_W + 20} {legend - 4}h16" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{_LEFT + _INNER_W + 42}" y="{legend}">{name}</text>')
    return "\n".join([*parts, "</svg>\n"])


_BEGIN, _END = "<!-- measured: begin -->\n", "<!-- measured: end -->"


def with_table(page: str, rows: Sequence[Row]) -> str:
    """Put the table between the marks of a page. Raises ValueError when it has none."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError("the page has no marks for the table")
    return f"{before}{begin}{table(rows)}{end}{after}"


def write(rows: Sequence[Row]) -> None:
    """Write the table into `docs/scale.md` and the plot beside it."""
    PAGE.write_text(with_table(PAGE.read_text("utf-8"), rows), encoding="utf-8")
    if len(rows) > 1:
        PLOT.parent.mkdir(parents=True, exist_ok=True)
        PLOT.write_text(plot(rows), encoding="utf-8")
