"""The report of the engine's benchmark: parts of one or several runs, in one JSON file, and their ratios."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Part:
    took_s: float
    quick: bool
    numbers: dict[str, float]


@dataclass
class Report:
    """What was measured of one model on one device.

    Args:
        path: Where it is kept; None keeps nothing.
    """

    model: str
    device: str
    path: Path | None = None
    parts: dict[str, Part] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path | None, *, model: str, device: str) -> Report:
        """Go on with a file of the same model and device, or begin a new one."""
        report = cls(model, device, path)
        if path is not None and path.exists():
            kept = json.loads(path.read_text("utf-8"))
            if (kept["model"], kept["device"]) != (model, device):
                raise SystemExit(f"{path} is of {kept['model']} on {kept['device']}: give another --report")
            report.parts = {name: Part(**part) for name, part in kept["parts"].items()}
        return report

    def add(self, name: str, took_s: float, numbers: dict[str, float], *, quick: bool) -> None:
        """Take a part's numbers, in place of those that an earlier run had, and write the file."""
        self.parts[name] = Part(round(took_s, 1), quick, numbers)
        if self.path is not None:
            kept = {"model": self.model, "device": self.device, "ratios": self.ratios()}
            kept["parts"] = {one: asdict(part) for one, part in sorted(self.parts.items())}
            self.path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")

    @property
    def numbers(self) -> dict[str, float]:
        return {name: value for part in self.parts.values() for name, value in part.numbers.items()}

    def ratios(self) -> dict[str, float]:
        """Return the ratios whose two sides were measured."""
        n = self.numbers
        found = {
            name: n[above] / n[below]
            for name, above, below in (
                ("choices_x", "choices_per_s_32", "released_choices_per_s"),
                ("generations_x", "generations_per_s_32", "released_generations_per_s"),
                ("choices_of_limit", "equal_choices_per_s", "static_choices_per_s"),
                ("tokens_of_limit", "engine_tokens_per_s", "static_tokens_per_s"),
                ("continuous_of_limit", "continuous_tokens_per_s", "static_tokens_per_s"),
                ("interactive_p50_x", "bulk_choice_p50_ms", "idle_choice_p50_ms"),
                ("interactive_p99_x", "bulk_choice_p99_ms", "idle_choice_p99_ms"),
                ("embed_p50_x", "bulk_embed_p50_ms", "idle_embed_p50_ms"),
                ("embed_p99_x", "bulk_embed_p99_ms", "idle_embed_p99_ms"),
                ("prefixes_choices_x", "choices_per_s_32", "choices_per_s_32_nothing_kept"),
                ("prefixes_generations_x", "generations_per_s_32", "generations_per_s_32_nothing_kept"),
                ("memory_growth_x", "memory_end_mib", "memory_quarter_mib"),
            )
            if above in n and n.get(below)
        }
        if "choices_of_limit" in found and "tokens_of_limit" in found:
            found["of_limit"] = min(found["choices_of_limit"], found["tokens_of_limit"])
        return found

    def show_part(self, name: str) -> None:
        """Print what a part measured."""
        part = self.parts[name]
        print(f"{name} ({part.took_s:.0f} s{', quick' if part.quick else ''})")
        for number, value in part.numbers.items():
            print(f"  {number}: {value:.4g}", flush=True)

    def show(self) -> None:
        """Print the ratios, the closing line last."""
        ratios = self.ratios()
        for name, value in ratios.items():
            print(f"{name}: {value:.3g}")
        print(
            f"slm: choices {_of(ratios, 'choices_x')} x, generations {_of(ratios, 'generations_x')} x, "
            f"of limit {_of(ratios, 'of_limit', 2)}, interactive p99 {_of(ratios, 'interactive_p99_x')} x"
        )


def _of(ratios: dict[str, float], name: str, digits: int = 1) -> str:
    return f"{ratios[name]:.{digits}f}" if name in ratios else "not measured"
