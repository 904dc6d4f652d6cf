"""A game on a server of the package openenv-core; runs in the agents' environment.

Usage: openenv_server.py MAX_SESSIONS. It prints its port and serves until it is ended.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

import uvicorn
from openenv.core.env_server import (
    Action,
    Environment,
    Observation,
    State,
    create_fastapi_app,
)


class Say(Action):
    """Say a number."""

    number: int


class Heard(Observation):
    text: str


class Count(Environment):  # type: ignore[misc]
    """Count upwards from where the seed says; each right number is worth .5, the third one ends."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.state_ = State()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **_: Any
    ) -> Heard:
        self.state_ = State(step_count=0)
        self.begin = (seed or 0) % 10
        return Heard(text=f"Count from {self.begin}.")

    def step(self, action: Say, timeout_s: float | None = None, **_: Any) -> Heard:
        if action.number == 13:
            raise ValueError("13 brings bad luck")
        right = action.number == self.begin + self.state_.step_count
        self.state_.step_count += 1
        return Heard(
            text=f"You said {action.number}.",
            reward=0.5 if right else None,
            done=self.state_.step_count == 3,
        )

    @property
    def state(self) -> State:
        return self.state_


if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", 0))
    app = create_fastapi_app(Count, Say, Heard, max_concurrent_envs=int(sys.argv[1]))
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
