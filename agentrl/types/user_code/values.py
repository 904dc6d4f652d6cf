"""Values: what user code is given to keep or change, and what it may give back.

- Containers, and agentrl's own records of them, are copied; tokens and other objects are shared.
- Of a task its objects are copied too, by ``copy.deepcopy``: nothing else is a user's to hold.
- Trees like JSON take a part of what ``copy.deepcopy`` takes.
"""

from __future__ import annotations

import copy
import json
import math
import numbers
import sys
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Set,
    ValuesView,
)
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from decimal import Decimal
from functools import partial
from types import MappingProxyType, NoneType
from typing import Any, TypeVar

import numpy as np
from pydantic_core import to_jsonable_python

from agentrl.errors import DataError
from agentrl.guards.secret_mask import beginning
from agentrl.types.env import Task
from agentrl.types.segment import Segment
from agentrl.types.user_code.wall import failed_as, wall

T = TypeVar("T")

_SHARED = frozenset({str, int, float, bool, NoneType, bytes, Segment})
"""Types whose values do not change."""
_encode = json.JSONEncoder(skipkeys=True, default=lambda value: type(value).__name__).encode
# Nested blocks of one thread; what they hold is filled from any.
_watchers: list[list[tuple[Task, Task]]] = []


def private_copy(value: T, leaf: Callable[[Any], Any] = lambda value: value) -> T:
    """A copy whose dicts, lists and records are its own.

    Args:
        value: a tree.
        leaf: what becomes of other objects in it; shared by default.
    """
    kind = type(value)
    own: Any = value
    if kind in _SHARED:
        return value
    if kind is dict or kind is MappingProxyType:
        own = {key: private_copy(one, leaf) for key, one in own.items()}
    elif kind is list or kind is tuple:
        own = kind([private_copy(one, leaf) for one in own])  # type: ignore[call-arg]
    elif kind.__module__.startswith("agentrl.types.") and is_dataclass(kind):
        own = object.__new__(kind)
        for name in kind.__dataclass_fields__:
            object.__setattr__(own, name, private_copy(getattr(value, name), leaf))
    else:
        own = leaf(value)
    copied: T = own
    return copied


def private_task(task: Task) -> Task:
    """A task of its own for an episode, or for a function that scores one.

    Raises:
        DataError: the task holds an object that cannot be copied; its place is named.
    """
    deep = partial(copy.deepcopy, memo={})

    def part(where: str, value: Any) -> Any:
        failed = failed_as(
            DataError,
            f"task {task.id!r}: {where} cannot be copied, and each episode gets a copy of its own:",
            "; keep JSON in a task, and open what cannot be copied in the environment, or by "
            "env.resources",
        )
        # An object's own way of copying itself.
        with wall(failed, passes=()):
            return private_copy(value, deep)

    own = replace(
        task,
        messages=part("messages", task.messages),
        answer=part("answer", task.answer),
        info={key: part(f"info[{key!r}]", own) for key, own in task.info.items()},
    )
    for given in _watchers:
        given.append((task, own))
    return own


@contextmanager
def watched_tasks() -> Iterator[list[tuple[Task, Task]]]:
    """Collects each task that is copied in this process, with its copy, until the block ends."""
    given: list[tuple[Task, Task]] = []
    _watchers.append(given)
    try:
        yield given
    finally:
        _watchers.pop()


def changed_parts(task: Task, own: Task) -> list[str]:
    """What was changed in a copy of a task: ``messages``, ``answer`` or keys of ``info``. Objects,
    and what JSON cannot write, count as equal where their types are.
    """
    before, after = (
        {"messages": one.messages, "answer": one.answer, **one.info} for one in (task, own)
    )
    names = {**before, **after}
    return [name for name in names if _text(before.get(name)) != _text(after.get(name))]


def _text(value: object) -> str:
    return shown(value, sys.maxsize, _encode)


_LONGEST = 160


def finite_number(value: object) -> float | None:
    """The number that ``value`` is; None where it is none that a float can hold.

    Numbers are those of Python (int, float, bool, Fraction, Decimal), numpy's scalars, and arrays
    and tensors without a dimension. Text, complex numbers, NaN and infinities are none.
    """
    shapeless = hasattr(value, "dtype") and getattr(value, "shape", None) == ()
    if not shapeless and not isinstance(value, numbers.Real | Decimal):
        return None
    if isinstance(value, np.generic) and value.dtype.kind not in "biuf":
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (
        TypeError,
        ValueError,
        OverflowError,
        # Beyond the largest float, or no number after all.
    ):
        return None
    return number if math.isfinite(number) else None


def is_series(value: object) -> bool:
    """Whether iterating over it gives one value after the other; of a mapping or set it gives keys,
    in the order that they came in or none, and of a text its letters.
    """
    return isinstance(value, Iterable) and not isinstance(
        value, str | bytes | Mapping | Set
    )


def shown(
    value: object, longest: int = _LONGEST, spelled: Callable[[object], str] = repr
) -> str:
    """The value as text, at most ``longest`` characters of it, without secrets that the cut would
    divide: for an error's message, or where no other text of it is kept.
    """
    try:
        text = spelled(value)
    except Exception:  # noqa: BLE001
        # The boundary: a user's own class may raise anything, an integer of too many digits too.
        text = f"a value of type {type(value).__name__}"
    return beginning(text, longest)


def to_json(value: object, *, ensure_ascii: bool = False) -> str:
    """JSON of a value, beside JSON's own types: numpy's scalars and arrays, tensors, views of a
    dict, sets, dataclasses, models of pydantic, dates, decimals and what else pydantic knows.

    Raises:
        TypeError: it holds something that JSON lacks, or itself.
    """
    try:
        default = partial(to_jsonable_python, fallback=_of_others)
        return json.dumps(value, ensure_ascii=ensure_ascii, default=default)
    except ValueError as error:
        if "Circular" not in str(error) and type(error) is ValueError:
            # Such as an integer of too many digits.
            raise
        raise TypeError(str(error)) from error


def _of_others(value: Any) -> Any:
    """What pydantic does not know."""
    if isinstance(value, KeysView | ValuesView | ItemsView | range):
        return list(value)
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON")
