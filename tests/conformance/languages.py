"""The one list of languages that CI follows: how their runners are started, and which cannot be tested."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["LANGUAGES", "ROOT", "Language"]

ROOT = Path(__file__).resolve().parent.parent.parent

_PYTHON = (sys.executable, "-m", "tests.conformance.python_runner")


@dataclass(frozen=True, slots=True)
class Language:
    """One column of the matrix.

    Attributes:
        name: its name, and that of its folder in `clients`.
        command: how the runner is started; `clients/NAME/run-conformance` where it is empty.
        untestable: why it is not expected where CI runs; empty for one that is.
    """

    name: str
    command: tuple[str, ...] = ()
    untestable: str = ""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The command line, for the checkout's root as working directory."""
        return self.command or (str(self._script),)

    @property
    def present(self) -> bool:
        """Whether there is a runner to start."""
        return bool(self.command) or os.access(self._script, os.X_OK)

    @property
    def _script(self) -> Path:
        return ROOT / "clients" / self.name / "run-conformance"


LANGUAGES = (
    Language("python", command=_PYTHON),
    Language("python-sync", command=(*_PYTHON, "--face", "sync")),
    Language("go"),
    Language("typescript"),
    Language("rust"),
    Language("java"),
    Language("cpp"),
    Language("csharp", untestable="no .NET toolchain is packaged for the machines that CI runs on"),
)
