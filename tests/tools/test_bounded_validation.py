"""The check of arguments fetches nothing, ends, and holds up no other episode."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agentrl.errors import ToolError
from agentrl.guards.schema import SchemaFault, checked_schema
from agentrl.tools import Tool, ToolExecutor
from agentrl.tools.signature import argument_faults, schema_validator
from agentrl.types import ToolCall
from tests.kit.http import Answering, serving

BACKTRACKS = "^(a|aa)+$"


def a_tool(**properties: Any) -> Tool:
    schema = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    return Tool.from_schema(schema, lambda **given: "ran")


@pytest.fixture
def served() -> Iterator[tuple[str, list[str]]]:
    """The address of a server of schemas, and what it was asked for."""
    asked: list[str] = []

    class Schemas(Answering):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.answer(b'{"type": "integer"}')

    with serving(Schemas) as url:
        yield url, asked


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
async def test_a_reference_to_elsewhere_is_refused_and_not_fetched(
    served: tuple[str, list[str]], keyword: str
) -> None:
    address, asked = served
    with pytest.raises(
        ToolError, match=r"refers to 'http.*nothing is fetched; copy it into"
    ):
        await ToolExecutor([a_tool(x={"items": {keyword: f"{address}/x.json"}})]).run(
            [ToolCall("c", "f", {"x": [1]})]
        )
    assert asked == []


async def test_a_reference_within_the_schema_holds() -> None:
    schema = {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/small"}},
            "$defs": {"small": {"type": "integer", "maximum": 3}},
        },
    }
    run = ToolExecutor([Tool.from_schema(schema, lambda **given: "ran")]).run
    right, wrong = await run(
        [ToolCall("call_0", "f", {"x": 3}), ToolCall("call_1", "f", {"x": 4})]
    )

    assert right.result is not None
    assert right.result.error is None
    assert wrong.result is not None
    assert "breaks the rule maximum 3, got 4" in wrong.result.content


def test_a_schema_that_refers_to_itself_without_an_end_is_refused() -> None:
    with pytest.raises(ToolError, match="refers to itself without an end"):
        Tool.from_schema(
            {"name": "f", "parameters": {"type": "object", "$ref": "#"}}, lambda **given: ""
        )


@pytest.mark.parametrize(
    "rule", [{"pattern": "("}, {"type": "object", "patternProperties": {"(": {}}}]
)
def test_a_pattern_that_is_none_is_refused_with_the_tool(rule: dict[str, Any]) -> None:
    with pytest.raises(
        ToolError,
        match=r"tool 'f': the schema of its parameters is no JSON Schema .*\"\(\" is not a",
    ):
        a_tool(x=rule)


@pytest.mark.parametrize(
    ("rule", "right", "wrong"),
    [
        ({"type": "string", "pattern": "^[a-z]+$"}, "abc", "a1"),
        (
            {"type": "object", "patternProperties": {"^n": {"type": "integer"}}},
            {"n": 1, "x": "y"},
            {"n": "1"},
        ),
        (
            {
                "type": "object",
                "patternProperties": {"^n": {}},
                "additionalProperties": False,
            },
            {"n1": 1},
            {"n1": 1, "m": 1},
        ),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            {"n": 1},
            {"n": "1"},
        ),
    ],
)
async def test_patterns_are_obeyed(rule: dict[str, Any], right: Any, wrong: Any) -> None:
    calls = [ToolCall("call_0", "f", {"x": right}), ToolCall("call_1", "f", {"x": wrong})]
    records = await ToolExecutor([a_tool(x=rule)]).run(calls)

    assert [record.result and record.result.error for record in records] == [
        None,
        "invalid_arguments",
    ]


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        (BACKTRACKS, "breaks the rule pattern"),
        # what refers back cannot be matched in linear time
        (r"^(a|aa)+\1$", "takes too long for the text given; give a shorter one"),
    ],
)
async def test_a_pattern_that_backtracks_ends(pattern: str, told: str) -> None:
    tool = a_tool(x={"type": "string", "pattern": pattern})
    (record,) = await ToolExecutor([tool]).run([ToolCall("c", "f", {"x": "a" * 200 + "b"})])

    assert record.result is not None
    assert record.result.error == "invalid_arguments"
    assert told in record.result.content


async def test_the_keys_of_an_object_are_matched_too() -> None:
    rule = {"patternProperties": {BACKTRACKS: {}}, "additionalProperties": False}
    tool = a_tool(x={"type": "object", **rule})
    (record,) = await ToolExecutor([tool]).run(
        [ToolCall("c", "f", {"x": {"a" * 200 + "b": 1}})]
    )

    assert record.result is not None
    assert "there is no argument" in record.result.content


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value, "b": 1}
    return value


SUMS = {
    "$defs": {
        "sum": {
            "anyOf": [
                {"type": "integer"},
                {"properties": {"a": {"$ref": "#/$defs/sum"}}, "required": ["c"]},
                {"properties": {"a": {"$ref": "#/$defs/sum"}, "b": {"type": "integer"}}},
            ]
        }
    },
    "$ref": "#/$defs/sum",
}


def test_rules_that_multiply_with_the_depth_of_a_value_are_bounded() -> None:
    schema = checked_schema(json.dumps(SUMS))
    assert schema.broken(nested(8)) == []
    with pytest.raises(SchemaFault, match="too many rules for so many values, or so deep"):
        schema.broken(nested(40))


def test_rules_that_multiply_by_references_are_bounded() -> None:
    twice = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)}
    schema = {"$defs": {**twice, "a40": {"type": "string"}}, "$ref": "#/$defs/a0"}
    with pytest.raises(SchemaFault, match="too many rules"):
        checked_schema(json.dumps(schema)).is_valid(1)


@pytest.mark.parametrize(
    ("reference", "told"),
    [("#/$defs/no", "refers to"), ("#no", "refers to"), ("#/$defs/x", ""), ("#here", "")],
)
def test_a_reference_leads_to_a_part_or_is_refused(reference: str, told: str) -> None:
    part = {"$anchor": "here", "type": "integer"}
    schema = json.dumps({"$defs": {"x": part}, "items": {"$ref": reference}})
    if told:
        with pytest.raises(SchemaFault, match=told):
            checked_schema(schema)
    else:
        assert [broken.rule for broken in checked_schema(schema).broken(["a"])] == [
            "integer"
        ]


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-2, 2),
        st.sampled_from([0.0, 1.0, 0.5]),
        st.text("ab", max_size=1),
    ),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.text("ab", max_size=1), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(items=st.lists(JSON, max_size=5))
def test_items_that_must_differ_differ_as_json_does(items: list[Any]) -> None:
    rule = {"type": "array", "uniqueItems": True}
    ours = argument_faults(
        schema_validator({"type": "object", "properties": {"x": rule}}, "f"), {"x": items}
    )

    assert (ours == ()) is Draft202012Validator(rule).is_valid(items)
