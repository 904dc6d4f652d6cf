"""GLM family, 4.5 and later: calls as ``<arg_key>`` and ``<arg_value>`` pairs.

A turn ends with the marker of the next role, which the model samples.
"""

from __future__ import annotations

from agentrl.render.families.family import Family
from agentrl.types import Message

_USER = "<|user|>"
_OBSERVATION = "<|observation|>"


def _turn_end(message: Message) -> str:
    """The marker of the next role, which the model samples itself."""
    return _OBSERVATION if message.get("tool_calls") else _USER


GLM = Family(
    name="glm",
    signs=("<|assistant|>", _USER, _OBSERVATION),
    stops=(_USER, _OBSERVATION, "<|endoftext|>"),
    turn_end=_turn_end,
)
