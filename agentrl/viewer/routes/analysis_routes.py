"""Analysis routes: groups, tasks, pairs, behaviour, blame and re-encoding."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from agentrl.viewer.analysis.blame import Level, Signal
from agentrl.viewer.runs.run_folder import RunFolder
from agentrl.viewer.views import comparisons
from agentrl.viewer.wire import answer

Index = Annotated[int, Query(ge=0, lt=2**53)]


def routes(runs: RunFolder) -> APIRouter:
    """The routes over ``runs``."""
    router = APIRouter(prefix="/runs/{key}")

    @router.get("/group")
    def group(
        key: str,
        group_index: Index,
        stage: str | None = None,
        label: str | None = None,
        step: Index | None = None,
    ) -> Response:
        run = runs.get(key)
        return answer(comparisons.group(run, group_index, stage=stage, label=label, step=step))

    @router.get("/task")
    def task(key: str, task_id: str) -> Response:
        return answer(comparisons.task(runs.get(key), task_id))

    @router.get("/diff")
    def diff(key: str, a: str, b: str) -> Response:
        return answer(comparisons.diff(runs.get(key), a, b))

    @router.get("/behaviour")
    def behaviour(key: str, a: str, b: str, query: str = "", stage: str | None = None) -> Response:
        return answer(comparisons.behaviour_between(runs.get(key), a, b, query, stage=stage))

    @router.get("/blame")
    def blame(
        key: str,
        step: Index,
        signal: Signal = "loss",
        level: Level = "token",
        stage: str | None = None,
    ) -> Response:
        run = runs.get(key)
        found = comparisons.blame_answer(run, step, signal, level, stage=stage)
        with run.lock:
            # what store.keep dropped has no part
            return answer({**found, "kept": comparisons.kept_of_step(run, step, stage)})

    @router.get("/retokenise")
    def retokenise(key: str, id: str, turn: Index | None = None) -> Response:  # noqa: A002
        return answer(comparisons.retokenised(runs.get(key), id, turn))

    return router
