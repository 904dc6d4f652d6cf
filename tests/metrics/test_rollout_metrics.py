"""A step's metrics, worked by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentrl.metrics import correctness, describe, rollout_metrics
from agentrl.types import (
    CallProblem,
    CallRecord,
    Segment,
    SegmentKind,
    Status,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from tests.kit.episodes import sampled
from tests.kit.episodes import trajectory as made_trajectory
from tests.kit.episodes import turn as made_turn


def turn(num_policy: int = 2, calls: Sequence[CallRecord] = (), index: int = 0) -> Turn:
    context = [Segment(SegmentKind.PROMPT, np.arange(3))]
    completion = [sampled(np.arange(num_policy), -1.0)]
    return made_turn(index, context, completion, parent=None, calls=tuple(calls))


def next_turn(num_observed: int, num_policy: int) -> Turn:
    context = (Segment(SegmentKind.OBSERVATION, np.arange(num_observed)),)
    return replace(turn(num_policy, index=1), parent=0, context=context)


def trajectory(reward: float | None = 1.0, **changes: Any) -> Trajectory:
    turns = changes.pop("turns", (turn(),))
    return made_trajectory(
        *turns, reward=reward, **{"task": Task("t", data_source="code"), **changes}
    )


def group(*trajectories: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup(0, trajectories[0].task, trajectories)


def failed(kind: str = "failed", reason: str = "sandbox") -> Trajectory:
    return trajectory(None, status=Status(kind, reason))  # type: ignore[arg-type]


def call(name: str, error: str | None = None, latency_s: float = 0.0) -> CallRecord:
    return CallRecord(
        ToolCall("c", name, {}), None, ToolResult("c", name, "", error, latency_s)
    )  # type: ignore[arg-type]


def test_rewards_by_data_set() -> None:
    search = Task("s", data_source="search")
    metrics = rollout_metrics(
        [group(trajectory(0.0), trajectory(1.0)), group(trajectory(4.0, task=search))]
    )

    assert metrics["reward/code/mean"] == 0.5
    assert metrics["reward/code/std"] == 0.5
    assert metrics["reward/search/mean"] == 4.0
    assert metrics["reward/mean"] == pytest.approx(5 / 3)


def test_a_failed_trajectory_enters_no_reward_statistic() -> None:
    # zeros for the two failures would give a mean of 0.5
    metrics = rollout_metrics(
        [group(trajectory(1.0), failed(), trajectory(1.0), failed("cancelled", "stale"))]
    )

    assert metrics["reward/mean"] == 1.0
    assert metrics["failed/sandbox"] == 1
    assert metrics["cancelled/stale"] == 1
    assert (metrics["excluded_frac"], metrics["failed_frac"]) == (0.5, 0.25)
    assert (metrics["count/trajectories"], metrics["count/effective"]) == (4, 2)


def test_a_group_of_equal_rewards_has_no_signal() -> None:
    metrics = rollout_metrics(
        [
            group(trajectory(1.0), trajectory(1.0)),
            group(trajectory(0.0), trajectory(1.0), failed()),
            group(
                trajectory(1.0), failed()
            ),  # one finished rollout has nothing to be compared with
        ]
    )

    assert metrics["group/zero_std_frac"] == 0.5
    assert metrics["count/with_signal"] == 2


def test_lengths_and_turns() -> None:
    long = trajectory(
        turns=(turn(2), turn(4, index=1)), status=Status("truncated", "max_turns")
    )
    metrics = rollout_metrics([group(trajectory(), long)])

    assert metrics["length/response/mean"] == 4.0  # 2 and 6
    assert metrics["length/response/max"] == 6
    assert metrics["length/total/mean"] == 8.5  # 5 and 12
    assert metrics["length/truncated_frac"] == 0.5
    assert metrics["turns/mean"] == 1.5


def test_tools() -> None:
    unreadable = CallRecord(
        None, CallProblem("c", "unclosed", "", ""), ToolResult("c", "", "", "malformed")
    )
    calls = [
        *(call("python", latency_s=seconds) for seconds in (1.0, 2.0, 3.0)),
        call("python", "timeout", 4.0),
        call("python", "invalid_arguments", 100.0),
        call("invented", "unknown_tool"),
        unreadable,
    ]
    metrics = rollout_metrics([group(trajectory(turns=(turn(calls=calls),)), trajectory())])

    assert metrics["tool/calls_per_traj"] == 3.5
    assert metrics["tool/success_frac"] == pytest.approx(3 / 7)
    assert metrics["tool/python/error_frac"] == 0.4
    # of 1, 2, 3, 4: a refused call never ran
    assert metrics["tool/python/latency_s/p50"] == 2.5
    assert metrics["tool/python/latency_s/p95"] == pytest.approx(3.85)
    assert metrics["tool/error/unknown_tool_frac"] == pytest.approx(1 / 7)
    assert metrics["tool/error/malformed_frac"] == pytest.approx(1 / 7)
    assert not [name for name in metrics if "invented" in name]


def test_a_call_whose_result_nobody_knows_is_no_failure() -> None:
    # a program's last call, such as submit, ends its episode
    calls = [call("python"), call("python", "timeout"), submit := call("submit")]
    calls[2] = replace(submit, result=None)
    metrics = rollout_metrics([group(trajectory(turns=(turn(calls=calls),)))])

    own = {
        name: value for name, value in metrics.items() if name.startswith("tool/submit/")
    }
    assert own == {"tool/submit/calls": 1.0}
    assert metrics["tool/calls_per_traj"] == 3.0
    assert (metrics["tool/success_frac"], metrics["tool/error/timeout_frac"]) == (0.5, 0.5)


def test_a_tool_counts_its_waits_bytes_retries_and_kinds_of_error() -> None:
    results = [
        ToolResult("c", "find", "é", metrics={"queued_s": 1.0, "retries": 2.0}),  # 2 bytes
        ToolResult("c", "find", "abcd", metrics={"queued_s": 2.0}),
        ToolResult(
            "c", "find", "", error="timeout", metrics={"queued_s": 3.0, "retries": 1.0}
        ),
    ]
    calls = [CallRecord(ToolCall("c", "find", {}), None, result) for result in results]
    metrics = rollout_metrics([group(trajectory(turns=(turn(calls=calls),)))])

    assert metrics["tool/find/queued_s/p50"] == 2.0
    assert metrics["tool/find/queued_s/p95"] == pytest.approx(2.9)
    assert metrics["tool/find/output_bytes/mean"] == 2.0
    assert metrics["tool/find/retries_per_call"] == 1.0
    assert metrics["tool/find/error/timeout_frac"] == pytest.approx(1 / 3)


def test_what_a_tool_keeps_under_a_name_of_the_executor_is_no_measurement() -> None:
    odd = {"queued_s": 10**400, "retries": "three"}
    call = CallRecord(ToolCall("c", "f", {}), None, ToolResult("c", "f", "", metrics=odd))  # type: ignore[arg-type]
    metrics = rollout_metrics([group(trajectory(turns=(turn(calls=[call]),)))])

    assert metrics["tool/f/retries_per_call"] == 0.0
    assert "tool/f/queued_s/p50" not in metrics


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"rewards": {"correct": 0.0, "format": 0.1}, "reward": 0.1}, 0.0),
        ({"rewards": {"correct": 0.5}, "reward": 2.0}, 0.5),
        ({"reward": 0.1, "reasons": {"own": {"acc": 0.0}}}, 0.0),
        ({"reward": -1.0, "reasons": {"form": "short", "own": {"acc": True}}}, 1.0),
        (
            {"reward": 0.1, "reasons": {"own": {"acc": "high"}, "form": {"acc": math.nan}}},
            1.0,
        ),
        ({"reward": 0.0, "reasons": {"own": {"acc": 10**400}}}, 0.0),
        ({"rewards": {"correct": 0.0}, "reasons": {"own": {"acc": 1.0}}}, 0.0),
        ({"reward": 0.1}, 1.0),
        ({"reward": 0.0}, 0.0),
        ({"reward": -1.0}, 0.0),
    ],
)
def test_correctness(changes: dict[str, Any], value: float) -> None:
    assert correctness(trajectory(**changes)) == value


def test_a_failed_trajectory_is_neither_right_nor_wrong() -> None:
    with pytest.raises(
        ValueError, match=r"0-0-0 has no reward: its status is failed\(sandbox\)"
    ):
        correctness(failed())


def test_accuracy_and_reward_parts() -> None:
    metrics = rollout_metrics(
        [
            group(
                trajectory(rewards={"correct": 1.0, "format": 0.2}),
                trajectory(0.0, rewards={"correct": 0.0}),
            )
        ]
    )

    assert metrics["accuracy/mean"] == 0.5
    assert metrics["accuracy/code/mean"] == 0.5
    assert metrics["reward_part/correct/mean"] == 0.5
    assert metrics["reward_part/format/mean"] == 0.2  # of the one that has it


def test_a_data_set_with_a_slash_is_one_part_of_a_name() -> None:
    metrics = rollout_metrics(
        [group(trajectory(task=Task("t", data_source="openai/gsm8k")))]
    )

    assert metrics["reward/openai.gsm8k/mean"] == 1.0


def test_nothing_finished() -> None:
    assert rollout_metrics([group(failed())]) == {
        "count/groups": 1,
        "count/trajectories": 1,
        "count/effective": 0,
        "count/with_signal": 0,
        "excluded_frac": 1.0,
        "failed_frac": 1.0,
        "failed/sandbox": 1,
    }
    assert rollout_metrics([])["count/groups"] == 0


def test_every_name_is_in_the_table_and_no_value_is_nan() -> None:
    calls = [call("python", latency_s=1.0), call("python", "timeout", 2.0)]
    metrics = rollout_metrics(
        [group(trajectory(turns=(turn(calls=calls),), rewards={"correct": 1.0}), failed())]
    )

    assert [name for name in metrics if describe(name) is None] == []
    assert [name for name, value in metrics.items() if not math.isfinite(value)] == []


def test_a_name_outside_the_table_is_known_as_such() -> None:
    assert describe("rewards/mean") is None
    assert describe("mismatch/none") is None  # none that is not measured has a meaning
    assert describe("perf/mfu") is None
    assert describe("time/rollout_s") is not None


def test_what_comes_after_the_prompt_counts_observations_too() -> None:
    metrics = rollout_metrics(
        [group(trajectory(turns=(turn(2), next_turn(5, 4))), trajectory(turns=(turn(3),)))]
    )
    assert metrics["length/after_prompt/mean"] == 7.0  # 2 + 5 + 4, and 3
    assert metrics["length/after_prompt/max"] == 11.0


def test_a_prompt_that_begins_a_sequence_anew_is_no_response() -> None:
    metrics = rollout_metrics([group(trajectory(turns=(turn(2), turn(4, index=1))))])
    assert metrics["length/after_prompt/mean"] == 6.0
