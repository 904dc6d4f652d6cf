"""The ChatML family against the chat templates that Qwen's models ship, token for token."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agentrl.errors import DataError
from agentrl.render import ChatMLRenderer, ChatMLStyle
from agentrl.types import Message, SegmentKind, ToolCall, ToolSpec, concat_ids
from tests.kit.episodes import said, user
from tests.kit.marks import wide_but

Built = Callable[..., tuple[ChatMLRenderer, Any]]
NAMES = ("qwen2_5", "qwen3", "qwen3_instruct")

PYTHON = ToolSpec(
    "python",
    "Runs Python and gives back what it printed <é>.",
    {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
)
SEARCH = ToolSpec("search", 'Finds "documents".', {"type": "object", "properties": {}})


def call(*codes: str, content: str = "", **more: Any) -> Message:
    calls = [
        ToolCall(f"c{i}", "python", {"code": code}).openai() for i, code in enumerate(codes)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls, **more}  # type: ignore[typeddict-item]


def tool(content: str) -> Message:
    return {"role": "tool", "content": content}


CONVERSATIONS: dict[str, tuple[Message, ...]] = {
    "a question": (user("What is 2 + 2?"),),
    "white space around content": (user("\n\n  What\tis\n\n"),),
    "system": ({"role": "system", "content": "Be brief."}, user("Hi")),
    "a later system turn": (
        user("Hi"),
        said("Hello"),
        {"role": "system", "content": "Now be long."},
        user("Go"),
    ),
    "one call": (user("2 + 2?"), call("print(2 + 2)"), tool("4\n")),
    "two calls, two responses": (
        user("?"),
        call("a", "b", content="Both."),
        tool("\n1"),
        tool("2\n\n"),
    ),
    "an answer and a second question": (
        user("?"),
        call("x"),
        tool("1"),
        said("It is 1."),
        user("Sure?"),
    ),
    "thinking in its own field": (
        user("?"),
        call("x", reasoning_content="\nI must run it.\n"),
        tool("1"),
    ),
    "thinking in the content": (
        user("?"),
        said("<think>\nhm\n</think>\n\nYes."),
        user("Sure?"),
        said("Yes."),
    ),
    "thinking before and after a second question": (
        user("?"),
        call("x", reasoning_content="first"),
        tool("1"),
        said("It is 1.", reasoning_content="second"),
        user("And y?"),
        call("y", reasoning_content="third", content="Wait."),
        tool("2"),
    ),
    "unicode": (
        user("naïve 日本語 🙂 e\u0301"),
        call("print('é')"),
        tool("ü\u0308 \u200d x"),
    ),
    "only a tool's response": (tool("4"),),
}


def template_ids(
    tokenizer: Any,
    messages: tuple[Message, ...],
    tools: tuple[ToolSpec, ...],
    **variables: Any,
) -> Any:
    return tokenizer.apply_chat_template(
        list(messages),
        tools=[tool.openai() for tool in tools] or None,
        add_generation_prompt=True,
        return_dict=False,
        **variables,
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "tools", [(), (PYTHON,), (PYTHON, SEARCH)], ids=["no tools", "a tool", "two tools"]
)
@pytest.mark.parametrize("conversation", wide_but({"one call"}, CONVERSATIONS))
def test_a_prompt_has_the_ids_of_the_models_own_template(
    built: Built, name: str, tools: tuple[ToolSpec, ...], conversation: str
) -> None:
    renderer, tokenizer = built(name)
    (segment,) = renderer.prompt(CONVERSATIONS[conversation], tools)
    assert segment.kind is SegmentKind.PROMPT
    assert segment.token_ids.tolist() == template_ids(
        tokenizer, CONVERSATIONS[conversation], tools
    )


@pytest.mark.parametrize(
    "conversation",
    ["a question", "one call", "thinking before and after a second question"],
)
def test_a_prompt_without_thinking_has_the_ids_of_the_template(
    built: Built, conversation: str
) -> None:
    renderer, tokenizer = built("qwen3", enable_thinking=False)
    (segment,) = renderer.prompt(CONVERSATIONS[conversation], (PYTHON,))
    expected = template_ids(
        tokenizer, CONVERSATIONS[conversation], (PYTHON,), enable_thinking=False
    )
    assert segment.token_ids.tolist() == expected


# (style, messages before, the assistant's turn, what the environment said): where a sequence goes
# on, it is what the template would have rendered of the whole.
EPISODES = {
    "a tool's response": ((user("2 + 2?"),), call("print(2 + 2)"), (tool("4\n"),)),
    "two responses": (
        (user("?"),),
        call("a", "b", content="Both."),
        (tool("1"), tool("\n2")),
    ),
    "thinking": ((user("?"),), call("x", reasoning_content="I run it."), (tool("1"),)),
    "a user": ((user("?"),), said("It is 1."), (user("Sure?"),)),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("episode", EPISODES)
def test_prompt_and_target_and_extend_make_the_sequence_of_the_template(
    built: Built, name: str, episode: str
) -> None:
    renderer, tokenizer = built(name)
    before, turn, after = EPISODES[episode]
    prompt, target = renderer.prompt(before, (PYTHON,)), renderer.target(turn)
    more = renderer.extend(target.token_ids, after)
    if name == "qwen3" and episode != "thinking":
        # an empty thinking block, or a user who speaks: the template drops what stands in the
        # sequence
        assert more is None
        return
    assert more is not None
    assert target.kind is SegmentKind.TARGET
    expected = template_ids(tokenizer, (*before, turn, *after), (PYTHON,))
    if name != "qwen3" and episode == "thinking":
        # no thinking in these styles
        assert "I run it" not in renderer.decode(target.token_ids)
    assert concat_ids([*prompt, target, *more]).tolist() == expected


def test_qwen3_keeps_thinking_across_a_tools_response_and_drops_it_before_a_user(
    built: Built,
) -> None:
    renderer, _ = built("qwen3")
    turn = renderer.target(call("x", reasoning_content="I run it.")).token_ids
    assert renderer.extend(turn, (tool("1"),)) is not None
    assert renderer.extend(turn, (user("Sure?"),)) is None
    assert renderer.extend(turn, (tool("1"), user("Go on."))) is None


def test_qwen3_starts_anew_where_the_template_drops_the_empty_block_that_it_wrote_itself(
    built: Built,
) -> None:
    renderer, _ = built("qwen3", enable_thinking=False)
    turn = renderer.target(call("x")).token_ids
    assert renderer.extend(turn, (tool("1"),)) is None


def test_qwen3_goes_on_after_a_turn_that_never_thought(built: Built) -> None:
    renderer, tokenizer = built("qwen3")
    turn = np.asarray(tokenizer.encode("It is 1.<|im_end|>"), dtype=np.int32)
    before, after = (user("?"),), (tool("late"),)
    more = renderer.extend(turn, after)
    assert more is not None
    expected = template_ids(tokenizer, (*before, said("It is 1."), *after), ())
    assert [*concat_ids(renderer.prompt(before)), *turn, *concat_ids(more)] == expected


def test_kinds_after_a_completion_are_scaffold_around_what_the_tool_said(
    built: Built,
) -> None:
    renderer, tokenizer = built("qwen3_instruct")
    completion = renderer.target(call("x")).token_ids
    more = renderer.extend(completion, (tool("4 apples"),))
    assert more is not None
    read = [(segment.kind.name, tokenizer.decode(segment.token_ids)) for segment in more]
    assert read == [
        ("TEMPLATE", "\n<|im_start|>user\n<tool_response>\n"),
        ("OBSERVATION", "4 apples"),
        ("TEMPLATE", "\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
    ]


def test_a_token_that_holds_template_and_content_is_observation(built: Built) -> None:
    renderer, tokenizer = built("qwen3_instruct")
    more = renderer.extend(renderer.target(said("Hi")).token_ids, (user("\nGo"),))
    assert more is not None
    # "user\n" + "\nGo": the pattern takes both newlines together, and this vocabulary has a token
    # for two
    assert tokenizer.decode(more[1].token_ids) == "\n\nGo"
    assert more[1].kind is SegmentKind.OBSERVATION


def test_an_end_of_turn_that_was_not_sampled_is_scaffold(chatml: ChatMLRenderer) -> None:
    whole = chatml.target(said("Hello there")).token_ids
    ended, cut = chatml.extend(whole, (user("?"),)), chatml.extend(whole[:-1], (user("?"),))
    assert ended is not None
    assert cut is not None
    assert cut[0].kind is SegmentKind.TEMPLATE
    assert cut[0].token_ids.tolist() == [int(whole[-1]), *ended[0].token_ids.tolist()]


def test_a_completion_that_ended_the_document_still_gets_its_end_of_turn(
    chatml: ChatMLRenderer,
) -> None:
    end_of_turn, end_of_document = chatml.stop_token_ids
    more = chatml.extend(np.asarray([end_of_document], dtype=np.int32), (user("?"),))
    assert more is not None
    assert int(more[0].token_ids[0]) == end_of_turn


def test_an_empty_completion_is_closed(chatml: ChatMLRenderer) -> None:
    more = chatml.extend(np.zeros(0, dtype=np.int32), (user("?"),))
    assert more is not None
    assert int(more[0].token_ids[0]) == chatml.stop_token_ids[0]


def test_decode_drops_the_stop_token_alone(chatml: ChatMLRenderer) -> None:
    ids = chatml.target(call("print(1)", content="So:")).token_ids
    written = json.dumps({"name": "python", "arguments": {"code": "print(1)"}})
    assert chatml.decode(ids) == f"So:\n<tool_call>\n{written}\n</tool_call>"


def test_decode_keeps_a_stop_token_that_ended_nothing(chatml: ChatMLRenderer) -> None:
    end = chatml.stop_token_ids[0]
    ids = np.asarray([end, *chatml.target(said("a")).token_ids], dtype=np.int32)
    assert chatml.decode(ids) == "<|im_end|>a"


def test_decode_shows_ids_of_a_padded_vocabulary(chatml: ChatMLRenderer) -> None:
    ids = chatml.target(said("ab")).token_ids
    padded = np.asarray(
        [chatml.vocab_size, *ids[:-1], chatml.vocab_size + 7], dtype=np.int32
    )
    assert chatml.decode(padded) == "\ufffdab\ufffd"


def test_decode_joins_bytes_of_one_character(chatml: ChatMLRenderer) -> None:
    ids = chatml.target(said("🦊 fox")).token_ids
    assert chatml.decode(ids) == "🦊 fox"


def test_a_target_leaves_out_what_the_generation_prompt_wrote(built: Built) -> None:
    renderer, tokenizer = built("qwen3", enable_thinking=False)
    assert tokenizer.decode(renderer.target(said("Yes.")).token_ids) == "Yes.<|im_end|>"


def test_a_target_that_thinks_where_thinking_is_off_is_refused(built: Built) -> None:
    renderer, _ = built("qwen3", enable_thinking=False)
    with pytest.raises(DataError, match="switch thinking on"):
        renderer.target(said("Yes.", reasoning_content="hm"))


def test_a_target_may_hold_a_broken_call(chatml: ChatMLRenderer) -> None:
    # the markers of an assistant's turn stay markers, so that a demonstration can show a fault
    ids = chatml.target(said('<tool_call>\n{"name": \n</tool_call>')).token_ids
    opening = chatml.target(call("x")).token_ids[0]
    assert ids[0] == opening


def test_content_that_is_no_text_is_refused(chatml: ChatMLRenderer) -> None:
    with pytest.raises(DataError, match="must be text"):
        chatml.prompt(({"role": "user", "content": [{"type": "image"}]},))


def test_arguments_given_as_text_are_refused(chatml: ChatMLRenderer) -> None:
    wrong: Any = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
    }
    with pytest.raises(DataError, match=r"json\.loads"):
        chatml.target(wrong)


@pytest.mark.parametrize(
    ("name", "enable_thinking", "style"),
    [
        (
            "qwen2_5",
            None,
            ChatMLStyle(
                default_system="You are Qwen, created by Alibaba Cloud. You are a helpful "
                "assistant."
            ),
        ),
        ("qwen3", None, ChatMLStyle(thinking=True)),
        (
            "qwen3",
            False,
            ChatMLStyle(thinking=True, generation_prefix="<think>\n\n</think>\n\n"),
        ),
        ("qwen3_instruct", None, ChatMLStyle()),
    ],
)
def test_the_style_is_read_off_the_template(
    built: Built, name: str, enable_thinking: bool | None, style: ChatMLStyle
) -> None:
    assert built(name, enable_thinking)[0].style == style
