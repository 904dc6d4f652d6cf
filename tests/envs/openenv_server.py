"""A server of OpenEnv's protocol that misbehaves as it is told, a behaviour a session."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeAlias

from websockets.asyncio.server import Request, Response, Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

SCHEMA = {
    "type": "object",
    "title": "CountAction",
    "description": "Say a number.",
    "additionalProperties": False,
    "properties": {
        "metadata": {"type": "object", "additionalProperties": True},
        "message": {"type": "string"},
    },
    "required": ["message"],
}

Behaviour: TypeAlias = Callable[[ServerConnection, Any], Awaitable[None]]


def observation(text: str, reward: Any = None, done: Any = False) -> str:
    data = {"observation": {"text": text}, "reward": reward, "done": done}
    return json.dumps({"type": "observation", "data": data})


def error(code: str, message: str = "no", **more: Any) -> str:
    return json.dumps({"type": "error", "data": {"message": message, "code": code, **more}})


async def count(socket: ServerConnection, request: Any) -> None:
    """A game: say 1, 2, 3; each number in its place is worth .25, and what is no number is none."""
    if request["type"] == "reset":
        socket.said = 0  # type: ignore[attr-defined]
        await socket.send(observation(f"Seed {request['data']['seed']}. Count to 3."))
        return
    said = request["data"]
    if list(said) != ["message"] or not str(said["message"]).isdigit():
        fault = {"loc": ["message"], "msg": "Input should be a number", "type": "number"}
        await socket.send(error("VALIDATION_ERROR", "Invalid message", errors=[fault]))
        return
    socket.said += 1  # type: ignore[attr-defined]
    right = int(said["message"]) == socket.said  # type: ignore[attr-defined]
    done = socket.said == 3  # type: ignore[attr-defined]
    await socket.send(observation(f"You said {said['message']}.", right / 4, done))


@dataclass
class OddOpenEnv:
    """Session number n behaves as ``behaviours[n]``, the last one for ever.

    Attributes:
        url: of the server.
        asked: what each session was asked, in order.
        schema: the answer at ``/schema``; None where there is none.
        max_sessions: at once; others are refused.
    """

    behaviours: Sequence[Behaviour]
    max_sessions: int = 99
    schema: Any = field(default_factory=lambda: {"action": SCHEMA})
    url: str = ""
    asked: list[list[Any]] = field(default_factory=list)
    refused: int = 0
    _open: int = 0

    async def session(self, socket: ServerConnection) -> None:
        if self._open >= self.max_sessions:
            self.refused += 1
            await socket.send(error("CAPACITY_REACHED", "at capacity"))
            return
        number = len(self.asked)
        behaviour = self.behaviours[min(number, len(self.behaviours) - 1)]
        asked: list[Any] = []
        self.asked.append(asked)
        self._open += 1
        try:
            async for raw in socket:
                request = json.loads(raw)
                asked.append(request)
                if request["type"] == "close":
                    break
                await behaviour(socket, request)
        except ConnectionClosed:
            pass  # by the behaviour, or by the client
        finally:
            self._open -= 1

    def page(self, socket: ServerConnection, request: Request) -> Response | None:
        if request.path == "/ws":
            return None
        if request.path != "/schema" or self.schema is None:
            return socket.respond(HTTPStatus.NOT_FOUND, "nothing here")
        return socket.respond(HTTPStatus.OK, json.dumps(self.schema))


@asynccontextmanager
async def odd_openenv(
    *behaviours: Behaviour, port: int = 0, **settings: Any
) -> AsyncIterator[OddOpenEnv]:
    """A server on a free port of this machine."""
    odd = OddOpenEnv(behaviours or (count,), **settings)
    server: Server
    async with serve(
        odd.session, "127.0.0.1", port, process_request=odd.page, close_timeout=1
    ) as server:
        odd.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield odd


def at_step(number: int, behaviour: Behaviour) -> Behaviour:
    """Counts until the request of that number, 0 being the reset; then behaves as told."""
    seen = 0

    async def played(socket: ServerConnection, request: Any) -> None:
        nonlocal seen
        seen, here = seen + 1, seen
        await (behaviour if here == number else count)(socket, request)

    return played


async def hang(socket: ServerConnection, request: Any) -> None:
    await socket.wait_closed()


async def abort(socket: ServerConnection, request: Any) -> None:
    socket.transport.abort()


async def close(socket: ServerConnection, request: Any) -> None:
    await socket.close(1011, "out of order")


async def flood(socket: ServerConnection, request: Any) -> None:
    for number in range(1000):
        await socket.send(observation(f"number {number}", 1.0))


def sends(text: str | bytes) -> Behaviour:
    async def behaviour(socket: ServerConnection, request: Any) -> None:
        await socket.send(text)

    return behaviour
