"""Replay: recorded actions in fresh environments and sandboxes, and what comes out otherwise."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli.main import run as command_line
from agentrl.config import load_config, to_yaml
from agentrl.errors import ConfigError
from agentrl.rollouts import EpisodeContext, EpisodeKey, run_episode
from agentrl.run.build import LiveObjects, rollout_spec
from agentrl.run.data.datasets import DataSet
from agentrl.run.replay import Replayer
from agentrl.store import RunDirectory, TrajectoryReader, TrajectoryWriter
from agentrl.tools.parsers import load_parser
from agentrl.types import (
    Completion,
    EngineInfo,
    GenerateRequest,
    Message,
    ParsedMessage,
    Status,
    TokenUsage,
    ToolCall,
    Trajectory,
)
from tests.run.tiny_run import train

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "code" / "config.yaml"

Say = Callable[[Sequence[Message]], tuple[str, str]]
"""What a scripted policy answers to a conversation: a program to run, or empty, and its words."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Scripted:
    """``RolloutEngine`` of messages that says what a function does."""

    def __init__(self, say: Say) -> None:
        self._say = say

    async def generate(self, request: GenerateRequest) -> Completion:
        code, text = self._say(request.messages)
        calls = (ToolCall("call_0", "python", {"code": code}),) if code else ()
        message: Message = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = [call.openai() for call in calls]
        parsed = ParsedMessage(message, calls, ())
        usage = TokenUsage(0, 0)
        return Completion(request.request_id, (), "stop", usage, text=text, parsed=parsed)

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Every answer comes at once."""

    async def release(self, session_id: str) -> None:
        """Nothing is kept."""

    def info(self) -> EngineInfo:
        return EngineInfo("scripted", "scripted", 0, 0, 0, returns_ids=False)


def played(
    run_dir: Path, config: Path, say: Say, number: int, *settings: str
) -> RunDirectory:
    """A run with stored episodes of the last stage of a configuration."""
    loaded = load_config(
        config, [f"run.dir={run_dir}", "sandbox.backend=unsafe", *settings]
    )
    stage = loaded.resolved_stages()[-1]
    spec = rollout_spec(stage, LiveObjects(), None)
    tasks = DataSet.of_training(stage).tasks()[:number]

    async def play() -> list[Trajectory]:
        parser = load_parser("none")
        context = EpisodeContext(spec, Scripted(say), None, parser, spec.rubric.build())
        keys = [EpisodeKey(index, index % 2) for index in range(number)]
        return [
            await run_episode(context, task, key)
            for task, key in zip(tasks, keys, strict=True)
        ]

    run = RunDirectory.create(run_dir, {"seed": 0}, to_yaml(loaded))
    with TrajectoryWriter(run) as writer:
        for trajectory in asyncio.run(play()):
            assert trajectory.status.finished, trajectory.status
            writer.write(trajectory, 0)
    return run


def solve(messages: Sequence[Message]) -> tuple[str, str]:
    """Runs a program that prints and leaves a file, after one with an error, then says what it
    printed.
    """
    answers = [str(message["content"]) for message in messages if message["role"] == "tool"]
    question = str(messages[-1 - 2 * len(answers)]["content"])
    if not answers:
        return f"open('seen.txt', 'w').write({question!r}); 1 / 0", ""
    if len(answers) == 1:
        return "import random; random.seed(7); print(len(open('seen.txt').read()))", ""
    return "", answers[-1]


@pytest.mark.parametrize(
    ("number", "backend"),
    [(12, "unsafe"), pytest.param(200, "auto", marks=pytest.mark.slow)],
)
def test_stored_code_episodes_replay_alike(
    tmp_path: Path, number: int, backend: str
) -> None:
    settings = ("store.states=turn", f"sandbox.backend={backend}")
    run = played(tmp_path / "run", EXAMPLE, solve, number, *settings)
    ids = [f"{index}-{index % 2}-0" for index in range(number)]
    replayed = Replayer(run).replay([*ids, ids[0]])  # an id given twice is played once
    assert [one.recorded.id for one in replayed] == ids
    assert [str(one.difference or one.failure) for one in replayed] == [""] * number
    first = replayed[0]
    assert len(first.replayed.turns) == 3
    assert list(first.replayed.turns[0].files) == ["seen.txt"]  # it was really run
    assert first.replayed.reasons == first.recorded.reasons != {}


def test_a_clock_that_the_models_code_reads_is_named_with_its_tool(tmp_path: Path) -> None:
    def look(messages: Sequence[Message]) -> tuple[str, str]:
        asked = messages[-1]["role"] == "tool"
        return ("", "now") if asked else ("import time; print(time.perf_counter_ns())", "")

    run = played(tmp_path / "run", EXAMPLE, look, 4)
    replayed = Replayer(run).replay([f"{index}-{index % 2}-0" for index in range(4)])
    assert [str(one.difference or one.failure) for one in replayed] == [
        "tool result after turn 0"
    ] * 4


CLOCKED = '''
import time

from agentrl.envs import Env, EpisodeView
from agentrl.types import Action, Observation, StepResult, Task


class Clocked(Env):
    """Says what it was asked for, and lets a clock into one place."""

    def __init__(self, task: Task, hidden: str = "") -> None:
        self.hidden = hidden
        self.steps = 0

    def at(self, place: str):
        return time.perf_counter_ns() if self.hidden == place else 0

    def said(self, place: str) -> Observation:
        message = {"role": "user", "content": f"now {self.at(place)}"}
        return Observation((message,), info={"at": self.at(f"{place} info")})

    def reset(self, *, seed: int) -> Observation:
        return self.said("reset")

    def step(self, action: Action) -> StepResult:
        self.steps += 1
        reward = self.at("reward") * 1e-9
        info = {"at": self.at("step info")}
        done = self.steps == 2
        return StepResult(self.said("last" if done else "step"), reward, terminated=done, info=info)

    def snapshot(self):
        return {"at": self.at("state")}


def tasks(seed: int):
    for index in range(4):
        yield Task(f"t{index}")


def timed(view: EpisodeView) -> float:
    return float(view.env.at("score"))
'''


@pytest.mark.parametrize(
    ("hidden", "named"),
    [
        ("", ""),
        ("reset", "observation"),
        ("reset info", "observation info"),
        ("step", "observation after turn 0"),
        ("step info", "step info after turn 0"),
        ("reward", "step reward after turn 0"),
        ("state", "state"),
        ("last", "observation after turn 1"),
        ("score", "reward timed"),
    ],
)
def test_a_hidden_clock_is_named_where_it_is_seen(
    hidden: str, named: str, tmp_path: Path
) -> None:
    run = clocked(tmp_path, hidden)
    replayed = Replayer(run).replay([f"{index}-{index % 2}-0" for index in range(4)])
    assert [str(one.difference or one.failure) for one in replayed] == [named] * 4


def clocked(tmp_path: Path, hidden: str) -> RunDirectory:
    (tmp_path / "task.py").write_text(CLOCKED)
    config = tmp_path / "config.yaml"
    config.write_text(
        "model: {path: nowhere}\n"
        f"env: {{entry_point: task.py:Clocked, args: {{hidden: '{hidden}'}}}}\n"
        "data: {train: task.py:tasks}\n"
        "reward: {functions: [task.py:timed]}\n"
        "train: {steps: 1}\n"
    )
    return played(tmp_path / "run", config, lambda messages: ("", "go"), 4)


def test_an_environment_that_goes_on_is_named(tmp_path: Path) -> None:
    run = clocked(tmp_path, "")
    source = tmp_path / "task.py"
    other = tmp_path / "other.py"
    other.write_text(source.read_text().replace("self.steps == 2", "self.steps == 3"))
    run.config_path.write_text(run.config_path.read_text().replace("task.py", "other.py"))
    (one,) = Replayer(run).replay(["0-0-0"])
    assert one.difference is not None
    assert str(one.difference) == "end"
    assert one.difference.recorded == ["terminated", 2]
    assert one.replayed.status == Status("truncated", "not_ended")


def test_code_that_is_gone_is_named(tmp_path: Path) -> None:
    run = clocked(tmp_path, "")
    (tmp_path / "task.py").rename(tmp_path / "moved.py")
    run.config_path.write_text(run.config_path.read_text().replace("task.py", "gone.py"))
    with pytest.raises(ConfigError, match=r"there is no file .*gone\.py"):
        Replayer(run).replay(["0-0-0"])


def test_episodes_of_an_agents_own_program_are_refused_by_name(tmp_path: Path) -> None:
    run = clocked(tmp_path, "")
    run.config_path.write_text(
        "model: {path: nowhere}\n"
        "env: {agent_command: [python, agent.py]}\n"
        "data: {train: task.py:tasks}\n"
        "train: {steps: 1}\n"
    )
    with pytest.raises(ConfigError, match=r"env\.agent_command cannot be replayed"):
        Replayer(run).replay(["0-0-0"])


def test_the_command_names_the_code_and_runs_nothing_without_consent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = clocked(tmp_path, "")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert command_line(["replay", str(run.root)]) == 2
    told = capsys.readouterr().err
    assert str(tmp_path / "task.py") in told
    assert "--trust" in told

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert command_line(["replay", str(run.root)]) == 2
    assert "nothing was run" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert command_line(["replay", str(run.root)]) == 0
    out, told = capsys.readouterr()
    assert str(tmp_path / "task.py") in told
    assert "Clocked" in out or "rl" in out or "yes" in out


def test_all_that_a_run_imports_or_starts_is_named_before_any_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = clocked(tmp_path, "")
    (tmp_path / "imported.py").write_text("raise SystemExit('imported without consent')\n")
    run.config_path.write_text(
        f"run: {{base_dir: '{tmp_path}'}}\n"
        "env:\n"
        "  mcp: {notes: {command: [sh, -c, 'touch started; cat']}}\n"
        "  wrappers: [wrap.py:Wrapper]\n"
        "  resources: {db: some.package:opened}\n"
        "  endpoints: ['http://host:8000/a']\n"
        "reward: {custom: {path: score.py}}\n"
        "algorithm: {name: imported.py:own}\n"
        "sandbox: {backend: unsafe, image: 'python:3.12'}\n"
        "data: {train: task.py:tasks}\n"
        "train: {steps: 1}\n"
    )
    assert Replayer(run).code() == [
        "program sh -c 'touch started; cat'",
        str(tmp_path / "wrap.py"),
        "module some.package",
        str(tmp_path / "score.py"),
        str(tmp_path / "imported.py"),
        "the calls that the model made, without isolation (sandbox.backend: unsafe)",
        str(tmp_path / "task.py"),
    ]
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert command_line(["replay", str(run.root)]) == 2
    assert "touch started" in capsys.readouterr().err


def test_the_command_tells_environments_and_rewards_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = clocked(tmp_path, "score")
    assert (
        command_line(
            ["replay", str(run.root), "--trust", "--json", "--query", "group:0..2"]
        )
        == 1
    )
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [one["outcome"] for one in result["episodes"]] == ["differs"] * 3
    assert [one["first"] for one in result["environments"]] == [{"reward timed": 3}]
    (reward,) = [one for one in result["rewards"] if one["reward"] == "timed"]
    assert (reward["episodes"], reward["changed"]) == (3, 3)


def test_every_episode_of_a_trained_run_replays_alike(tmp_path: Path) -> None:
    quick = ("stages.warmup.steps=2", "train.steps=1", "stages.rl.eval.every=null")
    run = RunDirectory.open(train(tmp_path, *quick, "store.states=turn"))
    stored = TrajectoryReader(run).summaries()
    assert {summary.label for summary in stored} > {"", "sums/before/greedy"}
    replayed = Replayer(run).replay([summary.id for summary in stored])
    odd = {one.recorded.id: one.difference or one.failure for one in replayed}
    assert {name: str(found) for name, found in odd.items() if found} == {}
