"""Monitors: one rule for each alert, over the numbers of a stage, with the settings of all."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Annotated

from pydantic import Field

from agentrl.types.section import Count, Fraction, Natural, Positive, Section

Factor = Annotated[float, Field(gt=1)]


class HealthSpec(Section):
    """When the numbers of a stage that learns by rewards become an alert (docs/health.md). Each
    threshold may be null, which turns its alert off."""

    webhook: Annotated[str, Field(pattern=r"^(https?://|\$[A-Za-z_]\w*$)")] | None = None
    """URL that alerts, warnings and the run's end are posted to as JSON, such as one of Slack; or
    ``$NAME``, the environment variable that holds it, where the URL is a secret."""
    window: Count = 10
    """Steps that a mean is taken over. The first so many are what later ones are compared with."""
    entropy_min_frac: Fraction | None = 0.2
    """``entropy_collapse``: least entropy of the policy, as a share of its first steps'."""
    ratio_jump: Positive | None = 0.05
    """``ratio_jump``: distance of the mean probability ratio from 1 that a jump has at least."""
    mismatch_jump: Positive | None = 0.02
    """``mismatch_jump``: mean difference of sampler and trainer, in nats, that a jump has at
    least."""
    jump_factor: Factor = 4.0
    """A jump is so many times the median of the steps before it."""
    reward_stuck_steps: Annotated[int, Field(ge=4)] | None = 100
    """``reward_stuck``: steps without a rise of the reward. A stage that solves its tasks is not
    stuck."""
    no_signal_max_frac: Fraction | None = 0.9
    """``no_signal``: greatest share of groups that teach nothing: no token has an advantage."""
    tool_calls_min_frac: Fraction | None = 0.2
    """``tool_collapse``: least number of tool calls, as a share of the first steps'."""
    tool_success_min_frac: Fraction | None = 0.8
    """``tool_errors``: least share of tool calls that succeed, as a share of the first steps'.
    Calls that cannot be read are among those that fail."""
    length_max_factor: Factor | None = 3.0
    """``length_explosion``: greatest length of a response, as a multiple of the first steps'."""
    loop_lag_max_s: Positive | None = 2.0
    """``loop_blocked``: most seconds that the event loop of the episodes may stand still at
    once."""
    abandoned_calls_max: Natural | None = 32
    """``abandoned_calls``: most synchronous calls that may run on in one process after their
    deadlines, each in a thread of its own."""
    failed_max_frac: Fraction | None = 0.02
    """``failed_episodes``: greatest share of episodes that failed by infrastructure."""
    unknown_max_frac: Fraction | None = 0.0
    """``unknown_tokens``: greatest share of sampled tokens that the tokenizer has no text for."""
    stale_max_frac: Fraction | None = 0.02
    """``lost_by_age``: greatest share of the groups issued in the last ``window`` steps that
    ``rollout.on_stale`` gave up for their age, or of the tokens that it masked."""
    information_min_frac: Fraction | None = 0.25
    """``template_collapse``: least ``answer/question_mi``, as a share of the first steps', while
    entropy has not collapsed."""


ENTROPY = "policy/entropy"
RATIO = "policy/ratio"
MISMATCH = "mismatch/engine/logp_abs"
REWARD = "reward/mean"
ACCURACY = "accuracy/mean"
UNTAUGHT = "group/no_signal_frac"
CALLS = "tool/calls_per_traj"
SUCCESSES = "tool/success_frac"
LENGTH = "length/response/mean"
INFORMATION = "answer/question_mi"
LAG = "perf/loop_lag_s"
ABANDONED = "perf/abandoned_calls"
FAILED = "failed_frac"
UNKNOWN = "mismatch/unknown_frac"
ISSUED = "async/issued"
DROPPED = "async/dropped"
TRAINED_TOKENS = "count/trained_tokens"
MASKED_TOKENS = "async/masked_tokens"
WATCHED = (
    *(ENTROPY, RATIO, MISMATCH, REWARD, ACCURACY, UNTAUGHT, CALLS, SUCCESSES, LENGTH),
    *(
        INFORMATION,
        LAG,
        ABANDONED,
        FAILED,
        UNKNOWN,
        ISSUED,
        DROPPED,
        TRAINED_TOKENS,
        MASKED_TOKENS,
    ),
)

_SOLVED = 0.95
"""Accuracy from which a reward that rises no more is no fault."""
_HIGH_ENTROPY = 0.5
"""Share of the first steps' entropy from which answers are as diverse as they were."""
_LEAST_CALLS = 0.1
_LEAST_SUCCESSES = 0.5
_LEAST_INFORMATION = 0.05
"""Below these the first steps had nothing that could collapse."""


@dataclass(eq=False)
class Series:
    """The numbers of one metric: the first ones and the latest, which is all that rules read.

    Args:
        window: steps of a mean.
        longest: of the latest numbers.
    """

    window: int
    longest: int
    first: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.latest: deque[float] = deque(maxlen=self.longest)
        self.size = 0

    def add(self, value: float) -> None:
        """The number of one more step."""
        if len(self.first) < self.window:
            self.first.append(value)
        self.latest.append(value)
        self.size += 1

    @property
    def start(self) -> float | None:
        """The mean of the first steps; None before the latest ones are others."""
        return statistics.fmean(self.first) if self.size >= 2 * self.window else None

    @property
    def now(self) -> float:
        """The mean of the latest steps."""
        return statistics.fmean(self.tail(self.window))

    def tail(self, number: int) -> list[float]:
        """The latest numbers, the oldest of them first."""
        return list(islice(self.latest, max(0, len(self.latest) - number), None))


@dataclass(frozen=True, slots=True)
class MonitorReading:
    """A rule that is broken.

    Args:
        metric: which number.
        value: what it is.
        reference: what it is compared with.
        text: both in words.
    """

    metric: str
    value: float
    reference: float
    text: str


Numbers = Mapping[str, Series]
Monitor = Callable[[Numbers, HealthSpec], MonitorReading | None]


def _fallen(
    numbers: Numbers,
    spec: HealthSpec,
    *,
    metric: str,
    setting: str,
    what: str,
    floor: float = 0.0,
) -> MonitorReading | None:
    """A mean below a share of the first steps' mean, where that was above ``floor``: else there was
    nothing that could fall.
    """
    series = numbers[metric]
    start = series.start
    least: float | None = getattr(spec, setting)
    if (
        least is None
        or start is None
        or start <= 0
        or start < floor
        or series.now >= least * start
    ):
        return None
    text = f"{what} from {start:.3g} to {series.now:.3g}, below {least:g} of it"
    return MonitorReading(metric, series.now, start, text)


def _template_collapse(numbers: Numbers, spec: HealthSpec) -> MonitorReading | None:
    entropy = numbers[ENTROPY]
    if entropy.start is None or entropy.now < _HIGH_ENTROPY * entropy.start:
        # that is another collapse
        return None
    return _fallen(
        numbers,
        spec,
        metric=INFORMATION,
        setting="information_min_frac",
        what="answers depend less on their questions while entropy holds: their information fell",
        floor=_LEAST_INFORMATION,
    )


def _length_explosion(numbers: Numbers, spec: HealthSpec) -> MonitorReading | None:
    series = numbers[LENGTH]
    most = spec.length_max_factor
    start = series.start
    if most is None or start is None or series.now <= most * start:
        return None
    grown = f"responses grew from {start:.3g} to {series.now:.3g} tokens"
    text = f"{grown}, more than {most:g} times that"
    return MonitorReading(LENGTH, series.now, start, text)


def _jump(
    numbers: Numbers,
    spec: HealthSpec,
    *,
    metric: str,
    setting: str,
    what: str,
    centre: float = 0.0,
) -> MonitorReading | None:
    """A number far from its centre, and many times as far as those of the steps before."""
    sizes = [abs(value - centre) for value in numbers[metric].tail(spec.window + 1)]
    least: float | None = getattr(spec, setting)
    if least is None or len(sizes) <= spec.window:
        return None
    size = sizes.pop()
    usual = statistics.median(sizes)
    if size < least or size < spec.jump_factor * usual:
        return None
    text = f"{what} {size:.3g}, before {usual:.3g}"
    return MonitorReading(metric, size, usual, text)


def _reward_stuck(numbers: Numbers, spec: HealthSpec) -> MonitorReading | None:
    steps = spec.reward_stuck_steps
    series = numbers[REWARD]
    if steps is None or series.size < steps:
        return None
    latest = series.tail(steps)
    before, after = latest[: steps // 2], latest[-(steps // 2) :]
    start, now = statistics.fmean(before), statistics.fmean(after)
    accuracy = numbers[ACCURACY].tail(steps // 2)
    if accuracy and statistics.fmean(accuracy) >= _SOLVED:
        return None
    # The variance of the difference of the two means: a rise within it may be chance.
    noise = (statistics.variance(before) + statistics.variance(after)) / (steps // 2)
    if now - start > noise**0.5:
        return None
    text = (
        f"the reward did not rise in {steps} steps: {start:.3g} in the first half of them, "
        f"{now:.3g} in the second"
    )
    return MonitorReading(REWARD, now, start, text)


def _above(
    numbers: Numbers,
    spec: HealthSpec,
    *,
    metric: str,
    setting: str,
    text: str,
    of_window: bool = False,
) -> MonitorReading | None:
    """The latest number, or the mean of the latest steps, above its bound."""
    series = numbers[metric]
    most: float | None = getattr(spec, setting)
    if most is None or series.size < (spec.window if of_window else 1):
        return None
    value = series.now if of_window else series.latest[-1]
    if value <= most:
        return None
    return MonitorReading(metric, value, most, text.format(value=value, most=most))


def _lost_by_age(numbers: Numbers, spec: HealthSpec) -> MonitorReading | None:
    """Of the latest steps together: groups that ``rollout.on_stale`` gave up, or tokens that it
    masked."""
    most = spec.stale_max_frac
    if most is None:
        return None
    totals = {
        name: sum(numbers[name].tail(spec.window))
        for name in (ISSUED, DROPPED, TRAINED_TOKENS, MASKED_TOKENS)
    }
    for metric, among, what in (
        (DROPPED, totals[ISSUED], "groups that were issued"),
        (
            MASKED_TOKENS,
            totals[TRAINED_TOKENS] + totals[MASKED_TOKENS],
            "tokens of the batches",
        ),
    ):
        series = numbers[metric]
        share = totals[metric] / among if among and series.size >= spec.window else 0.0
        if share > most:
            text = (
                f"{share:.1%} of the {what} were lost, being older than rollout.max_staleness "
                f"allows, more than {most:.0%}: tasks with slow episodes are trained less; set "
                "rollout.on_stale=wait, which loses none, or raise rollout.max_staleness"
            )
            return MonitorReading(metric, share, most, text)
    return None


MONITORS: Mapping[str, Monitor] = {
    "entropy_collapse": partial(
        _fallen,
        metric=ENTROPY,
        setting="entropy_min_frac",
        what="the policy's entropy fell",
    ),
    "ratio_jump": partial(
        _jump,
        metric=RATIO,
        setting="ratio_jump",
        what="the probability ratio of new to old policy jumped away from 1: by",
        centre=1.0,
    ),
    "mismatch_jump": partial(
        _jump,
        metric=MISMATCH,
        setting="mismatch_jump",
        what="the sampler's and the trainer's logprobs jumped apart: by",
    ),
    "reward_stuck": _reward_stuck,
    "no_signal": partial(
        _above,
        metric=UNTAUGHT,
        setting="no_signal_max_frac",
        text="{value:.0%} of the groups teach nothing, more than {most:.0%}: no token of theirs "
        "has an advantage, as where all rewards of a group are equal and no critic says more",
        of_window=True,
    ),
    "tool_collapse": partial(
        _fallen,
        metric=CALLS,
        setting="tool_calls_min_frac",
        what="tool calls an episode fell",
        floor=_LEAST_CALLS,
    ),
    "tool_errors": partial(
        _fallen,
        metric=SUCCESSES,
        setting="tool_success_min_frac",
        what="more tool calls fail or cannot be read: the share of those that succeed fell",
        floor=_LEAST_SUCCESSES,
    ),
    "length_explosion": _length_explosion,
    "template_collapse": _template_collapse,
    "loop_blocked": partial(
        _above,
        metric=LAG,
        setting="loop_lag_max_s",
        text="the event loop of the episodes stood still for {value:.3g} s, more than {most:g} s: "
        "an async tool, environment or reward blocks it",
    ),
    "abandoned_calls": partial(
        _above,
        metric=ABANDONED,
        setting="abandoned_calls_max",
        text="{value:.0f} synchronous calls of tools, environments or rewards run on in one "
        "process after their deadlines, more than {most:g}, and each holds a thread: give what "
        "they wait for a timeout of its own, or make them async",
    ),
    "failed_episodes": partial(
        _above,
        metric=FAILED,
        setting="failed_max_frac",
        text="{value:.1%} of the episodes failed by infrastructure and train nothing, more than "
        "{most:.0%}: their tasks are trained less; failed/BOUNDARY says where",
        of_window=True,
    ),
    "unknown_tokens": partial(
        _above,
        metric=UNKNOWN,
        setting="unknown_max_frac",
        text="{value:.2%} of the sampled tokens are ids that the tokenizer has no text for, more "
        "than {most:.0%}: the model's padded vocabulary is trained; start from weights that were "
        "trained, or give the model as many embeddings as the tokenizer has entries",
    ),
    "lost_by_age": _lost_by_age,
}


def series_of(spec: HealthSpec) -> dict[str, Series]:
    """Empty series, long enough for every rule."""
    longest = max(spec.window + 1, spec.reward_stuck_steps or 0)
    return {name: Series(spec.window, longest) for name in WATCHED}
