"""Trajectory routes: lists, facets, and all about one trajectory."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from agentrl.errors import DataError
from agentrl.viewer.api_error import not_found
from agentrl.viewer.images import image_type
from agentrl.viewer.runs.run_folder import RunFolder
from agentrl.viewer.views.rendered_view import rendered_view
from agentrl.viewer.views.token_view import token_view
from agentrl.viewer.views.trajectory_view import trajectory_view
from agentrl.viewer.wire import answer

_MOST_ROWS = 2000


def routes(runs: RunFolder) -> APIRouter:
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
