"""Rehearsed episodes: plays tasks of a stage with a scripted policy and scores them, without a
model.

- The empty answer calls a tool that does not exist, where tools are on offer, and then says
  nothing: it must not get full marks.
- The reference solution, where the task or its environment gives one, must get them.
- Hostile answers must get a reward, but not them, and in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from agentrl.config import StageConfig
from agentrl.envs import ENV_THREADS, EnvSpec, Rubric, opened_env, solution_of
from agentrl.envs.rewards.reward_check import hostile_findings, scorer
from agentrl.envs.rewards.shape import length_cost, tool_cost
from agentrl.errors import ConfigError, EnvError
from agentrl.rollouts import DriverSpec, EpisodeKey, RolloutSpec
from agentrl.rollouts.group_scores import with_group_scores
from agentrl.run.build import LiveObjects, env_spec, rollout_spec
from agentrl.run.play.message_policies import ScriptedPolicy
from agentrl.run.play.player import Player
from agentrl.types import Message, Observation, Task, ToolSpec, Trajectory, seed_for
from agentrl.types.user_code.values import changed_parts, watched_tasks
from agentrl.types.user_code.wall import call_user, failed_as

_MAX_TURNS = 32
_HOSTILE_TURNS = 2
_LABEL = "check"
# Sums of weights are exact to this much in floating point.
_MARGIN = 1e-6
_COSTS = (length_cost.__name__, tool_cost.__name__)

ScriptKind = Literal[
    "empty answer", "reference solution", "task's answer", "hostile answer"
]


@dataclass(frozen=True, slots=True)
class Script:
    """What a scripted policy says in an episode.

    Args:
        kind: ``task's answer`` is ``Task.answer`` as text, where no solution is given; it need not
            be one, so nothing is asked of its reward.
        turns: the assistant's messages.
    """

    kind: ScriptKind
    turns: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """One scored episode.

    Args:
        setting: names its data set.
        script: what the policy said.
        trajectory: the episode.
        bools: reward functions that gave a bool.
        marks: its reward; without the built-in costs where ``reward.full_marks`` is not set.
        full_marks: what a right solution gets of these.
        tools: on offer in the opening.
        changed: parts of its task that the environment, its tools or a reward changed in the copies
            that they got.
    """

    setting: str
    script: Script
    trajectory: Trajectory
    bools: Sequence[str]
    marks: float
    full_marks: float
    tools: tuple[ToolSpec, ...]
    changed: tuple[str, ...]

    @property
    def fault(self) -> str | None:
        """What is wrong about its reward, with what to do; None where it is as it must be."""
        full = self.marks >= self.full_marks - _MARGIN
        where = f"{self.setting}: task {self.trajectory.task.id!r}: the {self.script.kind}"
        if self.script.kind == "empty answer" and full:
            return (
                f"{where} gets full marks, {self.marks:g} of {self.full_marks:g}; a policy that "
                "does nothing would learn to go on so: correct the reward, or set reward.full_marks"
            )
        if self.script.kind == "reference solution" and not full:
            return (
                f"{where} gets {self.marks:g} of {self.full_marks:g} ({self.trajectory.status}); "
                "correct the solution, the tools or the reward, or set reward.full_marks"
            )
        return None


def marks_of(
    stage: StageConfig, rubric: Rubric, trajectory: Trajectory
) -> tuple[float, float]:
    """What an episode got, and what a right solution gets: ``reward.full_marks``, or the sum of the
    positive weights of the functions, or 1 where there is none.

    A right solution too pays for its length and its calls, and nobody can say how much: the
    built-in costs count in neither sum, unless ``reward.full_marks`` says what is full with them.
    """
    reward = trajectory.reward
    assert reward is not None, "the episode has finished"
    costs, full = _marking(stage, rubric)
    return reward - sum(
        rubric.weights[name] * trajectory.rewards[name] for name in costs
    ), full


def _marking(stage: StageConfig, rubric: Rubric) -> tuple[set[str], float]:
    """The costs that count in no sum, and what a right solution gets."""
    if stage.reward.full_marks is not None:
        return set(), stage.reward.full_marks
    costs = {
        entry.function
        for entry in stage.reward.functions
        if entry.function in _COSTS and entry.weight > 0
    }
    full = sum(
        max(weight, 0.0) for name, weight in rubric.weights.items() if name not in costs
    )
    return costs, full or 1.0


def hostile_faults(stage: StageConfig, setting: str, task: Task) -> list[str]:
    """What is wrong about the rewards of hostile answers to a task of the stage; one line each.

    Args:
        stage: whole; one that plays episodes.
        setting: names the data set.
        task: of it.
    """
    spec = rollout_spec(stage, LiveObjects(), None)
    spec = replace(spec, episode=spec.episode.replace(max_turns=_HOSTILE_TURNS))
    rubric = spec.rubric.build()

    async def played(text: str) -> float:
        script = Script("hostile answer", ({"role": "assistant", "content": text},))
        return (await _play(stage, spec, task, spec.env, script, setting, None)).marks

    # a program that plays its episodes itself would be started for each answer
    score = played if isinstance(spec.env, EnvSpec) else scorer(rubric, task)
    found = hostile_findings(score, rubric, full_marks=_marking(stage, rubric)[1])
    return [
        f"stage {stage.name}: {setting}: task {task.id!r}: {finding}" for finding in found
    ]


def rehearse(
    stage: StageConfig, sets: Mapping[str, tuple[Sequence[Task], bool]]
) -> Iterator[Rehearsed]:
    """Plays each task twice: with the empty answer, and with its reference solution, or else with
    its own answer as text.

    Args:
        stage: whole; one that plays episodes.
        sets: tasks by the setting that names their data set, and whether tools are on offer there.

    Raises:
        ConfigError: an episode failed, such as by a reward function that raised or gave no finite
            number.
        DataError: a solution cannot be read.
    """
    live = LiveObjects()
    spec = rollout_spec(stage, live, None)
    max_turns = min(spec.episode.max_turns, _MAX_TURNS)
    spec = replace(spec, episode=spec.episode.replace(max_turns=max_turns))
    for setting, (tasks, with_tools) in sets.items():
        env = spec.env if with_tools else env_spec(stage, live, with_tools=False)
        for task in tasks:
            opening, solution = asyncio.run(opening_of(spec, env, task))
            for script in _scripts(task, solution):
                yield asyncio.run(_play(stage, spec, task, env, script, setting, opening))


async def opening_of(
    spec: RolloutSpec, env: EnvSpec | DriverSpec, task: Task
) -> tuple[Observation | None, tuple[Message, ...] | None]:
    """How an episode of the task opens, and the task's reference solution. An agent's own program
    opens its episodes itself: None.
    """
    if not isinstance(env, EnvSpec):
        return None, solution_of(task)
    seed = seed_for(spec.root_seed, "env", _LABEL, 0)
    async with opened_env(partial(env.build, task), seed=seed) as (built, observation):
        solution = await call_user(
            partial(solution_of, task, built.env),
            failed=failed_as(EnvError, "its solution raised"),
            in_thread=ENV_THREADS.run,
        )
        return observation, solution


async def _play(
    stage: StageConfig,
    spec: RolloutSpec,
    task: Task,
    env: EnvSpec | DriverSpec,
    script: Script,
    setting: str,
    opening: Observation | None,
) -> Rehearsed:
    policy = ScriptedPolicy(script.turns, calls=script.kind == "empty answer")
    async with Player(replace(spec, parser="none"), policy) as player:
        rubric = player.rubric
        with watched_tasks() as given:
            played = await player.play(task, EpisodeKey(0, 0, label=_LABEL), env)
            (trajectory,) = await with_group_scores(rubric, [played])
    if not trajectory.status.finished:
        failed = ConfigError(
            f"stage {stage.name}: {setting}: an episode of task {task.id!r} with a scripted policy "
            f"(the {script.kind}) failed ({trajectory.status.reason}): {trajectory.status.detail}"
        )
        failed.exit_code = trajectory.info.get("exit_code", failed.exit_code)
        raise failed
    tools = (opening.tools if opening else None) or ()
    marks = marks_of(stage, rubric, trajectory)
    changed = dict.fromkeys(part for pair in given for part in changed_parts(*pair))
    return Rehearsed(
        setting, script, trajectory, rubric.bools, *marks, tools, tuple(changed)
    )


def _scripts(task: Task, solution: tuple[Message, ...] | None) -> Iterator[Script]:
    yield Script("empty answer", ({"role": "assistant", "content": ""},))
    if solution is not None:
        yield Script("reference solution", solution)
        return
    truth = (
        task.answer[0]
        if isinstance(task.answer, list | tuple) and task.answer
        else task.answer
    )
    if isinstance(truth, str | int | float) and str(truth):
        yield Script("task's answer", ({"role": "assistant", "content": str(truth)},))
