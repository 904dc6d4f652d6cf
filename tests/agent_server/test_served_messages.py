"""Anthropic's Messages as their clients see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agentrl.agent_server.api.dialect import Asked
from agentrl.agent_server.api.messages import MessageAnswer
from tests.agent_server.served_policy import Episode, Serving, serving
from tests.rollouts.bytewise import (
    ASSISTANT,
    END,
    SYSTEM,
    USER,
    call,
    ids,
    laid_out,
    say,
    scripted,
)
from tests.rollouts.speaking_engine import SpeakingEngine

ROOM = {"max_prompt_tokens": 2000, "max_response_tokens": 3000, "context_tokens": 6000}
HI = {"role": "user", "content": "hi"}
TOOLS = [{"name": "add", "description": "The sum.", "input_schema": {"type": "object"}}]
THOUGHT = "<think>hm</think>so "


async def ask(episode: Episode, *messages: Any, **settings: Any) -> Any:
    headers = settings.pop("headers", {})
    body = {"model": "policy", "max_tokens": 500, "messages": list(messages), **settings}
    url = f"/episodes/{episode.id}/v1/messages?beta=true"
    return await episode.serving.http.post(url, json=body, headers=headers)


def events(text: str) -> Iterator[dict[str, Any]]:
    """Events of a stream, each named by its own type."""
    for one in text.strip().split("\n\n"):
        name, data = one.split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert name == f"event: {body['type']}"
        yield body


def put_together(text: str) -> dict[str, Any]:
    """The message that a stream's events are, as a client puts it together."""
    first, *others = events(text)
    message: dict[str, Any] = first["message"]
    blocks: list[dict[str, Any]] = message["content"]
    arguments = ""
    is_open = False
    for body in others:
        match body:
            case {"type": "content_block_start", "content_block": block}:
                assert (body["index"], is_open) == (len(blocks), False)
                blocks.append(block)
                arguments, is_open = "", True
            case {"type": "content_block_delta", "delta": delta}:
                assert (body["index"], is_open) == (len(blocks) - 1, True)
                kind = delta["type"].removesuffix("_delta")
                arguments += delta.get("partial_json", "")
                if kind != "input_json":
                    blocks[-1][kind] += delta[kind]
            case {"type": "content_block_stop"}:
                blocks[-1] |= {"input": json.loads(arguments)} if arguments else {}
                is_open = False
            case {"type": "message_delta"}:
                message |= {**body["delta"], "usage": body["usage"]}
    assert (others[-1]["type"], is_open) == ("message_stop", False)
    return message


async def test_a_message_has_its_thoughts_text_and_calls_as_blocks_and_counts() -> None:
    async with serving([say(THOUGHT + call("add", a=1))], **ROOM) as served:
        episode = await served.open()
        made = (await ask(episode, HI, tools=TOOLS)).json()
        (turn,) = (await episode.end()).turns
    thoughts, text, use = made["content"]
    assert thoughts == {"type": "thinking", "thinking": "hm", "signature": ""}
    assert text == {"type": "text", "text": "so"}
    assert (use["name"], use["input"], use["id"]) == (
        "add",
        {"a": 1},
        turn.calls[0].call.id,
    )
    assert (made["stop_reason"], made["stop_sequence"]) == ("tool_use", None)
    assert (made["type"], made["role"], made["model"]) == ("message", "assistant", "policy")
    assert made["usage"]["input_tokens"] == sum(map(len, turn.segments[:-1]))
    assert made["usage"]["output_tokens"] == len(turn.completion[0])


@pytest.mark.parametrize(
    ("said", "settings", "end"),
    [
        ("a long answer", {"max_tokens": 3}, ("max_tokens", None)),
        ("so#it ends", {"stop_sequences": ["#"]}, ("stop_sequence", "#")),
        ("ok", {}, ("end_turn", None)),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_why_a_message_ends(
    said: str, settings: dict[str, Any], end: tuple[str, str | None], stream: bool
) -> None:
    engine = scripted(
        [say(said)], decode=lambda made: bytes(i for i in made if i < END).decode()
    )
    async with serving(engine, **ROOM) as served:
        answer = await ask(await served.open(), HI, **settings, stream=stream)
    made = put_together(answer.text) if stream else answer.json()
    assert (made["stop_reason"], made["stop_sequence"]) == end


@pytest.mark.parametrize(
    "said",
    [
        "ok",
        "",
        THOUGHT + call("add", a=1) + call("add", a=2),
        "one" + call("add", a=1) + "two",
        "<think>a</think>b<think>c</think>d",
    ],
)
async def test_a_stream_says_what_a_whole_message_says(said: str) -> None:
    async with serving(SpeakingEngine([say(said), say(said), say("x")]), **ROOM) as served:
        episode = await served.open()
        whole = (await ask(episode, HI, tools=TOOLS)).json()
        streamed = put_together((await ask(episode, HI, tools=TOOLS, stream=True)).text)
        made = {"role": "assistant", "content": streamed["content"]}
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "1"}
            for block in streamed["content"]
            if block["type"] == "tool_use"
        ]
        await ask(
            episode, HI, made, {"role": "user", "content": results or "go on"}, tools=TOOLS
        )
        trajectory = await episode.end()
    assert [turn.parent for turn in trajectory.turns] == [None, None, 1]
    for kind, key in (("thinking", "thinking"), ("text", "text")):
        ours, theirs = (
            "".join(block[key] for block in one["content"] if block["type"] == kind)
            for one in (streamed, whole)
        )
        assert ours == theirs
    ours, theirs = (
        [
            (block["name"], block["input"])
            for block in one["content"]
            if block["type"] == "tool_use"
        ]
        for one in (streamed, whole)
    )
    assert ours == theirs
    assert streamed["stop_reason"] == whole["stop_reason"]


async def test_a_turn_that_fails_once_it_has_begun_ends_its_stream_with_an_error() -> None:
    async with serving(SpeakingEngine([say("abcdef")], mishear=1), **ROOM) as served:
        answer = await ask(await served.open(), HI, stream=True)
    *_, last = events(answer.text)
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")
    assert "token consistency violated" in last["error"]["message"]


@pytest.mark.parametrize(
    "system", ["be kind", [{"type": "text", "text": "be "}, "kind"], None]
)
async def test_the_systems_words_come_as_text_as_blocks_or_as_a_message(
    system: Any,
) -> None:
    messages: list[Any] = [HI]
    if isinstance(system, list):
        system = [
            part if isinstance(part, dict) else {"type": "text", "text": part}
            for part in system
        ]
    if system is None:
        messages.insert(
            0, {"role": "system", "content": [{"type": "text", "text": "be kind"}]}
        )
    async with serving([say("ok")], **ROOM) as served:
        episode = await served.open()
        await ask(episode, *messages, **({"system": system} if system else {}))
        trajectory = await episode.end()
    assert laid_out(trajectory)[0][0][1] == ids(
        SYSTEM, "be kind", END, USER, "hi", END, ASSISTANT
    )


async def test_thoughts_are_given_back_or_dropped_and_a_split_turn_is_one() -> None:
    script = [say(THOUGHT + call("add", a=1)), say("x"), say("y"), say("z")]
    async with serving(script, **ROOM) as served:
        episode = await served.open()
        blocks = (await ask(episode, HI, tools=TOOLS)).json()["content"]
        result = {
            "type": "tool_result",
            "tool_use_id": blocks[-1]["id"],
            "content": [
                {"type": "text", "text": "3", "cache_control": {"type": "ephemeral"}}
            ],
        }
        back = {"role": "user", "content": [result, {"type": "text", "text": "go on"}]}
        hidden = {"type": "redacted_thinking", "data": "x"}
        split = [{"role": "assistant", "content": [block]} for block in blocks]
        for said in (
            [{"role": "assistant", "content": blocks}],
            [{"role": "assistant", "content": [hidden, *blocks[1:]]}],
            split,
        ):
            await ask(episode, HI, *said, back, tools=TOOLS)
        trajectory = await episode.end()
    assert [turn.parent for turn in trajectory.turns] == [None, 0, 0, 0]
    assert [message["role"] for message in trajectory.turns[1].observed] == ["tool", "user"]
    assert trajectory.turns[1].info["ignored"] == {"cache_control": True}


@pytest.mark.parametrize(
    ("choice", "same"),
    [
        ({"type": "any"}, ("required", (), False)),
        ({"type": "auto", "disable_parallel_tool_use": True}, ("auto", (), True)),
        ({"type": "none"}, ("none", (), False)),
        ({"type": "tool", "name": "add"}, ("required", ("add",), False)),
    ],
)
def test_a_tool_choice_is_the_demand_of_chat_completions(choice: Any, same: Any) -> None:
    body = {"messages": [HI], "tools": TOOLS, "tool_choice": choice}
    own = MessageAnswer(Asked(body)).chat.constraints
    assert (own.calls, own.allowed, own.one_call) == same


async def test_what_a_harness_sends_beside_it_is_noted_and_a_format_is_a_demand() -> None:
    schema = {"type": "object", "required": ["total"]}
    beside = {
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": []},
        "metadata": {"user_id": "me"},
        "temperature": 0.5,
        "top_k": 5,
    }
    config = {"effort": "high", "format": {"type": "json_schema", "schema": schema}}
    async with serving([say("no")], **ROOM) as served:
        episode = await served.open()
        headers = {"anthropic-beta": "a-2026", "anthropic-version": "2023-06-01"}
        made = await ask(episode, HI, **beside, output_config=config, headers=headers)
        (turn,) = (await episode.end()).turns
    assert made.status_code == 200
    assert turn.info["ignored"] == {**beside, "effort": "high", "anthropic-beta": "a-2026"}
    assert "response_format" in turn.info["breaches"][0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"tools": [{"name": "add"}]},
            "tools[0] must be a tool with a name and an input_schema",
        ),
        ({"tool_choice": {"type": "some"}}, "tool_choice must be of type auto"),
        ({"stop_sequences": "#"}, "stop_sequences must be"),
        ({"output_config": 1}, "output_config must be an object"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "a tool_result block of the user",
        ),
        (
            {"messages": [{"role": "user", "content": 3}]},
            "must be text or a list of blocks",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
            "got type 'video'",
        ),
        (
            {"messages": [HI, {"role": "system", "content": [{"type": "tool_removal"}]}]},
            "got type 'tool_removal'",
        ),
        (
            {"messages": [HI, {"role": "assistant", "content": "x"}]},
            "got an assistant message",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "image"}]}, HI]},
            "of the assistant must be a block",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "source": {"type": "url", "url": "http://x"}}
                        ],
                    }
                ]
            },
            "nothing is fetched",
        ),
        (
            {"headers": {"anthropic-version": "2031-01-01"}},
            "anthropic-version must be 2023-06-01",
        ),
    ],
)
async def test_what_cannot_be_read_is_refused_by_name(
    settings: dict[str, Any], words: str
) -> None:
    async with serving([say("ok")], **ROOM) as served:
        refused = await ask(await served.open(), HI, **settings)
        assert served.engine.requests == []
    assert (refused.status_code, refused.json()["error"]["type"]) == (
        400,
        "invalid_request_error",
    )
    assert words in refused.json()["error"]["message"]


async def test_tokens_are_counted_whatever_the_models_name_and_no_turn_is_made() -> None:
    async with serving([say("ok")], token="s3cret", **ROOM) as served:
        key = {"x-api-key": "s3cret"}
        opened = (await served.http.post("/episodes", json={}, headers=key)).json()
        body = {"model": "another", "messages": [HI], "system": "be kind", "tools": TOOLS}
        path = "/v1/messages/count_tokens"
        own = await served.http.post(f"/episodes/{opened['id']}{path}", json=body)
        by_key = await served.http.post(
            path, json=body, headers={"x-api-key": opened["id"]}
        )
        alone = await served.http.post(path, json=body, headers=key)
        assert served.engine.requests == []
        made = await served.http.post(f"/episodes/{opened['id']}/v1/messages", json=body)
    counts = {one.json()["input_tokens"] for one in (own, by_key, alone)}
    assert counts == {made.json()["usage"]["input_tokens"]}


@pytest.fixture
async def guarded() -> Any:
    async with serving(lambda request: say("ok"), token="s3cret", **ROOM) as served:
        yield served


@pytest.mark.parametrize(("key", "status"), [("s3cret", 200), ("s3cre", 401), ("", 401)])
async def test_a_key_comes_as_anthropics_clients_send_it(
    guarded: Serving, key: str, status: int
) -> None:
    headers = {"x-api-key": key}
    answer = await guarded.http.post(
        "/v1/messages", json={"messages": [HI]}, headers=headers
    )
    assert answer.status_code == status
    if status != 200:
        assert answer.json()["error"]["type"] == "authentication_error"
    assert (await guarded.http.head("/", headers=headers)).status_code == status
