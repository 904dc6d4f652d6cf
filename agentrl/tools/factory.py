"""Tool factory: makes tools that belong to one episode."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentrl.errors import ToolError
from agentrl.tools.base import FunctionTool, Tool, ToolLimits, find_tool, object_in_module
from agentrl.types import place_of_object


@dataclass(frozen=True)
class ToolOfClass:
    """A new instance of a class with a typed ``__call__``, as a tool. A class of its own so that it
    pickles.
    """

    stateful: type[Any]
    name: str
    limits: ToolLimits = field(hash=False)

    def __call__(self, **args: Any) -> Tool:
        return FunctionTool.from_function(self.stateful(**args), name=self.name, **self.limits)


@dataclass(frozen=True)
class ToolFactory:
    """Makes tools that belong to one episode, for tools with state.

    Args:
        make: called once an episode; gives one tool or several that share their state.
        args: keyword arguments of ``make``.
    """

    make: Callable[..., Tool | Sequence[Tool]]
    args: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def build(self) -> tuple[Tool, ...]:
        """New tools; their owner closes them.

        Raises:
            ToolError: ``make`` gave something else.
        """
        made = self.make(**self.args)
        tools = tuple(made) if isinstance(made, Sequence) else (made,)
        for made_tool in tools:
            if not isinstance(made_tool, Tool):
                raise ToolError(
                    f"{self._name} must make tools, got {made_tool!r}; decorate it with @tool, or, "
                    f"where {self._name} itself is the tool, put @tool above it"
                )
        return tools

    def with_args(self, args: Mapping[str, Any]) -> ToolFactory:
        """The same factory, called with ``args`` beside those that it has.

        Raises:
            ToolError: it does not take them, or needs others.
        """
        bound = replace(self, args={**self.args, **args}) if args else self
        signature = inspect.signature(getattr(self.make, "stateful", self.make))
        try:
            signature.bind(**bound.args)
        except TypeError as error:
            takes = ", ".join(signature.parameters) or "none"
            raise ToolError(
                f"{self._name} with args {dict(bound.args)}: {error}; its arguments are: {takes}"
            ) from None
        return bound

    @property
    def _name(self) -> str:
        target = getattr(self.make, "stateful", self.make)
        place = place_of_object(target)
        return getattr(target, "__qualname__", repr(target)) + (f" ({place})" if place else "")

    def __reduce__(self) -> tuple[Any, ...]:
        # The factory took the place of a decorated class in its module: pickle that place.
        place, found = object_in_module(getattr(self.make, "stateful", None))
        if isinstance(found, ToolFactory) and found.make is self.make:
            return _found, (*place, dict(self.args))
        return ToolFactory, (self.make, dict(self.args))


def _found(module: str, name: str, args: Mapping[str, Any]) -> ToolFactory:
    whole: ToolFactory = find_tool(module, name)
    return replace(whole, args=args) if args else whole
