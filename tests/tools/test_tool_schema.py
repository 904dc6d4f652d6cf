"""A JSON Schema from a typed function, and what a function without one is told."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from typing_extensions import TypedDict  # pydantic asks for it before Python 3.12

from agentrl.errors import ConfigError, ToolError
from agentrl.tools import (
    FunctionTool,
    Tool,
    ToolContext,
    ToolFactory,
    ToolOutput,
    close_owner,
    resolve_tools,
    tool,
)


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Range(TypedDict):
    low: int
    high: int


@dataclass
class Point:
    x: float
    y: float = 0.0


@dataclass
class Line:
    start: Point
    end: Point


@tool
def add(a: int, b: int = 3) -> int:
    """Add two numbers.

    Exactly.

    Args:
        a: the first,
            which comes first
        b (int): the second

    Returns:
        the sum
    """
    return a + b


@tool
class NoteBook:
    """Keeps notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.closed = False

    def __call__(self, note: str) -> str:
        """Write a note.

        Args:
            note: what to write
        """
        self.notes.append(note)
        return " ".join(self.notes)

    def close(self) -> None:
        self.closed = True


def call(made: Tool, **arguments: Any) -> str | ToolOutput:
    return asyncio.run(made.call(arguments, ToolContext(seed=7)))


def schema_of(hint: Any) -> Any:
    def probe(value: Any) -> str:
        return str(value)

    probe.__annotations__ = {"value": hint}
    return tool(probe).spec.parameters["properties"]["value"]


def test_a_function_in_the_openai_shape() -> None:
    assert add.spec.openai() == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.\n\nExactly.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "the first, which comes first"},
                    "b": {"type": "integer", "default": 3, "description": "the second"},
                },
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Annotated[str, "a word"], {"type": "string", "description": "a word"}),
    ],
)
def test_a_hint_as_schema(hint: Any, schema: Any) -> None:
    assert schema_of(hint) == schema


def test_a_type_used_once_stands_in_its_place() -> None:
    assert schema_of(Color) == {"type": "string", "enum": ["red", "blue"]}


def test_a_type_used_twice_stands_in_defs_at_the_root() -> None:
    def draw(line: Line) -> str:
        return f"{line.end.x}"

    made = tool(draw)

    assert list(made.spec.parameters["$defs"]) == ["Point"]
    assert made.spec.parameters["properties"]["line"]["properties"]["start"] == {
        "$ref": "#/$defs/Point"
    }
    assert call(made, line={"start": {"x": 1}, "end": {"x": 2}}) == "2.0"


def test_arguments_come_as_the_annotated_types() -> None:
    def paint(color: Color, where: Point, within: Range) -> str:
        return f"{color.name} {where.x} {within['low']}"

    made = tool(paint)

    assert (
        call(made, color="red", where={"x": 2}, within={"low": 1, "high": 2}) == "RED 2.0 1"
    )


def test_an_argument_called_title_keeps_its_name() -> None:
    def find(title: str) -> str:
        return title

    assert tool(find).spec.parameters["properties"] == {"title": {"type": "string"}}


def test_a_tool_can_still_be_called_as_the_function() -> None:
    assert add(1, b=2) == 3


def test_a_result_that_is_no_text_is_json() -> None:
    assert call(add, a=1) == "4"


def test_a_dataclass_is_given_as_json() -> None:
    def here() -> list[Point]:
        return [Point(1.0)]

    assert call(tool(here)) == '[{"x": 1.0, "y": 0.0}]'


def test_the_context_is_given_and_never_shown() -> None:
    def roll(sides: int, context: ToolContext) -> str:
        return f"{sides} {context.seed}"

    made = tool(roll)

    assert list(made.spec.parameters["properties"]) == ["sides"]
    assert call(made, sides=6) == "6 7"


async def test_an_async_function() -> None:
    @tool(name="later", deadline_s=2.0)
    async def anything(x: str) -> str:
        return x * 2

    assert (anything.spec.name, anything.deadline_s) == ("later", 2.0)
    assert await anything.call({"x": "a"}, ToolContext()) == "aa"


def test_a_parameter_without_a_hint_is_refused_by_name() -> None:
    def shout(text) -> str:  # type: ignore[no-untyped-def]
        return str(text)

    with pytest.raises(
        ToolError,
        match=r"tool 'shout': parameter 'text' needs a type hint.*write for example text: s",
    ):
        tool(shout)


def test_a_parameter_that_json_cannot_carry_is_refused() -> None:
    def send(to: Path, by: asyncio.AbstractEventLoop) -> str:
        return f"{to}{by}"

    with pytest.raises(
        ToolError,
        match=r"tool 'send': parameter 'by' has type .* which makes no JSON Schema",
    ):
        tool(send)


def test_arguments_without_a_name_are_refused() -> None:
    def many(*words: str) -> str:
        return "".join(words)

    with pytest.raises(
        ToolError, match=r"parameter .\*words.* is variadic positional; a model passes"
    ):
        tool(many)


GOOGLE = """Convert a distance.

    Both ways.

    Args:
        amount (float): how far,
            at most: 10
        unit: what it is in

    Returns:
        the other unit

    Example:
        >>> convert(1.0)
    """
NUMPY = """Convert a distance.

    Both ways.

    Parameters
    ----------
    amount : float
        how far,
        at most: 10
    unit : {"km", "mile"}, optional
        what it is in

    Returns
    -------
    str
        the other unit

    Examples
    --------
    >>> convert(1.0)
    """
SPHINX = """Convert a distance.

    Both ways.

    :param amount: how far,
        at most: 10
    :type amount: float
    :param str unit: what it is in
    :returns: the other unit
    """


@pytest.mark.parametrize(
    "written", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"]
)
def test_docstrings_of_each_style_are_read(written: str) -> None:
    def convert(amount: float, unit: str = "km") -> str:
        return f"{amount} {unit}"

    convert.__doc__ = written
    spec = tool(convert).spec

    assert spec.description == "Convert a distance.\n\nBoth ways."
    described = {
        key: entry["description"] for key, entry in spec.parameters["properties"].items()
    }
    assert described == {"amount": "how far, at most: 10", "unit": "what it is in"}


def test_two_parameters_of_one_entry_are_both_described() -> None:
    def area(width: float, height: float) -> float:
        """The area of a rectangle.

        Parameters
        ----------
        width, height : float
            in metres
        """
        return width * height

    properties = tool(area).spec.parameters["properties"]
    assert {entry["description"] for entry in properties.values()} == {"in metres"}


def test_a_tool_that_is_not_described_warns(caplog: pytest.LogCaptureFixture) -> None:
    def shout(text: str) -> str:
        return text

    class Shout:
        def __call__(self, text: str) -> str:
            return text

    tool(shout)
    tool(Shout)
    events = [(vars(record)["event"], vars(record)["tool"]) for record in caplog.records]
    assert events == [("tool_not_described", "shout")] * 2
    caplog.clear()
    tool(add.function)
    assert not caplog.records


def test_a_misspelt_entry_of_the_docstring_is_refused() -> None:
    def shout(text: str) -> str:
        """Shout.

        Args:
            txet: what
        """
        return text

    with pytest.raises(
        ToolError, match="describe 'txet', which is no parameter; did you mean 'text'"
    ):
        tool(shout)


def test_a_default_of_another_type_is_refused() -> None:
    def wait(seconds: int = "soon") -> str:  # type: ignore[assignment]
        return str(seconds)

    with pytest.raises(
        ToolError, match="the default of parameter 'seconds' must be of its type"
    ):
        tool(wait)


def test_a_class_gives_each_episode_an_instance_of_its_own() -> None:
    (one,), (other,) = NoteBook.build(), NoteBook.build()
    call(one, note="a")

    assert call(one, note="b") == "a b"
    assert call(other, note="c") == "c"


def test_a_class_is_described_by_its_docstrings() -> None:
    (made,) = NoteBook.build()

    assert (made.spec.name, made.spec.description) == ("note_book", "Keeps notes.")
    assert made.spec.parameters["properties"]["note"] == {
        "type": "string",
        "description": "what to write",
    }


async def test_closing_a_tool_closes_its_object() -> None:
    (made,) = NoteBook.build()
    assert isinstance(made, FunctionTool)
    await close_owner(made.owner)

    assert made.function.closed  # type: ignore[attr-defined]


def test_a_class_without_hints_fails_when_declared() -> None:
    with pytest.raises(ToolError, match=r"tool 'loose': parameter 'x' needs a type hint"):

        @tool
        class Loose:
            def __call__(self, x) -> str:  # type: ignore[no-untyped-def]
                return str(x)


def test_tools_that_share_state_come_from_one_factory() -> None:
    class Bank:
        def __init__(self) -> None:
            self.balance = 0

        def deposit(self, amount: int) -> int:
            self.balance += amount
            return self.balance

        def balance_now(self) -> int:
            return self.balance

    def bank() -> list[Tool]:
        account = Bank()
        return [tool(account.deposit), tool(account.balance_now)]

    deposit, balance = ToolFactory(bank).build()
    call(deposit, amount=5)

    assert call(balance) == "5"


def test_decorated_tools_pickle_by_their_place(tmp_path: Path) -> None:
    path = tmp_path / "shelf.py"
    path.write_text(
        "from agentrl.tools import tool\n"
        "@tool\ndef twice(x: int) -> int:\n    return 2 * x\n"
        "@tool\nclass Counter:\n    def __call__(self, by: int) -> int:\n        return by\n"
    )
    twice, counter = resolve_tools(["shelf.py:twice", "shelf.py:Counter"], tmp_path)

    assert pickle.loads(pickle.dumps(twice)) is twice
    assert pickle.loads(pickle.dumps(counter)) is counter


def shout_plainly(text: str) -> str:
    return text.upper()


def test_a_tool_of_a_plain_function_pickles_by_value() -> None:
    copy = pickle.loads(pickle.dumps(tool(shout_plainly, deadline_s=3.0)))

    assert (call(copy, text="a"), copy.deadline_s) == ("A", 3.0)


SCHEMA = {
    "name": "area",
    "description": "d",
    "parameters": {"type": "object", "properties": {"w": {"minimum": 0}}},
}


def test_a_schema_given_by_hand() -> None:
    made = Tool.from_schema({"type": "function", "function": SCHEMA}, lambda w=1: w * w)

    assert made.spec.parameters["additionalProperties"] is False
    assert call(made, w=3) == "9"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"name": "x"}, "needs parameters"),
        (
            {"name": "x", "parameters": {"type": "array"}},
            "must have type 'object', got 'array'",
        ),
        ({"name": "x", "parameters": {"type": "objekt"}}, 'no JSON Schema at .*"objekt"'),
        ({"name": "x y", "parameters": {"type": "object"}}, "name must be 1 to 64 of"),
        (
            {"name": "x", "parameters": {"type": "object", "properties": {"a": {}}}},
            r"arguments \['a'\] that the fun",
        ),
    ],
)
def test_a_wrong_schema_is_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolError, match=message):
        Tool.from_schema(schema, lambda: "")


def test_a_schema_must_require_what_the_function_needs() -> None:
    with pytest.raises(
        ToolError, match=r"needs \['w'\], which the schema does not require"
    ):
        Tool.from_schema(SCHEMA, lambda w: w)


def test_what_is_no_tool_is_refused() -> None:
    with pytest.raises(
        ToolError, match="is no tool but a function; decorate it with @tool"
    ):
        resolve_tools([shout_plainly])  # type: ignore[list-item]


def test_text_that_names_no_tool_is_refused() -> None:
    with pytest.raises(ConfigError, match="math has no 'squart'"):
        resolve_tools(["math:squart"])
