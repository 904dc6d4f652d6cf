"""avg@N, pass@k and maj@k, and their intervals, against values worked by hand."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from agentrl.metrics.evaluation import (
    TaskScores,
    evaluation_report,
    interval,
    maj_at_k,
    pass_at_k,
)


def test_pass_at_1_is_the_share_of_correct_samples() -> None:
    assert pass_at_k(8, 2, 1) == pytest.approx(2 / 8)


def test_pass_at_2_by_hand() -> None:
    # 5 samples, 2 correct: 3 of the 10 pairs have no correct one
    assert pass_at_k(5, 2, 2) == pytest.approx(1 - 3 / 10)


def test_pass_at_k_is_sure_where_too_few_samples_are_wrong() -> None:
    assert pass_at_k(5, 3, 3) == 1.0


def test_pass_at_k_of_none_correct_is_zero() -> None:
    assert pass_at_k(200, 0, 100) == 0.0


@given(
    st.integers(1, 60).flatmap(
        lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))
    )
)
def test_pass_at_k_is_the_quotient_of_binomials(case: tuple[int, int, int]) -> None:
    n, c, k = case
    assert pass_at_k(n, c, k) == pytest.approx(
        1 - math.comb(n - c, k) / math.comb(n, k), abs=1e-12
    )


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 0), (4, 1, 5)])
def test_pass_at_k_refuses_what_cannot_be(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@k needs"):
        pass_at_k(n, c, k)


def test_the_majority_wins() -> None:
    assert maj_at_k(["4", "4", "5"], [True, True, False], 3) == 1.0
    assert maj_at_k(["4", "5", "5"], [True, False, False], 3) == 0.0


def test_a_tie_is_split() -> None:
    assert maj_at_k(["4", "5"], [True, False], 2) == 0.5


def test_maj_at_2_counts_every_pair() -> None:
    # pairs of a a b: aa is right, ab and ab are ties: (1 + .5 + .5) / 3
    assert maj_at_k(["a", "a", "b"], [True, True, False], 2) == pytest.approx(2 / 3)


def test_no_answer_has_no_vote() -> None:
    assert maj_at_k([None, None, "4"], [False, False, True], 3) == 1.0
    assert maj_at_k([None, None], [False, False], 2) == 0.0


def test_maj_of_many_subsets_is_drawn_and_near_the_whole() -> None:
    answers = ["a"] * 14 + ["b"] * 10
    correct = [answer == "a" for answer in answers]
    # the exact value: the share of the 5-subsets in which a has 3 or more
    exact = sum(math.comb(14, i) * math.comb(10, 5 - i) for i in (3, 4, 5)) / math.comb(
        24, 5
    )
    drawn = maj_at_k(answers, correct, 5, np.random.default_rng(0))
    assert drawn == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 256))


def test_drawing_subsets_needs_a_generator() -> None:
    with pytest.raises(ValueError, match="needs a random generator"):
        maj_at_k(["a"] * 24, [True] * 24, 12)


def test_the_interval_of_single_samples_is_wilsons() -> None:
    values = [1.0] * 30 + [0.0] * 70
    # se**2 = var/(n), var with n-1 in its denominator: effective n = 99, held at the number of
    # tasks, 100
    wilson = stats.binomtest(30, 100).proportion_ci(0.95, method="wilson")
    estimate = interval(values)
    assert (estimate.low, estimate.high) == pytest.approx((wilson.low, wilson.high))


def test_all_solved_still_has_a_width() -> None:
    estimate = interval([1.0] * 20)
    wilson = stats.binomtest(20, 20).proportion_ci(0.95, method="wilson")
    assert (estimate.low, estimate.high) == pytest.approx((wilson.low, 1.0))


def test_samples_of_one_task_are_no_independent_observations() -> None:
    # 10 tasks always solved and 10 never, 8 samples each: as wide as 20 observations, not 160
    clustered = interval([1.0] * 10 + [0.0] * 10, num_samples=160)
    assert clustered == interval([1.0] * 10 + [0.0] * 10)


def test_tasks_that_agree_make_a_narrower_interval_up_to_that_of_the_samples() -> None:
    estimate = interval([0.5] * 20 + [0.625, 0.375], num_samples=22 * 8)
    wilson = stats.binomtest(88, 176).proportion_ci(0.95, method="wilson")
    assert (estimate.low, estimate.high) == pytest.approx((wilson.low, wilson.high))


def test_scores_beyond_0_and_1_get_the_normal_interval() -> None:
    # mean 2, var 4 over 4 tasks: se 1
    estimate = interval([0.0, 2.0, 2.0, 4.0])
    se = math.sqrt(8 / 3 / 4)
    assert (estimate.low, estimate.high) == pytest.approx(
        (2 - 1.959964 * se, 2 + 1.959964 * se), abs=1e-5
    )


def test_intervals_cover_as_often_as_they_say() -> None:
    # 40 tasks of beta-distributed difficulty, 4 samples each
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(400):
        difficulty = rng.beta(0.8, 0.8, size=40)
        values = rng.binomial(4, difficulty) / 4
        estimate = interval(values, num_samples=160)
        covered += estimate.low <= 0.5 <= estimate.high
    assert covered / 400 > 0.92


def test_a_report_goes_by_data_source_and_over_all() -> None:
    tasks = [
        TaskScores("1", "code", (1.0, 0.0), ("4", "5")),
        TaskScores("2", "code", (1.0, 1.0), ("6", "6")),
        TaskScores("1", "search", (0.0, 0.0), ("x", "y")),
    ]
    report = evaluation_report(tasks)
    assert list(report) == ["code", "search", "all"]
    assert {name: estimate.value for name, estimate in report["code"].items()} == {
        "avg@2": 0.75,
        "pass@1": 0.75,
        "pass@2": 1.0,
        "maj@2": 0.75,
    }
    assert report["all"]["avg@2"].value == pytest.approx((0.5 + 1 + 0) / 3)
    assert report["all"]["avg@2"].num_tasks == 3


def test_one_data_source_needs_no_total() -> None:
    assert list(evaluation_report([TaskScores("1", "code", (1.0,))])) == ["code"]


def test_a_task_with_fewer_samples_is_left_out_of_larger_k() -> None:
    report = evaluation_report(
        [TaskScores("1", "s", (1.0, 0.0, 0.0)), TaskScores("2", "s", (1.0,))]
    )["s"]
    assert (
        report["pass@1"].num_tasks,
        report["pass@2"].num_tasks,
        report["pass@3"].num_tasks,
    ) == (
        2,
        1,
        1,
    )


def test_a_task_whose_samples_all_failed_counts_nowhere() -> None:
    report = evaluation_report([TaskScores("1", "s", (1.0,)), TaskScores("2", "s", ())])[
        "s"
    ]
    assert (report["avg@1"].value, report["avg@1"].num_tasks) == (1.0, 1)


def test_scores_must_be_finite() -> None:
    with pytest.raises(ValueError, match="not finite"):
        TaskScores("1", "s", (math.nan,))


def test_every_subset_is_counted_once_where_they_are_few() -> None:
    answers, correct = ["a", "b", "b", "c"], [False, True, True, False]
    values = []
    for subset in combinations(range(4), 3):
        votes = [answers[i] for i in subset]
        most = max(votes.count(answer) for answer in votes)
        winners = sorted({answer for answer in votes if votes.count(answer) == most})
        values.append(sum(answer == "b" for answer in winners) / len(winners))
    assert maj_at_k(answers, correct, 3) == pytest.approx(sum(values) / len(values))
