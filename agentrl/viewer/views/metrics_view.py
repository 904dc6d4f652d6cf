"""Metrics view: a run's metrics by stage, as JSON for charts and as CSV for other programs."""

from __future__ import annotations

import csv
import io
import math
from typing import Annotated, Any, TypeAlias

from fastapi import Query, Response

from agentrl.viewer.runs.metrics_table import MetricsTable, whole
from agentrl.viewer.runs.open_run import OpenRun

Names: TypeAlias = Annotated[list[str], Query()]
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""With these a spreadsheet begins a formula, which a name of a run must not be."""


def metrics_view(
    run: OpenRun,
    names: Names = [],  # noqa: B006  FastAPI copies it
    stage: str | None = None,
    points: Annotated[int, Query(ge=4, le=1_000_000)] = 1000,
) -> dict[str, Any]:
    """The names of all metrics, the values of some, and where alerts are.

    Args:
        run: the run, under its lock.
        names: of the metrics whose values are wanted.
        stage: whose values are wanted; of every one where None.
        points: values of a metric and stage; of more the extremes are sent.
    """
    run.metrics.refresh()
    alerts = [event for event in run.events() if event.get("level") != "info"]
    places = [
        {name: event.get(name) for name in ("stage", "step", "time")} for event in alerts
    ]
    return {**run.metrics.as_json(names, stage=stage, most=points), "alerts": places}


def metrics_csv(run: OpenRun, names: Names = [], stage: str | None = None) -> Response:  # noqa: B006
    """Every value of some metrics, or of all where none is named, a line a step."""
    run.metrics.refresh()
    text = csv_text(run.metrics, names or run.metrics.names(), stage)
    headers = {"Content-Disposition": 'attachment; filename="metrics.csv"'}
    return Response(text.encode(errors="replace"), headers=headers, media_type="text/csv")


def csv_text(table: MetricsTable, names: list[str], stage: str | None = None) -> str:
    """The lines of a CSV: stage, step, time (epoch seconds), and the metrics; empty where a step
    lacks one.
    """
    text = io.StringIO()
    write = csv.writer(text).writerow
    write(["stage", "step", "time", *map(_plain, names)])
    for name, own in table.stages.items():
        if stage not in (None, name):
            continue
        for row in own.rows(names):
            if not row.keys().isdisjoint(names):
                values = (row.get(one, math.nan) for one in ("step", "time", *names))
                write(
                    [
                        _plain(name or ""),
                        *(whole(one) if math.isfinite(one) else "" for one in values),
                    ]
                )
    return text.getvalue()


def _plain(name: str) -> str:
    return f"'{name}" if name.startswith(_FORMULA) else name
