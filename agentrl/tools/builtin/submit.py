"""Submit tool: takes the episode's answer and ends the episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.tools.base import BuiltInTool
from agentrl.tools.context import ToolContext, ToolOutput
from agentrl.tools.signature import text_spec


class SubmitTool(BuiltInTool):
    """Ends the episode with an answer, which rewards find as ``EpisodeView.submitted``.

    Args:
        settings: see ``BuiltInSettings``.
    """

    spec = text_spec(
        "submit",
        "Give your final answer. Nothing comes after it.",
        "answer",
        description="The answer alone.",
    )

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Take ``arguments["answer"]``."""
        return ToolOutput("Submitted.", end=True)
