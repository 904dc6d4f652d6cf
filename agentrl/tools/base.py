"""Tool: the base class, and the tool that a function makes."""

from __future__ import annotations

import enum
import inspect
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from copy import copy
from dataclasses import replace
from pkgutil import resolve_name
from types import MethodType
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Self,
    SupportsIndex,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from agentrl.errors import ToolError
from agentrl.tools.context import ToolContext, ToolOutput
from agentrl.tools.signature import (
    Signature,
    context_parameter,
    read_signature,
    schema_validator,
)
from agentrl.tools.threads import TOOL_THREADS
from agentrl.types import Image, ToolSpec, place_of_object
from agentrl.types.user_code.values import to_json

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")

_ANY = object()
"""The instance of a method whose signature is read."""


class InvalidArgumentsError(ValueError):
    """Arguments fit the JSON Schema but not the tool; the model is told ``invalid_arguments``."""


class ToolLimits(TypedDict, total=False):
    """What ``@tool`` takes beside a name; see ``Tool`` for each."""

    deadline_s: float | None
    max_output_chars: int | None
    max_output_tokens: int | None
    max_concurrent: int | None
    calls_per_s: float | None
    max_calls: int | None
    idempotent: bool
    needs_sandbox: bool


class Tool(ABC):
    """Something that the model can call.

    An instance may serve many episodes at once, so one with state belongs to one episode: give a
    ToolFactory.

    Args:
        spec: what the model is told. The arguments are valid under ``spec.parameters`` when
            ``call`` gets them.
        deadline_s: seconds a call may take; None takes the executor's.
        max_output_chars: characters of output kept; None takes the executor's.
        max_output_tokens: tokens of output kept, by the model's tokenizer; None sets no limit.
        max_concurrent: calls that run at once, over all episodes of a process.
        calls_per_s: calls that begin in a second, over all episodes of a process.
        max_calls: calls that an episode may make.
        idempotent: a call may be sent again after a failure of ours, though it may have been
            carried out already.
        needs_sandbox: whether ``call`` uses ``context.sandbox``.
        keeps_deadline: whether ``call`` itself ends by ``context.deadline_s``, raising
            DeadlineError or saying so in its output; the executor cancels any other call at its
            deadline.
        takes_hosts: whether the hosts that it asks are those of its arguments: their failures are
            never ours.
        in_pieces: whether the output comes by ``stream``; a deadline then keeps what came.
    """

    spec: ToolSpec
    deadline_s: float | None = None
    max_output_chars: int | None = None
    max_output_tokens: int | None = None
    max_concurrent: int | None = None
    calls_per_s: float | None = None
    max_calls: int | None = None
    idempotent: bool = False
    needs_sandbox: bool = False
    keeps_deadline: bool = False
    takes_hosts: bool = False
    in_pieces: bool = False

    @abstractmethod
    async def call(
        self, arguments: Mapping[str, Any], context: ToolContext
    ) -> str | ToolOutput:
        """Do it. What it raises goes to the model as text, except an AgentRLError, which is
        ours.
        """

    async def stream(
        self, arguments: Mapping[str, Any], context: ToolContext
    ) -> AsyncGenerator[str | ToolOutput, None]:
        """The output piece by piece, where the tool is ``in_pieces``; texts are joined as they
        are.
        """
        yield await self.call(arguments, context)

    @property
    def owner(self) -> object:
        """Whose ``setup``, ``close`` and state count for this tool; tools of one object share
        it.
        """
        return self

    async def close(self) -> None:
        """Free what the tool holds; called once, by its owner."""
        return None

    @staticmethod
    def from_schema(
        schema: Mapping[str, Any], function: Callable[P, R], **limits: Unpack[ToolLimits]
    ) -> FunctionTool[P, R]:
        """A tool from a JSON Schema given by hand; ``function`` gets the arguments by name.

        Args:
            schema: ``{"name", "description", "parameters"}``, or that in the OpenAI shape
                ``{"type": "function", "function": {...}}``. Unless it says otherwise, or the
                function takes ``**kwargs``, the schema is closed: an unknown argument is refused.
            function: sync or async; a parameter annotated with ToolContext gets the context.
            limits: see ``ToolLimits``.

        Raises:
            ToolError: the schema is none, or the function does not take its properties.
        """
        body = (
            schema.get("function", schema) if schema.get("type") == "function" else schema
        )
        missing = [key for key in ("name", "parameters") if key not in body]
        if missing or not isinstance(body["parameters"], Mapping):
            raise ToolError(
                f"a tool's schema needs {' and '.join(missing) or 'parameters as an object'}, got "
                f"keys {sorted(body)}; "
                'write {"name": ..., "description": ..., "parameters": {"type": "object", '
                '"properties": {...}}}'
            )
        name = str(body["name"])
        parameters = dict(body["parameters"])
        context = context_parameter(function, name)
        open_ended = _check_takes(function, parameters, context, name)
        if not open_ended:
            parameters.setdefault("additionalProperties", False)
        spec = ToolSpec(name, str(body.get("description", "")), parameters)
        return FunctionTool(spec, function, context, **limits)


class FunctionTool(Tool, Generic[P, R]):
    """A tool that calls a function; calling the tool itself calls the function, as if it had never
    been a tool.

    A synchronous function runs in one of the process's tool threads, an async one on the event
    loop. An async generator gives its output piece by piece.

    Args:
        spec: what the model is told.
        function: what is called, with the arguments by name.
        context: the name of its ToolContext parameter, or None.
        signature: turns JSON into the function's own types; None passes JSON as it is.
        owner: the object that the tool is a part of; the function itself by default.
        limits: see ``ToolLimits``.

    Attributes:
        is_method: whether the function awaits an instance: it becomes a tool of the instance when
            it is looked up there.
        resources: the parameters that are given resources.
        takes_context: whether the function is told the circumstances of a call, and so may use
            ``context.sandbox``.

    Raises:
        ToolError: the name or the schema breaks a rule.
    """

    def __init__(
        self,
        spec: ToolSpec,
        function: Callable[P, R],
        context: str | None = None,
        *,
        signature: Signature | None = None,
        owner: object = None,
        is_method: bool = False,
        **limits: Unpack[ToolLimits],
    ) -> None:
        if not _NAME.fullmatch(spec.name):
            raise ToolError(
                f"a tool's name must be 1 to 64 of a-z A-Z 0-9 _ -, got {spec.name!r}; pass name="
            )
        schema_validator(spec.parameters, spec.name)
        self.spec = spec
        self.function = function
        self.is_method = is_method
        self.given_limits = limits
        _limit(self, limits)
        # A thread's time counts from when the thread takes it up.
        self.in_pieces = _is_a(inspect.isasyncgenfunction, function)
        self.keeps_deadline = not self.in_pieces and not _is_a(
            inspect.iscoroutinefunction, function
        )
        self.takes_context = context is not None
        self.resources = signature.resources if signature else frozenset[str]()
        self._given: Mapping[str, Any] = {}
        self._context = context
        self._signature = signature
        self._owner = owner
        self.__doc__ = inspect.getdoc(function)

    @classmethod
    def from_function(
        cls,
        function: Callable[P, R],
        *,
        name: str,
        is_method: bool = False,
        owner: object = None,
        **limits: Unpack[ToolLimits],
    ) -> FunctionTool[P, R]:
        """A tool whose schema is made from the function's type hints and docstring.

        Args:
            function: what is called.
            name: the tool's name.
            is_method: its first parameter is the instance that it will be looked up on.
            owner: see ``FunctionTool``.
            limits: see ``ToolLimits``.
        """
        read: Callable[..., Any] = MethodType(function, _ANY) if is_method else function
        signature = read_signature(read, name)
        spec = ToolSpec(name, signature.description, signature.schema)
        return FunctionTool(
            spec,
            function,
            signature.context,
            signature=signature,
            is_method=is_method,
            owner=owner,
            **limits,
        )

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(
        self: FunctionTool[Concatenate[S, Q], R], instance: S, owner: type | None = None
    ) -> FunctionTool[Q, R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Self: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A method's tool, bound to the instance; any other tool as it is."""
        if instance is None or not self.is_method:
            return self
        bound = copy(self)
        bound.function = cast(Callable[P, R], MethodType(self.function, instance))
        bound.is_method = False
        bound._owner = instance
        return bound

    def limited(self, limits: ToolLimits) -> Tool:
        """The same tool with ``limits`` where it has none of its own."""
        return with_limits(self, ToolLimits(**{**limits, **self.given_limits}))

    def given(self, resources: Mapping[str, Any]) -> Self:
        """The same tool, whose function is called with ``resources`` too."""
        other = copy(self)
        other._given = resources
        return other

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @property
    def owner(self) -> object:
        """The object that the tool is a part of."""
        return self.function if self._owner is None else self._owner

    async def call(
        self, arguments: Mapping[str, Any], context: ToolContext
    ) -> str | ToolOutput:
        """The function's result: text and a ToolOutput as they are, an image as one, anything else
        as JSON.
        """
        function: Callable[..., Any] = self.function
        if self.in_pieces:
            return merged([piece async for piece in self.stream(arguments, context)])
        keywords = self._keywords(arguments, context)
        if not self.keeps_deadline:
            return await self._read(await function(**keywords))
        # What it gives may be a generator, whose work is the function's own.
        return await TOOL_THREADS.run(
            lambda: _as_output(function(**keywords), self), deadline_s=context.deadline_s
        )

    async def stream(
        self, arguments: Mapping[str, Any], context: ToolContext
    ) -> AsyncGenerator[str | ToolOutput, None]:
        """What the async generator gives, piece by piece."""
        function: Callable[..., Any] = self.function
        async with aclosing(function(**self._keywords(arguments, context))) as pieces:
            async for piece in pieces:
                yield await self._read(piece)

    async def _read(self, given: Any) -> str | ToolOutput:
        """What an async function gave, in a thread where it becomes JSON: that may take its time,
        and other episodes wait for the event loop.
        """
        if isinstance(given, ToolOutput) or type(given) is str:
            return given
        return await TOOL_THREADS.run(lambda: _as_output(given, self))

    def _keywords(
        self, arguments: Mapping[str, Any], context: ToolContext
    ) -> dict[str, Any]:
        try:
            keywords = (
                self._signature.convert(arguments) if self._signature else dict(arguments)
            )
        except ValueError as error:
            raise InvalidArgumentsError(str(error)) from None
        if self._context is not None:
            keywords[self._context] = context
        return {**keywords, **self._given}

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        # The tool took the place of a decorated function in its module: pickle that place.
        place, found = object_in_module(self.function)
        return (
            (resolve_name, (place,)) if found is self else super().__reduce_ex__(protocol)
        )


def object_in_module(decorated: object) -> tuple[str, Any]:
    """The ``module:name`` where ``decorated`` was defined, and the object that another process
    finds there.
    """
    module = getattr(decorated, "__module__", "")
    name = getattr(decorated, "__qualname__", "")
    found = None if module == "__main__" else getattr(sys.modules.get(module), name, None)
    return f"{module}:{name}", found


def _check_takes(
    function: Callable[..., Any],
    parameters: Mapping[str, Any],
    context: str | None,
    name: str,
) -> bool:
    """Whether the function takes ``**kwargs``; raises a ToolError where it cannot take the schema's
    properties.
    """
    taken = inspect.signature(function).parameters
    open_ended = any(one.kind is one.VAR_KEYWORD for one in taken.values())
    properties = set(parameters.get("properties", {}))
    if not open_ended and (extra := sorted(properties - taken.keys())):
        raise ToolError(
            f"tool {name!r}: the schema has arguments {extra} that the function does not take; add "
            "them"
        )
    needed = {
        name
        for name, one in taken.items()
        if one.default is one.empty
        and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    }
    if lacking := sorted(needed - {context} - set(parameters.get("required", ()))):
        raise ToolError(
            f"tool {name!r}: the function needs {lacking}, which the schema does not require; "
            "add them to 'required' or give the parameters a default"
        )
    return open_ended


def _is_a(kind: Callable[[Any], bool], function: Callable[..., Any]) -> bool:
    """Whether the function, or the ``__call__`` of an object, is of a kind."""
    return kind(function) or (
        not inspect.isroutine(function) and kind(type(function).__call__)
    )


def check_limits(name: str, limits: ToolLimits) -> None:
    """Refuses a limit that is not above 0.

    Raises:
        ToolError: with the tool's name, the limit and its value.
    """
    for setting, limit in limits.items():
        if (
            isinstance(limit, (int, float))
            and not isinstance(limit, bool)
            and not limit > 0
        ):
            raise ToolError(f"tool {name!r}: {setting} must be above 0, got {limit!r}")


def with_limits(tool: Tool, limits: ToolLimits) -> Tool:
    """The same tool with these limits in place of its own.

    Raises:
        ToolError: one is not above 0.
    """
    return _limit(copy(tool), limits) if limits else tool


def _limit(tool: Tool, limits: ToolLimits) -> Tool:
    check_limits(tool.spec.name, limits)
    for name, limit in limits.items():
        setattr(tool, name, limit)
    return tool


class BuiltInSettings(TypedDict, total=False):
    """What every built-in tool takes, in place of its own."""

    name: str
    description: str
    deadline_s: float
    max_output_chars: int


class BuiltInTool(Tool):
    """A tool of agentrl's own, which may be called and told of in other words.

    Args:
        settings: see ``BuiltInSettings``, and ``Tool`` for the limits among them.

    Raises:
        TypeError: there is no such setting.
        ToolError: a limit is not above 0.
    """

    def __init__(self, **settings: Unpack[BuiltInSettings]) -> None:
        if unknown := settings.keys() - BuiltInSettings.__annotations__.keys():
            raise TypeError(f"got an unexpected keyword argument {min(unknown)!r}")
        given: dict[str, Any] = {**settings}
        words = {key: given.pop(key) for key in ("name", "description") if key in given}
        self.spec = replace(self.spec, **words)
        _limit(self, cast(ToolLimits, given))


def merged(pieces: Sequence[str | ToolOutput]) -> ToolOutput:
    """One output of several: texts joined, rewards and metrics added, the last error and tools."""
    outputs = [ToolOutput(piece) if isinstance(piece, str) else piece for piece in pieces]
    metrics: dict[str, float] = {}
    for output in outputs:
        for name, value in (output.metrics or {}).items():
            metrics[name] = metrics.get(name, 0.0) + value
    texts = [
        one.content.decode("utf-8", "replace")
        if isinstance(one.content, bytes)
        else one.content
        for one in outputs
    ]
    return ToolOutput(
        "".join(texts),
        error=next((one.error for one in reversed(outputs) if one.error is not None), None),
        truncated=any(one.truncated for one in outputs),
        metrics=metrics or None,
        images=tuple(image for one in outputs for image in one.images),
        reward=sum(one.reward for one in outputs),
        end=any(one.end for one in outputs),
        tools=next((one.tools for one in reversed(outputs) if one.tools is not None), None),
    )


def _as_output(value: Any, tool: FunctionTool[..., Any]) -> str | ToolOutput:
    if isinstance(value, (str, ToolOutput)) and not isinstance(value, enum.Enum):
        return value
    if isinstance(value, (bytes, bytearray)):
        return ToolOutput(bytes(value))
    # There is none of its images without it.
    pictures = sys.modules.get("PIL.Image")
    if isinstance(value, Image) or (
        pictures is not None and isinstance(value, pictures.Image)
    ):
        return ToolOutput("", images=(value,))
    try:
        return to_json(value)
    except TypeError as error:
        raise ToolError(
            f"tool {tool.spec.name!r} must give text, a ToolOutput or what becomes JSON, got "
            f"{type(value).__name__} ({error}); return texts, numbers, and lists and mappings of "
            f"them ({place_of_object(tool.function)})"
        ) from error
