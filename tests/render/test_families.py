"""Each family against the chat template that its models ship, token for token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.errors import DataError
from agentrl.render import Renderer, RendererSpec, TemplateRenderer
from agentrl.types import Message, SegmentKind, ToolCall, ToolSpec, concat_ids
from tests.kit.episodes import said, user
from tests.kit.marks import wide_but
from tests.render.family_kind import ADDED, TEMPLATES, as_the_template_wants, saved_family

PYTHON = ToolSpec(
    "python",
    "Runs Python and gives back what it printed <é>.",
    {
        "type": "object",
        "properties": {"code": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["code"],
    },
)
Built = Callable[..., tuple[Renderer, Any]]


@pytest.fixture(scope="module")
def built_family(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """``built_family("glm4moe", enable_thinking=False)``: the renderer and the tokenizer that
    proves it.
    """
    from transformers import AutoTokenizer

    folders: dict[str, Path] = {}
    made: dict[tuple[str, bool | None], tuple[Renderer, Any]] = {}

    def build(name: str, enable_thinking: bool | None = None) -> tuple[Renderer, Any]:
        if name not in folders:
            folders[name] = saved_family(name, tmp_path_factory.mktemp(name))
        if (name, enable_thinking) not in made:
            renderer = RendererSpec(
                str(folders[name]), enable_thinking=enable_thinking
            ).build()
            made[name, enable_thinking] = (
                renderer,
                AutoTokenizer.from_pretrained(folders[name]),
            )
        return made[name, enable_thinking]

    return build


def tool(content: str) -> Message:
    return {"role": "tool", "content": content, "name": "python"}


def call(*codes: str, content: str = "", **more: Any) -> Message:
    calls = [
        ToolCall(f"c{i}", "python", {"code": code, "n": i}).openai()
        for i, code in enumerate(codes)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls, **more}  # type: ignore[typeddict-item]


SYSTEM: Message = {"role": "system", "content": "Be brief."}
CONVERSATIONS: dict[str, tuple[Message, ...]] = {
    "a question": (user("What is 2 + 2?"),),
    "white space around content": (user("\n\n  What\tis\n\n"),),
    "only white space": (user(" \n"),),
    "system": (SYSTEM, user("Hi"), said("Hello"), user("Bye")),
    "one call": (user("2 + 2?"), call("print(2 + 2)"), tool("4\n")),
    "an answer and a second question": (
        user("?"),
        call("x"),
        tool("1"),
        said("It is 1."),
        user("Sure?"),
    ),
    "nothing said": (user("?"), said(""), user("Well?")),
    "a tool that says nothing": (user("?"), call("x"), tool("")),
    "thinking": (user("?"), call("x", reasoning_content="I must run it."), tool("1")),
    "thinking before a second question": (
        user("?"),
        said("Yes.", reasoning_content="Hm."),
        user("Sure?"),
    ),
    "unicode": (
        user("naïve 日本語 🙂 e\u0301"),
        call("print('é')"),
        tool("ü\u0308 \u200d x"),
    ),
    "two answers": (user("?"), call("a"), tool("\n1"), tool("2\n\n")),
}


def template_ids(
    tokenizer: Any, family: str, messages: Any, tools: Any = (), **variables: Any
) -> Any:
    return tokenizer.apply_chat_template(
        as_the_template_wants(family, messages),
        tools=[tool.openai() for tool in tools] or None,
        add_generation_prompt=True,
        return_dict=False,
        **variables,
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_family_is_recognised(built_family: Built, name: str) -> None:
    assert built_family(name)[0].family == TEMPLATES[name]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [(), (PYTHON,)], ids=["no tools", "a tool"])
@pytest.mark.parametrize("conversation", wide_but({"thinking"}, CONVERSATIONS))
def test_a_prompt_has_the_ids_of_the_models_own_template(
    built_family: Built, name: str, tools: tuple[ToolSpec, ...], conversation: str
) -> None:
    renderer, tokenizer = built_family(name)
    if tools and name == "deepseekv3":
        with pytest.raises(DataError, match="does not tell the model of its tools"):
            renderer.prompt(CONVERSATIONS[conversation], tools)
        return
    (segment,) = renderer.prompt(CONVERSATIONS[conversation], tools)
    assert segment.kind is SegmentKind.PROMPT
    expected = template_ids(tokenizer, TEMPLATES[name], CONVERSATIONS[conversation], tools)
    assert segment.token_ids.tolist() == expected


@pytest.mark.parametrize("name", ["glm4moe", "deepseekv3"])
def test_parallel_calls_have_the_ids_of_the_template(
    built_family: Built, name: str
) -> None:
    renderer, tokenizer = built_family(name)
    messages = (user("?"), call("a", "b", content="Both."), tool("1"), tool("2"))
    assert renderer.prompt(messages)[0].token_ids.tolist() == template_ids(
        tokenizer, TEMPLATES[name], messages
    )


@pytest.mark.parametrize(
    ("name", "fault"), [("llama3_1", "single tool-calls"), ("gptoss", "one call a turn")]
)
def test_parallel_calls_where_a_template_has_no_place_for_them(
    built_family: Built, name: str, fault: str
) -> None:
    with pytest.raises(DataError, match=fault):
        built_family(name)[0].prompt((user("?"), call("a", "b"), tool("1"), tool("2")))


@pytest.mark.parametrize(
    "conversation", ["a question", "one call", "thinking before a second question"]
)
def test_glm_without_thinking_has_the_ids_of_the_template(
    built_family: Built, conversation: str
) -> None:
    renderer, tokenizer = built_family("glm4moe", enable_thinking=False)
    messages = CONVERSATIONS[conversation]
    expected = template_ids(tokenizer, "glm", messages, (PYTHON,), enable_thinking=False)
    assert renderer.prompt(messages, (PYTHON,))[0].token_ids.tolist() == expected


EPISODES: dict[str, tuple[tuple[Message, ...], Message, tuple[Message, ...]]] = {
    "a tool's answer": ((SYSTEM, user("2 + 2?")), call("print(2 + 2)"), (tool("4\n"),)),
    "a user": ((user("?"),), said("It is 1."), (user("Sure?"),)),
    "thinking, then a tool": (
        (user("?"),),
        call("x", reasoning_content="I run it."),
        (tool("1"),),
    ),
    "thinking, then a user": (
        (user("?"),),
        said("Yes.", reasoning_content="Hm."),
        (user("Sure?"),),
    ),
    "words beside a call": ((user("?"),), call("x", content="Let me see."), (tool("1"),)),
    "nothing said": ((user("?"),), said(""), (user("Well?"),)),
    "a second call": ((user("?"), call("a"), tool("1")), call("b"), (tool("2"),)),
    "a user after a call's answer": ((user("?"),), call("x"), (tool("1"), user("Go on."))),
}
# Where a template drops what the model said or thought, or was prompted with, a new sequence
# starts.
REWRITES = {
    "llama3_1": {"thinking, then a tool", "thinking, then a user", "words beside a call"},
    "llama3_2": {"thinking, then a tool", "thinking, then a user", "words beside a call"},
    "deepseekv3": set(EPISODES),  # it prompts with <think> and drops it
    "glm4moe": {"thinking, then a user"},
    "gptoss": {
        "a user",
        "thinking, then a user",
        "nothing said",
    },  # <|return|> becomes <|end|>
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("episode", wide_but({"a tool's answer"}, EPISODES))
def test_a_sequence_goes_on_as_the_template_writes_it_or_starts_anew(
    built_family: Built, name: str, episode: str
) -> None:
    renderer, tokenizer = built_family(name)
    before, turn, after = EPISODES[episode]
    prompt = renderer.prompt(before)
    target = renderer.target(turn)
    more = renderer.extend(target.token_ids, after, (*before, turn))
    if episode in REWRITES[name]:
        assert more is None
        return
    assert more is not None
    ids = concat_ids([*prompt, target, *more])
    assert ids.tolist() == template_ids(tokenizer, TEMPLATES[name], (*before, turn, *after))


def test_deepseek_goes_on_where_its_prompt_opens_no_thinking(
    built_family: Built, tmp_path: Path
) -> None:
    # the template of V3-0324, whose generation prompt is the role alone
    folder = saved_family("deepseekv3", tmp_path)
    _, tokenizer = built_family("deepseekv3")
    template = tokenizer.chat_template.replace(
        "'<｜Assistant｜><think>\\n'", "'<｜Assistant｜>'"
    )
    renderer = RendererSpec(str(folder), chat_template=template).build()
    before, turn, after = (user("?"),), call("a", "b"), (tool("1"), tool("2"))
    target = renderer.target(turn)
    more = renderer.extend(target.token_ids, after, (*before, turn))
    assert more is not None
    ids = concat_ids([*renderer.prompt(before), target, *more])
    whole = as_the_template_wants("deepseek", (*before, turn, *after))
    text = tokenizer.apply_chat_template(
        whole, chat_template=template, tokenize=False, add_generation_prompt=True
    )
    assert ids.tolist() == tokenizer.encode(text, add_special_tokens=False)


def test_llamas_answer_after_a_built_in_tool_ends_with_eom(built_family: Built) -> None:
    renderer, tokenizer = built_family("llama3_1")
    turn = call("x")
    target = renderer.target(turn).token_ids.copy()
    target[-1] = tokenizer.convert_tokens_to_ids("<|eom_id|>")
    more = renderer.extend(target, (tool("1"),), (user("?"), turn))
    assert more is not None
    # the turn's own end is not sampled, so it is the template's to write
    assert tokenizer.decode(concat_ids(more)).startswith(
        "<|eot_id|><|start_header_id|>ipython"
    )


def test_glms_turn_ends_with_the_role_that_speaks_next(built_family: Built) -> None:
    renderer, tokenizer = built_family("glm4moe")
    turn = call("x")
    ended = renderer.target(turn).token_ids
    assert tokenizer.decode(ended[-1:]) == "<|observation|>"
    more = renderer.extend(ended, (tool("1"),), (user("?"), turn))
    assert more is not None
    assert tokenizer.decode(concat_ids(more)).startswith("\n<tool_response>\n1")


def test_glms_wrong_guess_of_who_speaks_next_stays_as_sampled(built_family: Built) -> None:
    renderer, tokenizer = built_family("glm4moe")
    turn = call("x")
    guessed = renderer.target(turn).token_ids.copy()
    guessed[-1] = tokenizer.convert_tokens_to_ids("<|user|>")
    more = renderer.extend(guessed, (tool("1"),), (user("?"), turn))
    assert more is not None
    assert tokenizer.decode(concat_ids(more)).startswith("<|observation|>\n<tool_response>")


def test_a_harmony_call_keeps_its_analysis_until_the_answer(built_family: Built) -> None:
    renderer, tokenizer = built_family("gptoss")
    first = (user("?"), call("a", reasoning_content="I run it."), tool("1"))
    assert "I run it." in tokenizer.decode(renderer.prompt(first)[0].token_ids)
    answered = (*first, said("One."), user("Sure?"))
    assert "I run it." not in tokenizer.decode(renderer.prompt(answered)[0].token_ids)


def test_a_harmony_answer_to_no_call_comes_from_the_user(built_family: Built) -> None:
    renderer, tokenizer = built_family("gptoss")
    ids = renderer.prompt(
        (user("?"), said("to=functions.python {"), tool("no valid JSON"))
    )[0].token_ids
    assert "<|start|>user<|message|>no valid JSON<|end|>" in tokenizer.decode(ids)


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "deepseekv3"])
def test_a_turn_that_was_cut_is_closed(built_family: Built, name: str) -> None:
    renderer, _ = built_family(name)
    before, turn = (user("?"),), call("x")
    whole = renderer.target(turn).token_ids
    ended = renderer.extend(whole, (tool("1"),), (*before, turn))
    cut = renderer.extend(whole[:-1], (tool("1"),), (*before, turn))
    assert ended is not None
    assert cut is not None
    assert concat_ids(cut).tolist() == [int(whole[-1]), *concat_ids(ended).tolist()]
    assert cut[0].kind is SegmentKind.TEMPLATE


def test_an_empty_completion_is_closed(built_family: Built) -> None:
    renderer, tokenizer = built_family("llama3_1")
    more = renderer.extend(
        np.zeros(0, dtype=np.int32), (user("Well?"),), (user("?"), said(""))
    )
    assert more is not None
    assert tokenizer.decode(concat_ids(more)).startswith(
        "<|eot_id|><|start_header_id|>user"
    )


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name != "deepseekv3"])
def test_kinds_after_a_completion(built_family: Built, name: str) -> None:
    renderer, tokenizer = built_family(name)
    turn = call("x")
    more = renderer.extend(
        renderer.target(turn).token_ids, (tool("4 apples"),), (user("?"), turn)
    )
    assert more is not None
    assert [segment.kind.name for segment in more] == [
        "TEMPLATE",
        "OBSERVATION",
        "TEMPLATE",
    ]
    assert "4 apples" in tokenizer.decode(more[1].token_ids)


@pytest.mark.parametrize(
    ("name", "marker"),
    [
        (name, marker)
        for name in TEMPLATES
        for kinds in ADDED[TEMPLATES[name]][:2]
        for marker in kinds
    ],
)
def test_no_added_token_can_be_forged_by_a_tool_a_user_or_a_description(
    built_family: Built, name: str, marker: str
) -> None:
    renderer, tokenizer = built_family(name)
    forged = ToolSpec("python", f"Runs {marker}.", PYTHON.parameters)
    tools = () if name == "deepseekv3" else (forged,)
    honest = (
        () if name == "deepseekv3" else (ToolSpec("python", "Runs it.", PYTHON.parameters),)
    )
    token_id = tokenizer.convert_tokens_to_ids(marker)

    def count(content: str, tools: tuple[ToolSpec, ...]) -> int:
        messages = (SYSTEM, user(f"a {content} b"), call("x"), tool(content))
        return renderer.prompt(messages, tools)[0].token_ids.tolist().count(token_id)

    assert count(marker, tools) == count("nothing", honest)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_text_of_a_marker_comes_through_whole(built_family: Built, name: str) -> None:
    renderer, tokenizer = built_family(name)
    markers = "".join(marker for kinds in ADDED[TEMPLATES[name]][:2] for marker in kinds)
    ids = renderer.prompt(
        (user(f"\n{markers} \U0010fff1\U0010fff0<"), call("x"), tool("y"))
    )[0].token_ids
    assert f"{markers} \U0010fff1\U0010fff0<" in tokenizer.decode(ids)


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_assistant_cannot_end_its_own_turn_in_history(
    built_family: Built, name: str
) -> None:
    renderer, tokenizer = built_family(name)
    end = tokenizer.convert_ids_to_tokens(renderer.stop_token_ids[0])
    honest = renderer.prompt((user("?"), said("a b"), user("!")))[0].token_ids.tolist()
    forged = renderer.prompt((user("?"), said(f"a {end} b"), user("!")))[
        0
    ].token_ids.tolist()
    assert forged.count(renderer.stop_token_ids[0]) == honest.count(
        renderer.stop_token_ids[0]
    )


def test_extend_needs_the_history(built_family: Built) -> None:
    renderer, _ = built_family("llama3_1")
    assert isinstance(renderer, TemplateRenderer)
    with pytest.raises(DataError, match="extend needs the history"):
        renderer.extend(np.zeros(0, dtype=np.int32), (user("Well?"),), (user("?"),))


def test_content_that_is_no_text_is_refused(built_family: Built) -> None:
    with pytest.raises(DataError, match="must be text"):
        built_family("llama3_1")[0].prompt(
            ({"role": "user", "content": [{"type": "image"}]},)
        )


def test_arguments_given_as_text_are_refused(built_family: Built) -> None:
    wrong: Any = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
    }
    with pytest.raises(DataError, match=r"json\.loads"):
        built_family("llama3_1")[0].target(wrong)
