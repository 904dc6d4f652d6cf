"""Tool: the base class, and the tool that a function makes."""

from __future__ import annotations

import enum
import inspect
import json
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Any, SupportsIndex, TypedDict, Unpack

from pydantic_core import to_jsonable_python

from agentrl.errors import ToolError
from agentrl.tools.context import ToolContext, ToolOutput
from agentrl.tools.signature import Signature, context_parameter, read_signature
from agentrl.tools.threads import TOOL_THREADS
from agentrl.tools.validate import schema_validator
from agentrl.types import Image, ToolSpec

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class InvalidArgumentsError(ValueError):
    """Arguments fit the JSON Schema but not the tool; the model is told ``invalid_arguments``."""


class ToolLimits(TypedDict, total=False):
    """Limits of a tool; see ``Tool``."""

    deadline_s: float | None
    max_output_chars: int | None


class Tool(ABC):
    """Something that the model can call.

    An instance may serve many episodes at once, so one with state belongs to one episode: give a
    ToolFactory.

    Args:
        spec: what the model is told. The arguments are valid under ``spec.parameters`` when
            ``call`` gets them.
        deadline_s: seconds a call may take; None takes the executor's.
        max_output_chars: characters of output kept; None takes the executor's.
        needs_sandbox: whether ``call`` uses ``context.sandbox``.
        keeps_deadline: whether ``call`` itself ends by ``context.deadline_s``, raising
            DeadlineError or saying so in its output; the executor cancels any other call at its
            deadline.
    """

    spec: ToolSpec
    deadline_s: float | None = None
    max_output_chars: int | None = None
    needs_sandbox: bool = False
    keeps_deadline: bool = False

    @abstractmethod
    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> str | ToolOutput:
        """Do it. What it raises goes to the model as text, except an AgentRLError, which is
        ours.
        """

    async def close(self) -> None:
        """Free what the tool holds; called once, by its owner."""
        return None

    @staticmethod
    def from_schema(
        schema: Mapping[str, Any], function: Callable[..., Any], **limits: Unpack[ToolLimits]
    ) -> FunctionTool:
        """A tool from a JSON Schema given by hand; ``function`` gets the arguments by name.

        Args:
            schema: ``{"name", "description", "parameters"}``, or that in the OpenAI shape
                ``{"type": "function", "function": {...}}``. Unless it says otherwise, or the
                function takes ``**kwargs``, the schema is closed: an unknown argument is refused.
            function: sync or async; a parameter annotated with ToolContext gets the context.
            limits: ``deadline_s``, the seconds that a call may take, and ``max_output_chars``, the
                characters of output kept.

        Raises:
            ToolError: the schema is none, or the function does not take its properties.
        """
        body = schema.get("function", schema) if schema.get("type") == "function" else schema
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


class FunctionTool(Tool):
    """A tool that calls a function; calling the tool itself calls the function, as if it had never
    been a tool.

    A synchronous function runs in one of the process's tool threads, an async one on the event
    loop.

    Args:
        spec: what the model is told.
        function: what is called, with the arguments by name.
        context: the name of its ToolContext parameter, or None.
        signature: turns JSON into the function's own types; None passes JSON as it is.
        deadline_s: seconds a call may take.
        max_output_chars: characters of output kept.

    Attributes:
        takes_context: whether the function is told the circumstances of a call, and so may use
            ``context.sandbox``.

    Raises:
        ToolError: the name or the schema breaks a rule.
    """

    def __init__(
        self,
        spec: ToolSpec,
        function: Callable[..., Any],
        context: str | None = None,
        *,
        signature: Signature | None = None,
        deadline_s: float | None = None,
        max_output_chars: int | None = None,
    ) -> None:
        if not _NAME.fullmatch(spec.name):
            raise ToolError(
                f"a tool's name must be 1 to 64 of a-z A-Z 0-9 _ -, got {spec.name!r}; pass name="
            )
        schema_validator(spec.parameters, spec.name)
        for setting, limit in (("deadline_s", deadline_s), ("max_output_chars", max_output_chars)):
            if limit is not None and not limit > 0:
                raise ToolError(f"tool {spec.name!r}: {setting} must be above 0, got {limit!r}")
        self.spec = spec
        self.function = function
        self.deadline_s = deadline_s
        self.max_output_chars = max_output_chars
        # a thread's time counts from when the thread takes it up
        self.keeps_deadline = not _is_async(function)
        self.takes_context = context is not None
        self._context = context
        self._signature = signature
        self.__doc__ = inspect.getdoc(function)

    @classmethod
    def from_function(
        cls, function: Callable[..., Any], *, name: str, **limits: Unpack[ToolLimits]
    ) -> FunctionTool:
        """A tool whose schema is made from the function's type hints and docstring."""
        signature = read_signature(function, name)
        spec = ToolSpec(name, signature.description, signature.schema)
        return cls(spec, function, signature.context, signature=signature, **limits)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> str | ToolOutput:
        """The function's result: text and a ToolOutput as they are, an image as one, anything else
        as JSON.
        """
        try:
            keywords = self._signature.convert(arguments) if self._signature else dict(arguments)
        except ValueError as error:
            raise InvalidArgumentsError(str(error)) from None
        if self._context is not None:
            keywords[self._context] = context
        if not self.keeps_deadline:
            return _as_output(await self.function(**keywords))
        return _as_output(
            await TOOL_THREADS.run(lambda: self.function(**keywords), deadline_s=context.deadline_s)
        )

    async def close(self) -> None:
        """Call the ``close`` of the object that the function is, where it has one."""
        closing = getattr(self.function, "close", None)
        if closing is not None:
            result = closing()
            if inspect.isawaitable(result):
                await result

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        # The tool took the place of a decorated function in its module: pickle that place.
        place, found = object_in_module(self.function)
        return (resolve_name, (place,)) if found is self else super().__reduce_ex__(protocol)


def object_in_module(decorated: object) -> tuple[str, Any]:
    """The ``module:name`` where ``decorated`` was defined, and the object that another process
    finds there.
    """
    module = getattr(decorated, "__module__", "")
    name = getattr(decorated, "__qualname__", "")
    found = None if module == "__main__" else getattr(sys.modules.get(module), name, None)
    return f"{module}:{name}", found


def _check_takes(
    function: Callable[..., Any], parameters: Mapping[str, Any], context: str | None, name: str
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
        if one.default is one.empty and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    }
    if lacking := sorted(needed - {context} - set(parameters.get("required", ()))):
        raise ToolError(
            f"tool {name!r}: the function needs {lacking}, which the schema does not require; "
            "add them to 'required' or give the parameters a default"
        )
    return open_ended


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or (
        not inspect.isroutine(function) and inspect.iscoroutinefunction(type(function).__call__)
    )


def _as_output(value: Any) -> str | ToolOutput:
    if isinstance(value, (str, ToolOutput)) and not isinstance(value, enum.Enum):
        return value
    if isinstance(value, (bytes, bytearray)):
        return ToolOutput(bytes(value))
    pictures = sys.modules.get("PIL.Image")  # there is none of its images without it
    if isinstance(value, Image) or (pictures is not None and isinstance(value, pictures.Image)):
        return ToolOutput("", images=(value,))
    return json.dumps(value, ensure_ascii=False, default=to_jsonable_python)
