"""RPCs of the contract that this release does not serve: one answer, one list (also in `GetServerInfo`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from clag_server.api.interceptors.guard import Context
from clag_server.contract import pool
from clag_server.types.errors import NotYetImplemented

__all__ = ["serves", "unserved_methods"]

T = TypeVar("T")

_unserved: dict[str, tuple[str, ...]] = {}


def serves(service_name: str) -> Callable[[type[T]], type[T]]:
    """Class decorator of a servicer: methods of the service that it lacks answer UNIMPLEMENTED.

    Args:
        service_name: Name in the contract, without the package.
    """

    def complete(servicer: type[T]) -> type[T]:
        missing = [m.name for m in pool.service(service_name).methods if not hasattr(servicer, m.name)]
        for name in missing:
            setattr(servicer, name, _refusing(f"{service_name}/{name}"))
        _unserved[service_name] = tuple(f"{service_name}/{name}" for name in missing)
        return servicer

    return complete


def unserved_methods() -> tuple[str, ...]:
    """All of them, as "Service/Method"."""
    return tuple(method for service in sorted(_unserved) for method in _unserved[service])


def _refusing(method: str) -> Callable[[object, object, Context], object]:
    async def refuse(_self: object, _request: object, _context: Context) -> object:
        raise NotYetImplemented(f"{method} is part of the contract and not served by this release")

    return refuse
