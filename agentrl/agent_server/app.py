"""The routes: an OpenAI-compatible endpoint for each episode, and calls that reward and end it."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from agentrl.agent_server.api.chat_answer import Answer
from agentrl.agent_server.api.chat_request import ChatRequest, parse_request
from agentrl.agent_server.api.refusal import Refusal
from agentrl.agent_server.api.response_answer import ResponseAnswer
from agentrl.agent_server.api.response_request import parse_response_request
from agentrl.agent_server.conversations import Threads
from agentrl.agent_server.episode import ServedEpisode
from agentrl.agent_server.stream_writer import StreamWriter
from agentrl.rollouts.turns import TurnResult
from agentrl.types import EngineInfo

__all__ = ["EpisodeRegistry", "make_app"]


_NO_EPISODE = ("none", "empty")
"""API keys of a request that belongs to no episode, since OpenAI's clients must have one."""


class EpisodeRegistry(Protocol):
    """What the routes ask of whoever keeps the episodes."""

    def info(self) -> EngineInfo:
        """Of the engine behind the endpoint."""
        ...

    @property
    def num_episodes(self) -> int:
        """Episodes that are open."""
        ...

    def find(self, episode_id: str) -> ServedEpisode | None:
        """An open episode."""
        ...

    def how_ended(self, episode_id: str) -> str | None:
        """The end of an episode that is no longer open; None where there was none of that name, or long ago."""
        ...

    async def complete_alone(
        self, request: ChatRequest, gone: Callable[[], Awaitable[object]], telling: StreamWriter
    ) -> TurnResult:
        """A turn for a request that belongs to no episode.

        Raises:
            Refusal: only episodes are served here, or there is no such turn.
        """
        ...

    async def open(self, body: Any, root: str) -> dict[str, Any]:
        """Opens an episode; its id, and its URLs below the ``root`` by which the client reaches the endpoint.

        Raises:
            Refusal: episodes are not opened by request here, or the body is no task.
        """
        ...

    async def outcome(self, episode_id: str) -> dict[str, Any]:
        """What an episode came to, once it is scored."""
        ...


def make_app(desk: EpisodeRegistry) -> FastAPI:
    """The application (docs/policy-server.md lists its routes)."""
    app = FastAPI(title="agentrl policy", openapi_url=None)

    @app.exception_handler(Refusal)
    async def refused(_: Request, refusal: Refusal) -> Response:
        # OpenAI's clients would ask again after a 5xx, where the episode is over
        return JSONResponse(refusal.body(), refusal.status, {"x-should-retry": "false"})

    @app.get("/health")
    async def health() -> dict[str, Any]:
        info = desk.info()
        return {
            "status": "ok",
            "policy_version": info.policy_version,
            "episodes": desk.num_episodes,
        }

    @app.get("/v1/models")
    @app.get("/episodes/{episode_id}/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(desk.info().model)]}

    @app.get("/v1/models/{name:path}")
    @app.get("/episodes/{episode_id}/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        return _model(name)  # the policy answers to every name

    @app.post("/episodes")
    async def open_episode(request: Request) -> dict[str, Any]:
        return await desk.open(await _json(request), str(request.base_url).rstrip("/"))

    @app.post("/episodes/{episode_id}/v1/chat/completions")
    async def complete(episode_id: str, request: Request) -> Response:
        return await _chat(desk, _found(desk, episode_id), request)

    @app.post("/v1/chat/completions")
    async def complete_by_key(request: Request) -> Response:
        return await _chat(desk, _by_key(desk, request), request)

    @app.post("/episodes/{episode_id}/v1/responses")
    async def respond(episode_id: str, request: Request) -> Response:
        return await _respond(desk, _found(desk, episode_id), request)

    @app.post("/v1/responses")
    async def respond_by_key(request: Request) -> Response:
        return await _respond(desk, _by_key(desk, request), request)

    @app.post("/episodes/{episode_id}/reward")
    async def reward(episode_id: str, request: Request) -> dict[str, Any]:
        body = await _json(request)
        name = body.get("name", "reward")
        if not isinstance(name, str) or not name:
            raise Refusal(400, "invalid_request", f"name must be text, got {name!r}")
        _found(desk, episode_id).give_reward(body.get("reward"), name)
        return {"name": name, "reward": body["reward"]}

    @app.post("/episodes/{episode_id}/end")
    async def end(episode_id: str, request: Request) -> dict[str, Any]:
        body = await _json(request)
        episode, reason = _found(desk, episode_id), body.get("truncated", "")
        if not isinstance(reason, str):
            raise Refusal(
                400, "invalid_request", f"truncated must be the reason as text, got {reason!r}"
            )
        if "reward" in body:
            episode.give_reward(body["reward"])
        episode.finish(reason)
        return await desk.outcome(episode_id)

    return app


def _found(desk: EpisodeRegistry, episode_id: str, status: int = 404) -> ServedEpisode:
    episode = desk.find(episode_id)
    if episode is not None:
        return episode
    how = desk.how_ended(episode_id)
    if how is not None:
        raise Refusal(410, "episode_over", f"episode {episode_id!r} has ended: {how}")
    raise Refusal(
        status,
        "no_such_episode",
        f"there is no open episode {episode_id!r}: the id is mistyped, or the episode ended long ago; POST /episodes "
        f"opens one, and the key {_NO_EPISODE[0]!r} asks for an answer of no episode",
    )


def _by_key(desk: EpisodeRegistry, request: Request) -> ServedEpisode | None:
    """The episode that a request's API key names; None for one of no episode."""
    key = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    return None if key.lower() in ("", *_NO_EPISODE) else _found(desk, key, 401)


async def _chat(desk: EpisodeRegistry, episode: ServedEpisode | None, request: Request) -> Response:
    asked = parse_request(await _json(request))
    telling = StreamWriter(asked)
    making = (desk.complete_alone if episode is None else episode.complete)(
        asked, _gone(request), telling
    )
    return await _tell(
        Answer(asked, f"chatcmpl-{uuid.uuid4().hex}", int(time.time())), making, telling
    )


async def _respond(
    desk: EpisodeRegistry, episode: ServedEpisode | None, request: Request
) -> Response:
    threads = Threads() if episode is None else episode.threads
    asked = parse_response_request(await _json(request), threads.find)
    answer, telling = (
        ResponseAnswer(asked, uuid.uuid4().hex, int(time.time())),
        StreamWriter(asked.chat),
    )

    async def make() -> TurnResult:
        complete = desk.complete_alone if episode is None else episode.complete
        made = await complete(asked.chat, _gone(request), telling)
        threads.add(answer.response_id, (*asked.thread, made.action.message))
        return made

    return await _tell(answer, make(), telling)


async def _tell(
    answer: Answer | ResponseAnswer,
    making_it: Coroutine[Any, Any, TurnResult],
    telling: StreamWriter,
) -> Response:
    making = asyncio.create_task(making_it)
    making.add_done_callback(_looked_at)
    try:
        await (telling.wait(making) if telling.request.stream else asyncio.wait([making]))
        if not telling.request.stream:
            return JSONResponse(answer.body(making.result(), telling))
        if making.done():
            making.result()  # what is refused before there is a token has its own status
    except asyncio.CancelledError:
        making.cancel()
        raise
    return StreamingResponse(answer.events(making, telling), media_type="text/event-stream")


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "agentrl"}


def _looked_at(making: asyncio.Task[TurnResult]) -> None:
    """A client that leaves between two events asks no more how its turn ended."""
    if not making.cancelled():
        making.exception()


def _gone(request: Request) -> Callable[[], Awaitable[object]]:
    """Returns when the client has closed its connection: nothing else comes after a body that was read."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            await asyncio.sleep(0)

    return gone


async def _json(request: Request) -> Any:
    raw = await request.body()
    try:
        body = json.loads(raw) if raw else {}
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "invalid_request", f"the body must be JSON ({error})") from None
    if not isinstance(body, dict):
        raise Refusal(
            400, "invalid_request", f"the body must be a JSON object, got {type(body).__name__}"
        )
    return body
