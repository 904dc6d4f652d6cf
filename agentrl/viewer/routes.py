"""Routes: the paths under ``/api`` and what each answers."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from agentrl.errors import DataError
from agentrl.guards.parsing import parse_json
from agentrl.viewer.analysis.blame import Level, Signal
from agentrl.viewer.api_error import bad_request, not_found
from agentrl.viewer.following import Following
from agentrl.viewer.runs.run_folder import RunFolder
from agentrl.viewer.views import comparisons
from agentrl.viewer.views.run_view import overview, run_row, run_view, settings_of
from agentrl.viewer.views.token_view import rendered_view, token_view
from agentrl.viewer.views.trajectory_view import trajectory_view
from agentrl.viewer.wire import answer, image_type


def run_routes(runs: RunFolder) -> APIRouter:
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


_MOST_ROWS = 2000


def trajectory_routes(runs: RunFolder) -> APIRouter:
    """The routes over ``runs``."""
    router = APIRouter(prefix="/runs/{key}")

    @router.get("/trajectories")
    def trajectories(
        key: str,
        query: str = "",
        sort: str = "-step",
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=0, le=_MOST_ROWS)] = 200,
    ) -> Response:
        page = runs.get(key).index().page(query, sort, offset, limit)
        return answer({"total": page.total, "rows": page.rows})

    @router.get("/facets")
    def facets(key: str, query: str = "") -> Response:
        return answer(runs.get(key).index().facets(query))

    @router.get("/trajectory")
    def trajectory(key: str, id: str) -> Response:  # noqa: A002  the name of the parameter
        run = runs.get(key)
        with run.lock:
            return answer(trajectory_view(run, run.row(id)))

    @router.get("/tokens")
    def tokens(
        key: str,
        id: str,  # noqa: A002
        learner: str | None = None,
        step: int | None = None,
    ) -> Response:
        run = runs.get(key)
        with run.lock:
            return answer(token_view(run, run.row(id), learner=learner, step=step))

    @router.get("/rendered")
    def rendered(key: str, id: str) -> Response:  # noqa: A002
        run = runs.get(key)
        with run.lock:
            row = run.row(id)
            try:
                pieces = run.pieces(row.columns["stage"])
            except DataError as error:
                raise not_found(str(error)) from error
            return answer(rendered_view(pieces, row))

    @router.get("/blob/{sha256}")
    def blob(key: str, sha256: str) -> Response:
        run = runs.get(key)
        data = run.blob(sha256)
        headers = {"Cache-Control": "private, max-age=31536000, immutable"}
        kind = image_type(data)
        if kind is None:
            headers["Content-Disposition"] = f'attachment; filename="{sha256}"'
        return Response(data, headers=headers, media_type=kind or "application/octet-stream")

    return router


def note_routes(runs: RunFolder) -> APIRouter:
    """The routes over ``runs``."""
    router = APIRouter(prefix="/runs/{key}/notes")

    @router.get("")
    def notes(key: str) -> Response:
        run = runs.get(key)
        return answer({"notes": run.notes.records(), "user": run.notes.user})

    @router.post("")
    async def add(key: str, request: Request) -> Response:
        fields = await _body(request)
        return await run_in_threadpool(added, key, fields)

    def added(key: str, fields: dict[str, Any]) -> Response:
        run = runs.get(key)
        with run.lock:
            # a note is on something that is there
            row = run.row(str(fields.get("trajectory", "")))
        about = {"recorded_at": row.columns["recorded_at"]}
        return answer(run.notes.add({**fields, **about}).model_dump())

    @router.delete("/{note_id}")
    def delete(key: str, note_id: str) -> Response:
        runs.get(key).notes.delete(note_id)
        return answer({"deleted": note_id})

    return router


async def _body(request: Request) -> dict[str, Any]:
    """The body's object."""
    try:
        body = parse_json(await request.body())
    except ValueError as error:
        raise bad_request(f"the body must be JSON ({error})") from None
    if not isinstance(body, dict):
        raise bad_request(f"the body must be a JSON object, got {type(body).__name__}")
    return body


Index = Annotated[int, Query(ge=0, lt=2**53)]


def analysis_routes(runs: RunFolder) -> APIRouter:
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


def event_routes(runs: RunFolder, following: Following) -> APIRouter:
    """The routes over ``runs``."""
    router = APIRouter(prefix="/runs/{key}")

    @router.get("/events")
    async def events(
        key: str, last_event_id: Annotated[str | None, Header()] = None
    ) -> StreamingResponse:
        run = await run_in_threadpool(runs.get, key)
        since = int(last_event_id) if last_event_id and last_event_id.isdecimal() else None
        return StreamingResponse(
            following.stream(run, since),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )

    return router
