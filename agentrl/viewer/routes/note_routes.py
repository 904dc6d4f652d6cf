"""Note routes: what people write on trajectories."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from agentrl.guards.parsing import parse_json
from agentrl.viewer.api_error import bad_request
from agentrl.viewer.runs.run_folder import RunFolder
from agentrl.viewer.wire import answer


def routes(runs: RunFolder) -> APIRouter:
    """The routes over ``runs``."""
    router = APIRouter(prefix="/runs/{key}/notes")

    @router.get("")
    def notes(key: str) -> Response:
        run = runs.get(key)
        return answer({"notes": run.notes.records(), "user": run.notes.user})

    @router.post("")
    async def add(key: str, request: Request) -> Response:
        fields = await _json(request)
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


async def _json(request: Request) -> dict[str, Any]:
    """The body's object."""
    try:
        body = parse_json(await request.body())
    except ValueError as error:
        raise bad_request(f"the body must be JSON ({error})") from None
    if not isinstance(body, dict):
        raise bad_request(f"the body must be a JSON object, got {type(body).__name__}")
    return body
