"""gpt-oss family: the harmony format, whose turns are several messages on channels.

Its template drops the analysis of every turn that ended with an answer, and writes one call a turn,
which ends the turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.errors import DataError
from agentrl.render.families.family import Family, as_they_are
from agentrl.types import Message


def _adapt(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Converts messages to the template's shape.

    - Reasoning is called ``thinking``. A turn with a call has one text, which the template writes
      as its analysis.
    - A tool's message answers a call. After a turn whose call could not be parsed, the user brings
      the answer.
    """
    adapted = as_they_are(messages)
    called = False
    for message in adapted:
        if message["role"] == "tool" and not called:
            message["role"] = "user"
        if message["role"] != "assistant":
            continue
        called = bool(message.get("tool_calls"))
        thinking = message.pop("reasoning_content", "")
        if called:
            if len(message["tool_calls"]) > 1:
                raise DataError(
                    f"gpt-oss writes one call a turn, got a message with "
                    f"{len(message['tool_calls'])}; give each call a message of its own, followed "
                    f"by its answer"
                )
            message["content"] = "\n\n".join(
                text for text in (thinking, message.get("content")) if text
            )
        elif thinking:
            message["thinking"] = thinking
    return adapted


GPTOSS = Family(
    name="gptoss",
    signs=("<|channel|>", "<|message|>", "<|call|>", "<|return|>"),
    stops=("<|return|>", "<|call|>"),
    adapt=_adapt,
)
