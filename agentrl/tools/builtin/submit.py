"""Submit tool: takes the episode's answer and ends the episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.tools.base import Tool
from agentrl.tools.context import ToolContext, ToolOutput
from agentrl.tools.signature import text_spec


class SubmitTool(Tool):
    """Ends the episode with an answer, which rewards find as ``EpisodeView.submitted``.

    Args:
        name: the tool's name.
        description: what the model is told.
    """

    def __init__(
        self,
        *,
        name: str = "submit",
        description: str = "Give your final answer. Nothing comes after it.",
    ) -> None:
        self.spec = text_spec(name, description, "answer", description="The answer alone.")

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Take ``arguments["answer"]``."""
        return ToolOutput("Submitted.", end=True)
