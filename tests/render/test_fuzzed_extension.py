"""A sequence that goes on is, token for token, what the template writes of the whole conversation:
on fuzzed ones.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from agentrl.render import Renderer
from agentrl.tools import ToolCallParser, parser_for
from agentrl.types import Message, ToolCall, ToolSpec, concat_ids
from benchmarks.fuzz import VARIANTS, Variant
from benchmarks.fuzz.renderers import built_variant
from benchmarks.fuzz.talk import PLAIN, hostile

CONVERSATIONS = 40
NEVER_GOES_ON = ("qwen3, thinking off", "deepseekv3")
"""Their templates drop what the prompt of a turn wrote of its thoughts."""
READ_BY_NONE = ("gemma4",)
"""No parser of ours reads its calls and thoughts back into a message."""


def spoken(rng: random.Random, variant: Variant, *, tools: bool) -> Message:
    """An assistant's well-formed message: words, thoughts and calls, any of them empty."""

    def words(most: int) -> str:
        return "".join(rng.choices(PLAIN[:30], k=rng.randrange(most))).strip()

    message: Message = {"role": "assistant", "content": words(4)}
    if variant.enable_thinking is not False and rng.random() < 0.4:
        message["reasoning_content"] = words(4) or "hm"
    if calls := rng.randrange(variant.max_calls + 1) if tools else 0:
        message["content"] = message["content"] if rng.random() < 0.3 else ""
        message["tool_calls"] = [
            ToolCall(f"call_{n}", "find", {"text": words(3)}).openai() for n in range(calls)
        ]
    return message


def goes_on(
    renderer: Renderer,
    parser: ToolCallParser,
    variant: Variant,
    markers: list[str],
    seed: int,
) -> bool:
    """Whether a conversation of two turns is one sequence; that it is the template's, then."""
    rng = random.Random(f"{variant.name}/{seed}")
    opening: list[Message] = [{"role": "user", "content": f"Q{hostile(rng, markers)}"}]
    if variant.tools and rng.random() < 0.4:
        opening.insert(0, {"role": "system", "content": hostile(rng, markers)})
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    offered = variant.tools and rng.random() < 0.7
    tools = (ToolSpec("find", f"Does {hostile(rng, markers)}.", schema),) if offered else ()
    completion = renderer.target(spoken(rng, variant, tools=offered)).token_ids
    read = parser.parse(renderer.decode(completion), tools)
    new: list[Message] = [
        {
            "role": "tool",
            "content": hostile(rng, markers),
            "tool_call_id": call.id,
            "name": call.name,
        }
        for call in read.tool_calls
    ]
    if not new or rng.random() < 0.2:
        new.append({"role": "user", "content": f"Q{hostile(rng, markers)}"})
    extension = renderer.extend(completion, new, [*opening, read.message], tools)
    if extension is None:
        return False
    ours = np.concatenate(
        [concat_ids(renderer.prompt(opening, tools)), completion, concat_ids(extension)]
    )
    theirs = concat_ids(renderer.prompt([*opening, read.message, *new], tools))
    assert ours.tolist() == theirs.tolist(), f"conversation {seed}: {read.message}"
    return True


@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in READ_BY_NONE])
def test_prompt_completion_and_extension_are_what_the_template_writes(
    name: str, tmp_path: Path
) -> None:
    variant = VARIANTS[name]
    renderer, tokenizer = built_variant(variant, tmp_path)
    parser = parser_for(renderer, variant.parser)
    markers = sorted(tokenizer.get_added_vocab())
    went_on = sum(
        goes_on(renderer, parser, variant, markers, seed) for seed in range(CONVERSATIONS)
    )
    assert went_on == 0 if name in NEVER_GOES_ON else went_on > 0
