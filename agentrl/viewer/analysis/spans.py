"""Spans: what lasted when, and which of several a moment is counted to."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from agentrl.guards.parsing import mapping

EpisodeKind = Literal["generate", "wait", "environment", "tool", "score", "between"]

_RANKS: tuple[EpisodeKind, ...] = (
    "between",
    "generate",
    "environment",
    "wait",
    "tool",
    "score",
)
"""Of two that last at one time the later one has the moment."""


class Span(NamedTuple):
    """Something that lasted.

    Args:
        name: what.
        start, end: seconds since the epoch.
        number: the policy version that generated, or the step of a phase; None where there is none.
        rank: of two spans that last at one time that of the greater rank has the moment.
    """

    name: str
    start: float
    end: float
    number: int | None = None
    rank: float = 0.0


class Share(NamedTuple):
    """A stretch that one of several spans has: its place among them."""

    place: int
    start: float
    end: float


def shares(spans: Sequence[Span], start: float, end: float) -> list[Share]:
    """Who has each moment of a stretch, in order; a moment in which none lasts is in no share.

    Of spans of one rank the one that begins later has the moment.
    """
    waiting = sorted((max(span.start, start), i) for i, span in enumerate(spans))
    waiting = [(at, i) for at, i in waiting if at < min(spans[i].end, end)]
    cuts = sorted(
        {*(at for at, _ in waiting), *(min(spans[i].end, end) for _, i in waiting)}
    )
    found: list[Share] = []
    lasting: list[tuple[float, float, int]] = []
    place = 0
    for low, high in pairwise(cuts):
        while place < len(waiting) and waiting[place][0] <= low:
            index = waiting[place][1]
            heapq.heappush(lasting, (-spans[index].rank, -spans[index].start, index))
            place += 1
        while lasting and spans[lasting[0][2]].end <= low:
            heapq.heappop(lasting)
        if not lasting:
            continue
        index = lasting[0][2]
        if found and found[-1].place == index and found[-1].end == low:
            found[-1] = found[-1]._replace(end=high)
        else:
            found.append(Share(index, low, high))
    return found


def parts_of(row: Mapping[str, Any], timings: object, turns: object) -> list[Span]:
    """What an episode did, each moment once: it generated, waited for others, was in the
    environment or in a tool, was scored, or was between these.

    Args:
        row: its ``started_at`` and ``ended_at``.
        timings, turns: as they are stored; what is none is passed over.

    Returns:
        Parts in order; none where nobody measured when it was.
    """
    start, end = seconds(row.get("started_at")), seconds(row.get("ended_at"))
    if not 0 < start < end:
        return []
    own = mapping(timings)
    spans = [_span("between", start, end - start)]
    if "score_at_s" in own:
        scored = start + seconds(own["score_at_s"])
        spans.append(_span("score", scored, seconds(own.get("score_s"))))
    for turn in _items(turns):
        spans += _of_turn(mapping(turn))
    found = shares(spans, start, end)
    return [spans[one.place]._replace(start=one.start, end=one.end) for one in found]


def _of_turn(turn: Mapping[str, Any]) -> Iterator[Span]:
    start = seconds(turn.get("started_at"))
    if start <= 0:
        return
    timings = {name: seconds(value) for name, value in mapping(turn.get("timings")).items()}
    step_at = timings.get("step_at_s", _generation_s(timings))
    waited = "wait_s" if "wait_s" in timings else "queue_s"
    wait_at = timings.get("wait_at_s", 0.0)
    yield _span("generate", start, step_at, _version(turn))
    yield _span("environment", start + step_at, timings.get("step_s", 0.0))
    yield _span("wait", start + wait_at, timings.get(waited, 0.0))
    at = start + step_at
    for record in _items(turn.get("calls")):
        result = mapping(mapping(record).get("result"))
        began = seconds(result.get("started_at")) or at
        lasted = seconds(result.get("latency_s"))
        yield _span("tool", began, lasted)
        at = began + lasted


def _generation_s(timings: Mapping[str, float]) -> float:
    """Seconds of a generation whose end nobody told: the engine's own measure."""
    for name in ("generate_s", "request_s", "server_s"):
        if name in timings:
            return timings[name]
    return sum(timings.get(name, 0.0) for name in ("queue_s", "prefill_s", "decode_s"))


def _version(turn: Mapping[str, Any]) -> int | None:
    """The newest version that sampled it."""
    parts = [mapping(part).get("policy_version") for part in _items(turn.get("completion"))]
    return max((one for one in parts if isinstance(one, int)), default=None)


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _span(
    kind: EpisodeKind, start: float, lasted: float, version: int | None = None
) -> Span:
    return Span(kind, start, start + lasted, version, _RANKS.index(kind))


def seconds(value: object) -> float:
    """A number of seconds that is one and not negative; else 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if 0 < value <= sys.float_info.max else 0.0
