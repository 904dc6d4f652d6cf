"""``@tool`` on a typed function or class, and the factory that gives each episode a tool of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any, overload

from agentrl.errors import ToolError
from agentrl.tools.base import FunctionTool, Tool, find_tool, place_in_module
from agentrl.tools.signature import read_signature
from agentrl.types import load_object

__all__ = ["ToolFactory", "resolve_tools", "tool"]

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True)
class ToolFactory:
    """Makes tools that belong to one episode, for tools with state.

    Args:
        make: called once an episode; gives one tool or several that share their state.
    """

    make: Callable[[], Tool | Sequence[Tool]]

    def build(self) -> tuple[Tool, ...]:
        """New tools.

        Raises:
            ToolError: ``make`` gave something else.
        """
        made = self.make()
        tools = tuple(made) if isinstance(made, Sequence) else (made,)
        for made_tool in tools:
            if not isinstance(made_tool, Tool):
                raise ToolError(f"a ToolFactory must make tools, got {made_tool!r}; decorate it with @tool")
        return tools

    def __reduce__(self) -> tuple[Any, ...]:
        # The factory took the place of a decorated class in its module: pickle that place.
        if isinstance(self.make, _ToolOfClass) and (place := place_in_module(self, self.make.stateful)):
            return find_tool, place
        return ToolFactory, (self.make,)


@dataclass(frozen=True)
class _ToolOfClass:
    """A new instance of a class with a typed ``__call__``, as a tool. A class of its own so that it pickles."""

    stateful: type[Any]
    name: str
    deadline_s: float | None
    max_output_chars: int | None

    def __call__(self) -> Tool:
        return FunctionTool.from_function(
            self.stateful(), name=self.name, deadline_s=self.deadline_s, max_output_chars=self.max_output_chars
        )


@overload
def tool(target: type[Any], /) -> ToolFactory: ...
@overload
def tool(
    target: type[Any], /, *, name: str | None = ..., deadline_s: float | None = ..., max_output_chars: int | None = ...
) -> ToolFactory: ...
@overload
def tool(
    target: Callable[..., Any],
    /,
    *,
    name: str | None = ...,
    deadline_s: float | None = ...,
    max_output_chars: int | None = ...,
) -> FunctionTool: ...
@overload
def tool(
    *, name: str | None = ..., deadline_s: float | None = ..., max_output_chars: int | None = ...
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(
    target: Callable[..., Any] | type[Any] | None = None,
    /,
    *,
    name: str | None = None,
    deadline_s: float | None = None,
    max_output_chars: int | None = None,
) -> Any:
    """Make a tool of a typed function, or a ToolFactory of a class whose ``__call__`` is typed.

    The JSON Schema comes from the type hints, the defaults, and the docstring's description and ``Args:``.

    Args:
        target: a function (sync or async), a bound method, a callable object, or a class. A class is instantiated
            without arguments for each episode; its ``close``, where it has one, is called at the episode's end.
        name: the tool's name; the function's own, or the class's in snake case, by default.
        deadline_s: seconds a call may take; the executor's by default.
        max_output_chars: characters of output kept; the executor's by default.

    Returns:
        A FunctionTool for a function or object, a ToolFactory for a class; without a target, a decorator.

    Raises:
        ToolError: a parameter has no type hint, or one that JSON cannot carry; the message names both.
    """
    if target is None:
        return lambda decorated: tool(decorated, name=name, deadline_s=deadline_s, max_output_chars=max_output_chars)
    if isinstance(target, type):
        own_name = name or _snake_case(target.__name__)
        body = next((vars(base)["__call__"] for base in target.__mro__ if "__call__" in vars(base)), None)
        if body is None:
            raise ToolError(f"tool {own_name!r}: class {target.__name__} needs a typed __call__ method")
        read_signature(MethodType(body, target), own_name)  # wrong hints fail here, not in the first episode
        return ToolFactory(_ToolOfClass(target, own_name, deadline_s, max_output_chars))
    if not hasattr(target, "__name__") and name is None:
        name = _snake_case(type(target).__name__)
    return FunctionTool.from_function(target, name=name, deadline_s=deadline_s, max_output_chars=max_output_chars)


def resolve_tools(
    entries: Sequence[Tool | ToolFactory | str], base_dir: str | Path | None = None
) -> tuple[Tool | ToolFactory, ...]:
    """Tools as a user names them: objects as they are, text through ``load_object``.

    Raises:
        ConfigError: text that names nothing.
        ToolError: something that is no tool.
    """
    resolved: list[Tool | ToolFactory] = []
    for entry in entries:
        found = load_object(entry, base_dir) if isinstance(entry, str) else entry
        if not isinstance(found, (Tool, ToolFactory)):
            what = repr(entry) if isinstance(entry, str) else repr(found)
            raise ToolError(f"{what} is no tool but a {type(found).__name__}; decorate it with @tool")
        resolved.append(found)
    return tuple(resolved)


def _snake_case(name: str) -> str:
    return _HUMP.sub("_", name).lower()
