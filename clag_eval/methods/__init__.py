"""The methods that are compared, by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Final

from clag_eval.data import DataError
from clag_eval.methods.base import Budgets, Found, Method
from clag_eval.methods.local import Bm25, Dense, Full, Hybrid, Window
from clag_eval.methods.outside import Outside
from clag_eval.methods.product import Product
from clag_eval.methods.released import Released

__all__ = ["DEFAULT", "LAYOUTS", "METHODS", "Budgets", "Found", "Method", "layout_of", "made"]

LAYOUTS: Final = ("agentic", "cosine", "kmeans", "global")
"""Ways in which a server groups memories (its setting `organize.strategy`)."""

METHODS: Final[dict[str, Callable[[Budgets], Method]]] = {
    "rag": Dense,
    "bm25": Bm25,
    "hybrid": Hybrid,
    "window": Window,
    "full": Full,
    "released": Released,
    "global": lambda budgets: Product("global", budgets, everywhere=True),
    "amem": lambda budgets: Product("amem", budgets, everywhere=True),
    "kmeans": lambda budgets: Product("kmeans", budgets),
    "cosine": lambda budgets: Product("cosine", budgets),
    "clag": lambda budgets: Product("clag", budgets),
}
"""Maker by name, in the order of reports."""

DEFAULT: Final = ("rag", "bm25", "hybrid", "released", "cosine", "kmeans", "clag")

_LAYOUT_OF: Final = {"cosine": "cosine", "kmeans": "kmeans", "amem": "global"}


def layout_of(name: str) -> str:
    """Return the way of grouping that a method needs its server to have."""
    return _LAYOUT_OF.get(name, "agentic")


def made(names: Sequence[str], budgets: Budgets) -> list[Method]:
    """Make methods.

    Args:
        names: Of those here, or `MODULE:FACTORY` for a system outside (see `outside`).
        budgets: Token budgets of contexts.

    Raises:
        DataError: A name is not known, or its module cannot be imported.
    """
    methods: list[Method] = []
    for name in names:
        if ":" in name:
            module, _, factory = name.partition(":")
            try:
                system = getattr(importlib.import_module(module), factory)()
            except (ImportError, AttributeError) as error:
                raise DataError(f"the method {name!r} cannot be loaded: {error}") from error
            methods.append(Outside(system, budgets))
        elif name in METHODS:
            methods.append(METHODS[name](budgets))
        else:
            raise DataError(f"no method {name!r}; there are: {', '.join(METHODS)}, and MODULE:FACTORY for others")
    return methods
