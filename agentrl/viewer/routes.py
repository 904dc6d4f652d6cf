"""Routes: the paths under ``/api`` and what each answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from agentrl.errors import DataError
from agentrl.guards.parsing import parse_json
from agentrl.viewer.analysis.stored_rows import add_texts
from agentrl.viewer.following import Following
from agentrl.viewer.index.fields import SORTED_BY_DEFAULT, TEXTS
from agentrl.viewer.runs.open_run import OpenRun
from agentrl.viewer.runs.run_folder import RunFolder
from agentrl.viewer.viewer_error import bad_request, not_found
from agentrl.viewer.views.comparisons import (
    behaviour_view,
    blame_view,
    diff,
    group,
    reading,
    retokenised,
    task,
    tasks_view,
)
from agentrl.viewer.views.metrics_view import Names, metrics_csv, metrics_view
from agentrl.viewer.views.run_view import fields_view, overview, run_view
from agentrl.viewer.views.runs_view import compare, list_columns, list_runs
from agentrl.viewer.views.settings_view import settings_view
from agentrl.viewer.views.step_view import step_view
from agentrl.viewer.views.timeline_view import timeline_view
from agentrl.viewer.views.token_view import rendered_view, token_view
from agentrl.viewer.views.trajectory_view import trajectory_view
from agentrl.viewer.wire import answer, image_type

View = Callable[..., Any]
"""Takes a run and what is asked of it, by the names of the query's parameters."""

_MOST_ROWS = 2000


def _trajectories(
    run: OpenRun,
    query: str = "",
    sort: str = SORTED_BY_DEFAULT,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=0, le=_MOST_ROWS)] = 200,
    columns: Names = [],  # noqa: B006
) -> dict[str, Any]:
    page = run.index().page(query, sort, offset, limit)
    add_texts(run.directory, run.reader, page.rows, run.index().fields(), columns)
    return {"total": page.total, "rows": page.rows}


def _facets(run: OpenRun, query: str = "", columns: Names = []) -> dict[str, Any]:  # noqa: B006
    names = [name for name in columns if name not in TEXTS]
    return run.index().facets(query, names or None)


def _trajectory(run: OpenRun, id: str) -> dict[str, Any]:  # noqa: A002  the parameter's name
    return trajectory_view(run, run.row(id))


def _tokens(
    run: OpenRun,
    id: str,  # noqa: A002
    learner: str | None = None,
    step: int | None = None,
) -> dict[str, Any]:
    return token_view(run, run.row(id), learner=learner, step=step)


def _rendered(run: OpenRun, id: str) -> dict[str, Any]:  # noqa: A002
    row = run.row(id)
    try:
        pieces = run.pieces(row.columns["stage"])
    except DataError as error:
        raise not_found(str(error)) from error
    return rendered_view(pieces, row)


def _blob(run: OpenRun, sha256: str) -> Response:
    data = run.blob(sha256)
    headers = {"Cache-Control": "private, max-age=31536000, immutable"}
    kind = image_type(data)
    if kind is None:
        headers["Content-Disposition"] = f'attachment; filename="{sha256}"'
    return Response(data, headers=headers, media_type=kind or "application/octet-stream")


async def _body(request: Request) -> dict[str, Any]:
    try:
        body = parse_json(await request.body())
    except ValueError as error:
        raise bad_request(f"the body must be JSON ({error})") from None
    if not isinstance(body, dict):
        raise bad_request(f"the body must be a JSON object, got {type(body).__name__}")
    return body


def _notes(run: OpenRun) -> dict[str, Any]:
    return {"notes": run.notes.records(), "user": run.notes.user}


def _add_note(
    run: OpenRun, fields: Annotated[dict[str, Any], Depends(_body)]
) -> dict[str, Any]:
    about = {}
    if fields.get("trajectory") != "":
        with run.lock:
            # a note is on something that is there
            row = run.row(str(fields.get("trajectory", "")))
        about = {"recorded_at": row.columns["recorded_at"]}
    return run.notes.add({**fields, **about}).model_dump()


def _delete_note(run: OpenRun, note_id: str) -> dict[str, Any]:
    run.notes.delete(note_id)
    return {"deleted": note_id}


_QUICK: Mapping[str, View] = {
    "": run_view,
    "/fields": fields_view,
    "/overview": overview,
    "/metrics": metrics_view,
    "/metrics.csv": metrics_csv,
    "/settings": settings_view,
    "/trajectory": _trajectory,
    "/tokens": _tokens,
    "/rendered": _rendered,
}
"""Views that are made under the run's lock."""
_LONG: Mapping[str, View] = {
    "/trajectories": _trajectories,
    "/facets": _facets,
    "/group": group,
    "/task": task,
    "/tasks": tasks_view,
    "/step": step_view,
    "/timeline": timeline_view,
    "/diff": diff,
    "/behaviour": behaviour_view,
    "/reading": reading,
    "/blame": blame_view,
    "/retokenise": retokenised,
    "/blob/{sha256}": _blob,
    "/notes": _notes,
}
"""Views that take the lock themselves, where they read the run."""


def api_routes(runs: RunFolder, following: Following) -> APIRouter:
    """The routes over ``runs``."""
    router = APIRouter()

    def add(path: str, view: View, *, method: str = "GET", locked: bool = False) -> None:
        """Serves a view of the run that the path names."""

        def answered(key: str, **asked: Any) -> Response:
            run = runs.get(key)
            with run.lock if locked else nullcontext():
                found = view(run, **asked)
            return found if isinstance(found, Response) else answer(found)

        # FastAPI reads from the signature what a request may ask.
        _, *asked = inspect.signature(view, eval_str=True).parameters.values()
        key = inspect.Parameter(
            "key", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=str
        )
        signature = inspect.Signature([key, *asked])
        answered.__signature__ = signature  # type: ignore[attr-defined]
        router.add_api_route(f"/runs/{{key}}{path}", answered, methods=[method])

    for path, view in _QUICK.items():
        add(path, view, locked=True)
    for path, view in _LONG.items():
        add(path, view)
    add("/notes", _add_note, method="POST")
    add("/notes/{note_id}", _delete_note, method="DELETE")

    def add_of_all(path: str, view: Callable[..., Any]) -> None:
        """Serves a view of several runs."""

        def answered(**asked: Any) -> Response:
            return answer(view(runs, **asked))

        _, *asked = inspect.signature(view, eval_str=True).parameters.values()
        answered.__signature__ = inspect.Signature(asked)  # type: ignore[attr-defined]
        router.add_api_route(path, answered, methods=["GET"])

    add_of_all("/runs", list_runs)
    add_of_all("/columns", list_columns)
    add_of_all("/compare", compare)

    @router.get("/runs/{key}/events")
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
