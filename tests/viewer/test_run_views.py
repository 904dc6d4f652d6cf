"""Views of a group and of a task, and the lines that say where to look."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agentrl.store import Annotation, TokenArrays
from agentrl.types import SegmentKind
from agentrl.viewer.analysis.blame import BlameRow
from agentrl.viewer.analysis.findings import findings
from agentrl.viewer.analysis.side_by_side import group_view, task_view


def row(rollout: int, reward: float | None, **columns: Any) -> dict[str, Any]:
    return {
        "id": f"3-{rollout}-0",
        "rollout_index": rollout,
        "attempt": 0,
        "reward": reward,
        "step": 4,
        **columns,
    }


def tokens(*ids: int, turns: tuple[int, ...] = ()) -> TokenArrays:
    size = len(ids)
    kinds = np.full(size, SegmentKind.POLICY, np.int8)
    zeros = np.zeros(size, np.int32)
    return TokenArrays(
        np.array(ids, np.int32),
        zeros.astype(np.float32),
        zeros,
        np.array(turns or zeros, np.int32),
        kinds,
        b"",
    )


def annotation(name: str, *advantages: float, weight: tuple[float, ...]) -> Annotation:
    arrays = {"advantages": np.array(advantages), "loss_weight": np.array(weight)}
    return Annotation(name, 4, arrays=arrays)


def test_a_group_has_its_rewards_advantages_and_first_divergence() -> None:
    view = group_view(
        [row(1, 0.0), row(0, 1.0), row(2, None)],
        {"3-0-0": tokens(1, 2, 3, 9), "3-1-0": tokens(1, 2, 3), "3-2-0": tokens(1, 2, 7, 8)},
        [annotation("3-0-0", 0.5, 0.5, 9.0, 9.0, weight=(0.1, 0.1, 0.0, 0.0))],
    )

    assert [one["id"] for one in view["rows"]] == ["3-0-0", "3-1-0", "3-2-0"]
    assert (view["reward_mean"], view["reward_std"], view["zero_std"]) == (0.5, 0.5, False)
    assert view["advantages"] == {"3-0-0": {"": 0.5}}
    assert view["shared_tokens"] == 2


def test_each_agent_of_an_episode_has_its_own_advantage() -> None:
    # the mean over the episode would be 0
    view = group_view(
        [row(0, 1.0)],
        {"3-0-0": tokens(1, 2, 3, 4, turns=(0, 1, 1, 2))},
        [
            annotation("3-0-0", 0.5, -0.25, -0.75, 0.5, weight=(0.1, 0.1, 0.1, 0.1)),
            Annotation("3-0-0", 4, learner="critic", arrays={"values": np.zeros(4)}),
        ],
        {"3-0-0": ["planner", "solver", "planner"]},
    )

    assert view["advantages"] == {"3-0-0": {"planner": 0.5, "solver": -0.5}}


def test_a_group_of_equal_rewards_teaches_nothing() -> None:
    view = group_view(
        [row(0, 1.0, drop_reason="no_spread"), row(1, 1.0)],
        {"3-0-0": tokens(), "3-1-0": tokens(1)},
    )

    assert (view["zero_std"], view["drop_reason"], view["shared_tokens"]) == (True, "no_spread", 0)


def test_the_greedy_baseline_is_no_rollout_of_its_group() -> None:
    view = group_view(
        [row(0, 1.0), row(1, 1.0), row(2, 0.0, purpose="baseline")],
        {"3-0-0": tokens(1), "3-1-0": tokens(1), "3-2-0": tokens(1)},
    )

    assert (view["reward_mean"], view["reward_std"], view["zero_std"], len(view["rows"])) == (
        1.0,
        0.0,
        True,
        3,
    )


def test_a_task_by_policy_version() -> None:
    rows = [
        row(0, 1.0, policy_version_max=5, num_turns=2, num_tool_errors=0),
        row(1, 0.0, policy_version_max=5, num_turns=4, num_tool_errors=None),
        row(2, 0.5, policy_version_max=1, num_turns=6),
        row(3, None, policy_version_max=None),
    ]

    (course,) = task_view(rows)["courses"]

    assert course["version"] == [1, 5]
    assert course["ways"]["train"] == {
        "count": [1.0, 2.0],
        "reward": [0.5, 0.5],
        "num_turns": [6.0, 3.0],
        "num_tool_errors": [None, 0.0],
        "num_policy_tokens": [None, None],
        "num_calls": [None, None],
    }
    assert (course["first"], course["last"]) == ("3-2-0", "3-0-0")


def test_a_task_averages_neither_stages_nor_ways_of_sampling() -> None:
    greedy = {"purpose": "eval", "label": "code/before/greedy", "policy_version_max": 0}
    sampled = {**greedy, "label": "code/step 4/sampled"}
    rows = [
        row(0, 1.0, **greedy, stage="rl", recorded_at=9.0),
        row(1, 0.0, **sampled, stage="rl", recorded_at=9.0),
        row(2, 0.5, purpose="train", policy_version_max=0, stage="warmup", recorded_at=1.0),
    ]

    view = task_view(rows)

    warmup, rl = view["courses"]
    assert (warmup["stage"], rl["stage"], view["rows"][0]["id"]) == ("warmup", "rl", "3-2-0")
    assert {way: own["reward"] for way, own in rl["ways"].items()} == {
        "code greedy": [1.0],
        "code sampled": [0.0],
    }
    assert warmup["ways"]["train"]["reward"] == [0.5]


def test_a_task_that_nobody_played() -> None:
    assert task_view([]) == {"rows": [], "courses": []}
    (course,) = task_view([row(0, None, policy_version_max=None)])["courses"]
    assert (course["version"], course["ways"], course["first"]) == ([], {}, None)


METRICS = [
    {
        "step": step,
        "mismatch/logp_abs/max": 0.5 if step == 7 else 0.001,
        "reward/mean": 0.2 + 0.05 * step,
        "turns/mean": 2.0 + 0.01 * (step % 2),
        "tool/python/error_frac": 0.6 if step == 5 else 0.1,
        "tool/python/latency_s/p95": 9.0,
        "group/zero_std_frac": None,
    }
    for step in range(12)
]


def test_the_lines_of_an_overview() -> None:
    events = [
        {"time": 1.0, "level": "info", "event": "started", "message": "no alert"},
        {"time": 3.0, "level": "warning", "message": "newest", "trajectory": "1-0-0"},
        {"time": 2.0, "level": "error", "message": "older", "step": 2},
    ]

    found = {one.kind: one for one in findings(METRICS, events, {"stale": 3, "no_spread": 16})}

    assert found["mismatch"].text == "too much: largest mismatch 0.5 nats, in step 7"
    assert found["mismatch"].link == {
        "page": "blame",
        "step": 7,
        "signal": "mismatch",
        "level": "token",
    }
    assert found["alert"].text == "newest of 2 alerts: newest"
    assert found["alert"].link == {"page": "trajectory", "id": "1-0-0"}
    assert found["tool"].link["query"] == "tool:python tool_errors>=1 step:5"
    assert found["dropped"].text == "19 trajectories were not trained, 16 of them for no_spread"
    assert found["dropped"].link["query"] == 'drop:"no_spread"'
    assert found["change"].text.startswith("reward/mean went from 0.25 (steps 0..2) to 0.7")
    assert found["change"].link == {"page": "behaviour", "a": "0..2", "b": "9..11"}


def test_a_step_far_from_the_others_leads_to_its_blame() -> None:
    losses = [0.1, 0.12, 0.09, 0.11, 3.0, 0.1, 0.13, 0.08]
    rows = [{"step": step, "policy/loss": loss} for step, loss in enumerate(losses)]

    [spike] = [one for one in findings(rows) if one.kind == "spike"]

    # the median of 8 is (0.1 + 0.11) / 2
    assert spike.text == "policy/loss was 3 in step 4, where 0.105 is usual"
    assert spike.link == {"page": "blame", "step": 4, "signal": "loss", "level": "token"}
    calm = [{**row, "policy/loss": 0.1 + row["step"] / 100} for row in rows]
    assert [one for one in findings(calm) if one.kind == "spike"] == []
    # few steps, and what is no number, tell nothing
    assert [one for one in findings(rows[:7]) if one.kind == "spike"] == []
    assert findings([{**row, "policy/loss": "x"} for row in rows]) == []


def test_links_to_a_step_name_the_stage_that_the_rows_have() -> None:
    rows = [{**row, "stage": "r l", "policy/loss": 9.0 * (row["step"] == 4)} for row in METRICS]
    event = {"level": "error", "query": "step:3 purpose:train", "step": 3, "stage": "r l"}

    links = {one.kind: one.link for one in findings(rows, [event])}

    assert {links[kind]["stage"] for kind in ("mismatch", "spike", "change")} == {"r l"}
    assert links["tool"]["query"] == 'tool:python tool_errors>=1 step:5 stage:"r l"'
    assert links["alert"]["query"] == 'step:3 purpose:train stage:"r l"'


def test_one_alert_and_one_reason_are_told_plainly() -> None:
    event = {"time": 3.0, "level": "warning", "message": "it broke", "step": 1}
    found = {one.kind: one.text for one in findings([], [event], {"stale": 3})}

    assert found == {"alert": "it broke", "dropped": "3 trajectories were not trained: stale"}


def test_the_worst_mismatch_leads_to_its_token() -> None:
    worst = BlameRow("4-1-0", 1, 33, 0.01, 0.9, text=" the")

    (first, *_) = findings(METRICS, worst_token=lambda step: worst if step == 7 else None)

    assert first.text.endswith("in step 7, token ' the' of 4-1-0")
    assert (first.link["id"], first.link["tokens"]) == ("4-1-0", "33-33")


def test_a_run_without_numbers_has_no_lines() -> None:
    assert findings([]) == []


@pytest.mark.parametrize("value", [float("nan"), None, "high"])
def test_what_is_no_number_is_passed_over(value: object) -> None:
    assert findings([{"step": 1, "mismatch/logp_abs/max": value}]) == []
