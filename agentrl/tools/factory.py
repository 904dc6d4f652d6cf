"""Tool factory: tools that belong to one episode, and ``@tool`` on a typed function or class."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name
from types import MethodType
from typing import Any, Unpack, overload

from agentrl.errors import ToolError
from agentrl.tools.base import FunctionTool, Tool, ToolLimits, object_in_module
from agentrl.tools.signature import read_signature
from agentrl.types import place_of_object

logger = logging.getLogger(__name__)

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


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
            return _found, (place, dict(self.args))
        return ToolFactory, (self.make, dict(self.args))


def _found(place: str, args: Mapping[str, Any]) -> ToolFactory:
    whole: ToolFactory = resolve_name(place)
    return replace(whole, args=args) if args else whole


@overload
def tool(
    target: type[Any], /, *, name: str | None = None, **limits: Unpack[ToolLimits]
) -> ToolFactory: ...
@overload
def tool(
    target: Callable[..., Any], /, *, name: str | None = None, **limits: Unpack[ToolLimits]
) -> FunctionTool: ...
@overload
def tool(
    *, name: str | None = None, **limits: Unpack[ToolLimits]
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(
    target: Callable[..., Any] | type[Any] | None = None,
    /,
    *,
    name: str | None = None,
    **limits: Unpack[ToolLimits],
) -> Any:
    """Make a tool of a typed function, or a ToolFactory of a class whose ``__call__`` is typed.

    The JSON Schema comes from the type hints, the defaults, and the docstring's description and
    ``Args:``.

    Args:
        target: a function (sync or async), a bound method, a callable object, or a class. A class
            is instantiated for each episode, with the arguments that the configuration gives it;
            its ``close``, where it has one, is called at the episode's end.
        name: the tool's name; the function's own, or the class's in snake case, by default.
        deadline_s: seconds a call may take; the executor's by default.
        max_output_chars: characters of output kept; the executor's by default.

    Returns:
        A FunctionTool for a function or object, a ToolFactory for a class; without a target, a
        decorator.

    Raises:
        ToolError: a parameter has no type hint, or one that JSON cannot carry; the message names
            both.
    """
    if target is None:
        return lambda decorated: tool(decorated, name=name, **limits)
    if isinstance(target, type):
        name = name or _snake_case(target.__name__)
        body = next(
            (vars(base)["__call__"] for base in target.__mro__ if "__call__" in vars(base)), None
        )
        if body is None:
            raise ToolError(f"tool {name!r}: class {target.__name__} needs a typed __call__ method")
        # wrong hints fail before the first episode
        _check_described(
            name, read_signature(MethodType(body, target), name).description or target.__doc__
        )
        return ToolFactory(ToolOfClass(target, name, limits))
    name = name or getattr(target, "__name__", None) or _snake_case(type(target).__name__)
    made = FunctionTool.from_function(target, name=name, **limits)
    _check_described(name, made.spec.description)
    return made


def _check_described(name: str, description: str | None) -> None:
    if not description:
        logger.warning(
            "tool %r has no docstring: the model is told its name and parameters alone; say in one "
            "sentence what it does",
            name,
            extra={"event": "tool_not_described", "tool": name},
        )


def _snake_case(name: str) -> str:
    return _HUMP.sub("_", name).lower()
