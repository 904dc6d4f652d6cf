"""Change points: the steps from which a metric is at another level than before, and those at which
it stood out once.

A level is a median of up to ``WINDOW`` steps, so that a fault shows wherever in a run it begins. An
onset is where two means fit its neighbourhood best, the split of binary segmentation (Scott and
Knott 1974, *Biometrics* 30; CUSUM, Page 1954, *Biometrika* 41). Noise is measured by differences of
neighbours (Rice 1984, *Annals of Statistics* 12), which neither a trend nor a shift enlarges.

Three bounds make a change a finding. It is ``SURE`` times the noise of its levels; so far that no
correction for many metrics and steps is needed: 10⁴ Gaussian tests at 5 standard deviations expect
0.006 errors. It is as large as what matters of its metric (``agentrl.metrics.changes``), for the
worse. And it is abrupt: most of it happens within two steps, which learning does not do.

Axes: n steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from agentrl.metrics.changes import Gauge
from agentrl.types.arrays import F64

WINDOW = 5
"""Steps of a level."""
SURE = 5
"""Standard deviations of a shift; of a single step twice as many, since such tails are heavy."""
ABRUPT = 0.6
"""The share of a shift that lies between the two steps before and the two from its onset on."""
LEAST_STEPS = 3
"""Of the side before a change."""
MOST_STEPS = 10_000
"""Of a longer series stretches of equal length are one step each, by their median."""
LARGEST = 4.0
"""Sizes above it are equal: a larger number tells more of the metric than of the fault."""
_MOST_OF_ONE = 3
_GAUSSIAN = 1.4826
"""The standard deviation of a normal distribution, by its median absolute deviation."""
_MEDIAN = 1.2533
"""The standard error of a median, by that of a mean."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A change for the worse.

    Args:
        place: of the first changed value.
        before, after: the levels.
        lasts: whether it is another level; else one step stood out.
        size: how many times what matters, or the bound of noise, it is: the lesser of both. It
            compares changes of unlike metrics.
    """

    place: int
    before: float
    after: float
    lasts: bool
    size: float


def change_points(
    values: F64, gauge: Gauge, *, noise: float = 0.0, lead: int = LEAST_STEPS
) -> list[ChangePoint]:
    """The changes of a series, the largest first.

    Args:
        values: ``[n]`` finite.
        gauge: what of it matters.
        noise: the least standard deviation of a value, in the gauge's scale, such as that of a
            share of few episodes.
        lead: steps that a shift has before it at least.
    """
    stretch = -(-values.size // MOST_STEPS) or 1
    if stretch > 1:
        whole = values[: values.size // stretch * stretch].reshape(-1, stretch)
        found = change_points(np.median(whole, axis=1), gauge, noise=noise, lead=lead)
        return [_within(one, values, stretch) for one in found]
    y = gauge.scaled(values)
    if y.size < lead + 2:
        return []
    own = max(noise, _rice(y), 1e-9)
    found = []
    taken = np.zeros(y.size, dtype=bool)
    # A level explains the steps in it that stand out, and of equal changes the first is the onset.
    order = sorted(
        _candidates(y, gauge, own, lead), key=lambda one: (not one[2], -one[0], one[1])
    )
    for size, place, lasts in order:
        if taken[max(0, place - 1) : place + 2].any() or len(found) == _MOST_OF_ONE:
            continue
        taken[max(0, place - WINDOW + 1) : place + WINDOW] = True
        before = float(np.median(values[max(0, place - WINDOW) : place]))
        after = float(np.median(values[place : place + (WINDOW if lasts else 1)]))
        found.append(ChangePoint(place, before, after, lasts, min(size, LARGEST)))
    return found


def level_onset(steps: F64, values: F64, counts: F64) -> int | None:
    """Where the second of two levels begins which fit a series better than a line does, by least
    squares; None where a line fits as well, so that it changed gradually.

    Args:
        steps: ``[n]`` ascending.
        values: ``[n]`` means of a step.
        counts: ``[n]`` of how many each is a mean.
    """
    if values.size < 3:
        return None
    centred = values - np.average(values, weights=counts)
    before = np.cumsum(counts * centred)[:-1]
    sizes = np.cumsum(counts)[:-1]
    gains = before**2 * (1.0 / sizes + 1.0 / (counts.sum() - sizes))
    x = steps - np.average(steps, weights=counts)
    of_line = np.sum(counts * x * centred) ** 2 / np.sum(counts * x**2)
    place = int(np.argmax(gains)) + 1
    return place if gains[place - 1] > of_line else None


def _within(found: ChangePoint, values: F64, stretch: int) -> ChangePoint:
    """The same with its place among all values."""
    first = max(0, (found.place - WINDOW) * stretch)
    near = values[first : (found.place + WINDOW) * stretch]
    place = first + _split(near)
    return ChangePoint(place, found.before, found.after, found.lasts, found.size)


def _candidates(
    y: F64, gauge: Gauge, noise: float, lead: int
) -> Iterator[tuple[float, int, bool]]:
    """Size, place and whether it lasts, of what passes every bound."""
    places = np.arange(y.size)
    num_before = np.minimum(places, WINDOW)
    before = _medians(y)[:-1]
    lasting = _medians(y[::-1])[1:][::-1]
    for lasts, sure in ((True, SURE), (False, 2.0 * SURE)):
        length = np.minimum(y.size - places, WINDOW) if lasts else np.ones(y.size)
        inside = (num_before >= lead) & (places < y.size - 1)
        rise = np.where(inside, (lasting if lasts else y) - before, 0.0)
        if not lasts:
            # What stands out differs from what follows, too.
            back = y - np.append(lasting[1:], y[-1])
            least = np.minimum(np.abs(rise), np.abs(back))
            rise = np.where(rise * back > 0.0, np.sign(rise) * least, 0.0)
        error = _MEDIAN * noise * np.sqrt(1.0 / np.maximum(num_before, 1) + 1.0 / length)
        # Where a course moves all the time, its levels differ everywhere by what they do in the
        # median.
        usual = abs(float(np.median(rise[inside]))) if inside.any() else 0.0
        rise = np.sign(rise) * np.maximum(np.abs(rise) - usual, 0.0)
        sizes = np.minimum(np.abs(rise) / (sure * error), gauge.worth(rise))
        for place in np.flatnonzero(sizes >= 1.0).tolist():
            onset = _onset(y, place, lead, float(rise[place])) if lasts else place
            if onset is not None:
                yield float(sizes[place]), onset, lasts


def _onset(y: F64, place: int, lead: int, shown: float) -> int | None:
    """Where the shift of a level begins; None where it is not abrupt, or another one."""
    first = max(0, place - WINDOW)
    onset = first + _split(y[first : place + WINDOW])
    if onset < lead:
        return None
    before = y[max(0, onset - WINDOW) : onset]
    after = y[onset : onset + WINDOW]
    rise = float(np.median(after) - np.median(before))
    sharp = float(after[:2].mean() - before[-2:].mean())
    return onset if rise * shown > 0.0 and sharp / rise >= ABRUPT else None


def _split(y: F64) -> int:
    """Where two means fit best: the first place of the second."""
    sums = np.cumsum(y)[:-1]
    counts = np.arange(1, y.size)
    gain = (sums - counts * y.mean()) ** 2 / (counts * (y.size - counts))
    return int(np.argmax(gain)) + 1


def _rice(y: F64) -> float:
    """The standard deviation of a value, by the differences of neighbours."""
    return float(_GAUSSIAN * np.median(np.abs(np.diff(y))) / np.sqrt(2.0))


def _medians(y: F64) -> F64:
    """``[n + 1]`` medians of the up to ``WINDOW`` values before each place; NaN at the first."""
    windows = sliding_window_view(np.concatenate([np.full(WINDOW, np.nan), y]), WINDOW)
    return np.concatenate([[np.nan], np.nanmedian(windows[1:], axis=1)])
