"""Responses as the OpenAI client sees them, and what they become in the trajectory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from agentrl.types import Trajectory
from tests.agent_server.served_policy import ADD, HI, Episode, assert_true, ended, serving
from tests.kit.waiting import DEADLINE_S
from tests.rollouts.bytewise import (
    ASSISTANT,
    END,
    SYSTEM,
    TOOL,
    USER,
    call,
    ids,
    laid_out,
    say,
)
from tests.rollouts.speaking_engine import SpeakingEngine

ROOM = {"max_prompt_tokens": 2000, "max_response_tokens": 3000, "context_tokens": 6000}
TOOLS: Any = [{"type": "function", "strict": True, **ADD["function"]}]  # type: ignore[dict-item]


class Sum(BaseModel):
    """What is demanded of a text."""

    total: int


async def respond(episode: Episode, said: Any, **settings: Any) -> Any:
    return await episode.client.responses.create(model="policy", input=said, **settings)


def result(made: Any, text: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": made.call_id, "output": text}


def dumped(items: Any) -> list[Any]:
    """Items as the SDKs send them back."""
    return [item.model_dump(exclude_none=True) for item in items]


def parents(trajectory: Trajectory) -> list[int | None]:
    return [turn.parent for turn in trajectory.turns]


async def test_text_is_answered_with_a_message_and_counts() -> None:
    async with serving([say("ok")], **ROOM) as served:
        episode = await served.open()
        made = await respond(episode, "hi", instructions="be kind")
        trajectory = await episode.end()
    assert (made.output_text, made.status, made.instructions) == (
        "ok",
        "completed",
        "be kind",
    )
    assert (made.usage.input_tokens, made.usage.output_tokens) == (
        len("be kind") + len("hi") + 5,
        3,
    )
    given = ids(SYSTEM, "be kind", END, USER, "hi", END, ASSISTANT)
    assert laid_out(trajectory) == [[("PROMPT", given), ("POLICY", ids("ok", END))]]


async def test_an_agent_of_responses_leaves_the_tokens_that_one_of_chat_completions_leaves() -> (
    None
):
    script = [
        say("<think>hm</think>so " + call("add", a=1, b=2) + call("add", a=3)),
        say("3"),
    ]
    async with serving(script, **ROOM) as served:
        episode = await served.open()
        first = await episode.say(HI, tools=[ADD])
        history = [HI, first.model_dump(exclude_none=True)]
        history += [
            {"role": "tool", "tool_call_id": made.id, "content": "x"}
            for made in first.tool_calls
        ]
        await episode.say(*history, tools=[ADD])
        by_chat = await episode.end()
    async with serving(script, **ROOM) as served:
        episode = await served.open()
        first = await respond(episode, [HI], tools=TOOLS)
        assert [item.type for item in first.output] == [
            "reasoning",
            "message",
            "function_call",
            "function_call",
        ]
        results = [
            result(made, "x") for made in first.output if made.type == "function_call"
        ]
        await respond(episode, [HI, *dumped(first.output), *results], tools=TOOLS)
        trajectory = await episode.end()
    assert laid_out(trajectory) == laid_out(by_chat)
    assert parents(trajectory) == [None, 0]
    assert [
        record.result and record.result.content for record in trajectory.turns[0].calls
    ] == [
        "x",
        "x",
    ]


@pytest.mark.parametrize("shape", ["text", "input_text", "parts"])
async def test_a_result_may_come_in_any_shape(shape: str) -> None:
    given: Any = {
        "text": "3",
        "input_text": [{"type": "input_text", "text": "3"}],
        "parts": [],
    }[shape]
    if shape == "parts":
        given = [{"type": "input_text", "text": "3"}, {"type": "input_text", "text": "4"}]
    async with serving([say(call("add", a=1)), say("x")], **ROOM) as served:
        episode = await served.open()
        first = await respond(episode, "hi", tools=TOOLS)
        await respond(
            episode,
            [HI, *dumped(first.output), result(first.output[0], given)],
            tools=TOOLS,
        )
        trajectory = await episode.end()
    assert ("OBSERVATION", ids("34" if shape == "parts" else "3")) in laid_out(trajectory)[
        1
    ]


async def test_a_response_is_gone_on_with_by_its_id() -> None:
    script = [say(call("add", a=1)), say("3"), say("4")]
    async with serving(script, **ROOM) as served:
        episode = await served.open()
        first = await respond(episode, "hi", tools=TOOLS, instructions="be kind")
        second = await respond(
            episode,
            [result(first.output[0], "3")],
            tools=TOOLS,
            instructions="be kind",
            previous_response_id=first.id,
        )
        await respond(
            episode,
            "more",
            tools=TOOLS,
            instructions="be kind",
            previous_response_id=second.id,
        )
        trajectory = await episode.end()
    assert second.previous_response_id == first.id
    assert parents(trajectory) == [None, 0, 1]
    assert laid_out(trajectory)[1][0] == ("TEMPLATE", [TOOL])
    assert_true(trajectory, served.engine)


async def test_instructions_are_not_carried_on_by_an_id() -> None:
    async with serving([say("a"), say("b")], **ROOM) as served:
        episode = await served.open()
        first = await respond(episode, "hi", instructions="be kind")
        await respond(episode, "more", previous_response_id=first.id)
        trajectory = await episode.end()
    assert parents(trajectory) == [None, None]
    assert laid_out(trajectory)[1][0][1] == ids(
        USER, "hi", END, ASSISTANT, "a", END, USER, "more", END, ASSISTANT
    )


async def test_one_response_may_be_gone_on_with_twice() -> None:
    async with serving([say("a"), say("b"), say("c")], **ROOM) as served:
        episode = await served.open()
        first = await respond(episode, "hi")
        for said in ("one", "two"):
            await respond(episode, said, previous_response_id=first.id)
        trajectory = await episode.end()
    assert parents(trajectory) == [None, 0, 0]


async def test_an_id_of_another_episode_is_no_response_of_this_one() -> None:
    async with serving(lambda request: say("a"), **ROOM) as served:
        one, other = await served.open(), await served.open()
        first = await respond(one, "hi")
        with pytest.raises(openai.BadRequestError) as caught:
            await respond(other, "more", previous_response_id=first.id)
    assert caught.value.code == "previous_response_not_found"


async def test_a_schema_of_the_text_is_honoured_and_parsed() -> None:
    async with serving([say('{"total": 3}')], **ROOM) as served:
        episode = await served.open()
        made = await episode.client.responses.parse(
            model="policy", input="hi", text_format=Sum
        )
        trajectory = await episode.end()
    assert made.output_parsed == Sum(total=3)
    assert '"total"' in str(trajectory.turns[0].observed[-1]["content"])
    assert trajectory.turns[0].info == {}


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "add"},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "add"}],
        },
    ],
)
async def test_a_tool_choice_in_the_forms_of_responses(choice: Any) -> None:
    async with serving([say("no")], **ROOM) as served:
        episode = await served.open()
        await respond(episode, "hi", tools=TOOLS, tool_choice=choice)
        trajectory = await episode.end()
    assert trajectory.turns[0].info["breaches"] == [
        "tool_choice is required, called no tool"
    ]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tools": [{"type": "web_search"}]}, "'web_search'; none is run here"),
        ({"background": True}, "background must be False"),
        ({"conversation": "conv_1"}, "conversation is not supported"),
        ({"prompt": {"id": "p"}}, "prompt is not supported"),
        (
            {"input": [{"type": "item_reference", "id": "x"}]},
            "input.0. of type 'item_reference'",
        ),
        ({"input": []}, "must end with what the assistant is to answer"),
        ({"max_output_tokens": 0}, "max_output_tokens must be"),
        ({"text": {"format": {"type": "grammar"}}}, "format of the answer"),
        ({"tool_choice": {"type": "web_search"}, "tools": TOOLS}, "tool_choice must be"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(
    settings: dict[str, Any], words: str
) -> None:
    async with serving([say("ok")], strict_keys=True, **ROOM) as served:
        episode = await served.open()
        with pytest.raises(openai.BadRequestError, match=words):
            await respond(
                episode,
                **{"said": "hi"}
                | {("said" if k == "input" else k): v for k, v in settings.items()},
            )
        assert served.engine.requests == []


async def test_what_is_harmless_is_ignored_and_noted() -> None:
    asked: dict[str, Any] = {
        "reasoning": {"effort": "low"},
        "text": {"verbosity": "low"},
        "truncation": "auto",
    }
    async with serving([say("ok")], **ROOM) as served:
        episode = await served.open()
        await respond(
            episode, "hi", store=False, include=["reasoning.encrypted_content"], **asked
        )
        trajectory = await episode.end()
    assert trajectory.turns[0].info["ignored"] == {
        "reasoning": {"effort": "low"},
        "verbosity": "low",
        "truncation": "auto",
        "include": ["reasoning.encrypted_content"],
        "store": False,
    }


async def test_a_response_that_was_cut_says_so() -> None:
    async with serving([say("a long answer")], **ROOM) as served:
        episode = await served.open()
        made = await respond(episode, "hi", max_output_tokens=3)
    assert (made.status, made.incomplete_details.reason, made.output_text) == (
        "incomplete",
        "max_output_tokens",
        "a l",
    )


async def test_the_key_names_the_episode_where_the_url_does_not() -> None:
    async with serving([say("one")], **ROOM) as served:
        episode = await served.open()
        async with openai.AsyncOpenAI(
            base_url=f"{served.url}/v1", api_key=episode.id
        ) as client:
            await client.responses.create(model="policy", input="hi")
        trajectory = await episode.end()
    assert len(trajectory.turns) == 1


async def streamed(episode: Episode, **settings: Any) -> tuple[list[Any], Any]:
    """The events, and the response that the client's own accumulator makes of them."""
    async with episode.client.responses.stream(
        model="policy", input="hi", tools=TOOLS, **settings
    ) as stream:
        events = [event async for event in stream]
        return events, await stream.get_final_response()


async def test_a_stream_says_what_a_whole_response_says() -> None:
    said = "<think>hm</think>so " + call("add", a=1)
    async with serving(
        SpeakingEngine([say(said), say(said)], lambda n: asyncio.sleep(0.001)), **ROOM
    ) as served:
        episode = await served.open()
        events, final = await streamed(episode)
        whole = await respond(episode, "hi", tools=TOOLS)
    assert [e.sequence_number for e in events if hasattr(e, "sequence_number")] == list(
        range(len(events))
    )
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == "so"
    assert len(deltas) == 2
    ours, theirs = (
        [
            item.model_dump(exclude={"id", "call_id", "parsed_arguments"})
            for item in made.output
        ]
        for made in (final, whole)
    )
    for item in ours:
        for part in item.get("content") or ():
            part.pop("parsed", None)
    assert ours == theirs
    assert final.usage.output_tokens == whole.usage.output_tokens


async def test_the_agent_that_reads_a_stream_goes_on_with_its_sequence() -> None:
    script = [say("<think>hm</think>so " + call("add", a=1)), say("x")]
    async with serving(SpeakingEngine(script), **ROOM) as served:
        episode = await served.open()
        _, final = await streamed(episode)
        await respond(
            episode, [HI, *dumped(final.output), result(final.output[-1], "1")], tools=TOOLS
        )
        trajectory = await episode.end()
    assert parents(trajectory) == [None, 0]


async def test_pieces_come_token_by_token() -> None:
    heard = asyncio.Event()
    given = []

    async def pace(n: int) -> None:  # each token waits until the client has the one before
        await asyncio.wait_for(heard.wait(), DEADLINE_S)
        heard.clear()

    async with serving(SpeakingEngine([say("abcd")], pace), **ROOM) as served:
        episode = await served.open()
        async for event in await respond(episode, "hi", stream=True):
            if event.type == "response.output_text.delta":
                given.append(event.delta)
                heard.set()
    assert given == ["a", "b", "c", "d"]


async def test_a_turn_that_fails_once_it_has_begun_ends_its_stream_with_an_error() -> None:
    async with serving(SpeakingEngine([say("abcdef")], mishear=1), **ROOM) as served:
        episode = await served.open()
        with pytest.raises(openai.APIError, match=r"token consistency violated.*streamed"):
            async for _ in await respond(episode, "hi", stream=True):
                pass
        await asyncio.wait_for(ended(served), DEADLINE_S)
    assert str(served.kept[0].status) == "failed(engine)"


async def test_logprobs_are_named_where_they_are_asked_for() -> None:
    async with serving([say("yo")], **ROOM) as served:
        episode = await served.open()
        made = await respond(episode, "hi", include=["message.output_text.logprobs"])
    assert [
        (entry.token, entry.logprob) for entry in made.output[0].content[0].logprobs
    ] == [
        ("y", -1.0),
        ("o", -1.0),
    ]


async def refused(asking: Awaitable[Any]) -> str:
    with pytest.raises(openai.BadRequestError) as caught:
        await asking
    return str(caught.value.code)


async def test_a_conversation_without_room_is_refused_as_openai_does() -> None:
    async with serving([say("ok")], max_prompt_tokens=20) as served:
        episode = await served.open()
        first = await respond(episode, "hi")
        code = await refused(
            respond(
                episode,
                [HI, *dumped(first.output), {"role": "user", "content": "x" * 3000}],
            )
        )
    assert code == "context_length_exceeded"


async def test_arguments_come_back_in_whatever_way_the_client_writes_json() -> None:
    async with serving([say(call("add", a=1, b="\u00e9")), say("x")], **ROOM) as served:
        episode = await served.open()
        first = await respond(episode, "hi", tools=TOOLS)
        (item,) = dumped(first.output)
        item["arguments"] = json.dumps(json.loads(item["arguments"]), separators=(",", ":"))
        await respond(episode, [HI, item, result(first.output[0], "3")], tools=TOOLS)
        trajectory = await episode.end()
    assert parents(trajectory) == [None, 0]
