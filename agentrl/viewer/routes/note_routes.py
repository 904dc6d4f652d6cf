"""Note routes: what people write on trajectories."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from agentrl.viewer.api_error import ApiError, bad_request
from agentrl.viewer.runs.run_folder import RunFolder
from agentrl.viewer.wire import answer

_MOST_BYTES = 1 << 20


def routes(runs: RunFolder) -> APIRouter:
    """The routes over ``runs``."""
    router = APIRouter(prefix="/runs/{key}/notes")

    @router.get("")
    def notes(key: str) -> Response:
        run = runs.get(key)
        return answer({"notes": [asdict(note) for note in run.notes.all()], "user": run.notes.user})

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
        return answer(asdict(run.notes.add({**fields, **about})))

    @router.delete("/{note_id}")
    def delete(key: str, note_id: str) -> Response:
        runs.get(key).notes.delete(note_id)
        return answer({"deleted": note_id})

    return router


async def _json(request: Request) -> dict[str, Any]:
    """The body's object, read no further than it may be long."""
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _MOST_BYTES:
            raise ApiError(413, f"a note must have at most {_MOST_BYTES:,} bytes of JSON")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body must be JSON ({error})") from None
    if not isinstance(body, dict):
        raise bad_request(f"the body must be a JSON object, got {type(body).__name__}")
    return body
