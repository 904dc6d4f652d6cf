"""Run routes: the list of runs, one run, its metrics and settings."""

from __future__ import annotations

from fastapi import APIRouter, Response

from agentrl.viewer.runs.run_folder import RunFolder
from agentrl.viewer.views.overview import overview
from agentrl.viewer.views.run_view import run_row, run_view, settings_of
from agentrl.viewer.wire import answer


def routes(runs: RunFolder) -> APIRouter:
    """The routes over ``runs``."""
    router = APIRouter()

    @router.get("/runs")
    def list_runs() -> Response:
        return answer({"runs": [run_row(run) for run in runs.runs()]})

    @router.get("/runs/{key}")
    def one_run(key: str) -> Response:
        run = runs.get(key)
        with run.lock:
            return answer(run_view(run))

    @router.get("/runs/{key}/overview")
    def run_overview(key: str) -> Response:
        run = runs.get(key)
        with run.lock:
            return answer(overview(run))

    @router.get("/runs/{key}/metrics")
    def metrics(key: str, names: str = "") -> Response:
        run = runs.get(key)
        with run.lock:
            run.metrics.refresh()
            wanted = [name for name in names.split(",") if name]
            return answer(run.metrics.as_json(wanted))

    @router.get("/runs/{key}/settings")
    def settings(key: str) -> Response:
        run = runs.get(key)
        with run.lock:
            return answer(settings_of(run.config))

    return router
