"""Tool decorator: ``@tool`` on a typed function or class."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import MethodType
from typing import Any, Unpack, overload

from agentrl.errors import ToolError
from agentrl.tools.base import FunctionTool, ToolLimits
from agentrl.tools.factory import ToolFactory, ToolOfClass
from agentrl.tools.signature import read_signature

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


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
        read_signature(MethodType(body, target), name)  # wrong hints fail before the first episode
        return ToolFactory(ToolOfClass(target, name, limits))
    name = name or getattr(target, "__name__", None) or _snake_case(type(target).__name__)
    return FunctionTool.from_function(target, name=name, **limits)


def _snake_case(name: str) -> str:
    return _HUMP.sub("_", name).lower()
