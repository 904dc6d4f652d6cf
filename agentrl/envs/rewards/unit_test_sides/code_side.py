"""Code side: does the operations of ``calls.json`` with ``solution.py``; a line of output each."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import operator
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .plain_values import packed, unpacked

# Of what has no end.
_MOST = 10_000
_OWN: dict[str, Callable[..., Any]] = {
    "__bool__": bool,
    "__str__": str,
    "__repr__": repr,
    "__hash__": hash,
    "__int__": int,
    "__len__": len,
    "__float__": float,
    "__next__": next,
    "__call__": lambda called, *args, **keywords: called(*args, **keywords),
}

Made = tuple[str, Any, Any]
"""A result's kind, value and what changed."""


def main() -> None:
    """Tells the result of each operation in turn."""
    calls = json.loads(Path("calls.json").read_text(encoding="utf-8"))
    sources = [
        Path(name).read_text(encoding="utf-8") for name in ("setup.py", "solution.py")
    ]
    told = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    worlds = Worlds(calls, sources)
    for number in range(len(calls)):
        line = json.dumps([number, *worlds.makes(number)]) + "\n"
        data = memoryview(line.encode())
        while data:
            data = data[os.write(told, data) :]


class Stays(Exception):  # noqa: N818 - no error: the text runs once more
    """An object, in a text that has no history."""


class World:
    """The code in a namespace, and the objects of one history by their names.

    Args:
        sources: the task's setup and the policy's code.
        has_history: objects may be named.
    """

    def __init__(self, sources: Sequence[str], has_history: bool) -> None:
        self.has_history = has_history
        self.space: dict[str, Any] = {"__name__": "solution"}
        self.objects: dict[tuple[int, int], Any] = {}
        self.names: dict[int, tuple[int, int]] = {}
        self.number = self.before = 0
        self.failure: tuple[list[str], str] | None = None
        try:
            for source in sources:
                exec(compile(source, "solution.py", "exec", dont_inherit=True), self.space)
        except BaseException as error:  # noqa: BLE001 - boundary: it is what each call of it gives
            self.failure = told_of(error)

    def makes(self, number: int, call: Sequence[Any]) -> Made:
        """What an operation comes to."""
        _, verb, target, arguments, classes = call
        self.number, self.before = number, len(self.objects)
        if self.failure is not None:
            return "raised", self.failure, None
        try:
            args, keywords = unpacked(arguments, self.objects.__getitem__, self.blank)
            kind, value = "gave", self.does(verb, target, args, keywords)
            if inspect.iscoroutine(value):
                kind, value = "awaited", asyncio.run(value)
            told = packed([value], classes, self.name_of)
        except Stays as error:
            return "object", str(error), None
        except BaseException as error:  # noqa: BLE001 - boundary: what the code raises is its result
            return "raised", told_of(error), None
        try:
            changed = packed([args, keywords], classes, self.name_of)
            after = json.loads(json.dumps(changed))
        except BaseException:  # noqa: BLE001 - boundary: what has no form cannot be told as changed
            return kind, told, None
        return kind, told, None if after == arguments else after

    def does(
        self, verb: str, target: Any, args: list[Any], keywords: dict[str, Any]
    ) -> Any:
        if verb == "call":
            return self.find(target)(*args, **keywords)
        owner, name = self.find(target[0]), target[1]
        if verb == "iter":
            return list(itertools.islice(iter(owner), _MOST))
        if verb == "is_a":
            return isinstance(owner, self.find(name))
        if name in _OWN:
            return _OWN[name](owner, *args, **keywords)
        if name[:3] == "__r" and name != "__rshift__":
            return getattr(operator, f"__{name[3:]}")(args[0], owner)
        if hasattr(operator, name) and name[:2] == "__":
            return getattr(operator, name)(owner, *args)
        if verb == "method":
            return getattr(owner, name)(*args, **keywords)
        does: dict[str, Callable[..., Any]] = {
            "get": getattr,
            "set": setattr,
            "del": delattr,
        }
        return does[verb](owner, name, *args)

    def find(self, target: Any) -> Any:
        if not isinstance(target, str):
            return self.objects[target[0], target[1]]
        if target not in self.space:
            raise NameError(f"name {target!r} is not defined")
        return self.space[target]

    def blank(self, name: str) -> Any:
        return object.__new__(self.find(name))

    def name_of(self, value: Any) -> tuple[int, int]:
        """An object's name: the operation that first gave it, and how many this gave before."""
        if not self.has_history:
            raise Stays(type(value).__name__)
        if id(value) not in self.names:
            name = self.number, len(self.objects) - self.before
            self.names[id(value)] = name
            self.objects[name] = value
        return self.names[id(value)]


class Worlds:
    """One without a history, and one for each history that may go on.

    Args:
        calls: the operations.
        sources: as ``World`` has them.
    """

    def __init__(self, calls: Sequence[Sequence[Any]], sources: Sequence[str]) -> None:
        self.calls = calls
        self.sources = sources
        self.plain = World(sources, False)
        self.standing: dict[int, World] = {}

    def makes(self, number: int) -> Made:
        """What the operation of a number comes to."""
        parent = self.calls[number][0]
        if parent is None:
            return self.plain.makes(number, self.calls[number])
        world = self.after(parent)
        made = world.makes(number, self.calls[number])
        self.standing[number] = world
        return made

    def after(self, parent: int) -> World:
        """The one that stands there, or a new one, to which all of the history happens again."""
        if parent in self.standing:
            return self.standing.pop(parent)
        history = []
        while parent != -1:
            history.append(parent)
            parent = self.calls[parent][0]
        world = World(self.sources, True)
        for number in reversed(history):
            world.makes(number, self.calls[number])
        return world


def told_of(error: BaseException) -> tuple[list[str], str]:
    kinds = [
        kind.__name__
        for kind in type(error).__mro__
        if kind.__module__ in ("builtins", "solution")
    ]
    return kinds, str(error)[:500]
