"""SQuAD's exact match and F1, by hand and beside the data set's own script."""

from __future__ import annotations

import collections
import random
import re
import string

import pytest

from agentrl.envs.rewards.answers import exact_match, f1, normalised
from agentrl.errors import RewardError

from .episodes import episode


def test_normalisation_drops_case_punctuation_articles_and_spaces_in_this_order() -> None:
    # "the" goes after the hyphen: "the-end" becomes the one word "theend", which has no article
    assert normalised("  The  U.S.A.'s the-end, a dog ") == "usas theend dog"


def test_f1_counts_each_common_word_as_often_as_both_have_it() -> None:
    # 3 said, 4 true, 2 common: P = 2/3, R = 2/4, F1 = 2PR / (P + R) = 4/7
    assert f1(episode("red red car", "red red red bus")) == pytest.approx(4 / 7)


def test_the_best_of_several_answers_counts() -> None:
    said = episode("Answer: the Eiffel Tower.", ["Paris", "Eiffel Tower"])
    assert (exact_match(said), f1(said)) == (1.0, 1.0)


def test_nothing_in_common_is_zero() -> None:
    said = episode("one", "two")
    assert (exact_match(said), f1(said)) == (0.0, 0.0)


def test_an_answer_is_needed() -> None:
    with pytest.raises(RewardError, match="f1 needs the answer of task 't-1'"):
        f1(episode("one"))


# The evaluation script of SQuAD 1.1, as its authors publish it, but for names and types.
def official_normal(text: str) -> str:
    def remove_articles(own: str) -> str:
        return re.sub(r"\b(a|an|the)\b", " ", own)

    def remove_punc(own: str) -> str:
        exclude = set(string.punctuation)
        return "".join(ch for ch in own if ch not in exclude)

    return " ".join(remove_articles(remove_punc(text.lower())).split())


def official_f1(prediction: str, ground_truth: str) -> float:
    prediction_tokens = official_normal(prediction).split()
    ground_truth_tokens = official_normal(ground_truth).split()
    common = collections.Counter(prediction_tokens) & collections.Counter(
        ground_truth_tokens
    )
    num_same = sum(common.values())
    if num_same == 0:
        return 0
    precision = 1.0 * num_same / len(prediction_tokens)
    recall = 1.0 * num_same / len(ground_truth_tokens)
    return (2 * precision * recall) / (precision + recall)


def test_the_official_script_computes_the_same() -> None:
    rng = random.Random(0)
    words = ["the", "a", "Red", "red,", "U.S.", "car's", "an", "42", "-", "über"]
    for _ in range(500):
        said, truth = (
            " ".join(rng.choices(words, k=rng.randrange(1, 7))) for _ in range(2)
        )
        own = episode(f"Answer: {said}", truth)
        assert exact_match(own) == float(official_normal(said) == official_normal(truth))
        assert f1(own) == pytest.approx(official_f1(said, truth), abs=1e-12)
