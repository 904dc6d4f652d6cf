"""Evaluation statistics: avg@N, pass@k and maj@k with intervals, by data source.

- Tasks were sampled independently, but the samples of one task were not.
- Every interval is therefore clustered by task: it uses one number a task.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from agentrl.types.arrays import F64

ALL_SOURCES = "all"
_MAX_SUBSETS = 256
_CONFIDENCE = 0.95
_CORRECT_ABOVE = 0.5


@dataclass(frozen=True, slots=True)
class TaskScores:
    """The scored samples of one task.

    Args:
        task_id: unique within its data source.
        data_source: the group of tasks in a report.
        scores: one for each finished sample; the caller leaves out failed ones.
        answers: each sample's answer, for voting; None for a sample without one. Empty if the task
            has no answers to vote on.

    Raises:
        ValueError: the numbers of scores and answers differ, or a score is not finite.
    """

    task_id: str
    data_source: str
    scores: tuple[float, ...]
    answers: tuple[str | None, ...] = ()

    def __post_init__(self) -> None:
        if self.answers and len(self.answers) != len(self.scores):
            raise ValueError(
                f"task {self.task_id!r} has {len(self.scores)} scores but {len(self.answers)} "
                f"answers"
            )
        if not all(math.isfinite(score) for score in self.scores):
            raise ValueError(
                f"task {self.task_id!r} has a score that is not finite: {self.scores}"
            )

    @property
    def correct(self) -> list[bool]:
        """Whether each sample is correct."""
        return [score > _CORRECT_ABOVE for score in self.scores]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks with its confidence interval ``[low, high]``."""

    value: float
    low: float
    high: float
    num_tasks: int


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """The probability that at least one of ``k`` samples is correct (arXiv:2107.03374, eq. 1).

    The unbiased ``1 - C(n - c, k) / C(n, k)``, as a product that neither overflows nor cancels.

    Raises:
        ValueError: not ``0 <= num_correct <= num_samples`` or not ``1 <= k <= num_samples``.
    """
    if not 0 <= num_correct <= num_samples or not 1 <= k <= num_samples:
        raise ValueError(
            f"pass@k needs 0 <= c <= n and 1 <= k <= n, got n={num_samples}, c={num_correct}, k={k}"
        )
    if num_samples - num_correct < k:
        return 1.0
    index = np.arange(num_samples - num_correct + 1, num_samples + 1, dtype=np.float64)
    return float(1.0 - np.prod(1.0 - k / index))


def maj_at_k(
    answers: Sequence[str | None],
    correct: Sequence[bool],
    k: int,
    rng: np.random.Generator | None = None,
) -> float:
    """The probability that the majority answer of ``k`` samples is correct (arXiv:2203.11171).

    - All subsets of ``k`` samples are counted if there are at most 256, otherwise 256 random ones.
    - Ties between answers are broken uniformly. A sample without an answer has no vote, and a
      subset without votes is wrong.
    - An answer is correct by the share of correct samples among those with this answer.

    Args:
        answers: ``[n]``, None for a sample without one.
        correct: ``[n]`` whether each sample is correct.
        k: votes, at most n.
        rng: draws the subsets; required for more than 256.

    Raises:
        ValueError: lengths differ, not ``1 <= k <= n``, or ``rng`` is missing.
    """
    n = len(answers)
    if len(correct) != n or not 1 <= k <= n:
        raise ValueError(
            f"maj@k needs as many answers as verdicts and 1 <= k <= n, got n={n}, {len(correct)}, "
            f"k={k}"
        )
    verdicts: dict[str, list[bool]] = defaultdict(list)
    for answer, verdict in zip(answers, correct, strict=True):
        if answer is not None:
            verdicts[answer].append(verdict)
    worth = {answer: sum(own) / len(own) for answer, own in verdicts.items()}
    subsets: Iterable[Sequence[int]]
    if math.comb(n, k) <= _MAX_SUBSETS:
        subsets = list(itertools.combinations(range(n), k))
    elif rng is None:
        raise ValueError(
            f"maj@k over {math.comb(n, k)} subsets needs a random generator to draw some of them"
        )
    else:
        subsets = [
            rng.choice(n, size=k, replace=False).tolist() for _ in range(_MAX_SUBSETS)
        ]
    return float(
        np.mean([_vote([answers[i] for i in subset], worth) for subset in subsets])
    )


def _vote(answers: Iterable[str | None], worth: Mapping[str, float]) -> float:
    votes = Counter(answer for answer in answers if answer is not None)
    most = max(votes.values(), default=0)
    winners = [worth[answer] for answer, count in votes.items() if count == most]
    return sum(winners) / len(winners) if winners else 0.0


def interval(
    task_values: Sequence[float] | F64, *, num_samples: int | None = None
) -> Estimate:
    """The mean of one number a task, with a confidence interval of 95%, clustered by task.

    - Values in [0, 1] get Wilson's score interval. Its number of observations is that implied by
      the spread over tasks, ``p(1-p) / se**2`` (Kish's effective sample size), between the numbers
      of tasks and samples. So the interval keeps its width if every task was solved.
    - Other values get the normal interval.

    Args:
        task_values: ``[n]``, n >= 1.
        num_samples: the number of samples behind them; by default one a task.

    Raises:
        ValueError: there is no value.
    """
    values = np.asarray(task_values, dtype=np.float64)
    n = int(values.size)
    if n == 0:
        raise ValueError("an interval needs the value of at least one task")
    mean = float(values.mean())
    z = NormalDist().inv_cdf(0.5 + _CONFIDENCE / 2)
    variance = float(values.var(ddof=1)) / n if n > 1 else math.nan
    if values.min() >= 0.0 and values.max() <= 1.0:
        effective = mean * (1 - mean) / variance if variance > 0 else float(n)
        # Samples of one task are alike: together they are worth at least one, and at most as many
        # as they are.
        effective = min(max(effective, n), max(num_samples or n, n))
        centre = (mean + z * z / (2 * effective)) / (1 + z * z / effective)
        half = z / (1 + z * z / effective)
        half *= math.sqrt(
            mean * (1 - mean) / effective + z * z / (4 * effective * effective)
        )
        return Estimate(mean, max(0.0, centre - half), min(1.0, centre + half), n)
    half = z * math.sqrt(variance) if n > 1 else math.inf
    return Estimate(mean, mean - half, mean + half, n)


def evaluation_report(
    tasks: Sequence[TaskScores],
) -> dict[str, dict[str, Estimate]]:
    """Every statistic of an evaluation, by data source and, if there are several, for all of them.

    - ``avg@N`` is the mean over tasks of a task's mean score, N being the most samples of a task.
    - ``pass@k`` and ``maj@k`` are given for the powers of two up to N and for N, over the tasks
      with at least k samples. ``maj@k`` starts at k = 2 and needs answers.

    Args:
        tasks: one entry a task; those without a finished sample are left out.
    """
    scored = [task for task in tasks if task.scores]
    by_source: dict[str, list[TaskScores]] = defaultdict(list)
    for task in scored:
        by_source[task.data_source].append(task)
    if len(by_source) > 1:
        by_source[ALL_SOURCES] = scored
    return {source: _source_report(own) for source, own in by_source.items()}


def _source_report(tasks: Sequence[TaskScores]) -> dict[str, Estimate]:
    most = max(len(task.scores) for task in tasks)
    report = {
        f"avg@{most}": _estimate(tasks, [float(np.mean(task.scores)) for task in tasks])
    }
    ks = sorted({*(2**i for i in range(most.bit_length())), most})
    for k in ks:
        own = [task for task in tasks if len(task.scores) >= k]
        values = [pass_at_k(len(task.scores), sum(task.correct), k) for task in own]
        report[f"pass@{k}"] = _estimate(own, values)
    for k in ks[1:]:
        own = [task for task in tasks if len(task.answers) >= k]
        # A fixed seed: the same scores give the same report.
        rng = np.random.default_rng([0, k])
        values = [maj_at_k(task.answers, task.correct, k, rng) for task in own]
        if values:
            report[f"maj@{k}"] = _estimate(own, values)
    return report


def _estimate(tasks: Sequence[TaskScores], values: Sequence[float]) -> Estimate:
    return interval(values, num_samples=sum(len(task.scores) for task in tasks))
