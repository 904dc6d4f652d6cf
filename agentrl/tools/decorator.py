"""Tool decorator: ``@tool`` on a typed function or class."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import MethodType
from typing import Any, TypedDict, Unpack, overload

from agentrl.errors import ToolError
from agentrl.tools.base import FunctionTool
from agentrl.tools.factory import ToolFactory, ToolOfClass
from agentrl.tools.signature import read_signature

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class ToolOptions(TypedDict, total=False):
    """What ``@tool`` may be told; see :func:`tool`."""

    name: str | None
    deadline_s: float | None
    max_output_chars: int | None


@overload
def tool(target: type[Any], /, **options: Unpack[ToolOptions]) -> ToolFactory: ...
@overload
def tool(target: Callable[..., Any], /, **options: Unpack[ToolOptions]) -> FunctionTool: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(
    target: Callable[..., Any] | type[Any] | None = None, /, **options: Unpack[ToolOptions]
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
        return lambda decorated: tool(decorated, **options)
    if isinstance(target, type):
        name = options.get("name") or _snake_case(target.__name__)
        body = next(
            (vars(base)["__call__"] for base in target.__mro__ if "__call__" in vars(base)), None
        )
        if body is None:
            raise ToolError(f"tool {name!r}: class {target.__name__} needs a typed __call__ method")
        read_signature(MethodType(body, target), name)  # wrong hints fail before the first episode
        options["name"] = name
        return ToolFactory(ToolOfClass(target, **options))  # type: ignore[arg-type]
    if not hasattr(target, "__name__") and options.get("name") is None:
        options["name"] = _snake_case(type(target).__name__)
    return FunctionTool.from_function(target, **options)


def _snake_case(name: str) -> str:
    return _HUMP.sub("_", name).lower()
