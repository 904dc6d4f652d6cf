"""What a step waited for: each moment once, and seconds that sum to the step's to the last bit."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentrl.viewer.analysis.spans import Share, Span, parts_of, shares
from agentrl.viewer.analysis.step_waits import step_waits, waits_of_sums

T = 1_790_000_000.0


def phase(name: str, start: float, end: float) -> Span:
    return Span(name, T + start, T + end, rank=T + start)


def part(name: str, start: float, end: float) -> Span:
    return Span(name, T + start, T + end)


def told(waits: Any) -> list[tuple[str, str, float, str]]:
    return [(one.phase, one.part, one.seconds, one.episode) for one in waits]


def test_a_moment_belongs_to_the_greatest_rank_and_gaps_to_nobody() -> None:
    spans = [Span("a", 0, 10, rank=1), Span("b", 2, 4, rank=2), Span("c", 3, 6, rank=0)]

    assert shares(spans, 1, 12) == [Share(0, 1, 2), Share(1, 2, 4), Share(0, 4, 10)]
    assert shares([Span("a", 0, 1), Span("b", 2, 3)], 0, 9) == [
        Share(0, 0, 1),
        Share(1, 2, 3),
    ]
    assert shares([Span("a", 0, 0), Span("a", 5, 1), Span("a", 9, 12)], 0, 9) == []


def test_a_step_worked_by_hand() -> None:
    # setup lies before the step; the evaluation's own checkpoint has its moments
    phases = [
        *(phase("setup", -9, -1), phase("wait_rollout", 0, 10), phase("update", 11, 14)),
        *(phase("eval", 14, 19), phase("checkpoint", 15, 16)),
    ]
    # the last to end is b from second 4 on; before it a is, after 9 nobody runs
    played = {
        "a": [part("generate", -2, 3), part("tool", 3, 7)],
        "b": [part("generate", 4, 8), part("score", 8, 9)],
        "none": [],
    }

    waits = step_waits(20.0, T + 20, phases, {"wait_rollout": played, "eval": {}})

    assert told(waits) == [
        ("wait_rollout", "generate", 7.0, "b"),
        ("eval", "", 4.0, ""),
        ("update", "", 3.0, ""),
        *(("wait_rollout", own, 1.0, who) for own, who in (("tool", "a"), ("score", "b"))),
        *(("wait_rollout", "", 1.0, ""), ("checkpoint", "", 1.0, "")),
        ("other", "", 2.0, ""),
    ]


def test_sums_alone_are_cut_to_what_is_left() -> None:
    # the checkpoint and the setup of the stage before count in no second of the step
    sums = {
        "wait_rollout": 1.5,
        "update": 1.0,
        "checkpoint": 9.0,
        "setup": 4.0,
        "idle": 1.0,
    }

    assert told(waits_of_sums(3.0, sums)) == [
        ("wait_rollout", "", 1.5, ""),
        ("update", "", 1.0, ""),
        ("checkpoint", "", 0.5, ""),
        ("other", "", 0.0, ""),
    ]
    assert told(waits_of_sums(3.0, {})) == [("other", "", 3.0, "")]
    assert told(waits_of_sums(0.0, {"update": 1.0})) == [("other", "", 0.0, "")]


moments = st.floats(-5, 30, allow_nan=False)
spans = st.lists(st.tuples(st.sampled_from("ab"), moments, moments), max_size=8)


@given(st.floats(1e-9, 1e5), spans, spans)
def test_the_parts_sum_to_the_step_in_any_order(
    step_s: float, loop: Any, played: Any
) -> None:
    phases = [
        phase({"a": "wait_rollout", "b": "update"}[name], *own) for name, *own in loop
    ]
    episodes = {
        str(i): [part("generate", a, max(a, b))] for i, (_, a, b) in enumerate(played)
    }

    waits = step_waits(step_s, T + 20, phases, {"wait_rollout": episodes})

    own = [one.seconds for one in waits]
    assert min(own) >= 0
    assert sum(own) == sum(reversed(own)) == math.fsum(own) == step_s


TURNS = [
    {
        "started_at": T + 1,
        "timings": {"queue_s": 0.5, "step_at_s": 2.0, "step_s": 3.0, "generate_s": 2.0},
        "completion": [{"policy_version": 3}, {"policy_version": 4}],
        "calls": [{"result": {"started_at": T + 3.5, "latency_s": 1.0}}, {"result": None}],
    },
    # a server that tells its own seconds alone
    {"started_at": T + 7, "timings": {"server_s": 1.5}, "completion": []},
]


def test_what_an_episode_did() -> None:
    row = {"started_at": T, "ended_at": T + 10}

    parts = parts_of(row, {"score_at_s": 9.0, "score_s": 0.5}, TURNS)

    assert [(one.name, one.start - T, one.end - T, one.number) for one in parts] == [
        ("between", 0.0, 1.0, None),
        ("wait", 1.0, 1.5, None),
        ("generate", 1.5, 3.0, 4),
        ("environment", 3.0, 3.5, None),
        ("tool", 3.5, 4.5, None),
        ("environment", 4.5, 6.0, None),
        ("between", 6.0, 7.0, None),
        ("generate", 7.0, 8.5, None),
        ("between", 8.5, 9.0, None),
        ("score", 9.0, 9.5, None),
        ("between", 9.5, 10.0, None),
    ]


def test_times_that_are_none_are_passed_over() -> None:
    nan = math.nan
    odd = [
        *(
            None,
            7,
            {},
            {"started_at": "soon"},
            {"started_at": T + 1, "timings": [], "calls": 3},
        ),
        {"started_at": T, "timings": {"step_at_s": nan, "step_s": -1, "wait_s": "x"}},
        {
            "started_at": T,
            "timings": {"generate_s": 1e999},
            "completion": [5],
            "calls": [1, {}],
        },
    ]

    for start, end in ((0.0, 0.0), (T, 0.0), (nan, T), (T + 1, T)):
        assert parts_of({"started_at": start, "ended_at": end}, {}, TURNS) == []
    whole = parts_of({"started_at": T, "ended_at": T + 2}, "none", odd)
    assert [(one.name, one.start, one.end) for one in whole] == [("between", T, T + 2)]
    assert parts_of({"started_at": T, "ended_at": T + 2}, None, None) == whole
