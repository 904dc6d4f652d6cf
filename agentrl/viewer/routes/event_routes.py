"""Event routes: what is new in a run, as it comes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from agentrl.viewer.following import Following
from agentrl.viewer.runs.run_folder import RunFolder


def routes(runs: RunFolder, following: Following) -> APIRouter:
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
