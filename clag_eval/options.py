"""Options that `run` and `case` share, and what they mean."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import click
from clag.v1 import memory_service_pb2 as pb

from clag_eval.data import Dataset, limited
from clag_eval.loaders import KINDS, load
from clag_eval.methods import DEFAULT, LAYOUTS, METHODS, Budgets
from clag_eval.serving import ServerChoice

__all__ = ["Asked", "asked_options"]

_SLM: Final = {"never": pb.SLM_USE_NEVER, "auto": pb.SLM_USE_AUTO, "always": pb.SLM_USE_ALWAYS}
_DEFAULTS: Final = Budgets()
_FEWEST_TOKENS: Final = 32


@dataclass(frozen=True, slots=True)
class Asked:
    """What is evaluated, on what.

    Attributes:
        data: The pools and questions.
        methods: Names of methods.
        budgets: Token budgets of contexts.
        slm: never, auto or always.
        server: Where servers come from.
    """

    data: Dataset
    methods: tuple[str, ...]
    budgets: Budgets
    slm: str
    server: ServerChoice

    @property
    def slm_use(self) -> pb.SlmUse.ValueType:
        """Whether the language model takes part in retrieval."""
        return _SLM[self.slm]


def asked_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options; the command gets them as one argument, `asked`."""

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        asked = _asked({name: given.pop(name) for name in _NAMES})
        command(asked=asked, **given)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


_OPTIONS: Final = (
    click.option(
        "--data", required=True, metavar="KIND:PATH", help=f"Your copy of the data; KIND: {', '.join(KINDS)}."
    ),
    click.option(
        "--methods",
        default=",".join(DEFAULT),
        show_default=True,
        help=f"Of {', '.join(METHODS)}; or MODULE:FACTORY for a system outside.",
    ),
    click.option("--limit-pools", type=click.IntRange(0), default=0, help="The first N pools only."),
    click.option("--limit-questions", type=click.IntRange(0), default=0, help="N questions of each pool only."),
    click.option("--pool", multiple=True, metavar="NAME", help="This pool only; may be repeated."),
    click.option(
        "--slm",
        type=click.Choice(tuple(_SLM)),
        default="never",
        show_default=True,
        help="Whether the language model takes part. With never, servers that are started have none.",
    ),
    click.option("--model", default="", help="Language model of servers that are started."),
    click.option(
        "--budgets",
        default=",".join(map(str, _DEFAULTS.shown)),
        show_default=True,
        help="Token budgets in which evidence is looked for.",
    ),
    click.option(
        "--context-tokens",
        type=click.IntRange(_FEWEST_TOKENS, 131_072),
        default=_DEFAULTS.answer,
        show_default=True,
        help="Tokens of context that answers are given from.",
    ),
    click.option(
        "--window-tokens",
        type=click.IntRange(_FEWEST_TOKENS, 131_072),
        default=_DEFAULTS.window,
        show_default=True,
        help="Tokens that the method full may fill.",
    ),
    click.option(
        "--server",
        multiple=True,
        metavar="[LAYOUT=]ADDRESS",
        help=f"A server that runs, instead of one that is started; LAYOUT ({', '.join(LAYOUTS)}) is its "
        "organize.strategy. May be repeated.",
    ),
    click.option("--token", default="", envvar="CLAG_EVAL_TOKEN", help="Bearer token of these servers."),
    click.option(
        "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of servers that are started."
    ),
)

_NAMES: Final = (
    "data",
    "methods",
    "limit_pools",
    "limit_questions",
    "pool",
    "slm",
    "model",
    "budgets",
    "context_tokens",
    "window_tokens",
    "server",
    "token",
    "settings",
)


def _asked(given: dict[str, Any]) -> Asked:
    methods = tuple(dict.fromkeys(name.strip() for name in given["methods"].split(",") if name.strip()))
    if not methods:
        raise click.UsageError("--methods names no method")
    return Asked(
        data=limited(
            load(given["data"]), pools=given["limit_pools"], questions=given["limit_questions"], only=given["pool"]
        ),
        methods=methods,
        budgets=Budgets(_budgets(given["budgets"]), given["context_tokens"], given["window_tokens"]),
        slm=given["slm"],
        server=ServerChoice(
            addresses=_pairs("--server", given["server"], default="agentic"),
            token=given["token"],
            settings=_pairs("--set", given["settings"]),
            slm="" if given["slm"] == "never" else given["model"] or None,
        ),
    )


def _budgets(written: str) -> tuple[int, ...]:
    try:
        budgets = tuple(sorted({int(one) for one in written.split(",")}))
    except ValueError:
        raise click.UsageError(f"--budgets {written!r} is not a list of numbers such as 512,1024") from None
    if budgets[0] < _FEWEST_TOKENS:
        raise click.UsageError(f"--budgets: no context fits into {budgets[0]} tokens")
    return budgets


def _pairs(option: str, written: tuple[str, ...], *, default: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for one in written:
        name, equals, value = one.partition("=")
        if not equals and not default:
            raise click.UsageError(f"{option} {one!r} is not NAME=VALUE")
        found[name if equals else default] = value if equals else one
    unknown = [name for name in found if default and name not in LAYOUTS]
    if unknown:
        raise click.UsageError(f"{option}: no layout {unknown[0]!r}; there are: {', '.join(LAYOUTS)}")
    return found
