"""The validator of a tool's parameters."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ToolError
from agentrl.tools.signature import argument_faults, schema_validator


def parameters() -> dict[str, Any]:
    return {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


def test_equal_parameters_are_checked_once() -> None:
    assert schema_validator(parameters(), "f") is schema_validator(parameters(), "f")


def test_a_tool_that_changes_its_parameters_afterwards_changes_no_other() -> None:
    mine = parameters()
    validator = schema_validator(mine, "f")
    mine["properties"]["x"]["type"] = "string"

    assert validator.is_valid({"x": 1})
    assert not schema_validator(mine, "f").is_valid({"x": 1})


@pytest.mark.parametrize("value", [object(), {1, 2}])
def test_parameters_that_are_no_json_are_refused(value: object) -> None:
    with pytest.raises(ToolError, match="tool 'f': its parameters are no JSON"):
        schema_validator({"type": "object", "default": value}, "f")


NAMES = st.sampled_from(["x", "y", "z"])
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.just([1]),
    st.just({"x": 1}),
)
RULES = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            [
                "string",
                "integer",
                "number",
                "boolean",
                "null",
                "array",
                "object",
                ["string", "null"],
            ]
        )
    },
    optional={
        "description": st.just("what it is"),
        "minimum": st.just(3),
        "default": st.just(1),
    },
)


def test_what_another_argument_asks_for_is_named() -> None:
    asks = {"dependentRequired": {"a": ["b", "c"], "d": ["e"]}}
    schema = {"type": "object", **asks, "properties": {"x": asks}}
    assert argument_faults(
        schema_validator(schema, "f"), {"a": 1, "c": 2, "x": {"a": 1}}
    ) == (
        "argument 'b' is missing",
        "in argument 'x': arguments 'b' and 'c' are missing",
    )


@given(
    schema=st.fixed_dictionaries(
        {
            "type": st.just("object"),
            "properties": st.dictionaries(NAMES, RULES | st.just(True)),
        },
        optional={
            "required": st.lists(NAMES, unique=True),
            "additionalProperties": st.booleans(),
            "minProperties": st.just(2),
        },
    ),
    arguments=st.dictionaries(NAMES, VALUES),
)
def test_arguments_have_no_fault_exactly_where_the_schema_holds(
    schema: dict[str, Any], arguments: dict[str, Any]
) -> None:
    validator = schema_validator(schema, "f")
    assert (argument_faults(validator, arguments) == ()) is validator.is_valid(arguments)
