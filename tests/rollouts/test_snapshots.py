"""Episodes in flight that a checkpoint keeps: they go on with their tokens, their environment and
their seeds.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentrl.engines.scripted import ScriptedEngine
from agentrl.envs import Env, EnvSpec, EpisodeView
from agentrl.errors import EngineError
from agentrl.rollouts import (
    EpisodeRunner,
    EpisodeState,
    GroupOutcome,
    GroupRequest,
    GroupState,
    NotResumable,
)
from agentrl.sandbox import SandboxSpec
from agentrl.tools import tool
from agentrl.tools.builtin.sandbox_tools import PythonTool
from agentrl.types import Action, Message, Observation, Status, StepResult, Task, Trajectory
from tests.kit.waiting import DEADLINE_S, until
from tests.rollouts.bytewise import TASK, call, rollout_spec, say, scripted

TURNS = 4


class Counts(Env):
    """Says how many turns there were, and ends after four."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.said: list[str] = []

    async def reset(self, *, seed: int) -> Observation:
        self.seed = seed
        return Observation(self.task.messages)

    async def step(self, action: Action) -> StepResult:
        self.said.append(action.text)
        told: Message = {"role": "user", "content": f"{len(self.said)} of {self.seed % 97}"}
        return StepResult(
            Observation((told,)), reward=1.0, terminated=len(self.said) == TURNS
        )


class Locked(Counts):
    """Holds what no pickle takes."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.lock = threading.Lock()


class Broken(Counts):
    """Cannot go on from its state."""

    def load_state_dict(self, state: Any) -> None:
        raise ValueError("of another version")


def words(request: Any) -> list[int]:
    """A completion that depends on the request's seed alone."""
    return say(f"word {request.seed % 1000}")


class Unkept(Counts):
    """Says that it cannot be kept."""

    def state_dict(self) -> None:
        return None


class Gate:
    """Holds model calls from a turn on, until it is opened."""

    def __init__(self, turn: int, rollout_index: int | None = None) -> None:
        self._turn, self._rollout, self._held = turn, rollout_index, 0
        self._open = threading.Event()

    async def __call__(self, request: Any) -> None:
        session, _, turn = request.request_id.rpartition("/")
        mine = self._rollout is None or int(session.split("-")[1]) == self._rollout
        if mine and int(turn) >= self._turn:
            self._held += 1
            while not self._open.is_set():
                await asyncio.sleep(0.005)

    def open(self) -> None:
        self._open.set()

    def wait_for(self, number: int) -> None:
        until(lambda: self._held >= number)


Open = Callable[..., EpisodeRunner]


@pytest.fixture
def opened() -> Iterator[Open]:
    runners: list[EpisodeRunner] = []

    def open_runner(engine: ScriptedEngine, **settings: Any) -> EpisodeRunner:
        spec = replace(
            rollout_spec(**{"env": EnvSpec(Counts)} | settings), save_episode_state=True
        )
        runners.append(EpisodeRunner(spec, engine))
        return runners[-1]

    yield open_runner
    for runner in runners:
        runner.close()


def collect(runner: EpisodeRunner) -> GroupOutcome:
    return until(lambda: runner.collect(1.0))[0]


def interrupted(
    opened: Open, *, turn: int = 2, rollouts: int = 2, **settings: Any
) -> GroupState:
    """A group as it stood while all its rollouts waited for the completion of a turn; it was
    through a file.
    """
    gate = Gate(turn)
    runner = opened(scripted(words, latency=gate), **settings)
    runner.submit([GroupRequest(3, TASK, rollouts)])
    gate.wait_for(rollouts)
    (saved,) = runner.in_flight()
    runner.cancel([3])
    collect(runner)
    reread: GroupState = pickle.loads(pickle.dumps(saved))
    return reread


def resumed(opened: Open, saved: GroupState, **settings: Any) -> GroupOutcome:
    runner = opened(scripted(words), **settings)
    runner.submit([GroupRequest(3, TASK, len(saved.rollouts), saved=saved)])
    return collect(runner)


def test_a_resumed_episode_is_the_one_that_was_not_interrupted(opened: Open) -> None:
    whole = opened(scripted(words))
    whole.submit([GroupRequest(3, TASK, 2)])
    expected = collect(whole).group.trajectories
    found = resumed(opened, interrupted(opened)).group.trajectories
    assert [t.id for t in found] == [t.id for t in expected]
    for one, other in zip(found, expected, strict=True):
        assert [turn.text for turn in one.turns] == [turn.text for turn in other.turns]
        assert one.sequence(TURNS - 1).tolist() == other.sequence(TURNS - 1).tolist()
        assert (one.reward, one.rewards, str(one.status)) == (
            other.reward,
            other.rewards,
            "terminated",
        )


def test_it_extends_what_was_saved_and_says_so(opened: Open) -> None:
    saved = interrupted(opened)
    for rollout_index, trajectory in zip(
        saved.resumable, resumed(opened, saved).group.trajectories, strict=True
    ):
        before = rollout_index.seats["main"].sequence.ids
        assert trajectory.sequence(TURNS - 1)[: before.size].tolist() == before.tolist()
        assert [
            np.asarray(t.completion[0].logprobs).tobytes() for t in trajectory.turns[:2]
        ] == [np.asarray(t.completion[0].logprobs).tobytes() for t in rollout_index.turns]
        assert trajectory.info["resumed_turns"] == 2


def test_versions_of_before_and_after_are_both_recorded(opened: Open) -> None:
    saved = interrupted(opened)
    engine = scripted(words)
    engine.pause("retract")
    engine.begin_update(5).commit()
    engine.resume()
    runner = opened(engine)
    runner.submit([GroupRequest(3, TASK, 2, saved=saved)])
    assert {t.policy_versions for t in collect(runner).group.trajectories} == {(0, 0, 5, 5)}


def test_a_rollout_that_had_finished_is_not_played_again(opened: Open) -> None:
    gate = Gate(2, rollout_index=1)
    engine = scripted(words, latency=gate)
    runner = opened(engine)
    runner.submit([GroupRequest(3, TASK, 2)])
    gate.wait_for(1)
    until(
        lambda: (
            not isinstance(runner.in_flight()[0].rollouts[0], EpisodeState | NotResumable)
        )
    )
    saved = runner.in_flight()[0]
    again = scripted(words)
    other = opened(again)
    other.submit([GroupRequest(3, TASK, 2, saved=saved)])
    assert [t.status.kind for t in collect(other).group.trajectories] == [
        "terminated",
        "terminated",
    ]
    assert {request.session_id for request in again.requests} == {"train/3-1-0"}


def one_ended(runner: EpisodeRunner, gate: Gate) -> Trajectory:
    """The first of two rollouts, told of while the second one waits for a completion."""
    runner.submit([GroupRequest(3, TASK, 2)])
    gate.wait_for(1)
    (first,) = until(runner.take_ended)
    return first


def test_an_episode_is_told_of_when_it_ends_and_comes_again_with_its_group(
    opened: Open,
) -> None:
    gate = Gate(2, rollout_index=1)
    runner = opened(scripted(words, latency=gate))
    first = one_ended(runner, gate)
    assert (first.id, first.status.kind, len(first.turns)) == ("3-0-0", "terminated", TURNS)
    assert runner.take_ended() == []
    (saved,) = runner.in_flight()
    gate.open()
    outcome = collect(runner)
    assert outcome.group.trajectories[0] is first
    assert (runner.take_ended(), outcome.ended) == ([], ())

    resumed = opened(scripted(words, latency=(gate := Gate(3, rollout_index=1))))
    resumed.submit([GroupRequest(3, TASK, 2, saved=saved)])
    gate.wait_for(1)
    assert resumed.take_ended() == []  # it was told of before
    gate.open()
    assert collect(resumed).group.trajectories[0] is first


def test_of_a_cancelled_group_what_had_ended_stays_known(opened: Open) -> None:
    gate = Gate(2, rollout_index=1)
    runner = opened(scripted(words, latency=gate))
    first = one_ended(runner, gate)
    runner.cancel([3])
    outcome = collect(runner)
    assert outcome.ended == (first,)
    assert [str(t.status) for t in outcome.group.trajectories] == [
        "cancelled(cancelled)"
    ] * 2
    assert [str(t.status) for t in outcome.played.trajectories] == [
        "terminated",
        "cancelled(cancelled)",
    ]


def test_an_episode_that_only_lacked_its_score_is_scored(opened: Open) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(view: EpisodeView) -> float:
        begun.set()
        assert go_on.wait(DEADLINE_S)
        return 2.0

    runner = opened(scripted(words), reward=slow)
    runner.submit([GroupRequest(3, TASK, 1)])
    assert begun.wait(DEADLINE_S)
    (saved,) = runner.in_flight()
    go_on.set()
    again = scripted(words)
    other = opened(again, reward=lambda view: 3.0)
    other.submit([GroupRequest(3, TASK, 1, saved=saved)])
    (trajectory,) = collect(other).group.trajectories
    assert (len(trajectory.turns), trajectory.reward, again.requests) == (
        TURNS,
        3.0 + TURNS,
        [],
    )


@pytest.mark.parametrize(
    ("env", "why"),
    [(Locked, "cannot pickle '_thread.lock'"), (Unkept, "Unkept.state_dict gives none")],
    ids=["unpicklable", "none"],
)
def test_what_cannot_be_kept_is_begun_anew_and_says_why(
    opened: Open, env: Any, why: str
) -> None:
    saved = interrupted(opened, env=EnvSpec(env))
    assert [why in one.why for one in saved.lost] == [True, True]
    found = resumed(opened, saved).group.trajectories
    assert [(len(t.turns), t.attempt, t.info.get("resumed_turns")) for t in found] == [
        (TURNS, 0, None)
    ] * 2


def test_a_state_that_cannot_be_read_back_is_a_failed_attempt_and_then_begun_anew(
    opened: Open,
) -> None:
    outcome = resumed(opened, interrupted(opened), env=EnvSpec(Broken))
    assert [str(t.status) for t in outcome.retried] == ["failed(env)"] * 2
    assert "ValueError: of another version" in outcome.retried[0].status.detail
    assert [(t.attempt, len(t.turns)) for t in outcome.group.trajectories] == [
        (1, TURNS)
    ] * 2


def test_before_its_first_turn_there_is_nothing_to_keep(opened: Open) -> None:
    saved = interrupted(opened, turn=0)
    assert (saved.rollouts, saved.lost) == ((NotResumable(), NotResumable()), ())


def test_an_episode_with_tools_goes_on(opened: Open) -> None:
    @tool
    def double(n: int) -> str:
        """Twice a number.

        Args:
            n: the number.
        """
        return str(2 * n)

    spec = rollout_spec(tools=[double])
    turns = [say(call("double", n=4)), say(call("double", n=8)), say("16")]

    def said(request: Any) -> list[int]:
        return turns[int(request.request_id.rpartition("/")[2])]

    gate = Gate(1)
    runner = opened(scripted(said, latency=gate), env=spec.env)
    runner.submit([GroupRequest(3, TASK, 1)])
    gate.wait_for(1)
    (saved,) = runner.in_flight()
    assert len(saved.resumable) == 1
    other = opened(scripted(said), env=spec.env)
    other.submit([GroupRequest(3, TASK, 1, saved=saved)])
    (trajectory,) = collect(other).group.trajectories
    results = [
        record.result.content
        for turn in trajectory.turns
        for record in turn.calls
        if record.result
    ]
    assert (str(trajectory.status), results) == ("terminated", ["8", "16"])


def test_an_episode_with_a_sandbox_is_begun_anew(opened: Open) -> None:
    spec = rollout_spec()
    env = EnvSpec(
        spec.env.factory,
        kwargs={"tools": [PythonTool()], "describe_tools_in_prompt": False},
        sandbox=SandboxSpec(),
    )
    gate = Gate(1)
    runner = opened(
        scripted(lambda request: say(call("python", code="print(1)")), latency=gate),
        env=env,
    )
    runner.submit([GroupRequest(3, TASK, 1)])
    gate.wait_for(1)
    (saved,) = runner.in_flight()
    assert saved.rollouts == (NotResumable("ToolEnv.state_dict gives none here"),)


def test_evaluations_are_not_kept(opened: Open) -> None:
    gate = Gate(1)
    runner = opened(scripted(words, latency=gate))
    runner.submit([GroupRequest(0, TASK, 1, "eval", "held-out")])
    gate.wait_for(1)
    assert runner.in_flight() == []


def test_what_was_collected_is_no_longer_in_flight(opened: Open) -> None:
    runner = opened(scripted(words))
    runner.submit([GroupRequest(3, TASK, 2)])
    collect(runner)
    assert runner.in_flight() == []


def test_a_failed_attempt_before_stays_with_the_group(opened: Open) -> None:
    gate = Gate(2)
    runner = opened(scripted(words, failures={0: EngineError("gone")}, latency=gate))
    runner.submit([GroupRequest(3, TASK, 1)])
    gate.wait_for(1)
    (saved,) = runner.in_flight()
    outcome = resumed(opened, saved)
    assert [(t.attempt, str(t.status)) for t in outcome.retried] == [(0, "failed(engine)")]
    assert [(t.attempt, len(t.turns)) for t in outcome.group.trajectories] == [(1, TURNS)]


class Waits:
    """``DriverSpec`` and ``EpisodeDriver`` of an agent that never comes to its end."""

    env = None
    name = "waits"

    def __init__(self) -> None:
        self.begun = threading.Event()

    def driver(self, turns: Any) -> Waits:
        return self

    async def prepare(self) -> None:
        self.begun.set()

    async def play(self) -> Status:
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        """Nothing was started."""


def test_what_an_agents_own_program_plays_is_begun_anew_and_counted(opened: Open) -> None:
    runner, waits = opened(scripted(words)), Waits()
    runner.submit([GroupRequest(3, TASK, 1, env=waits)])
    assert waits.begun.wait(DEADLINE_S)
    (saved,) = runner.in_flight()
    assert [one.why for one in saved.lost] == [
        "its driver is no environment, and cannot be saved"
    ]


def test_a_straggler_that_is_cut_right_after_the_resume_counts_with_its_turns(
    opened: Open,
) -> None:
    saved = interrupted(opened)
    first = resumed(opened, saved).group.trajectories[0]
    beside = replace(saved, rollouts=(first, saved.rollouts[1]))
    runner = opened(scripted(words))
    runner.submit([GroupRequest(3, TASK, 1, oversample=1, saved=beside)])
    group = collect(runner).group
    assert [str(t.status) for t in group.trajectories] == [
        "terminated",
        "truncated(straggler)",
    ]
    assert [len(t.turns) for t in group.trajectories] == [TURNS, 2]
