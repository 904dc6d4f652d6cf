"""Dialects: one conversation is the same turns in each, and each refuses what it cannot read."""

from __future__ import annotations

import asyncio
import copy
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.agent_server import ServedEpisode
from agentrl.agent_server.api.dialect import Asked
from agentrl.agent_server.stream_writer import StreamWriter
from agentrl.rollouts import EpisodeKey
from agentrl.rollouts.builder import TrajectoryBuilder
from agentrl.rollouts.turns import TurnGenerator
from agentrl.types import Trajectory
from tests.agent_server.served_policy import Episode, ended, serving
from tests.agent_server.speakers import SPEAKERS, MessagesSpeaker, Speaker
from tests.agent_server.test_served_fuzz import WORDS, completion
from tests.kit.waiting import DEADLINE_S
from tests.rollouts.bytewise import (
    TASK,
    BytewiseRenderer,
    call,
    context_of,
    laid_out,
    rollout_spec,
    say,
    scripted,
)
from tests.rollouts.speaking_engine import SpeakingEngine

ROOM = {"max_prompt_tokens": 5000, "max_response_tokens": 5000, "context_tokens": 9000}
ADD = {"add": {"type": "object", "properties": {}}}

in_each_dialect = pytest.mark.parametrize("speak", SPEAKERS, ids=lambda one: one.__name__)


async def converse(speak: type[Speaker], seed: int) -> Trajectory:
    """One episode of an agent that says, edits, branches, forgets thoughts and runs calls by the
    numbers of ``seed``, which are the same in every dialect.
    """
    rng = random.Random(seed)
    parts = context_of(rollout_spec(max_turns=8, **ROOM), scripted(completion))
    builder = TrajectoryBuilder(EpisodeKey(seed, 0), TASK)
    episode = ServedEpisode(TurnGenerator(parts, builder, parts.spec.episode.sampling))
    speakers = [speak(rng.choice(["", "be kind"]))]
    tools = rng.choice([None, ADD])
    for _ in range(rng.randrange(2, 7)):
        if rng.random() < 0.2:
            speakers.append(copy.deepcopy(rng.choice(speakers)))
        speaker = rng.choice(speakers)
        speaker.user(rng.choice(WORDS[3:]))
        if rng.random() < 0.2:
            speaker.edit(rng.randrange(9), "edited")
        answer = speak.answer(Asked(speaker.body(tools)))
        stream = StreamWriter(answer.chat)
        turn = await episode.complete(stream)
        answer.record(turn)
        body = json.loads(json.dumps(answer.body(turn, stream)))
        calls = speaker.heard(body, thoughts=rng.random() < 0.5)
        speaker.results([(call_id, rng.choice(WORDS)) for call_id in calls])
    await episode.close()
    return builder.finish(await episode.until_end())


def told(trajectory: Trajectory) -> list[Any]:
    """All of the turns but their times."""
    turns = trajectory.turns
    calls = [
        [(one.call, one.problem, one.result and one.result.content) for one in turn.calls]
        for turn in turns
    ]
    said = [
        (turn.parent, turn.observed, turn.message, turn.text, turn.info) for turn in turns
    ]
    return [laid_out(trajectory), said, calls, trajectory.info.get("restarts")]


def assert_same_turns(seed: int) -> None:
    by_chat, *others = (asyncio.run(converse(speak, seed)) for speak in SPEAKERS)
    assert by_chat.turns
    for other in others:
        assert told(other) == told(by_chat)


@settings(max_examples=25)
@given(seed=st.integers(0, 1 << 30))
def test_a_conversation_is_the_same_turns_in_each_dialect(seed: int) -> None:
    assert_same_turns(seed)


@pytest.mark.tooling
def test_two_thousand_conversations_are_the_same_turns_in_each_dialect() -> None:
    for seed in range(2000):
        assert_same_turns(seed)


async def post(episode: Episode, speak: type[Speaker], body: Any, **more: Any) -> Any:
    url = f"/episodes/{episode.id}/v1/{speak.answer.path}"
    given = {"content": body} if isinstance(body, bytes) else {"json": body}
    return await episode.serving.http.post(url, **given, **more)


def said(speak: type[Speaker], text: str = "hi", **more: Any) -> dict[str, Any]:
    speaker = speak()
    speaker.user(text)
    return speaker.body(**more)


def reason(answer: Any) -> str:
    """The message of an error, which has its dialect's shape."""
    body = answer.json()
    if "/messages" in str(answer.url):
        assert body.keys() == {"type", "error"}
        assert body["type"] == "error"
        assert body["error"].keys() == {"type", "message"}
    else:
        assert body["error"].keys() == {"message", "type", "param", "code"}
    assert answer.headers["x-should-retry"] == "false"
    return str(body["error"]["message"])


@in_each_dialect
@pytest.mark.parametrize("body", [b"{", b"[1]", b'{"model": "\\ud800'])
async def test_a_body_that_is_no_json_object_is_refused(
    speak: type[Speaker], body: bytes
) -> None:
    async with serving([say("ok")], **ROOM) as served:
        refused = await post(await served.open(), speak, body)
    assert (refused.status_code, "the body must be" in reason(refused)) == (400, True)


SIZES = (20_000_000, 200_000, 200_000)


@pytest.mark.parametrize(("speak", "size"), list(zip(SPEAKERS, SIZES, strict=True)))
async def test_a_long_first_request_is_refused_with_its_size_and_its_largest_tool(
    speak: type[Speaker], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # it would keep the loop of all episodes for a second a megabyte
    monkeypatch.setattr(BytewiseRenderer, "prompt", None)
    tools = {"small": {}, "large": {"type": "object", "description": "x" * 1000}}
    async with serving([say("ok")], **ROOM) as served:
        episode = await served.open()
        body = said(speak, "x" * size, tools=tools)
        refused = await post(episode, speak, body, timeout=DEADLINE_S)
        await asyncio.wait_for(ended(served), DEADLINE_S)
    why = reason(refused)
    assert refused.status_code == 400
    assert f"at least {size} tokens, rollout.context_tokens is 9000" in why
    assert f"{size + 1000:,}"[:-3] in why
    assert "2 tools, the largest 'large' of 1,1" in why
    assert ("prompt is too long" in why) is (speak is MessagesSpeaker)
    # the run says so too, not the program alone
    assert "the largest 'large'" in served.kept[0].status.detail


@in_each_dialect
@pytest.mark.parametrize("other", SPEAKERS, ids=lambda one: one.__name__)
async def test_the_form_of_another_dialect_is_refused(
    speak: type[Speaker], other: type[Speaker]
) -> None:
    speaker = other("be kind")
    speaker.user("hi")
    if speak is other:
        return
    async with serving([say("ok")], **ROOM) as served:
        refused = await post(await served.open(), speak, speaker.body(ADD))
        assert served.engine.requests == []
    assert refused.status_code == 400
    assert reason(refused)


@in_each_dialect
async def test_a_result_of_a_call_that_was_never_made_is_refused(
    speak: type[Speaker],
) -> None:
    async with serving([say("ok")], **ROOM) as served:
        speaker = speak()
        speaker.user("hi")
        speaker.results([("call_9", "3")])
        refused = await post(await served.open(), speak, speaker.body())
        assert served.engine.requests == []
    assert (refused.status_code, "the result of the call 'call_9'" in reason(refused)) == (
        400,
        True,
    )


PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1Pe"
    "AAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
IMAGES = {
    "chat/completions": lambda kind: {
        "type": "image_url",
        "image_url": {"url": f"data:image/{kind};base64,{PIXEL}"},
    },
    "responses": lambda kind: {
        "type": "input_image",
        "image_url": f"data:image/{kind};base64,{PIXEL}",
    },
    "messages": lambda kind: {
        "type": "image",
        "source": {"type": "base64", "media_type": f"image/{kind}", "data": PIXEL},
    },
}


def test_an_image_is_the_same_in_each_dialect() -> None:
    chats = []
    for speak in SPEAKERS:
        speaker = speak()
        speaker.history.append(
            {"role": "user", "content": [IMAGES[speak.answer.path]("png")]}
        )
        chats.append(speak.answer(Asked(speaker.body())).chat)
    (image,) = chats[0].messages[0]["content"]
    assert image["image"].sha256
    assert chats[0].messages == chats[1].messages == chats[2].messages


@in_each_dialect
async def test_an_image_that_is_none_is_refused(speak: type[Speaker]) -> None:
    speaker = speak()
    part = json.loads(json.dumps(IMAGES[speak.answer.path]("png")).replace(PIXEL, "AAAA"))
    speaker.history.append({"role": "user", "content": [part]})
    async with serving([say("ok")], **ROOM) as served:
        refused = await post(await served.open(), speak, speaker.body())
        assert served.engine.requests == []
    assert (refused.status_code, "image" in reason(refused)) == (400, True)


@in_each_dialect
async def test_a_client_that_leaves_its_stream_ends_its_turn(speak: type[Speaker]) -> None:
    has_token = asyncio.Event()

    async def pace(n: int) -> None:  # nothing follows the first token
        if n:
            has_token.set()
            await asyncio.Event().wait()

    async with serving(SpeakingEngine([say("abc"), say("ok")], pace), **ROOM) as served:
        episode = await served.open()
        url = f"/episodes/{episode.id}/v1/{speak.answer.path}"
        body = said(speak, stream=True)
        async with served.http.stream("POST", url, json=body) as stream:
            assert stream.status_code == 200
            await asyncio.wait_for(has_token.wait(), DEADLINE_S)
        own = served.server.episodes[episode.id]
        while own._generating:
            await asyncio.sleep(0.01)
        assert own.num_turns == 0


@in_each_dialect
async def test_unknown_keys_and_types_of_tools_are_noted_or_refused(
    speak: type[Speaker],
) -> None:
    odd = {"mystery": "x" * 1000, "metadata": {"a": 1}}
    body = said(speak, tools=ADD, **odd)
    body["tools"] += [{"type": "web_search"}, {"type": "namespace", "name": "agents"}]
    async with serving([say("ok")], **ROOM) as served:
        episode = await served.open()
        assert (await post(episode, speak, body)).status_code == 200
        (turn,) = (await episode.end()).turns
    ignored = turn.info["ignored"]
    assert ignored["tools"] == ["web_search (web_search)", "agents (namespace)"]
    assert ignored["metadata"] == {"a": 1}
    assert len(ignored["mystery"]) < 300
    assert turn.offered_tools is not None
    assert [tool["function"]["name"] for tool in json.loads(turn.offered_tools.data)] == [
        "add"
    ]
    async with serving([say("ok")], strict_keys=True, **ROOM) as served:
        episode = await served.open()
        refused = await post(episode, speak, body)
        assert "mystery is not supported" in reason(refused)
        del body["mystery"]
        refused = await post(episode, speak, body)
        assert "tools[1]" in reason(refused)
        # of no episode: nothing is kept in which it could be noted
        alone = await served.http.post(f"/v1/{speak.answer.path}", json=said(speak, **odd))
        assert "mystery is not supported" in reason(alone)


@in_each_dialect
async def test_errors_have_the_dialects_shape_and_status(speak: type[Speaker]) -> None:
    async with serving([say("ok")], token="s3cret", **ROOM) as served:
        path = f"/v1/{speak.answer.path}"
        nobody = await served.http.post(path, json=said(speak))
        assert (nobody.status_code, "brings its token" in reason(nobody)) == (401, True)
        key = {"Authorization": "Bearer s3cret"}
        opened = (await served.http.post("/episodes", json={}, headers=key)).json()
        await served.http.post(f"/episodes/{opened['id']}{path}", json=said(speak))
        await served.http.post(f"/episodes/{opened['id']}/end", json={"reward": 1.0})
        over = await served.http.post(f"/episodes/{opened['id']}{path}", json=said(speak))
        assert (over.status_code, "has ended: terminated" in reason(over)) == (410, True)
        gone = await served.http.post(f"/episodes/x{path}", json=said(speak), headers=key)
        assert (gone.status_code, "no open episode" in reason(gone)) == (404, True)


@in_each_dialect
async def test_a_call_is_streamed_and_goes_on_in_one_sequence(speak: type[Speaker]) -> None:
    script = [say("<think>hm</think>so " + call("add", a=1)), say("x")]
    async with serving(SpeakingEngine(script), **ROOM) as served:
        episode = await served.open()
        speaker = speak()
        speaker.user("hi")
        whole = (await post(episode, speak, speaker.body(ADD))).json()
        speaker.results([(made, "3") for made in speaker.heard(whole)])
        streamed = await post(episode, speak, speaker.body(ADD, stream=True))
        trajectory = await episode.end()
    assert [turn.parent for turn in trajectory.turns] == [None, 0]
    assert trajectory.turns[0].calls[0].result is not None
    assert streamed.text.startswith(("data: ", "event: "))
