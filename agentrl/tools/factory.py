"""Tool factory: tools that belong to one episode, and ``@tool`` on a typed function or class."""

from __future__ import annotations

import functools
import inspect
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name
from types import MethodType
from typing import Any, Protocol, Unpack, overload

from agentrl.errors import ToolError
from agentrl.tools.base import (
    FunctionTool,
    P,
    R,
    Tool,
    ToolLimits,
    check_limits,
    object_in_module,
)
from agentrl.tools.context import ToolContext
from agentrl.tools.signature import read_signature
from agentrl.types import place_of_object
from agentrl.types.user_code.values import private_copy

logger = logging.getLogger(__name__)

EPISODE_PARAMETERS = frozenset({"task", "context"})
"""Parameters of a class or factory of tools that its environment fills."""

_NOTHING: Mapping[str, Any] = {}

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True)
class ToolClass:
    """A new instance of a class as tools: its ``@tool`` methods, or its typed ``__call__``. A class
    of its own so that it pickles.

    Args:
        stateful: the class.
        limits: of its tools that set none.
        name: of the tool that the instance itself is; None where its methods are.
    """

    stateful: type[Any]
    limits: ToolLimits = field(default_factory=ToolLimits, hash=False)
    name: str | None = None

    def __call__(self, **args: Any) -> tuple[Tool, ...]:
        made = self.stateful(**args)
        if self.name is None:
            methods = tool_methods(self.stateful)
            return tuple(getattr(made, name).limited(self.limits) for name in methods)
        return (
            FunctionTool.from_function(made, name=self.name, owner=made, **self.limits),
        )


def tool_methods(target: type[Any]) -> dict[str, FunctionTool[..., Any]]:
    """The ``@tool`` methods of a class by attribute, in the order written."""
    found: dict[str, FunctionTool[..., Any]] = {}
    for base in reversed(target.__mro__):
        for name, value in vars(base).items():
            found.pop(name, None)
            if isinstance(value, FunctionTool) and value.is_method:
                found[name] = value
    return found


@dataclass(frozen=True)
class ToolFactory:
    """Makes tools that belong to one episode, for tools with state.

    Args:
        make: called once an episode; gives one tool or several that share their state. Where it has
            parameters ``task`` and ``context``, it is given the episode's Task and a ToolContext,
            which has the task and the state, and no seed, id or sandbox yet.
        args: keyword arguments of ``make``.
        resources: names of resources, which ``make`` is given where it has such parameters.
    """

    make: Callable[..., Tool | Sequence[Tool]]
    args: Mapping[str, Any] = field(default_factory=dict, hash=False)
    resources: frozenset[str] = frozenset()

    def build(
        self, context: ToolContext | None = None, resources: Mapping[str, Any] = _NOTHING
    ) -> tuple[Tool, ...]:
        """New tools; their owner closes them.

        Args:
            context: with the episode's task and state.
            resources: the open ones by name.

        Raises:
            ToolError: ``make`` gave something else.
        """
        context = context or ToolContext()
        known = {**resources, "task": context.task, "context": context}
        injected = {name: known[name] for name in self.injected}
        made = self.make(**injected, **private_copy(self.args))
        tools = tuple(made) if isinstance(made, Sequence) else (made,)
        for made_tool in tools:
            if not isinstance(made_tool, Tool):
                raise ToolError(
                    f"{self._name} must make tools, got {made_tool!r}; decorate it with @tool, or, "
                    f"where {self._name} itself is the tool, put @tool above it"
                )
        return tools

    @functools.cached_property
    def injected(self) -> frozenset[str]:
        """The parameters of ``make`` that the environment fills."""
        filled = EPISODE_PARAMETERS | self.resources
        return frozenset(filled & set(self._signature.parameters) - self.args.keys())

    @property
    def may_need_sandbox(self) -> bool:
        """Whether its tools may need a sandbox, as far as can be told without making them."""
        make = self.make
        if isinstance(make, ToolClass):
            methods = tool_methods(make.stateful).values()
            return make.limits.get("needs_sandbox", False) or any(
                method.needs_sandbox for method in methods
            )
        return bool(getattr(make, "needs_sandbox", not inspect.isclass(make)))

    def with_args(
        self, args: Mapping[str, Any], resources: frozenset[str] = frozenset()
    ) -> ToolFactory:
        """The same factory, called with ``args`` beside those that it has, and with ``resources``
        where it takes any.

        Raises:
            ToolError: it does not take them, or needs others.
        """
        changed = bool(args) or resources != self.resources
        bound = (
            replace(self, args={**self.args, **args}, resources=resources)
            if changed
            else self
        )
        if twice := sorted(resources & bound.args.keys()):
            raise ToolError(
                f"{self._name}: {twice[0]!r} is given by args and by ToolEnv.resources; rename one"
            )
        try:
            self._signature.bind(**dict.fromkeys(bound.injected), **bound.args)
        except TypeError as error:
            takes = ", ".join(self._signature.parameters) or "none"
            raise ToolError(
                f"{self._name} with args {dict(bound.args)}: {error}; its arguments are: {takes}"
            ) from None
        return bound

    @functools.cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(getattr(self.make, "stateful", self.make))

    @property
    def _name(self) -> str:
        target = getattr(self.make, "stateful", self.make)
        place = place_of_object(target)
        return getattr(target, "__qualname__", repr(target)) + (
            f" ({place})" if place else ""
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # The factory took the place of a decorated class in its module: pickle that place.
        place, found = object_in_module(getattr(self.make, "stateful", None))
        if isinstance(found, ToolFactory) and found.make is self.make:
            return _found, (place, dict(self.args), self.resources)
        return ToolFactory, (self.make, dict(self.args), self.resources)


def _found(place: str, args: Mapping[str, Any], resources: frozenset[str]) -> ToolFactory:
    whole: ToolFactory = resolve_name(place)
    return replace(whole, args=args, resources=resources) if args or resources else whole


@overload
def tool(  # type: ignore[overload-overlap]
    target: type[Any], /, *, name: str | None = None, **limits: Unpack[ToolLimits]
) -> ToolFactory: ...
@overload
def tool(
    target: Callable[P, R], /, *, name: str | None = None, **limits: Unpack[ToolLimits]
) -> FunctionTool[P, R]: ...
@overload
def tool(*, name: str | None = None, **limits: Unpack[ToolLimits]) -> ToolDecorator: ...
def tool(
    target: Callable[..., Any] | type[Any] | None = None,
    /,
    *,
    name: str | None = None,
    **limits: Unpack[ToolLimits],
) -> Any:
    """Make a tool of a typed function, or a ToolFactory of a class.

    The JSON Schema comes from the type hints, the defaults, and the docstring's description and
    ``Args:``.

    A class is instantiated for each episode, with the arguments that the configuration gives it;
    its ``__init__`` may also take ``task`` and ``context``. It is one tool by its typed
    ``__call__``, or a toolset by several methods with ``@tool``. Its ``setup`` is awaited before
    the first turn and its ``close`` at the episode's end, where it has them.

    Args:
        target: a function (sync, async or an async generator), a method of a toolset, a bound
            method, a callable object, or a class.
        name: the tool's name; the function's own, or the class's in snake case, by default. The
            tools of a toolset have their methods' names.
        limits: see ``ToolLimits``; those of a toolset hold for its tools that set none.

    Returns:
        A FunctionTool, which is still called with the function's own types, for a function or
        object; a ToolFactory for a class; without a target, a decorator.

    Raises:
        ToolError: a parameter has no type hint, or one that JSON cannot carry; the message names
            both.
    """
    if target is None:
        return lambda decorated: tool(decorated, name=name, **limits)
    if isinstance(target, type):
        return _of_class(target, name, limits)
    is_method = _is_method(target)
    name = name or getattr(target, "__name__", None) or _snake_case(type(target).__name__)
    made = FunctionTool.from_function(target, name=name, is_method=is_method, **limits)
    _check_described(name, made.spec.description)
    return made


class ToolDecorator(Protocol):
    """What ``@tool(...)`` is."""

    @overload
    def __call__(self, target: type[Any], /) -> ToolFactory: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[P, R], /) -> FunctionTool[P, R]: ...


def _of_class(target: type[Any], name: str | None, limits: ToolLimits) -> ToolFactory:
    body = next(
        (vars(base)["__call__"] for base in target.__mro__ if "__call__" in vars(base)),
        None,
    )
    if methods := tool_methods(target):
        if name is not None or body is not None:
            raise ToolError(
                f"class {target.__name__} is a toolset of {', '.join(methods)}, and takes no name "
                "and no __call__; give each method its own @tool(name=...)"
            )
        check_limits(target.__name__, limits)
        return ToolFactory(ToolClass(target, limits))
    name = name or _snake_case(target.__name__)
    if body is None:
        raise ToolError(
            f"tool {name!r}: class {target.__name__} needs a typed __call__ method, or methods "
            "with @tool"
        )
    # Wrong hints fail before the first episode.
    _check_described(
        name, read_signature(MethodType(body, target), name).description or target.__doc__
    )
    return ToolFactory(ToolClass(target, limits, name))


def _is_method(target: Callable[..., Any]) -> bool:
    """Whether a function is written in the body of a class, and takes its instance."""
    scope = getattr(target, "__qualname__", "").rpartition(".")[0]
    in_class = bool(scope) and not scope.endswith("<locals>")
    if not (inspect.isfunction(target) and in_class):
        return False
    return next(iter(inspect.signature(target).parameters), "") == "self"


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
