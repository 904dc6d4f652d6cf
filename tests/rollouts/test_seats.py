"""Several agents of one episode: each has its own history, sequence, tools and reward."""

from __future__ import annotations

import asyncio
import pickle
import threading
from dataclasses import replace
from typing import Any

import pytest

from agentrl.engines.openai_spec import OpenAIEngineSpec
from agentrl.envs import (
    Env,
    EnvSpec,
    EpisodeView,
    Rubric,
    Score,
    group_rewards,
    turn_rewards,
)
from agentrl.errors import ConfigError
from agentrl.rollouts import (
    AgentSpec,
    EpisodeRunner,
    GroupRequest,
    GroupState,
    run_episode,
)
from agentrl.rollouts.group_scores import with_group_scores
from agentrl.types import (
    Action,
    Observation,
    Seat,
    StepResult,
    Task,
    Trajectory,
    TrajectoryGroup,
)
from tests.kit.waiting import DEADLINE_S
from tests.llm.odd_server import failed, odd_server, said
from tests.rollouts.bytewise import (
    ASSISTANT,
    END,
    KEY,
    TASK,
    USER,
    context_of,
    ids,
    laid_out,
    rollout_spec,
    say,
    scripted,
)
from tests.rollouts.duel import Duel


def nothing(view: EpisodeView) -> float:
    return 0.0


def by_agent(words: dict[str, list[str]]) -> Any:
    """Completions of each agent in order, told apart by the opening of their own sequence."""
    left = {agent: iter(own) for agent, own in words.items()}

    def script(request: Any) -> list[int]:
        opening = bytes(
            token for token in request.token_ids.tolist() if token < 256
        ).decode()
        agent = "white" if "You are white." in opening else "black"
        return say(next(left[agent]))

    return script


def served(url: str, **settings: Any) -> AgentSpec:
    """An agent that a server plays."""
    server = OpenAIEngineSpec(base_url=url, model="m", **settings)
    return AgentSpec(train=False, engine="openai", openai=server)


async def duel(
    words: dict[str, list[str]],
    *,
    agents: dict[str, AgentSpec] | None = None,
    env: EnvSpec | None = None,
    **settings: Any,
) -> Trajectory:
    given = {"env": env or EnvSpec(Duel), "reward": nothing} | settings
    spec = replace(rollout_spec(**given), agents=agents or {})
    return await run_episode(context_of(spec, scripted(by_agent(words))), TASK, KEY)


WORDS = {"white": ["a", "ccc"], "black": ["b", "d"]}


async def test_each_agent_has_a_sequence_of_what_it_was_told_alone() -> None:
    trajectory = await duel(WORDS)
    assert [(turn.agent, turn.parent) for turn in trajectory.turns] == [
        ("white", None),
        ("black", None),
        ("white", 0),
        ("black", 1),
    ]
    assert trajectory.sequence(2).tolist() == [
        *[USER, *ids("You are white."), END, ASSISTANT, *ids("a"), END],
        *[USER, *ids("b"), END, ASSISTANT, *ids("ccc"), END],
    ]
    assert trajectory.sequence(3).tolist() == [
        *[
            *ids("[pass]"),
            USER,
            *ids("You are black."),
            END,
            USER,
            *ids("a"),
            END,
            ASSISTANT,
        ],
        *[*ids("b"), END, USER, *ids("ccc"), END, ASSISTANT, *ids("d"), END],
    ]
    kinds = [[kind for kind, _ in turn] for turn in laid_out(trajectory)]
    assert kinds[:2] == [["PROMPT", "POLICY"]] * 2
    assert "restarts" not in trajectory.info


@turn_rewards
def length_of_turns(view: EpisodeView) -> list[float]:
    return [float(len(turn.text)) for turn in view.turns]


@group_rewards
def alike(views: Any) -> list[float]:
    return [1.0 for _ in views]


async def test_rewards_of_turns_lie_with_the_turns_of_the_agent_that_they_score() -> None:
    trajectory = await duel(
        {"white": ["a", "ccc"], "black": ["bb", "d"]}, reward=length_of_turns
    )
    found = [turn.rewards["length_of_turns"] for turn in trajectory.turns]
    assert found == [len(turn.text) for turn in trajectory.turns]
    sums = {
        agent: seat.rewards["length_of_turns"] for agent, seat in trajectory.seats.items()
    }
    assert sums == {
        agent: sum(len(turn.text) for turn in trajectory.turns if turn.agent == agent)
        for agent in ("white", "black")
    }


async def test_a_reward_of_groups_refuses_episodes_of_several_agents() -> None:
    (scored,) = await with_group_scores(Rubric([alike]), [await duel(WORDS)])
    assert str(scored.status) == "failed(reward)"
    assert scored.status.detail == (
        "reward.functions: alike is marked group_rewards, which scores episodes of one agent; that "
        "of task 't' has several agents (white, black); score each by a function of its own episode"
    )
    assert scored.reward is None


async def test_the_sessions_of_agents_differ_and_are_released() -> None:
    engine = scripted(by_agent({"white": ["a", "ccc"], "black": ["b", "d"]}))
    released = []
    release = engine.release

    async def noted(session_id: str) -> None:
        released.append(session_id)
        await release(session_id)

    engine.release = noted  # type: ignore[method-assign]
    spec = rollout_spec(env=EnvSpec(Duel), reward=nothing)
    await run_episode(context_of(spec, engine), TASK, KEY)
    asked = list(dict.fromkeys(request.session_id for request in engine.requests))
    assert len(asked) == 2
    assert sorted(released) == sorted(asked)
    assert len({request.seed for request in engine.requests}) == 4


async def test_a_reward_by_agent_counts_for_the_latest_turn_of_each() -> None:
    trajectory = await duel(WORDS)
    assert [dict(turn.rewards) for turn in trajectory.turns] == [
        {},
        {},
        {"step": 2.0},
        {"step": -2.0},
    ]
    assert trajectory.seats["white"] == Seat(True, 2.0, {"nothing": 0.0, "step": 2.0})
    assert trajectory.seats["black"].reward == -2.0
    # of the first to act
    assert (trajectory.reward, trajectory.rewards["step"]) == (
        2.0,
        2.0,
    )


class Early(Env):
    """Rewards ``late`` before it has a turn."""

    def __init__(self, task: Task, ends: bool = False) -> None:
        self.ends = ends
        self.num_turns = 0

    def reset(self, *, seed: int) -> Observation:
        return Observation(({"role": "user", "content": "You are white."},), agent="white")

    def step(self, action: Action) -> StepResult:
        self.num_turns += 1
        late = Observation(({"role": "user", "content": "You are late."},), agent="late")
        ended = self.num_turns == (1 if self.ends else 2)
        return StepResult(
            late, {"late": 3.0} if self.num_turns == 1 else 1.0, terminated=ended
        )


async def test_a_reward_before_an_agents_first_turn_counts_for_that_turn() -> None:
    trajectory = await duel({"white": ["a"], "black": ["b"]}, env=EnvSpec(Early))
    assert {name: seat.reward for name, seat in trajectory.seats.items()} == {
        "white": 0.0,
        "late": 4.0,
    }
    assert "unclaimed_rewards" not in trajectory.info


async def test_an_agent_that_never_acted_has_no_seat() -> None:
    trajectory = await duel({"white": ["a"]}, env=EnvSpec(Early, {"ends": True}))
    assert (trajectory.reward, dict(trajectory.seats)) == (0.0, {})
    assert trajectory.info["unclaimed_rewards"] == {"late": 3.0}


async def test_the_rubric_scores_each_trained_agent_by_its_own_view() -> None:
    asked = []

    def told(view: EpisodeView) -> Score:
        asked.append(
            (view.agent, len(view.turns), [str(m["content"]) for m in view.messages])
        )
        return Score(float(len(view.final_text)), view.agent)

    trajectory = await duel(WORDS, reward=told, agents={"main": AgentSpec()})
    assert asked == [
        ("white", 2, ["You are white.", "a", "b", "ccc"]),
        ("black", 2, ["You are black.", "a", "b", "ccc", "d"]),
    ]
    assert [seat.rewards["told"] for seat in trajectory.seats.values()] == [3.0, 1.0]
    assert trajectory.reasons == {"told": "white", "black: told": "black"}


async def test_an_untrained_agent_is_not_scored_and_not_the_episodes_reward() -> None:
    def length(view: EpisodeView) -> float:
        assert view.agent == "black"
        return 10.0

    agents = {"white": AgentSpec(train=False)}
    trajectory = await duel(WORDS, reward=length, agents=agents)
    assert not trajectory.seats["white"].train
    assert trajectory.seats["white"].rewards == {"step": 2.0}
    assert trajectory.reward == 8.0
    assert trajectory.turns[0].completion[0].policy_version == 0  # stored as it was sampled


async def test_an_agent_with_a_server_of_its_own_is_told_its_own_history_alone() -> None:
    async with odd_server(said("b"), said("d")) as server:
        agents = {
            "black": served(server.url),
        }
        trajectory = await duel({"white": ["a", "ccc"]}, agents=agents)
    assert str(trajectory.status) == "terminated"
    assert [[m["content"] for m in body["messages"]] for body in server.asked] == [
        ["You are black.", "a"],
        ["You are black.", "a", "b", "ccc"],
    ]
    assert server.asked[0]["tools"][0]["function"]["name"] == "pass"
    assert [turn.text for turn in trajectory.turns] == ["a", "b", "ccc", "d"]
    assert [bool(turn.segments) for turn in trajectory.turns] == [True, False, True, False]


async def test_an_opponent_whose_server_fails_is_a_failure_and_no_reward() -> None:
    async with odd_server(failed(500)) as server:
        agents = {"black": served(server.url, max_retries=0)}
        trajectory = await duel({"white": ["a"]}, agents=agents)
    assert (str(trajectory.status), trajectory.reward) == ("failed(engine)", None)
    assert trajectory.info["retryable"]


async def test_an_episode_without_a_trained_agent_has_no_reward() -> None:
    agents = {name: AgentSpec(train=False) for name in ("white", "black")}
    trajectory = await duel(WORDS, agents=agents)
    assert (str(trajectory.status), trajectory.reward) == ("failed(env)", None)
    assert "before a trained agent had a turn" in trajectory.status.detail


def test_a_server_is_never_trained() -> None:
    with pytest.raises(ConfigError, match=r"AgentSpec\.train must be false"):
        AgentSpec(engine="openai", openai=OpenAIEngineSpec(base_url="http://localhost/v1"))


async def test_limits_of_turns_count_those_of_an_agent() -> None:
    many = {"white": list("abcdef"), "black": list("abcdef")}
    trajectory = await duel(many, env=EnvSpec(Duel, {"rounds": 9}), max_turns=3)
    assert (str(trajectory.status), len(trajectory.turns)) == ("truncated(max_turns)", 6)


async def test_a_seat_holds_its_own_turns_and_reward() -> None:
    trajectory = await duel(WORDS)
    black = trajectory.of_seat("black")
    assert [(turn.index, turn.parent, turn.text) for turn in black.turns] == [
        (0, None, "b"),
        (1, 0, "d"),
    ]
    assert black.reward == -2.0
    assert black.sequence(1).tolist() == trajectory.sequence(3).tolist()
    assert not black.seats


async def test_groups_by_seat_have_the_rollouts_in_which_a_trained_agent_acted() -> None:
    whole = await duel(WORDS)
    alone = await duel(
        {"white": ["a"]}, env=EnvSpec(Early, {"ends": True}), agents={"x": AgentSpec()}
    )
    group = TrajectoryGroup(4, TASK, (whole, alone))
    black, white = group.by_seat()
    assert [[one.reward for one in seat.finished] for seat in (black, white)] == [
        [-2.0],
        [2.0, 0.0],
    ]
    untrained = await duel(WORDS, agents={"black": AgentSpec(train=False)})
    (only,) = TrajectoryGroup(4, TASK, (untrained,)).by_seat()
    assert {turn.agent for turn in only.finished[0].turns} == {"white"}


def words(request: Any) -> list[int]:
    """A completion that depends on the request's seed alone."""
    return say(f"word {request.seed % 1000}")


async def test_an_episode_of_two_goes_on_from_a_checkpoint_as_if_nothing_had_been() -> None:
    spec = replace(
        rollout_spec(env=EnvSpec(Duel, {"rounds": 3}), reward=nothing),
        save_episode_state=True,
    )
    held = asyncio.Event()
    reached = threading.Event()
    number = 0

    async def gate(request: Any) -> None:
        nonlocal number
        number += 1
        if number == 4:  # white has two turns, black one
            reached.set()
            await held.wait()

    async def outcome(engine: Any, saved: GroupState | None = None) -> Any:
        runner = EpisodeRunner(spec, engine)
        runner.submit([GroupRequest(3, TASK, 1, saved=saved)])
        try:
            return await asyncio.to_thread(_collected, runner)
        finally:
            runner.close()

    whole = await outcome(scripted(words))
    runner = EpisodeRunner(spec, scripted(words, latency=gate))
    runner.submit([GroupRequest(3, TASK, 1)])
    await asyncio.to_thread(reached.wait, 20)
    (saved,) = await asyncio.to_thread(runner.in_flight)
    await asyncio.to_thread(runner.close)
    assert list(saved.rollouts[0].seats) == ["white", "black"]  # type: ignore[union-attr]
    found = await outcome(scripted(words), pickle.loads(pickle.dumps(saved)))
    one, other = whole.group.trajectories[0], found.group.trajectories[0]
    assert other.info["resumed_turns"] == 3
    assert [turn.text for turn in one.turns] == [turn.text for turn in other.turns]
    assert [one.sequence(5).tolist(), one.seats] == [
        other.sequence(5).tolist(),
        other.seats,
    ]


def _collected(runner: EpisodeRunner) -> Any:
    (outcome,) = runner.collect(DEADLINE_S)
    return outcome
