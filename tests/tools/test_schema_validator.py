"""The validator of a tool's parameters."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.errors import ToolError
from agentrl.tools.validate import schema_validator


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
