"""Restated history: spelled markers give no structure when a history is written again.

A turn's own tokens are never encoded again, but where a template rewrites history a new sequence
restates it from its messages. What the policy wrote in ordinary tokens must not open or end a
message there, nor speak as someone else.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.errors import DataError
from agentrl.render import Renderer
from agentrl.tools import ToolCallParser
from agentrl.types import Message, ToolSpec, concat_ids
from benchmarks.fuzz.renderers import Variant
from benchmarks.fuzz.talk import PLAIN, hostile

__all__ = ["INSIDE_A_TURN", "forged_structure"]

_THOUGHTS = ("<think>", "</think>")
_DEEPSEEK = ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")
INSIDE_A_TURN: Mapping[str, frozenset[str]] = {
    "chatml": frozenset({*_THOUGHTS, "<tool_call>", "</tool_call>"}),
    "llama": frozenset(_THOUGHTS),
    "deepseek": frozenset({*_THOUGHTS, *(f"<｜tool▁{name}｜>" for name in _DEEPSEEK)}),
    "glm": frozenset(
        {
            *_THOUGHTS,
            "<tool_call>",
            "</tool_call>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
        }
    ),
    "gptoss": frozenset(),
    "generic": frozenset(
        {
            *_THOUGHTS,
            "<|tool_call_start|>",
            "<|tool_call_end|>",
            "<|tool_call>",
            "<tool_call|>",
            '<|"|>',
        }
    ),
}
"""The markers that a policy of each family may write within its turn, where they begin and end
nothing but its own thoughts and calls; gpt-oss has none, since a turn is several messages and each
marker begins or ends one."""

_ROLES = (
    "system",
    "user",
    "assistant",
    "tool",
    "developer",
    "analysis",
    "final",
    "commentary",
    " to=functions.find",
)
_TOOLS = (
    ToolSpec(
        "find", "Finds.", {"type": "object", "properties": {"text": {"type": "string"}}}
    ),
)


def forged_structure(
    renderer: Renderer,
    added: Mapping[str, int],
    parser: ToolCallParser,
    variant: Variant,
    seed: int,
) -> str | None:
    """One conversation of hostile turns, restated; what is wrong with it, or None.

    Args:
        renderer: restates it.
        added: text and id of every added token.
        parser: reads the policy's text, as in an episode.
        variant: of the template.
        seed: of all that is said.
    """
    rng = random.Random(f"restated/{variant.name}/{seed}")
    tools = _TOOLS if variant.tools and rng.random() < 0.7 else ()
    said: list[Message] = [{"role": "user", "content": "Q"}]
    for _ in range(rng.randrange(1, 4)):
        message = parser.parse(
            _spelled(rng, renderer, sorted(added), variant), tools
        ).message
        said.append(message)
        calls = message.get("tool_calls", [])
        said += [
            {"role": "tool", "content": "A", "tool_call_id": c["id"], "name": "find"}
            for c in calls
        ]
        said += [] if calls and rng.random() < 0.5 else [{"role": "user", "content": "Q"}]
    inside = {added[marker] for marker in INSIDE_A_TURN[renderer.family] if marker in added}
    structural = set(added.values()) - inside
    try:
        found, clean = (
            [
                token
                for token in concat_ids(renderer.prompt(each, tools)).tolist()
                if token in structural
            ]
            for each in (said, [_cleaned(message, added) for message in said])
        )
    except DataError as error:
        return f"conversation {seed}: it cannot be restated: {error}"
    return (
        None
        if found == clean
        else f"conversation {seed}: what the policy spelled became structure: {said}"
    )


def _spelled(
    rng: random.Random, renderer: Renderer, markers: Sequence[str], variant: Variant
) -> str:
    """What the policy writes: hostile text, beside a turn as the template has it or within its
    words.
    """
    pieces = [hostile(rng, markers, most=4)]
    for _ in range(rng.randrange(4)):
        pieces += [
            rng.choice(markers),
            rng.choice(_ROLES),
            rng.choice(markers),
            hostile(rng, markers, most=3),
        ]
    text = "".join(pieces)
    if rng.random() < 0.6:
        return text
    message: Message = {"role": "assistant", "content": text}
    if variant.max_calls and rng.random() < 0.5:
        call: dict[str, Any] = {
            "name": rng.choice(("find", text or "x")),
            "arguments": {"text": text},
        }
        message["tool_calls"] = [{"id": "call_0", "type": "function", "function": call}]
        message["content"] = "" if rng.random() < 0.5 else text
    elif variant.enable_thinking is not False:
        message["reasoning_content"] = hostile(rng, [*markers, *PLAIN], most=4)
    try:
        return renderer.decode(renderer.target(message).token_ids)
    except (
        DataError
    ):  # the template's prompt has written otherwise, so such a turn cannot be imitated
        return text


def _cleaned(message: Message, added: Mapping[str, int]) -> Message:
    """The message with the text of added tokens taken out of all that the assistant said."""
    texts = sorted(added, key=len, reverse=True)

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            for text in texts:
                value = value.replace(text, "x")
            return value
        if isinstance(value, dict):
            return {clean(key): clean(item) for key, item in value.items()}
        return [clean(item) for item in value] if isinstance(value, list) else value

    if message["role"] != "assistant":
        return message
    cleaned: Message = clean(dict(message))
    return cleaned
