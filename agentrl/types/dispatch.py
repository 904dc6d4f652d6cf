"""Dispatch: how a role's method is called over the ranks of a role group (docs/training.md,
Dispatch)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

Part = Literal["params", "optimizer"]
"""Of a role: what of it must lie on the device for a method."""


class Dispatch(Enum):
    """Who is called, with what, and who answers."""

    FIRST = "first"
    """Every rank (collectives allowed); rank 0 answers."""
    DATA = "data"
    """Every rank gets its data coordinate's shard; the rank at tp = sp = 0 of each coordinate
    answers."""


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
    needs: tuple[Part, ...] = ("params",)


def register(
    dispatch: Dispatch,
    *,
    collect: Collect = Collect.LIST,
    needs: tuple[Part, ...] = ("params",),
) -> Callable[[F], F]:
    """Marks a method as callable over a role group.

    Args:
        dispatch: who is called.
        collect: what becomes of the answers; only for ``Dispatch.DATA``.
        needs: what of the role lies on the device while it runs (``Residency``); a step brings the
            optimizer by itself.
    """
    if collect is not Collect.LIST and dispatch is not Dispatch.DATA:
        raise ValueError(
            f"collect={collect.name} belongs to Dispatch.DATA, got {dispatch.name}"
        )

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
