"""The rules of an Env: what the driver enforces, and what check_env says of an env that breaks
one.
"""

from __future__ import annotations

import random
import threading
from typing import Any, ClassVar

import pytest
from PIL import Image as Pictures

from agentrl.envs import AsyncEnv, Env, EnvSpec, check_env, env_findings
from agentrl.errors import EnvError, SandboxError
from agentrl.types import (
    Action,
    CallRecord,
    Message,
    Observation,
    StepResult,
    Task,
    ToolResult,
    ToolSpec,
)

TASK = Task("t-1", ({"role": "user", "content": "Guess."},), answer=3)
SPOKEN = Action("3", {"role": "assistant", "content": "3"})
USER: Message = {"role": "user", "content": "Guess again."}


class Guess(Env):
    """Keeps every rule; the tests break one each by overriding what it gives."""

    def __init__(self, task: Task, **broken: Any) -> None:
        self.task = task
        self.broken = broken
        self.num_guesses = 0
        self.threads: list[str] = []

    def reset(self, *, seed: int) -> Observation:
        self.threads.append(threading.current_thread().name)
        return self.broken.get("observation", Observation(messages=self.task.messages))

    def step(self, action: Action) -> StepResult:
        self.num_guesses += 1
        if "result" in self.broken:
            return self.broken["result"]  # type: ignore[no-any-return]
        return StepResult(Observation(messages=(USER,)), terminated=self.num_guesses == 3)


class AsyncGuess(Env):
    def __init__(self, task: Task) -> None:
        self.task = task

    async def reset(self, *, seed: int) -> Observation:
        return Observation(messages=self.task.messages)

    async def step(self, action: Action) -> StepResult:
        return StepResult(Observation(), reward=1.0, terminated=True)


def rules(env: Any) -> list[str]:
    with pytest.raises(EnvError) as caught:
        check_env(env, TASK)
    return [line.split("[")[1].split("]")[0] for line in str(caught.value).splitlines()[1:]]


def goes_on(**fields: Any) -> StepResult:
    return StepResult(**({"observation": Observation(messages=(USER,))} | fields))


@pytest.mark.parametrize("env", [Guess, AsyncGuess])
def test_an_env_that_keeps_the_rules_passes(env: type[Env]) -> None:
    check_env(env, TASK)  # type: ignore[arg-type]


async def test_check_env_can_be_called_beside_a_running_loop() -> None:
    check_env(Guess, TASK)


@pytest.mark.parametrize(
    ("observation", "rule"),
    [
        ("hello", "observation-type"),
        (Observation(), "something-to-answer"),
        (Observation(messages=[USER]), "messages-type"),  # type: ignore[arg-type]
        (Observation(messages=({"role": "human", "content": "x"},)), "message-shape"),  # type: ignore[typeddict-item]
        (Observation(messages=({"role": "user", "content": 3},)), "message-shape"),
        (Observation(messages=({"role": "tool", "content": "x"},)), "message-shape"),
        (Observation(messages=("hi",)), "message-shape"),  # type: ignore[arg-type]
        (
            Observation(
                messages=(
                    {"role": "assistant", "content": "", "tool_calls": [{"id": "a"}]},
                )
            ),
            "message-shape",
        ),
        (
            Observation(messages=(USER, {"role": "assistant", "content": "The answer is"})),
            "policy-speaks-next",
        ),
        (Observation(rewrite=(USER, SPOKEN.message)), "policy-speaks-next"),
        (Observation(messages=(USER,), tools=({"name": "x"},)), "tool-specs"),  # type: ignore[arg-type]
        (
            Observation(
                messages=(USER,), tools=(ToolSpec("a", "", {}), ToolSpec("a", "", {}))
            ),
            "tool-specs",
        ),
        (Observation(messages=(USER,), info={"x": {1}}), "json-info"),
        (Observation(messages=(USER,), info={"x": float("nan")}), "json-info"),
    ],
)
def test_a_wrong_opening_is_named(observation: Any, rule: str) -> None:
    assert rules(lambda task: Guess(task, observation=observation)) == [rule]


@pytest.mark.parametrize(
    ("result", "rule"),
    [
        (("obs", 0.0, True, False, {}), "step-type"),
        (goes_on(terminated=1), "end-flags"),
        (goes_on(terminated=True, truncated=True), "end-flags"),
        (goes_on(reward=float("nan")), "step-reward"),
        (goes_on(reward=None), "step-reward"),
        (goes_on(reward=True), "step-reward"),
        (goes_on(calls=["call"]), "step-calls"),
        (goes_on(info=[1]), "json-info"),
        (goes_on(observation=Observation()), "something-to-answer"),
        (goes_on(observation=None), "observation-type"),
        (goes_on(observation=Observation(messages=(SPOKEN.message,))), "message-shape"),
    ],
)
def test_a_wrong_step_is_named(result: Any, rule: str) -> None:
    assert rules(lambda task: Guess(task, result=result)) == [rule]


def test_an_env_that_does_not_follow_its_seed_is_named() -> None:
    chance = random.Random()

    class Chance(Guess):
        def step(self, action: Action) -> StepResult:
            return goes_on(
                observation=Observation(
                    messages=({"role": "user", "content": str(chance.random())},)
                )
            )

    assert rules(Chance) == ["seed-determinism"]


def test_an_env_that_ends_by_chance_is_named() -> None:
    ends = iter([False, True, True, True])

    class Chance(Guess):
        def step(self, action: Action) -> StepResult:
            return goes_on(terminated=next(ends))

    assert rules(Chance) == ["seed-determinism"]


def test_an_env_that_drops_calls_is_named() -> None:
    tools = (ToolSpec("look", "", {"type": "object"}),)
    observation = Observation(messages=(USER,), tools=tools)

    assert (
        rules(lambda task: Guess(task, observation=observation))
        == ["calls-answered", "calls-recorded"] * 2
    )


def test_an_env_that_answers_its_calls_passes() -> None:
    class Answers(Guess):
        def reset(self, *, seed: int) -> Observation:
            return Observation(
                messages=(USER,), tools=(ToolSpec("look", "", {"type": "object"}),)
            )

        def step(self, action: Action) -> StepResult:
            ids = [
                *[call.id for call in action.tool_calls],
                *[problem.id for problem in action.problems],
            ]
            results = [ToolResult(call_id, "", "no") for call_id in ids]
            records = tuple(CallRecord(None, None, result) for result in results)
            messages = tuple(result.message() for result in results)
            return StepResult(
                Observation(messages=messages), calls=records, terminated=not ids
            )

    check_env(Answers, TASK)


def test_an_env_that_raises_is_named() -> None:
    class Raises(Guess):
        def step(self, action: Action) -> StepResult:
            raise KeyError("board")

    with pytest.raises(
        EnvError,
        match=r"\[raises\] Raises\.step raised KeyError: 'board' \(.*:\d+\); tell the model",
    ):
        check_env(Raises, TASK)


def test_an_env_that_closes_only_once_is_named() -> None:
    class Once(Guess):
        def close(self) -> None:
            del self.task

    assert rules(Once) == ["close-twice"]


def test_an_env_that_closes_only_after_reset_is_named() -> None:
    class Late(Guess):
        def reset(self, *, seed: int) -> Observation:
            self.board = [1]
            return super().reset(seed=seed)

        def close(self) -> None:
            self.board.clear()

    assert rules(Late) == ["close-unused"]


def test_an_env_that_cannot_be_built_is_named() -> None:
    assert rules(EnvSpec(Guess, {"task": TASK})) == ["builds"]


def test_a_snapshot_that_is_no_json_is_named() -> None:
    class Opaque(Guess):
        def snapshot(self) -> Any:
            return {"board": object()}

    assert rules(Opaque) == ["json-snapshot"]


@pytest.mark.parametrize(
    "state",
    [
        {"form": "text", "text": "here"},
        {"form": "table", "columns": ["a"], "rows": [[1]]},
        {"form": "grid", "cells": ["#.#"]},
        {"form": "image", "media_type": "image/png", "base64": ""},
        {"board": 3},
        ["no form"],
        None,
    ],
)
def test_a_snapshot_of_a_known_form_or_none_is_right(state: Any) -> None:
    class Shown(Guess):
        def snapshot(self) -> Any:
            return state

    check_env(Shown, TASK)


@pytest.mark.parametrize(
    "state",
    [{"form": "video"}, {"form": "text"}, {"form": "grid", "cells": "#"}, {"form": []}],
)
def test_a_snapshot_of_another_form_is_named(state: Any) -> None:
    class Shown(Guess):
        def snapshot(self) -> Any:
            return state

    assert rules(Shown) == ["snapshot-form"]


@pytest.mark.parametrize("reward", [10**400, "1", 1j, True, float("nan")])
async def test_a_step_reward_that_no_float_holds_is_found(reward: Any) -> None:
    (finding,) = await env_findings(
        lambda task: Guess(task, result=goes_on(reward=reward)), TASK
    )
    assert finding.rule == "step-reward"


async def test_findings_come_without_raising() -> None:
    (finding,) = await env_findings(
        lambda task: Guess(task, result=goes_on(reward=None)), TASK
    )

    assert finding.rule == "step-reward"
    assert (
        finding.detail
        == "step: reward must be a finite number, got None; 0.0 where there is none"
    )


async def test_a_second_reset_is_refused() -> None:
    env = AsyncEnv(Guess(TASK))
    await env.reset(seed=1)

    with pytest.raises(
        EnvError, match="Guess: an Env is single use, so reset comes once and first"
    ):
        await env.reset(seed=1)


async def test_a_step_before_reset_is_refused() -> None:
    with pytest.raises(
        EnvError, match="step comes after reset and before the end; call reset first"
    ):
        await AsyncEnv(Guess(TASK)).step(SPOKEN)


async def test_a_step_after_the_end_is_refused() -> None:
    env = AsyncEnv(AsyncGuess(TASK))
    await env.reset(seed=1)
    await env.step(SPOKEN)

    with pytest.raises(EnvError, match="the episode has ended; build another Env"):
        await env.step(SPOKEN)


async def test_the_driver_refuses_what_breaks_a_rule() -> None:
    env = AsyncEnv(Guess(TASK, result=goes_on(reward=float("inf"))))
    await env.reset(seed=1)

    with pytest.raises(
        EnvError, match=r"Guess breaks the contract of an Env: \[step-reward\]"
    ):
        await env.step(SPOKEN)


async def test_the_driver_closes_once() -> None:
    closed: list[int] = []

    class Closes(Guess):
        def close(self) -> None:
            closed.append(1)

    env = AsyncEnv(Closes(TASK))
    await env.close()
    await env.close()

    assert closed == [1]


async def test_a_failure_of_the_sandbox_passes_as_it_is() -> None:
    class Lost(Guess):
        def reset(self, *, seed: int) -> Observation:
            raise SandboxError("gone")

    with pytest.raises(SandboxError, match="gone"):
        await AsyncEnv(Lost(TASK)).reset(seed=1)


async def test_sync_methods_run_beside_the_loop() -> None:
    env = Guess(TASK)
    await AsyncEnv(env).reset(seed=1)

    assert env.threads == ["agentrl-env"]


def test_an_env_that_does_not_go_on_from_its_state_is_named() -> None:
    class Elsewhere(Guess):
        def load_state_dict(self, state: Any) -> None:
            super().load_state_dict({**state, "num_guesses": 2})

    assert rules(Elsewhere) == ["state-restored"]


def test_an_env_whose_state_is_not_in_its_attributes_is_named() -> None:
    boards: dict[int, list[str]] = {}

    class Outside(Guess):
        def reset(self, *, seed: int) -> Observation:
            self.board = id(self)
            boards[self.board] = []
            return super().reset(seed=seed)

        def step(self, action: Action) -> StepResult:
            boards[self.board].append(action.text)
            return super().step(action)

        def close(self) -> None:
            boards.pop(id(self), None)

    with pytest.raises(
        EnvError,
        match=r"\[state-restored\] .* raised KeyError: .*or None where it cannot be saved",
    ):
        check_env(Outside, TASK)


def test_an_env_that_says_it_cannot_be_saved_keeps_the_rules() -> None:
    class NotResumable(Guess):
        def state_dict(self) -> None:
            return None

        def load_state_dict(self, state: Any) -> None:
            raise AssertionError

    check_env(NotResumable, TASK)


async def test_what_cannot_be_copied_is_a_failure_of_the_environment() -> None:
    message: dict[str, Any] = {"role": "user", "content": "Guess."}
    message["itself"] = message
    env = AsyncEnv(Guess(TASK, observation=Observation(messages=(message,))))  # type: ignore[arg-type]
    with pytest.raises(EnvError, match="what Guess gave cannot be read: RecursionError"):
        await env.reset(seed=0)


class Photo(dict[str, Any]):
    """An image that tells where it is read."""

    read_in: ClassVar[list[str]] = []

    def get(self, key: str, default: Any = None) -> Any:
        self.read_in.append(threading.current_thread().name)
        return super().get(key, default)


class Seeing(AsyncGuess):
    async def reset(self, *, seed: int) -> Observation:
        seen: Message = {"role": "user", "content": [{"type": "image", "image": "photo"}]}
        pixel = Pictures.new("RGB", (1, 1))
        return Observation(messages=(seen,), images={"photo": Photo(bytes=pixel)})


async def test_images_are_read_in_a_thread_and_not_on_the_event_loop() -> None:
    await AsyncEnv(Seeing(TASK)).reset(seed=1)
    assert set(Photo.read_in) == {"agentrl-env"}
