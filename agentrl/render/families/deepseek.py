"""DeepSeek V3 family: calls between their own tokens, with arguments as text.

Its templates drop the reasoning of every turn, and describe no tools.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agentrl.render.families.family import Family, as_they_are
from agentrl.types import Message


def _adapt(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Converts a call's arguments to text, which the template concatenates."""
    adapted = as_they_are(messages)
    for message in adapted:
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [
                {**call, "function": _as_text(call["function"])} for call in calls
            ]
    return adapted


def _as_text(function: dict[str, Any]) -> dict[str, Any]:
    return {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}


DEEPSEEK = Family(
    name="deepseek",
    signs=("<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>"),
    stops=("<｜end▁of▁sentence｜>",),
    adapt=_adapt,
)
