"""Shared tools: closed once, whatever one of them raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from agentrl.tools import Tool, ToolContext, close_tools
from agentrl.types import ToolSpec


class Closing(Tool):
    def __init__(self, name: str, closed: list[str]) -> None:
        self.spec = ToolSpec(name, "", {"type": "object", "properties": {}})
        self.closed = closed

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> str:
        return ""

    async def close(self) -> None:
        self.closed.append(self.spec.name)
        if self.spec.name == "broken":
            raise ValueError("it is stuck")


def test_a_tool_that_cannot_be_closed_is_logged_and_the_next_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed: list[str] = []
    close_tools([Closing("broken", closed), Closing("whole", closed)])
    assert closed == ["broken", "whole"]
    (record,) = caplog.records
    assert (vars(record)["event"], vars(record)["tool"]) == ("tool_close_failed", "broken")
    assert "it is stuck" in record.getMessage()
