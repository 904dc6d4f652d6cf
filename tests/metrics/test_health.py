"""Each alert has a series that fires it, with its evidence, and one that does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentrl.metrics import rollout_metrics
from agentrl.metrics.health import Health, HealthAlert
from agentrl.metrics.monitors import MONITORS, WATCHED, HealthSpec
from agentrl.metrics.names import describe
from agentrl.types import Status, Trajectory, TrajectoryGroup
from tests.metrics.answers import answer_group, sampled

Numbers = Mapping[str, Sequence[float]]
GROUPS = [
    answer_group(0, [[1, 2, 3], [1], [1, 5]], [1.0, 0.5, 0.0], calls=[2, 0, 1]),
    answer_group(1, [[4, 4], [4, 6], [4]], [0.25, 0.25, 0.25], calls=[1, 1, 1]),
]

FAILED = Trajectory(GROUPS[1].task, 1, 3, 0, "train", (), Status("failed", "sandbox"))


def alerts(
    numbers: Numbers, groups: Sequence[TrajectoryGroup] = GROUPS, **settings: Any
) -> list[HealthAlert]:
    health = Health(HealthSpec(**settings))
    found = []
    for step, values in enumerate(zip(*numbers.values(), strict=True), 1):
        found += health.watch(step, dict(zip(numbers, values, strict=True)), groups)
    return found


def noisy(values: Sequence[float], noise: float = 0.02) -> list[float]:
    generator = np.random.default_rng(0)
    return [float(v + noise * generator.standard_normal()) for v in values]


def to(start: float, end: float, steps: int = 60) -> list[float]:
    return np.linspace(start, end, steps).tolist()


def level(value: float, steps: int = 60) -> list[float]:
    return [value] * steps


def peak(usual: float, height: float, at: int = 40, steps: int = 60) -> list[float]:
    return [height if step == at else usual for step in range(1, steps + 1)]


ENTROPY = {"policy/entropy": noisy(level(1.0))}
CASES: Mapping[str, tuple[Numbers, Numbers, str, tuple[str, ...]]] = {
    "entropy_collapse": (
        {"policy/entropy": to(1.0, 0.01)},
        {"policy/entropy": noisy(to(1.0, 0.4))},
        "the policy's entropy fell from 0.924 to 0.169, below 0.2 of it",
        ("0-0-0", "0-1-0", "0-2-0"),
    ),
    "ratio_jump": (
        {"policy/ratio": peak(1.002, 1.3)},
        {"policy/ratio": noisy(level(1.0), 0.01)},
        "the probability ratio of new to old policy jumped away from 1: by 0.3, before 0.002",
        ("0-0-0", "0-1-0", "0-2-0"),
    ),
    "mismatch_jump": (
        {"mismatch/engine/logp_abs": peak(0.004, 0.2)},
        {"mismatch/engine/logp_abs": peak(0.01, 0.03)},
        "the sampler's and the trainer's logprobs jumped apart: by 0.2, before 0.004",
        ("0-0-0", "0-1-0", "0-2-0"),
    ),
    "reward_stuck": (
        {"reward/mean": noisy(level(0.3, 120))},
        {"reward/mean": noisy(to(0.3, 0.5, 120))},
        "the reward did not rise in 100 steps: 0.303 in the first half of them, "
        "0.301 in the second",
        ("0-2-0", "1-0-0", "1-1-0"),
    ),
    "no_signal": (
        {"group/no_signal_frac": to(0.5, 1.0)},
        {"group/no_signal_frac": to(0.5, 0.85)},
        "90% of the groups teach nothing, more than 90%: no token of theirs has an advantage, as "
        "where all rewards of a group are equal and no critic says more",
        ("1-0-0",),
    ),
    "tool_collapse": (
        {"tool/calls_per_traj": to(3.0, 0.0)},
        {"tool/calls_per_traj": to(3.0, 1.0)},
        "tool calls an episode fell from 2.77 to 0.534, below 0.2 of it",
        ("0-1-0", "0-2-0", "1-0-0"),
    ),
    "tool_errors": (
        {"tool/success_frac": to(0.95, 0.5)},
        # a policy that learns to call, and one whose calls become bolder
        {"tool/success_frac": [*to(0.2, 0.9, 30), *noisy(to(0.9, 0.85, 30))]},
        "more tool calls fail or cannot be read: the share of those that succeed fell from 0.916 "
        "to 0.725, below 0.8 of it",
        ("0-0-0", "0-2-0", "1-0-0"),
    ),
    "length_explosion": (
        {"length/response/mean": to(100.0, 900.0)},
        {"length/response/mean": to(100.0, 250.0)},
        "responses grew from 161 to 486 tokens, more than 3 times that",
        ("0-0-0", "0-2-0", "1-0-0"),
    ),
    "template_collapse": (
        {"answer/question_mi": to(0.8, 0.0), **ENTROPY},
        {"answer/question_mi": noisy(to(0.8, 0.4)), **ENTROPY},
        "answers depend less on their questions while entropy holds: their information fell from "
        "0.739 to 0.183, below 0.25 of it",
        ("0-0-0", "0-2-0", "1-1-0"),
    ),
    "loop_blocked": (
        {"perf/loop_lag_s": peak(0.01, 3.0)},
        {"perf/loop_lag_s": peak(0.01, 1.5)},
        "the event loop of the episodes stood still for 3 s, more than 2 s: an async tool, "
        "environment or reward blocks it",
        ("0-0-0", "0-1-0", "0-2-0"),
    ),
    "abandoned_calls": (
        {"perf/abandoned_calls": to(0.0, 59.0)},
        {"perf/abandoned_calls": peak(2.0, 32.0)},
        "33 synchronous calls of tools, environments or rewards run on in one process after their "
        "deadlines, more than 32, and each holds a thread: give what they wait for a timeout of "
        "its own, or make them async",
        ("0-0-0", "0-1-0", "0-2-0"),
    ),
    "failed_episodes": (
        {"failed_frac": [*level(0.0, 30), *level(0.25, 30)]},
        # one of twelve in each fifth step
        {"failed_frac": [1 / 12 if n % 5 == 0 else 0.0 for n in range(60)]},
        "2.5% of the episodes failed by infrastructure and train nothing, more than 2%: their "
        "tasks are trained less; failed/BOUNDARY says where",
        (),
    ),
    "unknown_tokens": (
        {"mismatch/unknown_frac": [*level(0.0, 5), 0.146]},
        {"mismatch/unknown_frac": level(0.0)},
        "14.60% of the sampled tokens are ids that the tokenizer has no text for, more than 0%: "
        "the model's padded vocabulary is trained; start from weights that were trained, or give "
        "the model as many embeddings as the tokenizer has entries",
        ("0-0-0", "0-1-0", "0-2-0"),
    ),
    "lost_by_age": (
        {"async/issued": level(4.0), "async/dropped": [*level(0.0, 50), *level(1.0, 10)]},
        # one group of the 63 that ten steps issue: 1.6%
        {
            "async/issued": level(6.3),
            "async/dropped": [float(n % 10 == 0) for n in range(60)],
        },
        "2.5% of the groups that were issued were lost, being older than rollout.max_staleness "
        "allows, more than 2%: tasks with slow episodes are trained less; set "
        "rollout.on_stale=wait, which loses none, or raise rollout.max_staleness",
        ("0-0-0", "0-1-0", "0-2-0"),
    ),
}


def test_masked_tokens_are_lost_by_age_too() -> None:
    numbers = {"count/trained_tokens": level(97.0), "async/masked_tokens": level(3.0)}
    (alert,) = alerts(numbers)
    assert (alert.name, alert.step) == ("lost_by_age", 10)
    assert alert.reading.text.startswith("3.0% of the tokens of the batches were lost")
    assert alerts(numbers | {"async/masked_tokens": level(1.9)}) == []


def test_a_group_of_one_is_no_group_of_equal_rewards() -> None:
    groups = [answer_group(2, [[1, 2]], [1.0], calls=[0]), *GROUPS]
    (alert,) = alerts(CASES["no_signal"][0], groups)
    assert alert.trajectories == ("1-0-0",)


def test_episodes_that_failed_show_that_they_did() -> None:
    groups = [
        replace(group, trajectories=(*group.trajectories, FAILED)) for group in GROUPS[1:]
    ]
    (alert,) = alerts(CASES["failed_episodes"][0], groups)
    assert alert.trajectories == ("1-3-0",)
    assert alert.query == f"step:{alert.step} purpose:train status:failed"


def test_every_alert_is_tested_here() -> None:
    assert CASES.keys() == MONITORS.keys()
    assert all(describe(name) for name in WATCHED)


@pytest.mark.parametrize("name", CASES)
def test_it_fires_once_with_its_evidence(name: str) -> None:
    (alert,) = alerts(CASES[name][0])
    assert alert.name == name
    assert alert.reading.text == CASES[name][2]
    assert (
        str(alert) == f"step {alert.step}: {name.replace('_', ' ')}: {alert.reading.text}"
    )
    assert alert.trajectories == CASES[name][3]
    assert alert.query.startswith(f"step:{alert.step} purpose:train")
    assert alert.record()["metric"] in CASES[name][0]


@pytest.mark.parametrize("name", CASES)
def test_it_does_not_fire_on_a_healthy_series(name: str) -> None:
    assert alerts(CASES[name][1]) == []


OFF = {
    "entropy_collapse": "entropy_min_frac",
    "unknown_tokens": "unknown_max_frac",
    "lost_by_age": "stale_max_frac",
    "ratio_jump": "ratio_jump",
    "mismatch_jump": "mismatch_jump",
    "reward_stuck": "reward_stuck_steps",
    "no_signal": "no_signal_max_frac",
    "tool_collapse": "tool_calls_min_frac",
    "tool_errors": "tool_success_min_frac",
    "abandoned_calls": "abandoned_calls_max",
    "failed_episodes": "failed_max_frac",
    "length_explosion": "length_max_factor",
    "template_collapse": "information_min_frac",
    "loop_blocked": "loop_lag_max_s",
}


@pytest.mark.parametrize("name", CASES)
def test_null_turns_it_off(name: str) -> None:
    assert alerts(CASES[name][0], **{OFF[name]: None}) == []


def test_what_recovered_is_told_again() -> None:
    falling = [*level(1.0, 20), *level(0.1, 20), *level(1.0, 20), *level(0.1, 20)]
    found = alerts({"policy/entropy": falling})
    assert [alert.step for alert in found] == [29, 69]


def test_a_template_collapse_needs_entropy_that_holds() -> None:
    fired = CASES["template_collapse"][0]
    both = {**fired, "policy/entropy": to(1.0, 0.0)}
    assert [alert.name for alert in alerts(both)] == ["entropy_collapse"]


def test_answers_that_stop_depending_on_their_questions_are_told() -> None:
    health = Health(HealthSpec(window=4, no_signal_max_frac=None))
    found = []
    for step, share in enumerate([0.5] * 8 + [0.0] * 8, 1):
        groups = sampled(share, seed=step)
        values = {**rollout_metrics(groups), "policy/entropy": 1.0}
        found += [(alert, groups) for alert in health.watch(step, values, groups)]
    ((alert, groups),) = found
    assert (alert.name, alert.step) == ("template_collapse", 11)
    ids = {one.id for group in groups for one in group.trajectories}
    assert len(ids & set(alert.trajectories)) == 3


def test_what_was_never_there_cannot_collapse() -> None:
    assert alerts({"tool/calls_per_traj": to(0.05, 0.0)}) == []
    assert alerts({"answer/question_mi": to(0.03, 0.0), **ENTROPY}) == []


def test_a_solved_stage_is_not_stuck() -> None:
    rewards = noisy(level(0.99, 120), 0.002)
    assert alerts({"reward/mean": rewards, "accuracy/mean": rewards}) == []
    assert alerts({"reward/mean": rewards, "accuracy/mean": level(0.3, 120)})


def test_steps_without_a_number_are_passed_over() -> None:
    numbers = dict(CASES["entropy_collapse"][0])
    health = Health(HealthSpec())
    found = []
    for step, value in enumerate(numbers["policy/entropy"], 1):
        found += health.watch(2 * step - 1, {"policy/entropy": value}, GROUPS)
        found += health.watch(2 * step, {"policy/entropy": float("nan")}, GROUPS)
    assert len(found) == 1


@pytest.mark.parametrize("cut", [5, 30, 58])
def test_a_resumed_stage_tells_what_the_whole_one_would(cut: int) -> None:
    numbers = CASES["entropy_collapse"][0]["policy/entropy"]
    whole = alerts({"policy/entropy": numbers})
    rows = [{"policy/entropy": value} for value in numbers]
    first = Health(HealthSpec())
    told = [a for n, row in enumerate(rows[:cut], 1) for a in first.watch(n, row, GROUPS)]
    later = Health(HealthSpec(), rows[:cut])
    told += [
        a for n, row in enumerate(rows[cut:], cut + 1) for a in later.watch(n, row, GROUPS)
    ]
    assert told == whole


def test_a_healthy_run_that_learns_is_quiet() -> None:
    found = alerts(
        {
            "policy/entropy": noisy(to(1.2, 0.5, 200)),
            "policy/ratio": noisy(level(1.0, 200), 0.005),
            "mismatch/engine/logp_abs": noisy(level(0.01, 200), 0.001),
            "reward/mean": noisy(to(0.3, 0.9, 200), 0.05),
            "accuracy/mean": noisy(to(0.3, 0.9, 200), 0.05),
            "group/no_signal_frac": noisy(to(0.4, 0.7, 200), 0.1),
            "tool/calls_per_traj": noisy(to(3.0, 1.5, 200), 0.2),
            "tool/success_frac": noisy(to(0.7, 0.95, 200), 0.05),
            "failed_frac": [0.1 if n % 20 == 0 else 0.0 for n in range(200)],
            "length/response/mean": noisy(to(200.0, 400.0, 200), 30.0),
            "answer/question_mi": noisy(to(0.5, 0.4, 200), 0.05),
        }
    )
    assert found == []
