"""Runs view: the table of runs with chosen columns, and runs that are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import numpy as np
from fastapi import Query

from agentrl.errors import StoreError
from agentrl.viewer.runs.metrics_table import Series, StageMetrics
from agentrl.viewer.runs.open_run import OpenRun
from agentrl.viewer.runs.run_folder import RunFolder
from agentrl.viewer.runs.seeds import band, paired_difference
from agentrl.viewer.viewer_error import ViewerError
from agentrl.viewer.views.metrics_view import Names
from agentrl.viewer.views.run_view import run_row
from agentrl.viewer.views.settings_view import RunFacts, differences

_MOST_RUNS = 16
_MOST_POINTS = 1000


def list_runs(runs: RunFolder, columns: Names = []) -> dict[str, Any]:  # noqa: B006
    """Each run, with the values of columns: ``setting:PATH``, ``record:PATH``, ``metric:NAME``."""
    return {"runs": [{**run_row(run), **_chosen(run, columns)} for run in runs.runs()]}


def list_columns(runs: RunFolder) -> dict[str, Any]:
    """The columns that ``list_runs`` can give of any run."""
    found: set[str] = set()
    for run in runs.runs():
        with run.lock:
            try:
                run.metrics.refresh()
                facts = RunFacts(run)
            except (OSError, StoreError):
                # The list itself says that it cannot be read.
                continue
            found |= {f"setting:{path}" for path in facts.settings}
            found |= {f"record:{path}" for path in facts.record}
            found |= {f"metric:{name}" for name in run.metrics.names()}
    return {"columns": sorted(found)}


def _chosen(run: OpenRun, columns: Sequence[str]) -> dict[str, Any]:
    with run.lock:
        try:
            facts = RunFacts(run) if columns else None
        except (OSError, StoreError):
            return {"columns": {}, "settings_error": "", "tags": []}
        values = {name: _column(run, facts, name) for name in columns if facts}
        tags = [note for note in run.notes.records([""]) if note["labels"]]
        return {"columns": values, "settings_error": run.settings()[1], "tags": tags}


def _column(run: OpenRun, facts: RunFacts, name: str) -> Any:
    """The last value of a metric, in the newest stage that has it; or a setting."""
    kind, _, path = name.partition(":")
    if kind != "metric":
        return (facts.settings if kind == "setting" else facts.record).get(path)
    for own in reversed(run.metrics.stages.values()):
        if points := own.series(path).points():
            return points[-1][1]
    return None


@dataclass(frozen=True, slots=True)
class _Compared:
    """A run that can be read, and its place in the answer."""

    run: OpenRun
    facts: RunFacts

    def stage(self, name: str | None) -> StageMetrics:
        metrics = self.run.metrics
        return metrics.stage(metrics.newest_stage if name is None else name)

    def curves(self, names: Sequence[str], stage: str | None) -> dict[str, Series]:
        """By name; their times are hours since the stage's first step."""
        own = self.stage(stage)
        start = own.series("time").value.min(initial=np.inf)
        curves = {name: own.series(name) for name in names}
        return {
            n: replace(one, time=(one.time - start) / 3600) for n, one in curves.items()
        }


def compare(
    runs: RunFolder,
    keys: Annotated[list[str], Query(alias="runs", max_length=_MOST_RUNS)],
    names: Names = [],  # noqa: B006
    stage: str | None = None,
) -> dict[str, Any]:
    """Some runs: those that differ by their seed alone as one group, what differs between all, and
    curves and paired differences of some metrics in one stage.

    Args:
        runs: that the viewer shows.
        keys: of the runs.
        names: of the metrics.
        stage: the stage; where no run has it the last one that all have, or the newest of each.
    """
    told = []
    read: list[_Compared] = []
    for key in dict.fromkeys(keys):
        row: dict[str, Any] = {"key": key, "name": key, "stages": [], "error": ""}
        try:
            run = runs.get(key)
            row["name"] = run.name
            with run.lock:
                run.metrics.refresh()
                read.append(own := _Compared(run, RunFacts(run)))
            row |= {"error": own.facts.error, "stages": list(run.metrics.stages)}
        except (ViewerError, StoreError, OSError) as error:
            # The others are compared without it.
            row["error"] = str(error)
        told.append(row)
    stages = list(dict.fromkeys(name for row in told for name in row["stages"]))
    if stage not in stages:
        shared = [
            one for one in stages if all(one in own.run.metrics.stages for own in read)
        ]
        stage = shared[-1] if shared else None
    known: set[str] = set()
    curves = []
    for own in read:
        with own.run.lock:
            known |= own.stage(stage).names()
            curves.append(own.curves(names, stage))
    groups: dict[str, list[int]] = {}
    for place, own in enumerate(read):
        groups.setdefault(own.facts.but_for_the_seed() or own.run.key, []).append(place)
    members = list(groups.values())
    return {
        "runs": told,
        "stages": stages,
        "stage": stage,
        "names": sorted(known),
        "groups": [[read[place].run.key for place in own] for own in members],
        "metrics": {
            name: _metric(
                [one[name] for one in curves], [own.facts.seed for own in read], members
            )
            for name in names
        },
        "differences": differences([own.facts for own in read]),
        "compared": [own.run.key for own in read],
    }


def _metric(
    curves: Sequence[Series], seeds: Sequence[Any], groups: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """One metric: each group's band, and what it has more than the first group."""
    have = [[place for place in own if curves[place].step.size] for own in groups]
    by_seed = [
        {str(seeds[place]): curves[place] for place in reversed(own)} for own in have
    ]
    found = [paired_difference(by_seed[0], own) for own in by_seed[1:]]
    return {
        "groups": [
            band([curves[i] for i in own], _MOST_POINTS) if own else None for own in have
        ],
        "differences": [None, *(one and asdict(one) for one in found)][: len(groups)],
    }
