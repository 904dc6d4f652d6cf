"""Significance: tests whether a share of trajectories changed, and bounds false discoveries.

Axes: K candidates.
"""

from __future__ import annotations

import numpy as np

from agentrl.types.arrays import F64, I64, Bools

PRIOR = 10.0
"""How many trajectories the prior of ``log_odds`` is worth."""


def log_odds(
    count_a: F64, num_a: F64, count_b: F64, num_b: F64, prior: float = PRIOR
) -> tuple[F64, F64]:
    """The change of the log odds from a to b, and its z-score.

    The prior is informative: each candidate's own frequency over both sides (Monroe, Colaresi and
    Quinn 2008, eq. 16 and 22). Here a trajectory has a candidate or not, so the variance counts
    those that have it not, too.

    Args:
        count_a, count_b: ``[K]`` trajectories that have it.
        num_a, num_b: ``[K]`` trajectories of the side.
        prior: how many trajectories the prior is worth.

    Returns:
        ``[K]`` natural log odds of b less those of a, and ``[K]`` z-scores.
    """
    pooled = (count_a + count_b + 0.5) / (num_a + num_b + 1.0)
    with_a = count_a + prior * pooled
    with_b = count_b + prior * pooled
    without_a = num_a - count_a + prior * (1.0 - pooled)
    without_b = num_b - count_b + prior * (1.0 - pooled)
    change = np.log(with_b / without_b) - np.log(with_a / without_a)
    variance = 1.0 / with_a + 1.0 / with_b + 1.0 / without_a + 1.0 / without_b
    return change, change / np.sqrt(variance)


def proportion_z(count_a: I64, num_a: int, count_b: I64, num_b: int) -> F64:
    """``[K]`` z-scores of the pooled two-proportion test; 0 where all or none have it."""
    pooled = (count_a + count_b) / (num_a + num_b)
    variance = pooled * (1.0 - pooled) * (1.0 / num_a + 1.0 / num_b)
    change = count_b / num_b - count_a / num_a
    return np.divide(
        change, np.sqrt(variance), out=np.zeros(change.shape), where=variance > 0
    )


def fisher_p(count_a: I64, num_a: I64, count_b: I64, num_b: I64) -> F64:
    """``[K]`` two-sided p-values of Fisher's exact test: valid for small counts, where z is not."""
    most = int((num_a + num_b).max(initial=0))
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, most + 1)))])
    columns = (count_a, num_a, count_b, num_b)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return np.array([_fisher(log_factorial, *row) for row in rows], dtype=np.float64)


def _fisher(
    log_factorial: F64, count_a: int, num_a: int, count_b: int, num_b: int
) -> float:
    total = count_a + count_b
    low = max(0, total - num_b)
    in_a = np.arange(low, min(num_a, total) + 1)
    in_b = total - in_a
    # of each table with these margins, but for a constant
    weight = -(
        log_factorial[in_a]
        + log_factorial[num_a - in_a]
        + log_factorial[in_b]
        + log_factorial[num_b - in_b]
    )
    chance = np.exp(weight - weight.max())
    # tables as likely as the one seen count with it, whatever the rounding
    as_rare = chance <= chance[count_a - low] * (1.0 + 1e-7)
    return float(chance[as_rare].sum() / chance.sum())


def q_values(p_values: F64, num_tests: int) -> F64:
    """``[K]`` Benjamini-Hochberg q-values (1995): keeping those of at most r bounds the expected
    share of false discoveries by r.

    Args:
        p_values: ``[K]`` the smallest p-values.
        num_tests: how many were tested in all, at least K; the others' p-values are larger.
    """
    order = np.argsort(p_values, kind="stable")
    scaled = p_values[order] * num_tests / np.arange(1, p_values.size + 1)
    found = np.empty(p_values.size)
    found[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return found


def design_effect(found: I64, sizes: I64, side: Bools) -> float:
    """How many times larger the variance of a share is than if trajectories were independent.

    Rollouts of one task say alike things. Dividing counts by this number makes tests of
    independent trajectories valid for them (Rao and Scott 1992).

    Args:
        found: ``[C]`` trajectories of each task that have the candidate.
        sizes: ``[C]`` trajectories of each task.
        side: ``[C]`` whether they are of the second range.

    Returns:
        At least 1.
    """
    between = within = 0.0
    for own in (side, ~side):
        num = int(sizes[own].sum())
        tasks = int(np.count_nonzero(own))
        if num == 0:
            continue
        share = found[own].sum() / num
        deviations = found[own] - share * sizes[own]
        between += float((deviations**2).sum()) * tasks / max(1, tasks - 1)
        within += num * share * (1.0 - share)
    return max(1.0, between / within) if within > 0 else 1.0
