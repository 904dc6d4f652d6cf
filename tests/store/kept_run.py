"""A run that death left in its third step, with something of everything that is stored."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.store import Annotation, RunDirectory, TrajectoryWriter
from agentrl.types import (
    CallProblem,
    CallRecord,
    SamplingParams,
    Segment,
    SegmentKind,
    Status,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
)

QUESTION = {"role": "user", "content": "What is 6 · 7? Use the tool."}
TASK = Task("sums/1", (QUESTION,), answer=42, data_source="sums", info={"level": 2})


def _policy(*ids: int, version: int = 3, side: bool = False) -> Segment:
    logprobs = -np.arange(1, len(ids) + 1, dtype=np.float32) / 8
    experts = (
        {"experts": np.arange(2 * len(ids), dtype=np.int16).reshape(-1, 2)} if side else {}
    )
    return Segment(SegmentKind.POLICY, np.array(ids), logprobs, version, side=experts)


def _calls() -> tuple[CallRecord, ...]:
    return (
        CallRecord(
            ToolCall("call_0_0", "calculate", {"expression": "6*7"}),
            None,
            ToolResult(
                "call_0_0", "calculate", "42", latency_s=0.25, metrics={"cpu_s": 0.125}
            ),
        ),
        CallRecord(
            ToolCall("call_0_1", "calculate", {"expression": "6/0"}),
            None,
            ToolResult("call_0_1", "calculate", "ZeroDivisionError", error="exception"),
        ),
        CallRecord(
            None,
            CallProblem("call_0_2", "malformed_json", "write it as JSON", "{oops"),
            ToolResult("call_0_2", "", "write it as JSON", error="malformed"),
        ),
    )


def branching() -> Trajectory:
    """A branch of two turns beside a branch of one, with tool calls and a side array."""
    first = Turn(
        0,
        None,
        (
            Segment(SegmentKind.TEMPLATE, np.array([1])),
            Segment(SegmentKind.PROMPT, [5, 6, 7]),
        ),
        (_policy(11, 12, side=True), _policy(13, version=4)),
        "<tool_call>…</tool_call>",
        {"role": "assistant", "content": "", "tool_calls": []},
        observed=(QUESTION,),
        calls=_calls(),
        sampling=SamplingParams(64, 0.7, stop=("\n",)),
        rewards={"step": 0.5},
        timings={"generate_s": 0.5},
        info={"nan": float("nan")},
    )
    told = ({"role": "tool", "content": "42", "tool_call_id": "call_0_0"},)
    observed = (Segment(SegmentKind.OBSERVATION, np.array([42])),)
    second = Turn(
        1,
        0,
        observed,
        (_policy(21, 2),),
        "42",
        {"role": "assistant", "content": "42"},
        told,
    )
    beside = Turn(
        2,
        0,
        observed,
        (_policy(31, 2),),
        "It is 42.",
        {"role": "assistant", "content": "It is 42."},
        told,
        agent="checker",
    )
    return _trajectory(
        0,
        turns=(first, second, beside),
        rewards={"correct": 1.0, "step": 0.5},
        reward=1.5,
        timings={"prepare_s": 0.125},
        info={"retok_frac": 0.0},
    )


def episodes() -> dict[int, list[Trajectory]]:
    """Every trajectory of the run by the step under which it lies; step 2 is still live."""
    failed = _trajectory(
        0, rollout_index=1, status=Status("failed", "sandbox", "no space left")
    )
    said = Turn(
        0, None, (), (_policy(2, version=3),), "", {"role": "assistant", "content": ""}
    )
    evaluated = _trajectory(
        0,
        purpose="eval",
        label="sums/before/greedy",
        turns=(said,),
        status=Status("truncated", "max_turns"),
        reward=0.0,
    )
    return {
        0: [evaluated],
        1: [branching(), failed],
        2: [_trajectory(1, turns=(said,), reward=0.25)],
    }


def annotation() -> Annotation:
    """Of ``branching``, which has 7 POLICY tokens."""
    return Annotation(
        "0-0-0",
        step=1,
        values={"trained_step": 1, "stage": "rl"},
        arrays={"old_logprobs": -np.arange(7, dtype=np.float32) / 4},
    )


def _trajectory(group_index: int, **fields: Any) -> Trajectory:
    given: dict[str, Any] = {
        "task": TASK,
        "group_index": group_index,
        "rollout_index": 0,
        "attempt": 0,
        "purpose": "train",
        "turns": (),
        "status": Status("terminated"),
        "stage": "rl",
        "env": "SumEnv",
        "group_size": 2,
        "started_at": 1.75e9,
        "ended_at": 1.75e9,
    }
    return Trajectory(**{**given, **fields})


def write_run(folder: Path) -> RunDirectory:
    """Write the run, whose last step is not sealed: as a death leaves it."""
    made = folder.with_name(f"{folder.name}-written")
    run = RunDirectory.create(made, {"seed": 3})
    with TrajectoryWriter(run) as writer:
        for step, own in episodes().items():
            for trajectory in own:
                writer.write(trajectory, step)
            if step < 2:
                writer.seal(step)
        writer.annotate(annotation())
        writer.flush()
        shutil.copytree(made, folder, ignore=shutil.ignore_patterns("*.lock"))
    shutil.rmtree(made)
    return RunDirectory.open(folder)
