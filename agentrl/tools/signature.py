"""Signature: a JSON Schema from type hints, the check of arguments by it, and the way back."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, TypeVar

import docstring_parser
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from agentrl.errors import ToolError, did_you_mean
from agentrl.guards.schema import BrokenRule, CheckedSchema, SchemaFault, checked_schema
from agentrl.guards.secret_mask import beginning
from agentrl.tools.context import ToolContext
from agentrl.types import ToolSpec
from agentrl.types.user_code.values import private_copy

T = TypeVar("T")


class _ResourceMark:
    """Marks a type as that of a resource."""


Resource: TypeAlias = Annotated[T, _ResourceMark()]
"""The type of a parameter that is given the resource of its name (``env.resources``): ``db:
Resource[Connection]``. The model never sees it."""

# Of a class, not parameters.
_ATTRIBUTES = ("attribute", "ivar", "cvar", "var", "vartype")
_LITERAL_KEYS = ("default", "enum", "const", "examples")


@dataclass(frozen=True)
class Signature:
    """What the model may pass to a function.

    Args:
        description: from the docstring, without its sections.
        schema: a closed JSON Schema object (Draft 2020-12) with a property for each parameter.
        adapters: for each parameter, what turns JSON into the annotated type.
        defaults: those of the parameters that are lists, dicts or sets: no call changes them for
            the next one.
        context: the parameter that takes the ToolContext, where there is one.
        resources: the parameters that take resources.
        source: the function and its tool's name, of which another process makes the same.
    """

    description: str
    schema: dict[str, Any]
    adapters: Mapping[str, TypeAdapter[Any]]
    defaults: Mapping[str, Any]
    context: str | None
    resources: frozenset[str]
    source: tuple[Callable[..., Any], str]

    def __reduce__(self) -> tuple[Any, ...]:
        return read_signature, self.source

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of valid JSON as the function's own types (an Enum's member, a dataclass, ...).

        Raises:
            ValueError: a value breaks a rule that JSON Schema does not tell; the message names the
                argument.
        """
        converted: dict[str, Any] = private_copy(dict(self.defaults))
        for name, value in arguments.items():
            try:
                converted[name] = self.adapters[name].validate_python(value)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                raise ValueError(
                    f"argument {name!r}: {first['msg']}, got {value!r}"
                ) from None
        return converted


def read_signature(function: Callable[..., Any], name: str) -> Signature:
    """The schema that ``function``'s hints and docstring make.

    Args:
        function: a function, a bound method, or an object with ``__call__``.
        name: the tool's name, for messages.

    Raises:
        ToolError: a parameter without a hint, with one that JSON cannot carry, or of a kind that
            has no name; the docstring describes a parameter that does not exist.
    """
    hints = _hints(function, name)
    parameters = _typed_parameters(function, name)
    context = context_parameter(function, name)
    description, documented = _documentation(function)
    for entry in documented.keys() - parameters.keys():
        meant = did_you_mean(entry, parameters, f"the parameters are {sorted(parameters)}")
        raise ToolError(
            f"tool {name!r}: the docstring's Args describe {entry!r}, which is no parameter{meant}"
        )
    resources = frozenset(key for key, hint in hints.items() if _is_resource(hint))
    adapters: dict[str, TypeAdapter[Any]] = {}
    properties: dict[str, Any] = {}
    for parameter in parameters.values():
        if parameter.name == context or parameter.name in resources:
            continue
        if parameter.name not in hints:
            raise ToolError(
                f"tool {name!r}: parameter {parameter.name!r} needs a type hint, from which the "
                f"model's JSON Schema is made; write for example {parameter.name}: str, or give a "
                "schema with Tool.from_schema"
            )
        adapters[parameter.name], schema = _adapt(hints[parameter.name], parameter, name)
        # Of ``Annotated``.
        annotations = getattr(hints[parameter.name], "__metadata__", ())
        own_texts = (item for item in annotations if isinstance(item, str))
        text = documented.get(parameter.name) or next(own_texts, "")
        properties[parameter.name] = {**schema, "description": text} if text else schema
    definitions: dict[str, Any] = {}
    for schema in properties.values():
        for key, definition in schema.pop("$defs", {}).items():
            if definitions.setdefault(key, definition) != definition:
                raise ToolError(
                    f"tool {name!r}: two different types are called {key!r}; rename one of them"
                )
    required = [
        key for key in properties if parameters[key].default is inspect.Parameter.empty
    ]
    schema = closed_schema(properties, required) | (
        {"$defs": definitions} if definitions else {}
    )
    defaults = {
        key: parameters[key].default
        for key in adapters
        if isinstance(parameters[key].default, list | dict | set)
    }
    source = (function, name)
    return Signature(description, schema, adapters, defaults, context, resources, source)


def closed_schema(properties: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    """The JSON Schema of an object that has these properties and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def text_spec(name: str, description: str, argument: str, /, **rules: Any) -> ToolSpec:
    """A tool of one text: the argument's name, and what its schema has beside the type."""
    rule = {"type": "string", **rules}
    return ToolSpec(name, description, closed_schema({argument: rule}, [argument]))


def _typed_parameters(
    function: Callable[..., Any], name: str
) -> Mapping[str, inspect.Parameter]:
    """The parameters, each of which can be passed by name.

    Raises:
        ToolError: there is one that cannot: positional-only, ``*args`` or ``**kwargs``.
    """
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ToolError(
                f"tool {name!r}: parameter {str(parameter)!r} is {parameter.kind.description}; a "
                "model passes arguments by name, so give each one a name and a type hint"
            )
    return parameters


def context_parameter(function: Callable[..., Any], name: str) -> str | None:
    """The name of the parameter annotated with ToolContext, or None."""
    hints = _hints(function, name)
    names = (key for key, hint in hints.items() if hint is ToolContext and key != "return")
    return next(names, None)


def _is_resource(hint: Any) -> bool:
    return any(
        isinstance(item, _ResourceMark) for item in getattr(hint, "__metadata__", ())
    )


def _documentation(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """An object is described by its class, and its arguments by its ``__call__``."""
    if inspect.isroutine(function):
        return _read_docstring(function)
    description, documented = _read_docstring(type(function).__call__)
    return _read_docstring(type(function))[0] or description, documented


def _read_docstring(documented: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description (what stands before the first section) and the text of each parameter, in
    Google's, NumPy's or Sphinx's style.
    """
    read = docstring_parser.parse(inspect.getdoc(documented) or "")
    arguments = {
        name.strip(" *\\"): " ".join((entry.description or "").split())
        for entry in read.params
        if entry.args[0] not in _ATTRIBUTES
        for name in entry.arg_name.split(",")
    }
    return (read.description or "").strip(), arguments


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    annotated = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(annotated, include_extras=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise ToolError(
            f"tool {name!r}: a type hint cannot be resolved ({error}); import the type at the "
            "module's top level, outside TYPE_CHECKING, or define it there"
        ) from error


def _adapt(
    hint: Any, parameter: inspect.Parameter, name: str
) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    try:
        adapter = TypeAdapter(hint)
        schema = _without_titles(adapter.json_schema())
        if parameter.default is not parameter.empty and parameter.default is not None:
            schema["default"] = adapter.dump_python(
                parameter.default, mode="json", warnings="error"
            )
    except PydanticUserError as error:
        reason = str(error).partition("\n")[0]
        raise ToolError(
            f"tool {name!r}: parameter {parameter.name!r} has type {hint!r}, which makes no JSON "
            f"Schema ({reason}); use str, int, float, bool, list, dict, Literal, Enum, Optional, "
            "TypedDict or a dataclass of these, or Resource[...] for what env.resources opens"
        ) from error
    except PydanticSerializationError as error:
        raise ToolError(
            f"tool {name!r}: the default of parameter {parameter.name!r} must be of its type "
            f"{hint!r}, got {parameter.default!r}"
        ) from error
    return adapter, schema


def _without_titles(schema: Any) -> Any:
    """The schema without the titles that pydantic makes of names: they cost prompt tokens and tell
    nothing.
    """
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key in _LITERAL_KEYS else _without_titles(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }


_MAX_FAULTS = 3
_MAX_VALUE_CHARS = 80


def schema_validator(parameters: Mapping[str, Any], name: str) -> CheckedSchema:
    """A validator for a tool's ``parameters``; equal ones are checked once, since every episode
    asks for its tools'.

    Raises:
        ToolError: they are no JSON Schema, or not one of an object.
    """
    try:
        text = json.dumps(dict(parameters))
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(f"tool {name!r}: its parameters are no JSON: {error}") from None
    try:
        validator = checked_schema(text)
    except SchemaFault as fault:
        raise ToolError(f"tool {name!r}: the schema of its parameters {fault}") from None
    if parameters.get("type") != "object":
        raise ToolError(
            f"tool {name!r}: the schema of its parameters must have type 'object', got "
            f"{parameters.get('type')!r}; "
            'wrap the arguments as {"type": "object", "properties": {...}}'
        )
    return validator


def argument_faults(schema: CheckedSchema, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """What is wrong with ``arguments``: a sentence a fault, at most three, naming argument, rule
    and value.
    """
    try:
        found = schema.broken(dict(arguments))
    except SchemaFault as fault:
        return (f"the tool's schema {fault}; give fewer and flatter arguments",)
    except ValueError as error:
        return (f"the arguments cannot be checked: {error}; correct them",)
    found.sort(key=lambda broken: (list(map(str, broken.path)), broken.message))
    # Two missing arguments are two equal sentences.
    sentences = dict.fromkeys(_sentence(broken) for broken in found)
    return tuple(sentences)[:_MAX_FAULTS]


def _sentence(broken: BrokenRule) -> str:
    argument = f"argument {broken.json_path.removeprefix('$').removeprefix('.')!r}"
    where = argument if broken.path else "the arguments"
    inside = f"in {argument}: " if broken.path else ""
    value, rule = _short(broken.value), broken.rule
    if broken.is_slow:
        return f"{broken.message}; give a shorter one"
    match broken.keyword:
        case "required":
            if isinstance(rule, Mapping):
                # of dependentRequired: what each argument that is given asks for
                lists = [rule[given] for given in rule if given in broken.value]
                rule = dict.fromkeys(
                    key for own in lists if isinstance(own, list) for key in own
                )
            missing = [repr(key) for key in rule if key not in broken.value]
            words = "argument {} is" if len(missing) == 1 else "arguments {} are"
            return f"{inside}{words.format(' and '.join(missing))} missing"
        case "additionalProperties" if isinstance(broken.value, Mapping):
            known = list(broken.beside.get("properties", ()))
            unknown = next(key for key in broken.value if key not in known)
            listed = f"the arguments are {', '.join(known) or 'none'}"
            meant = did_you_mean(unknown, known, listed)
            return f"{inside}there is no argument {_short(unknown)}{meant}"
        case "type":
            wanted = rule if isinstance(rule, str) else " or ".join(rule)
            return f"{where} must be of type {wanted}, got {value}"
        case "enum":
            return f"{where} must be one of {_short(rule)}, got {value}"
        case _:
            return f"{where} breaks the rule {broken.keyword} {_short(rule)}, got {value}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return beginning(text, _MAX_VALUE_CHARS)
