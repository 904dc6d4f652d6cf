"""Findings: the lines of an overview that say where to look first."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from agentrl.viewer.analysis.blame import LOGGED, BlameRow, Signal
from agentrl.viewer.index.query import term

FindingKind = Literal["mismatch", "alert", "spike", "tool", "dropped", "change"]

WATCHED = (
    "reward/mean",
    "accuracy/mean",
    "length/response/mean",
    "turns/mean",
    "tool/success_frac",
    "policy/entropy",
    "group/zero_std_frac",
)
"""The metrics of which the one that changed most is shown."""

ALARMING_MISMATCH = 0.1
"""Nats of one token between sampler and trainer; above it the line says that it is too much."""
ALARMING_TOOL_ERRORS = 0.2
"""The share of a tool's failed calls in a step from which a line tells of it."""
SPIKE = 20.0
"""How many times farther from the median than is usual a step's number stands out."""
_LEAST_STEPS = 8
_SPIKING: tuple[Signal, ...] = ("loss", "entropy", "clipped")
"""What blame ranks the parts of; a mismatch has a line of its own."""
_TOOL_ERRORS = re.compile(r"tool/[^/]+/error_frac")

Metrics = Sequence[Mapping[str, Any]]
WorstToken = Callable[[int], BlameRow | None]


@dataclass(frozen=True, slots=True)
class OverviewFinding:
    """One line.

    Args:
        kind: what it is about.
        text: the line.
        link: ``page`` and the page's parameters.
    """

    kind: FindingKind
    text: str
    link: Mapping[str, Any]


def findings(
    metrics: Metrics,
    events: Iterable[Mapping[str, Any]] = (),
    dropped: Mapping[str, int] | None = None,
    worst_token: WorstToken | None = None,
) -> list[OverviewFinding]:
    """The lines, the most urgent first.

    Args:
        metrics: rows of ``metrics.jsonl``, of one stage; with ``stage`` where links name it.
        events: rows of ``events.jsonl``.
        dropped: trajectories that were not trained, by reason (``ledger.jsonl``).
        worst_token: the token of the largest mismatch of a step (``blame``); None where the run
            does not keep what it takes.
    """
    found = [
        _mismatch(metrics, worst_token),
        _alert(events),
        _spike(metrics),
        _tool(metrics),
        _dropped(dropped or {}),
        _change(metrics),
    ]
    return [one for one in found if one is not None]


def _mismatch(metrics: Metrics, worst_token: WorstToken | None) -> OverviewFinding | None:
    name = "mismatch/logp_abs/max"
    rows = [row for row in metrics if _number(row.get(name))]
    if not rows:
        return None
    row = max(rows, key=lambda one: float(one[name]))
    size = float(row[name])
    step = int(row["step"])
    verdict = "too much: " if size > ALARMING_MISMATCH else ""
    text = f"{verdict}largest mismatch {size:.3g} nats, in step {step}"
    token = worst_token(step) if worst_token is not None else None
    if token is None:
        link = _blame_link(row, "mismatch")
        return OverviewFinding("mismatch", text, link)
    link = {
        "page": "trajectory",
        "id": token.id,
        "tab": "tokens",
        "turn": token.turn,
        "tokens": f"{token.token}-{token.token}",
        "colour": "difference",
    }
    shown = f", token {token.text!r}" if token.text else ""
    return OverviewFinding("mismatch", f"{text}{shown} of {token.id}", link)


def _alert(events: Iterable[Mapping[str, Any]]) -> OverviewFinding | None:
    alerts = [event for event in events if event.get("level") in ("warning", "error")]
    if not alerts:
        return None
    event = max(alerts, key=lambda one: float(one.get("time", 0.0)))
    which = f"newest of {len(alerts)} alerts: " if len(alerts) > 1 else ""
    text = f"{which}{event.get('message', event.get('event', ''))}"
    return OverviewFinding("alert", text, alert_link(event))


def alert_link(event: Mapping[str, Any]) -> dict[str, Any]:
    """Where the evidence of an event is."""
    if event.get("blame"):
        return _blame_link(event, event["blame"])
    if event.get("query"):
        return {"page": "trajectories", "query": _of_stage(event["query"], event)}
    if event.get("trajectory"):
        return {"page": "trajectory", "id": event["trajectory"]}
    if event.get("step") is not None:
        query = _step_term(event)
        if event.get("event") == "episodes_failed":
            query += " status:failed"
        return {"page": "trajectories", "query": query}
    return {"page": "overview"}


def _spike(metrics: Metrics) -> OverviewFinding | None:
    """The step whose loss, entropy or share of clipped tokens is farthest from what is usual."""
    found: list[tuple[float, OverviewFinding]] = []
    for signal in _SPIKING:
        names = LOGGED[signal]
        rows = [row for row in metrics if all(_number(row.get(name)) for name in names)]
        if len(rows) < _LEAST_STEPS:
            continue
        values = np.array([sum(float(row[name]) for name in names) for row in rows])
        middle = float(np.median(values))
        away = np.abs(values - middle)
        # A share of the middle is added, since a flat curve would have spikes of noise.
        usual = float(np.median(away)) + 0.02 * abs(middle) + 1e-6
        place = int(np.argmax(away))
        size = float(away[place]) / usual
        if size > SPIKE:
            step = int(rows[place]["step"])
            text = (
                f"{' + '.join(names)} was {values[place]:.3g} in step {step}, where {middle:.3g} "
                "is usual"
            )
            link = _blame_link(rows[place], signal)
            found.append((size, OverviewFinding("spike", text, link)))
    return _largest(found)


def _tool(metrics: Metrics) -> OverviewFinding | None:
    """The tool and step with the largest share of failed calls."""
    shares = [
        (float(value), name.split("/")[1], place)
        for place, row in enumerate(metrics)
        for name, value in row.items()
        if _TOOL_ERRORS.fullmatch(name) and _number(value)
    ]
    if not shares:
        return None
    share, tool, place = max(shares)
    if share < ALARMING_TOOL_ERRORS:
        return None
    query = f"tool:{tool} tool_errors>=1 {_step_term(metrics[place])}"
    step = int(metrics[place]["step"])
    text = f"tool {tool} failed in {share:.0%} of its calls, in step {step}"
    return OverviewFinding("tool", text, {"page": "trajectories", "query": query})


def _dropped(dropped: Mapping[str, int]) -> OverviewFinding | None:
    if not dropped:
        return None
    reason, count = max(dropped.items(), key=lambda item: item[1])
    total = sum(dropped.values())
    share = f", {count} of them for {reason}" if count < total else f": {reason}"
    text = f"{total} trajectories were not trained{share}"
    return OverviewFinding("dropped", text, {"page": "trajectories", "query": f'drop:"{reason}"'})


def _change(metrics: Metrics) -> OverviewFinding | None:
    """The watched metric whose last quarter differs most from its first, in standard errors."""
    found: list[tuple[float, OverviewFinding]] = []
    for name in WATCHED:
        rows = [row for row in metrics if _number(row.get(name))]
        quarter = len(rows) // 4
        if quarter < 2:
            continue
        first = rows[:quarter]
        last = rows[-quarter:]
        before = np.array([float(row[name]) for row in first])
        after = np.array([float(row[name]) for row in last])
        change = float(after.mean() - before.mean())
        error = math.sqrt((before.var(ddof=1) + after.var(ddof=1)) / quarter)
        # Likewise: without a share of the mean, a metric that hardly varies would always win.
        size = abs(change) / (error + 0.02 * max(abs(before.mean()), abs(after.mean())))
        if change:
            link = {"page": "behaviour", "a": _range(first), "b": _range(last), **_stage(last[0])}
            text = (
                f"{name} went from {before.mean():.3g} (steps {link['a']}) to {after.mean():.3g} "
                f"(steps {link['b']})"
            )
            found.append((size, OverviewFinding("change", text, link)))
    return _largest(found)


def _largest(found: Sequence[tuple[float, OverviewFinding]]) -> OverviewFinding | None:
    _, finding = max(found, key=lambda one: one[0], default=(0.0, None))
    return finding


def _blame_link(row: Mapping[str, Any], signal: str) -> dict[str, Any]:
    step = {"step": int(row["step"]), **_stage(row)}
    return {"page": "blame", **step, "signal": signal, "level": "token"}


def _step_term(row: Mapping[str, Any]) -> str:
    """A step in a query; with its stage where the row has one, since each stage counts its own."""
    return _of_stage(f"step:{int(row['step'])}", row)


def _of_stage(query: str, row: Mapping[str, Any]) -> str:
    return " ".join([query, *(term("stage", stage) for stage in _stage(row).values())])


def _stage(row: Mapping[str, Any]) -> dict[str, str]:
    stage = row.get("stage")
    return {"stage": stage} if isinstance(stage, str) and stage else {}


def _range(rows: Metrics) -> str:
    return f"{int(rows[0]['step'])}..{int(rows[-1]['step'])}"


def _number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
