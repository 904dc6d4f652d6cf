"""Step waits: what a step waited for, in seconds whose sum is the step's."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentrl.viewer.analysis.spans import Span, shares

OTHER = "other"
LOOP_PHASES = (
    *("wait_rollout", "rollout", "logprobs", "update", "publish", "eval", "checkpoint"),
)
"""Phases that follow one another in the training loop; others last within them. Older runs have
``rollout`` for the first.
"""

_GRID = 2.0**20
"""Parts of a second that seconds are whole numbers of: floats hold sums of such numbers exactly."""


@dataclass(frozen=True, slots=True)
class Wait:
    """One of the things that a step's seconds went to.

    Args:
        phase: of the loop; ``other`` for what no phase has.
        part: what the episodes did that the phase waited for; empty for the phase's own seconds.
        seconds: that it has.
        episode: the id of the trajectory that has most of them; empty where none has any.
    """

    phase: str
    part: str
    seconds: float
    episode: str = ""


def step_waits(
    step_s: float,
    end: float,
    phases: Sequence[Span],
    episodes: Mapping[str, Mapping[str, Sequence[Span]]],
) -> list[Wait]:
    """Where a step's seconds went, the largest first, ``other`` last.

    A moment is counted once: to the phase that began last of those that last then. A moment of
    waiting for episodes is counted to what the episode did that ended last, of those that ran then
    and that the phase waits for; where none ran, to the phase.

    Args:
        step_s: seconds of the step.
        end: of the step, in seconds since the epoch.
        phases: of the loop; ``rank`` is their begin.
        episodes: by phase that waits for some, the parts of each by its id.

    Returns:
        Seconds that sum to ``step_s`` to the last bit, in any order.
    """
    found: defaultdict[tuple[str, str], defaultdict[str, float]] = defaultdict(
        lambda: defaultdict(float)
    )
    whole = {
        phase: [
            Span(name, parts[0].start, parts[-1].end, rank=parts[-1].end)
            for name, parts in own.items()
            if parts
        ]
        for phase, own in episodes.items()
    }
    for place, low, high in shares(phases, end - step_s, end):
        phase = phases[place].name
        played = whole.get(phase, [])
        left = high - low
        for which, start, stop in shares(played, low, high):
            name = played[which].name
            left -= stop - start
            for part in episodes[phase][name]:
                lasted = min(part.end, stop) - max(part.start, start)
                if lasted > 0:
                    found[phase, part.name][name] += lasted
        found[phase, ""][""] += max(0.0, left)
    waits = [
        Wait(phase, part, math.fsum(by.values()), max(by, key=by.__getitem__))
        for (phase, part), by in found.items()
    ]
    return _summed(step_s, waits)


def waits_of_sums(step_s: float, by_phase: Mapping[str, float]) -> list[Wait]:
    """The same where nobody told when the phases were: each of the loop has its seconds, but at
    most what those before it leave.
    """
    own = [
        Wait(name, "", by_phase[name])
        for name in LOOP_PHASES
        if by_phase.get(name, 0.0) > 0
    ]
    return _summed(step_s, own)


def _summed(step_s: float, waits: Sequence[Wait]) -> list[Wait]:
    """The waits cut to whole parts of a second, and what they leave of the step."""
    left, kept = step_s, []
    for wait in waits:
        cut = math.floor(min(wait.seconds, left) * _GRID) / _GRID
        if cut > 0:
            kept.append(Wait(wait.phase, wait.part, cut, wait.episode))
            left -= cut
    kept.sort(key=lambda wait: -wait.seconds)
    return [*kept, Wait(OTHER, "", left)]
