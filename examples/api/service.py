"""Service: calendars of bookings over HTTP, as some service of yours would be."""

from __future__ import annotations

import itertools
import socket
import threading

import uvicorn
from fastapi import FastAPI, HTTPException


class Service:
    """Serves from a thread of this process, on a free port.

    Attributes:
        url: where it answers.
    """

    def __init__(self) -> None:
        # who connects early waits in its queue
        listening = socket.create_server(("127.0.0.1", 0))
        # else 40 ms an answer
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.url = "http://{}:{}".format(*listening.getsockname())
        # its clients drop idle connections first, so that none is closed under a request
        config = uvicorn.Config(application(), log_level="warning", timeout_keep_alive=60)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([listening],), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End it; agentrl calls this at the end of the process."""
        self._server.should_exit = True
        self._thread.join(10)


def application() -> FastAPI:
    """Calendars by id, each with the name that is booked for an hour."""
    app = FastAPI()
    calendars: dict[str, dict[int, str]] = {}
    count = itertools.count()

    @app.post("/")
    async def fill(bookings: dict[int, str]) -> str:
        calendars[calendar := str(next(count))] = bookings
        return calendar

    @app.get("/{calendar}")
    async def read(calendar: str, name: str = "") -> dict[int, str]:
        booked = calendars[calendar].items()
        return {hour: booker for hour, booker in booked if name in ("", booker)}

    @app.put("/{calendar}/{hour}")
    async def book(calendar: str, hour: int, name: str) -> str:
        if calendars[calendar].setdefault(hour, name) != name:
            raise HTTPException(409, f"{hour} is taken")
        return "booked"

    @app.delete("/{calendar}/{hour}")
    async def cancel(calendar: str, hour: int) -> str:
        if calendars[calendar].pop(hour, None) is None:
            raise HTTPException(404, f"{hour} is free")
        return "cancelled"

    return app
