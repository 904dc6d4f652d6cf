"""Question information: 0 by chance, high where the words of an answer tell its question."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agentrl.metrics import rollout_metrics
from agentrl.metrics.rollout import question_information
from agentrl.types import TrajectoryGroup
from tests.metrics.answers import answer_group, sampled

MEAN = "answer/question_mi"


@pytest.mark.parametrize("seed", range(5))
def test_answers_that_do_not_depend_on_the_question_have_none(seed: int) -> None:
    assert abs(rollout_metrics(sampled(0.0, seed))[MEAN]) < 0.01


def test_it_grows_with_what_answers_tell_of_the_question() -> None:
    means = [rollout_metrics(sampled(share))[MEAN] for share in (0.0, 0.1, 0.3, 0.9)]
    assert means == sorted(means)
    assert means[1] > 0.02 < means[2] < means[3]


def test_two_questions_worked_by_hand() -> None:
    groups = [answer_group(0, [[1, 1], [1, 1]]), answer_group(1, [[2, 2], [2, 2]])]
    # without the answer itself: of the sibling all tokens are 1, of all others a third
    own = math.log(0.5 + 0.5 * 1 / (2 / 6))
    # across questions, each answer stands with one that shares nothing
    chance = math.log(0.5)
    assert question_information(groups) == {
        name: pytest.approx(own - chance) for name in ("0-0-0", "0-1-0", "1-0-0", "1-1-0")
    }


def test_an_answer_like_all_others_has_the_least() -> None:
    groups = sampled(0.5)
    template = groups[3].trajectories[2]
    (segment,) = template.turns[0].completion
    object.__setattr__(segment, "token_ids", np.arange(50))
    found = question_information(groups)
    assert min(found, key=lambda one: found[one]) == template.id


@pytest.mark.parametrize(
    "groups",
    [
        [],
        [answer_group(0, [[1], [2]])],
        [answer_group(0, [[1]]), answer_group(1, [[2]])],
        [answer_group(0, [[1], [2]]), answer_group(1, [[], []])],
    ],
    ids=["none", "one_question", "one_answer", "no_tokens"],
)
def test_it_needs_two_questions_of_two_answers(groups: list[TrajectoryGroup]) -> None:
    assert question_information(groups) == {}
    assert MEAN not in rollout_metrics(groups)


def test_long_answers_and_large_batches_are_bounded() -> None:
    long = [answer_group(n, [[n] * 256 + [7] * 5000] * 2) for n in range(2)]
    short = [answer_group(n, [[n] * 256] * 2) for n in range(2)]
    assert question_information(long) == question_information(short)
    assert len(question_information([answer_group(n, [[n]] * 2) for n in range(70)])) == 128
