"""Replay: stored episodes of the code example, and of an environment with a hidden clock, again."""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from agentrl.config import load_config, to_yaml
from agentrl.rollouts import EpisodeContext, EpisodeKey, run_episode
from agentrl.run.build import LiveObjects, rollout_spec
from agentrl.run.data.datasets import DataSet
from agentrl.run.replay import Replayer
from agentrl.store import RunDirectory, TrajectoryWriter
from agentrl.tools.parsers import load_parser
from agentrl.types import (
    CallProblem,
    Completion,
    EngineInfo,
    GenerateRequest,
    Message,
    ParsedMessage,
    TokenUsage,
    ToolCall,
    Trajectory,
)
from benchmarks.figures import ROOT, Figures

__all__ = ["measure"]

NUMBER = 200
CODE = ROOT / "examples" / "code" / "config.yaml"
CLOCK = """
import time

from agentrl.envs import Env
from agentrl.types import Observation, StepResult, Task


class Clock(Env):
    def __init__(self, task):
        self.task = task

    def reset(self, *, seed):
        return Observation(({"role": "user", "content": "What time is it?"},))

    def step(self, action):
        told = Observation(({"role": "user", "content": f"It was {time.perf_counter_ns()}."},))
        return StepResult(told, terminated=True)


def tasks(seed, num_tasks=200):
    return [Task(f"clock-{index}") for index in range(num_tasks)]
"""
CLOCK_CONFIG = """
model: {path: none}
env: {entry_point: clock.py:Clock}
data: {train: clock.py:tasks}
train: {steps: 1}
"""
NOTE = (
    f"Replay: {NUMBER} episodes of the code example with a scripted policy that solves, guesses, "
    "breaks its calls and its programs, and writes files; stored with the files of each turn, then "
    f"played again from the record, eight at a time. {NUMBER} more of an environment that tells "
    "its clock when it ends."
)


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Adds the figures of replaying both kinds of episodes."""
    with tempfile.TemporaryDirectory() as folder:
        run = _stored(Path(folder, "code"), CODE, arguments.seed)
        start = time.monotonic()
        replayed = Replayer(run).replay(_ids())
        seconds = time.monotonic() - start
        odd = [one for one in replayed if one.difference or one.failure]
        calls = sum(len(turn.calls) for one in replayed for turn in one.replayed.turns)
        figures.at_most(f"of {NUMBER} code episodes, replayed otherwise", len(odd), "", 0)
        figures.report("calls that they made again", calls, "")
        figures.report("code episodes replayed", NUMBER / seconds, "1/s")
        Path(folder, "clock.py").write_text(CLOCK)
        config = Path(folder, "config.yaml")
        config.write_text(CLOCK_CONFIG)
        run = _stored(Path(folder, "clock"), config, arguments.seed)
        found = [str(one.difference) for one in Replayer(run).replay(_ids())]
        named = found.count("observation after turn 0")
        figures.at_least(
            f"of {NUMBER} episodes with a hidden clock, named", named, "", NUMBER
        )
    figures.note(NOTE)


def _ids() -> list[str]:
    return [f"{index}-0-0" for index in range(NUMBER)]


def _stored(folder: Path, config: Path, seed: int) -> RunDirectory:
    """A run with episodes of the last stage of a configuration."""
    settings = [f"run.dir={folder}", f"run.seed={seed}", "store.states=turn"]
    loaded = load_config(config, settings)
    stage = loaded.resolved_stages()[-1]
    spec = rollout_spec(stage, LiveObjects(), None)
    tasks = DataSet.of_training(stage).tasks()[:NUMBER]
    run = RunDirectory.create(folder, {"seed": seed}, to_yaml(loaded))

    async def play(index: int) -> Trajectory:
        engine = ScriptedSolver(random.Random(f"{seed}-{index}"), str(tasks[index].answer))
        parts = EpisodeContext(spec, engine, None, load_parser("none"), spec.rubric.build())
        return await run_episode(parts, tasks[index], EpisodeKey(index, 0))

    with TrajectoryWriter(run) as writer:
        for index in range(NUMBER):
            writer.write(asyncio.run(play(index)), 0)
    return run


class ScriptedSolver:
    """``RolloutEngine`` of messages that makes one or two calls of ``python`` and then answers.

    Args:
        rng: decides what it does wrong.
        answer: of the task.
    """

    def __init__(self, rng: random.Random, answer: str) -> None:
        self._rng = rng
        self._answer = answer
        self._calls = rng.randrange(3)

    async def generate(self, request: GenerateRequest) -> Completion:
        """See ``RolloutEngine.generate``."""
        parsed = self._call() if self._calls else self._say()
        self._calls = max(0, self._calls - 1)
        return Completion(
            request.request_id,
            (),
            "stop",
            TokenUsage(0, 0),
            text=str(parsed.message["content"]),
            parsed=parsed,
        )

    def _call(self) -> ParsedMessage:
        kind = self._rng.choice(["print", "file", "error", "random", "problem"])
        if kind == "problem":
            broken = CallProblem("call_0", "malformed_json", "the JSON ends too early", "{")
            return ParsedMessage({"role": "assistant", "content": "{"}, (), (broken,))
        number = self._rng.randrange(1000)
        code = {
            "print": f"print({number} * 7)",
            "file": f"open('f{number % 3}.txt', 'w').write('{number}' * 50); print('kept')",
            "error": f"{number} / 0",
            "random": f"import random; random.seed({number}); print(random.random())",
        }[kind]
        call = ToolCall("call_0", "python", {"code": code})
        message: Message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [call.openai()],
        }
        return ParsedMessage(message, (call,), ())

    def _say(self) -> ParsedMessage:
        text = self._answer if self._rng.random() < 0.5 else "42"
        return ParsedMessage({"role": "assistant", "content": text}, (), ())

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Every answer comes at once."""

    async def release(self, session_id: str) -> None:
        """Nothing is kept for an episode."""

    def info(self) -> EngineInfo:
        """See ``RolloutEngine.info``."""
        return EngineInfo("scripted", "scripted", 0, 0, 0, returns_ids=False)
