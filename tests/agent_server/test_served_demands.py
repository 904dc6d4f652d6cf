"""What a client demands of an answer: told to the model in words, held against what it made, noted
in the turn.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import openai
import pytest
from pydantic import BaseModel

from agentrl.agent_server import ServedEpisode
from agentrl.agent_server.api.chat_completions import CompletionAnswer
from agentrl.agent_server.api.constraints import schema_fault
from agentrl.agent_server.api.dialect import Asked
from agentrl.agent_server.stream_writer import StreamWriter
from agentrl.engines.scripted import ScriptedEngine
from agentrl.errors import EngineError
from agentrl.rollouts.builder import TrajectoryBuilder
from agentrl.rollouts.turns import TurnGenerator
from agentrl.types import EngineInfo, GenerateRequest, SamplingParams, Trajectory
from tests.agent_server.served_policy import ADD, HI, Serving, answer, assert_true, serving
from tests.rollouts.bytewise import (
    END,
    KEY,
    MODEL_VOCAB,
    TASK,
    TOOL,
    USER,
    call,
    context_of,
    ids,
    rollout_spec,
    say,
    scripted,
)

NAMED = {"type": "function", "function": {"name": "add"}}
ROOM = {"max_prompt_tokens": 2000, "max_response_tokens": 3000, "context_tokens": 6000}
MORE = {"role": "user", "content": "more"}


class Sum(BaseModel):
    """What is demanded of a text."""

    total: int


FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "sum", "schema": Sum.model_json_schema()},
}


def prompt(served: Serving, number: int = 0) -> str:
    """What the model was given, as text."""
    tokens = served.engine.requests[number].token_ids.tolist()
    return bytes(token if token < 256 else 10 for token in tokens).decode()


def breaches(trajectory: Trajectory) -> list[str]:
    return list(trajectory.turns[0].info.get("breaches", ()))


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("auto", "hi"),
        ("none", "hi\n\nAnswer without calling a tool."),
        ("required", "hi\n\nCall a tool."),
        (NAMED, "hi\n\nCall the tool add."),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [NAMED]},
            },
            "Call the tool add.",
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}},
            "call the tool add, or answer.",
        ),
    ],
)
async def test_a_tool_choice_in_any_form_is_told_to_the_model(
    choice: Any, words: str
) -> None:
    async with serving([say("ok")], **ROOM) as served:
        episode = await served.open()
        await episode.say(HI, tools=[ADD], tool_choice=choice)
        assert prompt(served).rstrip("\n").endswith(words)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tool_choice": "required"}, "needs tools"),
        ({"tool_choice": "sometimes", "tools": [ADD]}, "tool_choice must be"),
        (
            {
                "tool_choice": {"type": "function", "function": {"name": "sub"}},
                "tools": [ADD],
            },
            "names 'sub'",
        ),
        (
            {"tool_choice": {"type": "custom", "custom": {"name": "add"}}, "tools": [ADD]},
            "tool_choice must be",
        ),
        (
            {
                "tool_choice": {"type": "allowed_tools", "allowed_tools": "add"},
                "tools": [ADD],
            },
            "tool_choice must be",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "json_schema with a schema",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "sum"}},
                }
            },
            "no JSON Schema at",
        ),
        (
            {"parallel_tool_calls": "no", "tools": [ADD]},
            "parallel_tool_calls must be true or false",
        ),
        ({"extra_body": {"functions": []}}, "functions is not supported"),
        ({"frequency_penalty": 0.5}, "frequency_penalty must be 0"),
        ({"logit_bias": {"5": 1}}, "logit_bias must be"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(
    settings: dict[str, Any], words: str
) -> None:
    async with serving([say("ok")]) as served:
        episode = await served.open()
        with pytest.raises(openai.BadRequestError, match=words):
            await episode.say(HI, **settings)
        assert served.engine.requests == []


async def test_a_demand_that_still_holds_is_not_said_again_and_one_that_ends_is_taken_back() -> (
    None
):
    script = [say(call("add", a=1)), say(call("add", a=2)), say("3")]
    async with serving(script, **ROOM) as served:
        episode = await served.open()
        history = [
            HI,
            *answer(await episode.say(HI, tools=[ADD], tool_choice="required"), "one"),
        ]
        history += answer(
            await episode.say(*history, tools=[ADD], tool_choice="required"), "two"
        )
        await episode.say(*history, tools=[ADD])
        trajectory = await episode.end()
    assert [turn.parent for turn in trajectory.turns] == [None, 0, 1]
    observed = [turn.observed[-1]["content"] for turn in trajectory.turns]
    assert observed == [
        "hi\n\nCall a tool.",
        "one",
        "two\n\nYou may call a tool, or answer.",
    ]
    assert_true(trajectory, served.engine)


async def test_an_answer_that_meets_its_demands_is_no_breach() -> None:
    async with serving([say('{"total": 3}')], **ROOM) as served:
        episode = await served.open()
        made = await episode.client.chat.completions.parse(
            model="policy", messages=[HI], response_format=Sum
        )  # type: ignore[list-item]
        trajectory = await episode.end()
    assert made.choices[0].message.parsed == Sum(total=3)
    assert "breaches" not in trajectory.turns[0].info
    assert '"total"' in prompt(served)


@pytest.mark.parametrize(
    ("said", "settings", "breach"),
    [
        ("three", {"response_format": FORMAT}, "response_format: the text is no JSON"),
        (
            '{"total": "x"}',
            {"response_format": FORMAT},
            r"response_format: $.total breaks the rule type",
        ),
        (
            "[]",
            {"response_format": {"type": "json_object"}},
            "response_format: $ breaks the rule type",
        ),
        (
            "ok",
            {"tools": [ADD], "tool_choice": "required"},
            "tool_choice is required, called no tool",
        ),
        (call("sub"), {"tools": [ADD]}, "called sub, which may not be called"),
    ],
)
async def test_a_breach_is_given_as_it_is_and_noted(
    said: str, settings: dict[str, Any], breach: str
) -> None:
    async with serving([say(said)], **ROOM) as served:
        episode = await served.open()
        message = await episode.say(HI, **settings)
        trajectory = await episode.end()
    told = message.content or "".join(made.function.name for made in message.tool_calls)
    assert told in said
    assert breach in breaches(trajectory)[0]


@pytest.mark.parametrize(
    ("schema", "text", "fault"),
    [
        ('{"type": "object"}', "[" * 100_000, "nested by more than 128 levels"),
        (
            '{"$ref": "http://127.0.0.1:9/schema"}',
            "{}",
            "which is not in it",
        ),  # nothing is fetched
        ('{"$ref": "#"}', "{}", "refers to itself without an end"),
        ('{"type": "string", "pattern": "("}', '"a"', "is no JSON Schema at"),
        (
            # it refers back, so that no matcher is linear
            r'{"type": "string", "pattern": "^(a|aa)+\\1$"}',
            f'"{"a" * 80}!"',
            "takes too long",
        ),
        (
            '{"type": "object", "additionalProperties": false}',
            '{"a": 1}',
            "additionalProperties",
        ),
        ('{"type": "object"}', "{}", ""),
    ],
)
async def test_no_schema_and_no_text_stops_the_check(
    schema: str, text: str, fault: str
) -> None:
    found = await schema_fault(schema, text)
    assert bool(found) == bool(fault)
    assert re.search(fault, found)


async def test_of_parallel_calls_that_were_not_asked_for_the_client_is_told_the_first() -> (
    None
):
    async with serving(
        [say(call("add", a=1) + call("add", a=2)), say("x")], **ROOM
    ) as served:
        episode = await served.open()
        first = await episode.say(HI, tools=[ADD], parallel_tool_calls=False)
        await episode.say(HI, *answer(first, "one"), tools=[ADD], parallel_tool_calls=False)
        trajectory = await episode.end()
    assert [made.function.arguments for made in first.tool_calls] == ['{"a": 1}']
    assert breaches(trajectory) == ["parallel_tool_calls is false, made 2 calls"]
    # the model's own conversation goes on: both calls are answered there
    assert trajectory.turns[1].parent == 0
    not_run = "This call was not run, since it was not asked for."
    given = served.engine.requests[1].token_ids.tolist()
    assert ids(TOOL, "one", END, TOOL, not_run) == given[-len(not_run) - 8 : -2]
    assert [
        record.result.content for record in trajectory.turns[0].calls if record.result
    ] == [
        "one",
        not_run,
    ]
    assert_true(trajectory, served.engine)


async def test_calls_that_were_not_wanted_are_text_for_the_client() -> None:
    said = "so " + call("add", a=1)
    async with serving([say(said), say("x")], **ROOM) as served:
        episode = await served.open()
        first = await episode.say(HI, tools=[ADD], tool_choice="none")
        await episode.say(
            HI,
            {"role": "assistant", "content": first.content},
            MORE,
            tools=[ADD],
            tool_choice="none",
        )
        trajectory = await episode.end()
    assert (first.content, first.tool_calls) == (said, None)
    assert breaches(trajectory) == ["tool_choice is none, called add"]
    assert trajectory.turns[1].parent == 0
    assert served.engine.requests[1].token_ids.tolist()[-6:-2] == ids("more")
    assert_true(trajectory, served.engine)


async def test_a_stream_keeps_back_the_calls_that_were_not_asked_for() -> None:
    async with serving([say(call("add", a=1) + call("add", a=2))], **ROOM) as served:
        episode = await served.open()
        stream = await episode.client.chat.completions.create(
            model="policy",
            messages=[HI],  # type: ignore[list-item]
            tools=[ADD],  # type: ignore[list-item]
            parallel_tool_calls=False,
            stream=True,
        )
        deltas = [chunk.choices[0].delta async for chunk in stream]
    assert [c.function.arguments for d in deltas for c in d.tool_calls or []] == [
        '{"a": 1}'
    ]


async def test_what_is_harmless_is_ignored_and_noted() -> None:
    async with serving([say("ok")]) as served:
        episode = await served.open()
        await episode.say(
            HI,
            reasoning_effort="low",
            verbosity="low",
            temperature=0.5,
            top_p=1.0,
            user="me",
        )
        trajectory = await episode.end()
    assert trajectory.turns[0].info == {
        "ignored": {
            "reasoning_effort": "low",
            "verbosity": "low",
            "temperature": 0.5,
            "user": "me",
        }
    }


async def test_words_stand_behind_the_parts_of_a_message() -> None:
    async with serving([say("ok")], **ROOM) as served:
        episode = await served.open()
        parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
        await episode.say(
            {"role": "user", "content": parts}, tools=[ADD], tool_choice="required"
        )
        assert (
            ids(USER, "hi\n\nCall a tool.", END)
            == served.engine.requests[0].token_ids.tolist()[5:-1]
        )


async def test_a_model_is_found_by_any_name_that_a_request_may_use() -> None:
    async with serving([say("ok")]) as served:
        episode = await served.open()
        names = [
            (await episode.client.models.retrieve(name)).id
            for name in ("policy", "meta/any-8B")
        ]
    assert names == ["policy", "meta/any-8B"]


class Grammars(ScriptedEngine):
    """An engine that says that it has grammars."""

    def info(self) -> EngineInfo:
        return replace(super().info(), grammars=True)


@pytest.mark.parametrize(
    ("settings", "forced"),
    [
        ({}, True),
        ({"tools": [ADD], "tool_choice": "none"}, True),
        ({"tools": [ADD]}, False),
    ],
)
async def test_an_engine_that_has_grammars_is_given_the_schema_where_nothing_is_trained(
    settings: dict[str, Any], forced: bool
) -> None:
    async with serving(Grammars([say("{}")], vocab_size=MODEL_VOCAB), **ROOM) as served:
        episode = await served.open()
        await episode.say(HI, response_format=FORMAT, **settings)
        assert served.engine.requests[0].sampling.json_schema == (
            json.dumps(Sum.model_json_schema()) if forced else ""
        )


async def test_a_grammar_is_never_given_to_an_episode_that_is_trained() -> None:
    spec = rollout_spec(**ROOM)
    parts = context_of(spec, Grammars([say("{}")], vocab_size=MODEL_VOCAB))
    assert KEY.purpose == "train"
    episode = ServedEpisode(
        TurnGenerator(parts, TrajectoryBuilder(KEY, TASK), spec.episode.sampling)
    )
    await episode.complete(
        StreamWriter(
            CompletionAnswer(Asked({"messages": [HI], "response_format": FORMAT})).chat
        )
    )
    assert parts.engine.requests[0].sampling.json_schema == ""  # type: ignore[attr-defined]


async def test_an_engine_without_grammars_refuses_one() -> None:
    request = GenerateRequest(
        "r", "s", np.zeros(1, np.int32), SamplingParams(9, json_schema="{}"), 0
    )
    with pytest.raises(EngineError, match="has no grammars"):
        await scripted([say("x")]).generate(request)
