"""How an episode that its agent plays ends, what it is worth, and what is given up then."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from typing import Any

import openai
import pytest

from agentrl.envs import EpisodeView, Rubric, group_rewards
from agentrl.errors import ConfigError, EngineError, StoreError
from agentrl.types import Task, Trajectory
from tests.agent_server.served_policy import HI, answer, ended, serving
from tests.kit.waiting import DEADLINE_S
from tests.rollouts.bytewise import say, scripted


async def test_a_turn_too_many_truncates_the_episode() -> None:
    async with serving(lambda request: say("ok"), max_turns=2) as served:
        episode = await served.open()
        await episode.say(HI)
        await episode.say(HI)
        with pytest.raises(openai.APIStatusError) as caught:
            await episode.say(HI)
        await asyncio.wait_for(ended(served), DEADLINE_S)
    assert caught.value.code == "max_turns"
    assert (str(served.kept[0].status), served.kept[0].reward) == (
        "truncated(max_turns)",
        2.0,
    )


async def test_an_engine_that_fails_fails_the_episode() -> None:
    engine = scripted([say("ok")], failures={0: EngineError("the engine is gone")})
    async with serving(engine) as served:
        episode = await served.open()
        with pytest.raises(openai.InternalServerError, match="the engine is gone"):
            await episode.say(HI)
        await asyncio.wait_for(ended(served), DEADLINE_S)
    assert (str(served.kept[0].status), served.kept[0].reward) == ("failed(engine)", None)


async def test_a_turn_that_takes_too_long_truncates_the_episode() -> None:
    first = asyncio.Event()

    async def slow(request: Any) -> None:
        if first.is_set():
            await asyncio.Event().wait()
        first.set()

    async with serving(
        scripted(lambda request: say("ok"), latency=slow), turn_timeout_s=0.5
    ) as served:
        episode = await served.open()
        await episode.say(HI)
        with pytest.raises(openai.APIStatusError):
            await episode.say(HI)
        await asyncio.wait_for(ended(served), DEADLINE_S)
    assert str(served.kept[0].status) == "truncated(turn_timeout)"


async def test_silence_ends_an_episode() -> None:
    async with serving([say("ok")], idle_timeout_s=2.0) as served:
        episode = await served.open()
        await episode.say(HI)
        await asyncio.wait_for(ended(served), DEADLINE_S)
        assert (await episode.post("reward", reward=1.0)).status_code == 410
    assert (str(served.kept[0].status), served.kept[0].reward) == (
        "truncated(idle_timeout)",
        2.0,
    )


async def test_an_episode_that_nobody_played_is_cancelled_by_silence() -> None:
    async with serving([say("ok")], idle_timeout_s=0.1) as served:
        await served.open()
        await asyncio.wait_for(ended(served), DEADLINE_S)
    assert str(served.kept[0].status) == "cancelled(idle_timeout)"


async def test_a_reward_that_came_lies_on_the_last_turn_beside_the_rubric() -> None:
    async with serving(lambda request: say("ok")) as served:
        episode = await served.open()
        first = await episode.say(HI)
        (await episode.post("reward", reward=5.0, why="too much")).raise_for_status()
        why = {"tests": "1 of 2"}
        (
            await episode.post("reward", reward=0.5, why=why)
        ).raise_for_status()  # in place of the first
        await episode.say(HI, *answer(first), HI)
        trajectory = await episode.end()
    assert [dict(turn.rewards) for turn in trajectory.turns] == [{}, {"reward": 0.5}]
    assert trajectory.rewards == {"length_reward": 2.0, "step": 0.5}
    assert trajectory.reasons == {"reward": {"tests": "1 of 2"}}
    assert trajectory.reward == 2.5


async def test_an_episode_without_any_reward_fails_and_is_never_worth_0() -> None:
    async with serving([say("ok")], rubric=Rubric([])) as served:
        episode = await served.open()
        await episode.say(HI)
        trajectory = await episode.end()
    assert (str(trajectory.status), trajectory.reward) == ("failed(reward)", None)


@pytest.mark.parametrize("value", ["much", None, True, 10**400])
async def test_a_reward_is_a_finite_number(value: Any) -> None:
    async with serving([say("ok")]) as served:
        episode = await served.open()
        raw = json.dumps({"reward": value})
        response = await served.http.post(f"/episodes/{episode.id}/reward", content=raw)
    assert response.status_code == 400
    assert "finite number" in response.json()["error"]["message"]


async def test_the_end_says_what_the_episode_came_to() -> None:
    async with serving([say("ok")]) as served:
        episode = await served.open(task={"id": "sum-1", "answer": 3})
        await episode.say(HI)
        outcome = (await episode.post("end", truncated="gave_up")).json()
        again = await episode.post("end")
    assert (outcome["status"], outcome["reward"], outcome["policy_tokens"]) == (
        "truncated(gave_up)",
        2.0,
        3,
    )
    assert served.kept[0].task == Task("sum-1", answer=3)
    assert again.status_code == 410


async def test_sessions_are_released_at_the_end() -> None:
    async with serving(lambda request: say("ok")) as served:
        episode = await served.open()
        await episode.say(HI)
        await episode.say({"role": "user", "content": "other"})
        assert served.engine.health().kv_tokens > 0
        await episode.end()
        while served.server.episodes:
            await asyncio.sleep(0.01)
    assert served.engine.health().kv_tokens == 0


async def test_a_turn_in_flight_at_the_end_is_given_up_and_the_rubric_sees_all_that_is_kept() -> (
    None
):
    gate = asyncio.Event()
    gate.set()
    engine = scripted(lambda request: say("ok"), latency=lambda request: gate.wait())
    async with serving(engine) as served:
        episode = await served.open()
        await episode.say(HI)
        gate.clear()
        waiting = asyncio.create_task(episode.say({"role": "user", "content": "other"}))
        while not engine.health().running:
            await asyncio.sleep(0.01)
        (await episode.post("end")).raise_for_status()
        trajectory = served.kept[0]
        with pytest.raises(openai.APIStatusError) as caught:
            await waiting
    assert caught.value.status_code == 410
    assert engine.health().running == 0
    assert (len(trajectory.turns), trajectory.reward) == (1, 2.0)


async def test_no_turn_is_made_while_an_episode_that_ran_out_of_time_is_scored() -> None:
    asked = asyncio.Event()
    seen: list[int] = []

    async def slowly_counted(view: EpisodeView) -> float:
        await asyncio.sleep(0.3)
        seen.append(len(view.turns))
        return 1.0

    async def slow(request: Any) -> None:
        if asked.is_set():
            await asyncio.sleep(1.1)
        asked.set()

    engine = scripted(lambda request: say("ok"), latency=slow)
    async with serving(
        engine, rubric=Rubric([slowly_counted]), episode_timeout_s=1.0
    ) as served:
        episode = await served.open()
        await episode.say(HI)
        with pytest.raises(openai.APIStatusError):
            await episode.say({"role": "user", "content": "other"})
        await asyncio.wait_for(ended(served), DEADLINE_S)
    assert str(served.kept[0].status) == "truncated(episode_timeout)"
    assert seen == [len(served.kept[0].turns)] == [1]


async def test_an_episode_that_cannot_be_kept_is_told_to_the_owner() -> None:
    def full(trajectory: Trajectory) -> None:
        raise StoreError("the disk is full")

    async with serving([say("ok")]) as served:
        served.server._keep = full
        episode = await served.open()
        await episode.say(HI)
        await episode.post("end")
        with pytest.raises(StoreError, match="the disk is full"):
            await asyncio.wait_for(served.server.until_failure(), DEADLINE_S)


async def test_a_reward_of_a_whole_group_is_refused_by_name() -> None:
    @group_rewards
    def best_of_all(views: Sequence[EpisodeView]) -> list[float]:
        return [1.0 for _ in views]

    with pytest.raises(
        ConfigError, match=r"RolloutSpec\.rubric: 'best_of_all' scores .* leave it"
    ):
        async with serving([say("ok")], rubric=Rubric([best_of_all])):
            pass


async def test_answers_do_not_wait_for_an_acknowledgement() -> None:
    async with serving([say("ok")]) as served:
        (own,) = served.server._server.servers[0].sockets
        assert own.proto == socket.IPPROTO_TCP  # by which asyncio turns Nagle's delay off
