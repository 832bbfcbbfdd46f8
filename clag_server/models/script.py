"""What the scripted models do: the script, and the JSON file that it follows.

A script is a JSON file that is read again before every call, so that a test changes the behaviour of a running
server by rewriting it:

    {"embed": "ok" | "short" | "nan" | "unavailable" | "hang" | "refuse",
     "choose": "overlap" | "first" | "last" | "random" | "nan" | "short" | "unavailable" | "hang" | "refuse",
     "generate": ["text", ...] | "random" | "unavailable" | "hang" | "refuse",
     "seed": 0,
     "finished": true,
     "poison": "a text that makes every call it is in fail as unavailable",
     "unwanted": "a text that makes every call it is in be refused",
     "record": "path of a JSON Lines file that gets every prompt"}

`generate` answers take turns from the first; the last one repeats. "random" draws from `seed` and from what is
asked: a model of the right form that knows nothing. Every key may be left out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from clag_server.models.api import ChoiceOption, ModelRequestRefusedError, ModelUnavailableError, Priority

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Call", "Script", "ScriptError", "ScriptFile"]

_MISBEHAVIOURS = ("unavailable", "hang", "refuse")
_EMBED = ("ok", "short", "nan", *_MISBEHAVIOURS)
_CHOOSE = ("overlap", "first", "last", "random", "nan", "short", *_MISBEHAVIOURS)
_GENERATE = ("random", *_MISBEHAVIOURS)


class ScriptError(ValueError):
    """A script file that is not one; the message names the key."""


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded call."""

    kind: str
    """`embed`, `choose` or `generate`."""
    text: str
    options: tuple[ChoiceOption, ...] = ()
    priority: Priority = Priority.INTERACTIVE


@dataclass(slots=True)
class Script:
    """How the scripted models behave; tests in the same process change its fields."""

    embed: str = "ok"
    choose: str | Callable[[str, Sequence[ChoiceOption]], Sequence[float]] = "overlap"
    generate: str | Sequence[str] | Callable[[str], str] = ("",)
    seed: int = 0
    finished: bool = True
    poison: str = ""
    unwanted: str = ""
    record: Path | None = None
    calls: list[Call] = field(default_factory=list)
    generated: int = 0
    """How many generations were answered; chooses the next of `generate`."""

    def note(self, call: Call) -> None:
        """Record a call.

        Raises:
            ModelUnavailableError: It has the poison in it.
            ModelRequestRefusedError: It has the unwanted text in it.
        """
        self.calls.append(call)
        if self.record is not None:
            heads = [[option.key, option.head] for option in call.options]
            line = {"kind": call.kind, "text": call.text, "options": heads, "priority": call.priority.name}
            with self.record.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        if self.poison and self.poison in call.text:
            raise ModelUnavailableError("the model process ended (scripted)", 0.0)
        if self.unwanted and self.unwanted in call.text:
            raise ModelRequestRefusedError("refused (scripted)")


class ScriptFile:
    """A script that follows a JSON file.

    Args:
        path: The file; it must exist when it is first read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text = ""
        self._script = Script()

    def __call__(self) -> Script:
        """Return the script as the file says now.

        Raises:
            ScriptError: The file is not a script.
        """
        text = self._path.read_text(encoding="utf-8")
        if text != self._text:
            fresh = _parse(text, self._path)
            fresh.calls = self._script.calls
            self._script, self._text = fresh, text
        return self._script


def _parse(text: str, path: Path) -> Script:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ScriptError(f"{path} is not JSON: {error}") from error
    known = {"embed", "choose", "generate", "seed", "finished", "poison", "unwanted", "record"}
    if not isinstance(values, dict) or not set(values) <= known:
        raise ScriptError(f"{path}: a script is an object with keys of {', '.join(sorted(known))}")
    embed, choose = values.get("embed", "ok"), values.get("choose", "overlap")
    generate = values.get("generate", [""])
    if embed not in _EMBED:
        raise ScriptError(f"{path}: embed is one of {', '.join(_EMBED)}")
    if choose not in _CHOOSE:
        raise ScriptError(f"{path}: choose is one of {', '.join(_CHOOSE)}")
    if isinstance(generate, list):
        if not generate or not all(isinstance(one, str) for one in generate):
            raise ScriptError(f"{path}: generate is a list of at least one text")
    elif generate not in _GENERATE:
        raise ScriptError(f"{path}: generate is a list of texts or one of {', '.join(_GENERATE)}")
    record = values.get("record")
    return Script(
        embed=embed,
        choose=choose,
        generate=generate,
        seed=int(values.get("seed", 0)),
        finished=bool(values.get("finished", True)),
        poison=str(values.get("poison", "")),
        unwanted=str(values.get("unwanted", "")),
        record=Path(record) if record else None,
    )
