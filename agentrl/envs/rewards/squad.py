"""SQuAD: computes exact match and F1 of the stated answer as the data set's own evaluation does."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

from agentrl.envs.rewards.answers import said_answer, true_answers
from agentrl.envs.view import EpisodeView

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def exact_match(view: EpisodeView) -> float:
    """1.0 where the answer equals one of the task's after SQuAD's normalisation, else 0.0
    (arXiv:1606.05250, sec. 6.1, and the evaluation script of version 1.1).

    Raises:
        RewardError: the task has no answer.
    """
    said = normalised(said_answer(view))
    return float(any(said == normalised(truth) for truth in true_answers(view, "exact_match")))


def f1(view: EpisodeView) -> float:
    """The harmonic mean of precision and recall over words, after the same normalisation; of
    several answers the best.

    Raises:
        RewardError: the task has no answer.
    """
    said = normalised(said_answer(view)).split()
    return max(_overlap(said, normalised(truth).split()) for truth in true_answers(view, "f1"))


def normalised(text: str) -> str:
    """Lower case, without ASCII punctuation, articles and repeated spaces, in this order."""
    plain = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


def _overlap(said: Iterable[str], truth: Iterable[str]) -> float:
    mine, theirs = Counter(said), Counter(truth)
    common = (mine & theirs).total()
    # 2PR / (P + R), with P = common / mine and R = common / theirs.
    return 2 * common / (mine.total() + theirs.total()) if common else 0.0
