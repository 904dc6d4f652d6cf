"""App: the routes of the viewer's server (docs/viewer.md)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrl.errors import AgentRLError, ConfigError, DataError
from agentrl.store import NoTrajectoryError
from agentrl.viewer.following import Following
from agentrl.viewer.routes import api_routes
from agentrl.viewer.runs.run_folder import RunFolder
from agentrl.viewer.security import Guard
from agentrl.viewer.viewer_error import ViewerError, fault_of
from agentrl.viewer.wire import answer

logger = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"


def create_app(source: Path, *, token: str, allow_hosts: Sequence[str] = ()) -> FastAPI:
    """The application over one run or a folder of runs.

    Args:
        source: a run directory, or a folder above some.
        token: the secret that every request must bring.
        allow_hosts: names by which it may be asked for, besides the loopback ones.

    Raises:
        StoreError: there is no run.
    """
    runs = RunFolder(source)
    app = FastAPI(title="agentrl view", openapi_url=None, docs_url=None, redoc_url=None)
    app.state.following = following = Following()
    app.state.page = runs.first_page()
    app.add_middleware(CrashAnswer)
    app.add_middleware(Guard, token=token, hosts=tuple(allow_hosts))
    app.add_exception_handler(AgentRLError, _failed)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.include_router(api_routes(runs, following), prefix="/api")
    app.mount("/api", _no_such_path)
    app.mount("/", StaticFiles(directory=STATIC, html=True))
    return app


async def _no_such_path(scope: Scope, receive: Receive, send: Send) -> None:
    response = answer(
        {"error": f"there is no {scope['path'][:100]}; docs/viewer.md has all"}, 404
    )
    await response(scope, receive, send)


async def _failed(_: Request, error: Exception) -> Response:
    status = 500
    if isinstance(error, ViewerError):
        status = error.status
    elif isinstance(error, NoTrajectoryError):
        status = 404
    elif isinstance(error, ConfigError | DataError):
        # such as a query or a range that is none
        status = 400
    return answer({"error": str(error)}, status)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return answer({"error": fault_of(error.errors())}, 400)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return answer(
        {"error": f"{request.method} {request.url.path[:100]}: {error.detail}"},
        error.status_code,
    )


class CrashAnswer:
    """ASGI middleware: a fault of the viewer is an answer and a line in the log.

    Args:
        app: what may fail.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            path = scope.get("path", "")
            told = {"event": "request_failed", "path": path}
            logger.exception("the viewer failed at %s: %r", path, error, extra=told)
            if not started:
                text = f"the viewer failed at this, and its log says where: {error!r}"
                await answer({"error": text}, 500)(scope, receive, send)
