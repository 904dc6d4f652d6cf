"""The plain check never says yes where the validator says no."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agentrl.guards.plain_check import plainly_right

NUMBERS = st.integers(-3, 3) | st.sampled_from([0.0, 1.0, 1.5, -2.0])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.sampled_from(["", "a", "ab", "abc", "é"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def maybe(**rules: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=rules)


def with_type(kind: str, **rules: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return maybe(**rules).map(lambda given: {"type": kind, **given})


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        with_type(
            "object",
            properties=st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
            required=st.lists(st.sampled_from(["a", "b"]), max_size=2, unique=True),
            additionalProperties=st.booleans() | inner,
        )
        | with_type("array", items=inner | st.booleans(), minItems=st.integers(0, 2))
        | st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)})
        | with_type("object", minProperties=st.integers(0, 2))
    )


SCHEMAS = st.recursive(
    with_type("string", minLength=st.integers(0, 3), maxLength=st.integers(0, 3))
    | with_type("integer", minimum=NUMBERS, maximum=NUMBERS, multipleOf=st.just(2))
    | with_type("number", enum=st.lists(NUMBERS, min_size=1, max_size=2, unique=True))
    | st.sampled_from([{"type": "boolean"}, {"type": "null"}, {}, True, False])
    | st.fixed_dictionaries({"enum": st.lists(VALUES, min_size=1, max_size=2)})
    | st.just({"$ref": "#/$defs/it"}),
    larger,
    max_leaves=5,
)


@given(
    schema=larger(SCHEMAS),
    it=with_type("string", minLength=st.integers(0, 2)),
    value=st.dictionaries(st.sampled_from(["a", "b"]), VALUES),
)
def test_it_never_agrees_to_what_the_validator_refuses(schema: Any, it: Any, value: Any) -> None:
    whole = {**schema, "$defs": {"it": it}}
    if plainly_right(whole, value):
        assert Draft202012Validator(whole).is_valid(value)


ITEM = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("schema", "value", "right"),
    [
        ({"properties": {"a": {"type": "array", "items": ITEM}}}, {"a": [{"n": 1}] * 9}, True),
        ({"properties": {"a": {"type": "array", "items": ITEM}}}, {"a": [{"n": "1"}]}, False),
        ({"properties": {"a": {"anyOf": [ITEM, {"type": "null"}]}}}, {"a": None}, True),
        ({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": ITEM}}, {"a": {"n": 2}}, True),
        ({"properties": {"a": {"enum": ["x", "y"]}}}, {"a": "y"}, True),
        ({"properties": {"a": {"enum": [1]}}}, {"a": True}, False),
        ({"properties": {"a": {"type": "integer"}}}, {"a": True}, False),
        ({"additionalProperties": False}, {"a": 1}, False),
        ({"properties": {"a": {"type": "array", "items": ITEM}}}, {"a": [{"n": 1}] * 999}, False),
    ],
)
def test_what_it_knows(schema: Any, value: Any, right: bool) -> None:
    assert plainly_right({"type": "object", **schema}, value) is right


def test_a_definition_that_refers_to_itself_ends() -> None:
    tree: dict[str, Any] = {"anyOf": [{"$ref": "#/$defs/t"}]}
    whole = {"type": "object", "properties": {"a": {"$ref": "#/$defs/t"}}, "$defs": {"t": tree}}
    assert not plainly_right(whole, {"a": 1})
