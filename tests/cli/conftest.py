"""A run directory with trajectories of every kind of token, and the command line in process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from agentrl.cli.main import run as run_command_line
from agentrl.run.stage_tokenizer import keep_tokenizer
from agentrl.store import RunDirectory, TrajectoryWriter
from agentrl.types import (
    CallRecord,
    Message,
    Segment,
    SegmentKind,
    Status,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
)

WORDS = ["<start>", "<end>", "what", "is", "6*7", "call", "python", "42", "answer"]


def ids(text: str) -> np.ndarray:
    return np.array([WORDS.index(word) for word in text.split()], dtype=np.int32)


def policy(text: str, version: int = 3) -> Segment:
    tokens = ids(text)
    return Segment(
        SegmentKind.POLICY, tokens, np.full(tokens.size, -0.5, np.float32), version
    )


def two_turns() -> Trajectory:
    """A question, a call of python, its output, an answer."""
    asked: Message = {"role": "user", "content": "what is 6*7"}
    call = ToolCall("c0", "python", {"code": "6*7"})
    result = ToolResult("c0", "python", "42", latency_s=0.25)
    said: Message = {"role": "assistant", "content": "", "tool_calls": [call.openai()]}
    answer: Message = {"role": "assistant", "content": "answer 42"}
    first = Turn(
        0,
        None,
        (Segment(SegmentKind.PROMPT, ids("<start> what is 6*7 <end>")),),
        (policy("call python <end>"),),
        "call python",
        said,
        observed=(asked,),
        calls=(CallRecord(call, None, result),),
    )
    context = (
        Segment(SegmentKind.TEMPLATE, ids("<start>")),
        Segment(SegmentKind.OBSERVATION, ids("42")),
    )
    second = Turn(
        1,
        0,
        context,
        (policy("answer 42 <end>"),),
        "answer 42",
        answer,
        observed=(result.message(),),
    )
    task = Task("calc-1", (asked,), 42, "code")
    rewards = {"correct": 1.0}
    return Trajectory(
        task, 5, 0, 0, "train", (first, second), Status("terminated"), rewards, 1.0
    )


def failed() -> Trajectory:
    """An episode whose engine gave up before the first turn, on a task whose name would steer a
    terminal.
    """
    task = Task("calc-\x1b[2J", (), None, "code")
    return Trajectory(task, 5, 1, 0, "train", (), Status("failed", "engine", "no answer"))


@pytest.fixture(autouse=True)
def index_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indices of runs lie in a folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of two trajectories and two steps, without a model folder."""
    run = RunDirectory.create(
        tmp_path / "run", {"created": "2026-01-02T03:04:05Z", "seed": 7}
    )
    with TrajectoryWriter(run) as writer:
        writer.write(two_turns(), step=1)
        writer.write(failed(), step=1)
    lines = [{"step": 0, "reward/mean": 0.25}, {"step": 1, "reward/mean": 0.5}]
    run.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary = {
        "eval": {
            "code": {
                "before": {"sampled": 0.3, "greedy": 0.6},
                "after": {"sampled": 0.8},
                "num_tasks": 300,
            }
        },
        "steps": 2,
        "seconds": {"total": 9.0},
    }
    run.summary_path.write_text(json.dumps(summary))
    return run.root


@pytest.fixture
def tokenizer(run_dir: Path) -> None:
    """Gives the run a model folder with the tokenizer of ``WORDS``."""
    made = Tokenizer(
        WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<start>")
    )
    made.pre_tokenizer = WhitespaceSplit()  # type: ignore[assignment]
    folder = RunDirectory(run_dir).models_folder / "rl"
    folder.mkdir(parents=True)
    made.save(str(folder / "tokenizer.json"))
    keep_tokenizer(RunDirectory(run_dir), "rl", folder)


@pytest.fixture
def agentrl(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs one command line; its exit code, standard output and standard error."""

    def call(*tokens: str | Path) -> tuple[int, str, str]:
        code = run_command_line([str(token) for token in tokens])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
