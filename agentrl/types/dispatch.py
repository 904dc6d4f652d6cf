"""How a role's method is called over the ranks of a worker group (docs/training.md, Dispatch)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

__all__ = ["Collect", "Dispatch", "Registration", "register", "registration"]

F = TypeVar("F", bound=Callable[..., Any])


class Dispatch(Enum):
    """Who is called, with what, and who answers."""

    ALL = "all"
    """Every rank, the same object; a list of answers by rank."""
    FIRST = "first"
    """Every rank (collectives allowed); rank 0 answers."""
    RANK_ZERO = "rank_zero"
    """Rank 0 only; no collectives inside."""
    DATA = "data"
    """Each data-parallel coordinate gets its shard; the first rank of each coordinate answers."""


class Collect(Enum):
    """What becomes of the answers of a DATA call."""

    COLUMNS = "columns"
    """Per-token columns, put back into the batch's own order."""
    STATS = "stats"
    """Statistics, merged exactly."""
    LIST = "list"
    """A list, one answer a rank that answers."""


@dataclass(frozen=True, slots=True)
class Registration:
    dispatch: Dispatch
    collect: Collect
    needs: tuple[str, ...]


def register(
    dispatch: Dispatch, *, collect: Collect = Collect.LIST, needs: tuple[str, ...] = ()
) -> Callable[[F], F]:
    """Marks a method as callable over a worker group.

    Args:
        dispatch: who is called.
        collect: what becomes of the answers; only for ``Dispatch.DATA``.
        needs: what must be on the device: ``"params"``, ``"optimizer"``.
    """
    if collect is not Collect.LIST and dispatch is not Dispatch.DATA:
        raise ValueError(f"collect={collect.name} belongs to Dispatch.DATA, got {dispatch.name}")

    def mark(function: F) -> F:
        function.__registration__ = Registration(dispatch, collect, needs)  # type: ignore[attr-defined]
        return function

    return mark


def registration(function: Callable[..., Any]) -> Registration:
    """The mark of a method.

    Raises:
        TypeError: the method has none.
    """
    found = getattr(function, "__registration__", None)
    if not isinstance(found, Registration):
        raise TypeError(
            f"{getattr(function, '__qualname__', function)!r} is not marked with @register"
        )
    return found
