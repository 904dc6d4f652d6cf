"""Wrappers around any environment: limits that are the policy's doing, and what they pass on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import load_config
from agentrl.envs import (
    AsyncEnv,
    CutObservations,
    Env,
    EnvSpec,
    RewardShaping,
    TimeLimit,
    TokenLimit,
    ToolEnv,
    TurnLimit,
    Wrapper,
    WrapperReference,
    check_env,
)
from agentrl.errors import AgentRLError, EnvError
from agentrl.run.build import LiveObjects, env_spec
from agentrl.types import Action, Observation, StepResult, Task
from agentrl.types.clock import clock_paused
from tests.rollouts.bytewise import play, say

Write = Callable[..., Path]
TASK = Task("t", ({"role": "user", "content": "hi"},))


class Echo(Env):
    """Says what it hears for ever."""

    def __init__(self, task: Task, wait: Callable[[], object] = lambda: None) -> None:
        self.heard: list[str] = []
        self._wait = wait

    def reset(self, *, seed: int) -> Observation:
        return Observation(({"role": "user", "content": "opening"},))

    def step(self, action: Action) -> StepResult:
        self._wait()
        self.heard.append(action.text)
        return StepResult(
            Observation(({"role": "user", "content": action.text},)), reward=1.0
        )

    def state_dict(self) -> dict[str, Any]:
        return {"heard": self.heard}


def spec(*wrappers: WrapperReference, **args: Any) -> EnvSpec:
    return EnvSpec(Echo, args, wrappers=wrappers)


def limit(name: str, **args: Any) -> WrapperReference:
    return WrapperReference(function=name, args=args)


async def played(*wrappers: WrapperReference, text: str = "abc", **args: Any) -> Any:
    return await play([say(text)] * 5, env=spec(*wrappers, **args), max_turns=5)


@pytest.mark.parametrize(
    ("wrapper", "reason", "turns"),
    [
        (limit("turn_limit", max_turns=2), "max_turns", 2),
        (limit("token_limit", max_tokens=7), "max_written_tokens", 3),  # three a turn
        (limit("time_limit", max_seconds=1e-9), "max_seconds", 1),
    ],
    ids=str,
)
async def test_a_spent_limit_truncates_the_episode_which_keeps_its_reward(
    wrapper: WrapperReference, reason: str, turns: int
) -> None:
    trajectory = await played(wrapper)
    assert str(trajectory.status) == f"truncated({reason})"
    assert len(trajectory.turns) == turns
    assert trajectory.rewards["step"] == turns


async def test_a_wait_for_others_spends_no_time() -> None:
    now = [0.0]

    def wait() -> None:
        with clock_paused():
            end = time.monotonic() + 0.05
            while time.monotonic() < end:
                now[0] += 1

    env = TimeLimit(Echo(TASK, wait), 0.04)
    await env.reset(seed=0)
    result = await env.step(Action("a", {"role": "assistant", "content": "a"}))
    assert now[0] > 0
    assert not result.truncated


async def test_an_end_of_its_own_is_no_limits() -> None:
    env = TurnLimit(ToolEnv(TASK), 1)
    await env.reset(seed=0)
    result = await env.step(Action("a", {"role": "assistant", "content": "a"}))
    assert (result.terminated, result.truncated) == (True, False)


async def test_cut_observations_keep_head_and_tail() -> None:
    env = CutObservations(Echo(TASK), 4)
    assert (await env.reset(seed=0)).messages[0]["content"] == "opening"
    result = await env.step(Action("abcdefgh", {"role": "assistant", "content": ""}))
    assert result.observation.messages[0]["content"] == (
        "ab\n[... 4 of 8 characters left out ...]\ngh"
    )


def halved(action: Action, result: StepResult) -> float:
    assert isinstance(result.reward, float)
    return result.reward / 2 - len(action.text)


async def test_a_shaped_reward_takes_the_place_of_the_steps() -> None:
    env = RewardShaping(Echo(TASK), halved)
    await env.reset(seed=0)
    result = await env.step(Action("ab", {"role": "assistant", "content": ""}))
    assert result.reward == -1.5


async def test_what_a_wrapper_changes_runs_beside_the_event_loop() -> None:
    seen: list[threading.Thread] = []

    def shape(action: Action, result: StepResult) -> float:
        seen.append(threading.current_thread())
        return 0.0

    def token_ends(text: str) -> Sequence[int]:
        seen.append(threading.current_thread())
        return range(len(text))

    class Own(Wrapper):
        def opened(self, observation: Observation) -> Observation:
            seen.append(threading.current_thread())
            return observation

        def stepped(self, action: Action, result: StepResult) -> StepResult:
            seen.append(threading.current_thread())
            return result

    env = Own(RewardShaping(TokenLimit(Echo(TASK), 9), shape))
    env.use_tokenizer(token_ends)
    await env.reset(seed=0)
    await env.step(Action("a", {"role": "assistant", "content": "a"}))
    assert len(seen) == 4
    assert threading.current_thread() not in seen


def test_wrapped_environments_keep_the_contract_and_their_state() -> None:
    names = (limit("turn_limit", max_turns=3), limit("cut_observations", max_chars=9))
    check_env(spec(*names), TASK)


class PaysOnce(Wrapper):
    """Pays the first reward alone."""

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.played, self.paid = env.unwrapped, 0

    def stepped(self, action: Action, result: StepResult) -> StepResult:
        self.paid += 1
        return result if self.paid == 1 else replace(result, reward=0.0)


class PaysOnceInTime(TurnLimit):
    def __init__(self, env: Env) -> None:
        super().__init__(env, 3)
        self.paid = 0

    stepped = PaysOnce.stepped


class PaysOnceAndLocks(PaysOnce):
    kept = ("paid",)

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self.lock = threading.Lock()


@pytest.mark.parametrize("kind", [PaysOnce, PaysOnceInTime, PaysOnceAndLocks])
async def test_what_a_wrapper_counts_goes_on_from_a_checkpoint(kind: type[Any]) -> None:
    action = Action("a", {"role": "assistant", "content": "a"})
    before, after = AsyncEnv(kind(Echo(TASK))), AsyncEnv(kind(Echo(TASK)))
    await before.reset(seed=0)
    assert (await before.step(action)).reward == 1.0
    await after.restore(await before.save())
    assert (await after.step(action)).reward == 0.0
    # of the inner environment it has no copy of its own
    assert after.env.unwrapped.heard == ["a", "a"]  # type: ignore[attr-defined]
    assert getattr(after.env, "played", after.env.unwrapped) is after.env.unwrapped


async def test_what_a_wrapper_cannot_keep_is_named() -> None:
    class Locked(PaysOnceAndLocks):
        pass

    with pytest.raises(
        EnvError, match=r"cannot be pickled: TypeError.*; leave out lock, by"
    ):
        await AsyncEnv(Locked(Echo(TASK))).save()


async def test_shaped_rewards_and_cut_observations_have_no_state() -> None:
    env = RewardShaping(CutObservations(Echo(TASK), 4), lambda action, result: 0.0)
    assert await AsyncEnv(env).save()


async def test_a_limit_goes_on_from_a_checkpoint() -> None:
    action = Action("a", {"role": "assistant", "content": "a"})
    made = spec(limit("turn_limit", max_turns=2), limit("token_limit", max_tokens=99))
    before, after = AsyncEnv(made.build(TASK)), AsyncEnv(made.build(TASK))
    for env in (before, after):
        env.env.use_tokenizer(lambda text: range(len(text)))
    await before.reset(seed=0)
    await before.step(action)
    await after.restore(await before.save())
    assert (await after.step(action)).truncated
    assert after.env.unwrapped.heard == ["a", "a"]  # type: ignore[attr-defined]


def test_a_wrapper_has_what_its_environment_has() -> None:
    env = spec(
        limit("turn_limit", max_turns=3), limit("cut_observations", max_chars=3)
    ).build(TASK, episode_id="e")
    assert isinstance(env, CutObservations)
    assert isinstance(env.unwrapped, Echo)
    assert env.unwrapped.episode_id == env.episode_id == "e"
    assert env.heard == []
    with pytest.raises(AttributeError, match="'Echo' object has no attribute 'colour'"):
        _ = env.colour


async def test_a_token_limit_needs_a_tokenizer() -> None:
    env = AsyncEnv(TokenLimit(Echo(TASK), 9))
    await env.reset(seed=0)
    with pytest.raises(EnvError, match="TokenLimit counts by the policy's tokenizer"):
        await env.step(Action("a", {"role": "assistant", "content": "a"}))


MODULE = """
from agentrl.envs import ToolEnv, Wrapper

class Loud(Wrapper):
    def __init__(self, env, volume=1):
        super().__init__(env)
        self.volume = volume

def shape(action, result):
    return 7.0

def none(env):
    return None
"""


@pytest.fixture
def made(write: Write, tmp_path: Path) -> Callable[[str], Env]:
    (tmp_path / "own.py").write_text(MODULE)

    def make(text: str) -> Env:
        (stage,) = load_config(write(f"env: {{wrappers: {text}}}")).resolved_stages()
        return env_spec(stage, LiveObjects()).build(TASK)

    return make


async def test_wrappers_of_a_configuration_are_the_first_one_innermost(
    made: Callable[[str], Env],
) -> None:
    env = made(
        "[{function: 'own.py:Loud', args: {volume: 3}}, "
        "{function: turn_limit, args: {max_turns: 2}}, "
        "{function: reward_shaping, args: {function: 'own.py:shape'}}]"
    )
    assert isinstance(env, RewardShaping)
    assert isinstance(env.env, TurnLimit)
    assert isinstance(env.env.env, Wrapper)
    assert env.volume == 3
    await env.reset(seed=0)
    assert (
        await env.step(Action("a", {"role": "assistant", "content": "a"}))
    ).reward == 7.0


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "[turn_limits]",
            r"='turn_limits' is unknown; did you mean 'turn_limit'\?; choose one of turn_",
        ),
        ("[turn_limit]", r"turn_limit cannot be made with the arguments none"),
        (
            "[{function: turn_limit, args: {max_turns: 0}}]",
            r"TurnLimit\.max_turns must be a num",
        ),
        ("['own.py:quiet']", r"own.py.* has no 'quiet'"),
        ("['own.py:none']", r"own.py:none must give an Env, got NoneType"),
    ],
)
def test_a_wrong_wrapper_is_named(
    made: Callable[[str], Env], text: str, fault: str
) -> None:
    with pytest.raises(AgentRLError, match=fault):
        made(text)
