"""Every chat template of TRL's wheel: rendered with the ids of the template itself, or refused by
name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError, DataError
from agentrl.render import Renderer, RendererSpec
from agentrl.types import Message, ToolCall, ToolSpec, concat_ids
from tests.kit.episodes import said, user
from tests.kit.marks import wide_but
from tests.render.family_kind import saved_any
from tests.render.qwen_kind import chat_templates

ALL = sorted(path.stem for path in chat_templates().glob("*.jinja"))
# These want a list of parts as content, for images.
REFUSED = {
    f"{name}{training}"
    for name in ("idefics3", "llava_next", "smolvlm")
    for training in ("", "_training")
} & set(ALL)
TOOL = ToolSpec(
    "look_up",
    "Looks it up.",
    {"type": "object", "properties": {"word": {"type": "string"}}},
)


CONVERSATIONS: dict[str, tuple[Message, ...]] = {
    "a question": (user(" naïve 日本語 🙂 \n"),),
    "two questions": (user("One?"), said("Two."), user("Three?")),
    "a call": (
        user("One?"),
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [ToolCall("call_0", "look_up", {"word": "é"}).openai()],
        },
        {"role": "tool", "content": "found\n", "name": "look_up"},
    ),
}


@pytest.fixture(scope="module")
def built_any(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    made: dict[str, tuple[Renderer, Any]] = {}

    def build(name: str) -> tuple[Renderer, Any]:
        if name not in made:
            folder = saved_any(name, tmp_path_factory.mktemp("any"))
            made[name] = RendererSpec(folder).build(), AutoTokenizer.from_pretrained(folder)
        return made[name]

    return build


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_template_for_images_is_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"the chat template of .*{tmp_path.name}"):
        RendererSpec(saved_any(name, tmp_path)).build()


def test_the_name_of_a_tool_forges_nothing(built_any: Any) -> None:
    # gemma's template writes a tool's message with its name, which is whatever the model called
    renderer, tokenizer = built_any("gemma4")
    marker = "<turn|>"

    def count(name: str) -> int:
        calls = [ToolCall("call_0", name, {}).openai()]
        called: Message = {"role": "assistant", "content": "", "tool_calls": calls}
        messages = (user("One?"), called, {"role": "tool", "content": "x", "name": name})
        ids = renderer.prompt(messages)[0].token_ids.tolist()
        assert name in tokenizer.decode(ids)
        return int(ids.count(tokenizer.convert_tokens_to_ids(marker)))

    assert count(f"a{marker}b") == count("ab")


@pytest.mark.parametrize("name", wide_but(ALL[::8], sorted({*ALL} - REFUSED)))
def test_prompts_have_the_ids_of_the_template(built_any: Any, name: str) -> None:
    renderer, tokenizer = built_any(name)
    compared = 0
    for conversation, messages in CONVERSATIONS.items():
        tools = (TOOL,) if conversation == "a call" else ()
        try:
            ours = renderer.prompt(messages, tools)[0].token_ids.tolist()
        except DataError:
            if conversation != "a call":
                raise
            continue  # the template's own refusal, or one without tools
        if renderer.family == "deepseek":
            continue  # shaped for its template: tests/render/test_families.py
        theirs = tokenizer.apply_chat_template(
            list(messages),
            tools=[tool.openai() for tool in tools] or None,
            add_generation_prompt=True,
            tokenize=False,
        )
        assert ours == tokenizer.encode(theirs, add_special_tokens=False), conversation
        compared += 1
    assert compared or renderer.family == "deepseek"


# Their prompt ends with "<think>\n", and a turn without thoughts goes on with a second line break:
# one token there.
SPLIT_BY_THE_PROMPT = {
    "qwen3_5_think_training",
    "qwen3_6_training",
    "qwen3_8",
    "qwen3_8_training",
}


@pytest.mark.parametrize("name", wide_but(ALL[::8], sorted({*ALL} - REFUSED)))
def test_a_sequence_that_goes_on_is_that_of_the_template(built_any: Any, name: str) -> None:
    renderer, tokenizer = built_any(name)
    before = CONVERSATIONS["two questions"][:1]
    turn = said("Two.")
    after = (user("Three?"),)
    target = renderer.target(turn)
    more = renderer.extend(target.token_ids, after, (*before, turn))
    whole = tokenizer.apply_chat_template(
        [*before, turn, *after], add_generation_prompt=True, tokenize=False
    )
    theirs = tokenizer.encode(whole, add_special_tokens=False)
    ours = concat_ids([*renderer.prompt(before), target, *(more or ())]).tolist()
    if more is None:  # a new sequence: what stands there is not how the template begins
        assert ours != theirs[: len(ours)]
        return
    assert tokenizer.decode(ours) == whole
    if name not in SPLIT_BY_THE_PROMPT:
        assert ours == theirs


# Of the templates that TRL changed to keep their history before a tool's answer, these write the
# last turn otherwise when a user speaks: an opened <think> is dropped, or <|return|> becomes
# <|end|>.
CHANGED_BY_A_USER = {
    *("deepseek_r1_distill_training", "deepseekv3_training", "gptoss_training"),
    *(f"nemotron_3_{size}_training" for size in ("5_lightning", "nano", "super", "ultra")),
}


@pytest.mark.parametrize(
    "name", [name for name in ALL if name.endswith("_training") and name not in REFUSED]
)
def test_templates_made_to_keep_history_do(built_any: Any, name: str) -> None:
    renderer, _ = built_any(name)
    before = CONVERSATIONS["two questions"][:1]
    turn = said("Two.")
    after = (user("Three?"),)
    more = renderer.extend(renderer.target(turn).token_ids, after, (*before, turn))
    assert (more is None) == (name in CHANGED_BY_A_USER)
