"""Changes: by how much a metric must change before it matters, and which way is worse.

The thresholds of the section ``health`` are read where it has one for the metric; null there turns
its finding off as it turns the alert off.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentrl.metrics.monitors import HealthSpec
from agentrl.types.arrays import F64

Worse = Literal[-1, 0, 1]


@dataclass(frozen=True, slots=True)
class Gauge:
    """What of a metric matters.

    Args:
        least: a change that matters: a difference, or a factor where ``floor`` is given.
        worse: 1 where more is worse, -1 where less is, 0 where both are.
        floor: added to sizes before they are compared by factors, in the metric's unit: below it
            a factor means nothing. None compares by differences.
        rise: a rise matters from so many times ``least`` on.
    """

    least: float
    worse: Worse = 1
    floor: float | None = None
    rise: float = 1.0

    def scaled(self, values: F64) -> F64:
        """``[n]`` values of which differences are compared."""
        return values if self.floor is None else np.log(np.abs(values) + self.floor)

    def worth(self, rises: F64) -> F64:
        """``[n]`` how many times what matters each difference is; 0 where it is for the better."""
        # a factor of 1 asks for any change
        times = rises / (
            self.least if self.floor is None else max(math.log(self.least), 1e-9)
        )
        times = np.where(times > 0.0, times / self.rise, times)
        return np.abs(times) if self.worse == 0 else np.maximum(times * self.worse, 0.0)


SHARE = 0.25
"""Of a share, such as that of calls that failed."""

_HEALTH: tuple[tuple[re.Pattern[str], str, Callable[[float], Gauge]], ...] = (
    (
        re.compile(r"policy/entropy"),
        "entropy_min_frac",
        lambda own: Gauge(1 / own, 0, 0.002),
    ),
    (
        re.compile(r"policy/ratio|mismatch/weight"),
        "ratio_jump",
        lambda jump: Gauge(jump, 0),
    ),
    (re.compile(r"mismatch/.*(/logp_abs|logp_abs/mean|k3_kl)"), "mismatch_jump", Gauge),
    (
        re.compile(r"tool/calls_per_traj"),
        "tool_calls_min_frac",
        lambda own: Gauge(1 / own, -1, 0.1),
    ),
    (
        re.compile(r"length/\w+/mean"),
        "length_max_factor",
        lambda factor: Gauge(factor, 0, 1.0),
    ),
    (
        re.compile(r"answer/question_mi"),
        "information_min_frac",
        lambda own: Gauge(1 / own, -1, 0.05),
    ),
    (re.compile(r"perf/loop_lag_s"), "loop_lag_max_s", Gauge),
    (re.compile(r"perf/abandoned_calls"), "abandoned_calls_max", Gauge),
)
_OTHERS: tuple[tuple[re.Pattern[str], Gauge | None], ...] = (
    (re.compile(r"mismatch/logp_abs/max"), Gauge(1.0)),
    (
        re.compile(
            r"eval/.*|accuracy/.*|reward_model/accuracy|.*explained_variance|.*success_frac|.*/ess"
        ),
        Gauge(SHARE, -1),
    ),
    (re.compile(r"policy/clip_frac_\w+"), Gauge(0.025)),
    (re.compile(r"time/idle_frac.*|(moe/unrecorded|async/mixed)_frac|gpu/.*"), None),
    (re.compile(r".*_frac(_\w+)?"), Gauge(SHARE)),
    (re.compile(r"optim/(not_finite|skipped)|.*retries_per_call"), Gauge(SHARE)),
    (re.compile(r"turns/mean"), Gauge(2.0, 0, 0.1)),
    (re.compile(r"tool/.*_s/p50"), Gauge(3.0, 1, 0.02)),
    (re.compile(r"tool/.*/output_bytes/mean"), Gauge(3.0, 0, 4.0)),
    (re.compile(r"policy/(kl_\w+|nll)|reward_model/loss"), Gauge(0.5)),
    (re.compile(r"policy/(pg_)?loss(_last_pass)?"), Gauge(1.0, 0)),
    (re.compile(r"(critic/)?optim/grad_norm|critic/loss"), Gauge(10.0, 1, 0.01)),
    (re.compile(r"(critic/)?optim/lr"), Gauge(10.0, 1, 1e-12)),
    (re.compile(r"async/staleness/mean"), Gauge(0.75)),
    (re.compile(r"time/.*_s"), Gauge(3.0, 1, 0.3)),
    (re.compile(r"(failed|cancelled)/.*"), Gauge(4.0, 1, 1.0)),
    # What others are made of, depends on the sizes of batches, or is an extreme of few.
    (
        re.compile(
            r"(count|async|sandbox|perf|mismatch|moe|critic|ended)/.*|.*/(max|p95|std|calls)"
        ),
        None,
    ),
    (
        re.compile(
            r"step|time|policy_version|turns/re(starts|pairs).*|policy/(kl_coef|entropy_loss)"
        ),
        None,
    ),
)
_OTHER = Gauge(4.0, 0, 0.01)
"""Of a metric that the table does not have, such as a user's own."""
REWARD = re.compile(r"reward(/.+)?/mean|reward_(part|agent)/.+/mean")


def gauge_of(name: str, health: HealthSpec, spread: float) -> Gauge | None:
    """What of a metric matters; None where no change of it is a finding.

    Args:
        name: of the metric.
        health: its thresholds.
        spread: a low standard deviation of the rewards of a step, by which rewards, whose unit
            nobody knows, are measured.
    """
    if REWARD.fullmatch(name):
        # Learning fast is a rise by a spread in some steps; to fool a judge is a rise by more.
        return Gauge(spread, 0, rise=3.0) if spread > 0 else None
    for pattern, setting, make in _HEALTH:
        if pattern.fullmatch(name):
            threshold = getattr(health, setting)
            return make(threshold) if threshold else None
    return next((gauge for pattern, gauge in _OTHERS if pattern.fullmatch(name)), _OTHER)
