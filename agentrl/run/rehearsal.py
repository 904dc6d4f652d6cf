"""Rehearsal: plays episodes of a stage with a scripted policy and scores them, without a model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from agentrl.config import StageConfig
from agentrl.envs import EnvSpec
from agentrl.errors import ConfigError
from agentrl.rollouts import DriverSpec, EpisodeContext, EpisodeKey, RolloutSpec, run_episode
from agentrl.run.build import LiveObjects, env_spec, rollout_spec
from agentrl.tools.parsers import load_parser
from agentrl.types import (
    Completion,
    EngineInfo,
    GenerateRequest,
    Message,
    ParsedMessage,
    Task,
    TokenUsage,
    ToolCall,
    Trajectory,
)

_MAX_TURNS = 32
_UNKNOWN = ToolCall("call_0", "no_such_tool_agentrl_check", {"x": 1})


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """One scored episode.

    Args:
        said: what the policy answered: ``I do not know.``, or the task's own answer.
        trajectory: the episode.
        bools: reward functions that gave a bool.
    """

    said: str
    trajectory: Trajectory
    bools: Sequence[str]


class ScriptedPolicy:
    """``RolloutEngine`` of messages: calls a tool that does not exist where tools are on offer,
    then says one thing.

    Args:
        text: what it says.
        calls: whether it makes that call first.
    """

    def __init__(self, text: str, *, calls: bool) -> None:
        self._text = text
        self._calls = calls

    async def generate(self, request: GenerateRequest) -> Completion:
        """See ``RolloutEngine.generate``."""
        message: Message = {"role": "assistant", "content": self._text}
        calls: tuple[ToolCall, ...] = ()
        if self._calls and request.tools:
            self._calls = False
            calls = (_UNKNOWN,)
            message = {"role": "assistant", "content": "", "tool_calls": [_UNKNOWN.openai()]}
        return Completion(
            request_id=request.request_id,
            segments=(),
            finish_reason="stop",
            usage=TokenUsage(0, 0),
            text=str(message["content"]),
            parsed=ParsedMessage(message, calls, ()),
        )

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Every answer comes at once."""

    async def release(self, session_id: str) -> None:
        """Nothing is kept for an episode."""

    def info(self) -> EngineInfo:
        """See ``RolloutEngine.info``."""
        return EngineInfo("scripted", "scripted", 0, 0, 0, returns_ids=False)


def rehearse(
    stage: StageConfig, sets: Mapping[str, tuple[Task, bool]]
) -> Iterator[tuple[str, Rehearsed]]:
    """Plays the first task of each set with a wrong answer and, where the task has one, with its
    own answer.

    Args:
        stage: whole; one that plays episodes.
        sets: a task by the setting that names its data set, and whether tools are on offer there.

    Yields:
        The setting, and an episode with its rewards.

    Raises:
        ConfigError: an episode failed, such as by a reward function that raised or gave no finite
            number.
    """
    live = LiveObjects()
    spec = rollout_spec(stage, live, None)
    limits = replace(spec.limits, max_turns=min(spec.limits.max_turns, _MAX_TURNS))
    spec = replace(spec, limits=limits)
    for setting, (task, with_tools) in sets.items():
        env = None if with_tools else env_spec(stage, live, with_tools=False)
        for said in _answers(task):
            where = f"{stage.name}: {setting}"
            yield setting, asyncio.run(_play(spec, task, env, said, where))


async def _play(
    spec: RolloutSpec, task: Task, env: EnvSpec | DriverSpec | None, said: str, where: str
) -> Rehearsed:
    engine = ScriptedPolicy(said, calls=said == _WRONG)
    rubric = spec.rubric.build()
    parts = EpisodeContext(spec, engine, None, load_parser("none"), rubric)
    try:
        trajectory = await run_episode(parts, task, EpisodeKey(0, 0, label="check"), env=env)
    finally:
        await parts.close()
    if not trajectory.status.finished:
        raise ConfigError(
            f"stage {where}: an episode of task {task.id!r} with a scripted policy that says "
            f"{said!r} failed ({trajectory.status.reason}): {trajectory.status.detail}"
        )
    return Rehearsed(said, trajectory, rubric.bools)


_WRONG = "I do not know."


def _answers(task: Task) -> list[str]:
    truth = task.answer[0] if isinstance(task.answer, list | tuple) and task.answer else task.answer
    own = str(truth) if isinstance(truth, str | int | float) and str(truth) else None
    return [_WRONG] if own is None else [_WRONG, own]
