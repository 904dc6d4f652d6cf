"""App: the routes of the OpenAI-compatible endpoint, and those that reward and end an episode."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, TypeAlias

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.datastructures import Headers
from starlette.types import Scope

from agentrl.agent_server.api.api_error import PolicyApiError, bad_request
from agentrl.agent_server.api.chat_answer import CompletionAnswer
from agentrl.agent_server.api.responses import ResponseAnswer
from agentrl.agent_server.episode import ServedEpisode
from agentrl.agent_server.registry import EpisodeRegistry
from agentrl.agent_server.stream_writer import StreamWriter
from agentrl.guards.http_guard import HttpGuard, bearer
from agentrl.guards.parsing import parse_json
from agentrl.llm import WireFault
from agentrl.rollouts.turns import TurnResult

_MAX_BODY = 64 * 2**20
_MAX_NODES = 1_000_000
_NO_EPISODE = ("none", "empty")
"""API keys of a request without an episode, since OpenAI's clients need some key."""

Answer: TypeAlias = CompletionAnswer | ResponseAnswer


def make_app(registry: EpisodeRegistry) -> FastAPI:
    """The application (docs/policy-server.md lists its routes)."""
    app = FastAPI(title="agentrl policy", openapi_url=None, docs_url=None, redoc_url=None)
    app.add_middleware(
        HttpGuard,
        refuse=_refused,
        token=registry.token,
        hosts=registry.hosts,
        addresses=True,
        max_body_bytes=_MAX_BODY,
        admitted=partial(_has_episode, registry),
    )

    @app.exception_handler(PolicyApiError)
    @app.exception_handler(WireFault)
    async def failed(_: Request, error: PolicyApiError | WireFault) -> Response:
        refusal = error if isinstance(error, PolicyApiError) else bad_request(str(error))
        # OpenAI's clients would otherwise retry after a 5xx, although the episode is over
        return JSONResponse(refusal.body(), refusal.status, {"x-should-retry": "false"})

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {
            "status": "ok",
            "policy_version": registry.engine.info().policy_version,
            "episodes": len(registry.episodes),
        }

    def described(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": 0, "owned_by": "agentrl"}

    @app.get("/v1/models")
    @app.get("/episodes/{episode_id}/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [described(registry.engine.info().model)]}

    @app.get("/v1/models/{name:path}")
    @app.get("/episodes/{episode_id}/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        # the policy answers to every name
        return described(name)

    _add_completion_routes(app, registry, "chat/completions", CompletionAnswer)
    _add_completion_routes(app, registry, "responses", ResponseAnswer)
    _add_episode_routes(app, registry)
    return app


def _add_completion_routes(
    app: FastAPI, registry: EpisodeRegistry, path: str, answer_type: type[Answer]
) -> None:
    @app.post(f"/v1/{path}")
    @app.post(f"/episodes/{{episode_id}}/v1/{path}")
    async def complete(request: Request) -> Response:
        return await _complete(registry, request, answer_type)


def _add_episode_routes(app: FastAPI, registry: EpisodeRegistry) -> None:
    @app.post("/episodes")
    async def open_episode(request: Request) -> dict[str, Any]:
        return await registry.open(await _json(request), str(request.base_url).rstrip("/"))

    @app.post("/episodes/{episode_id}/reward")
    async def reward(episode_id: str, request: Request) -> dict[str, Any]:
        body = await _json(request)
        name = body.get("name", "reward")
        if not isinstance(name, str) or not name:
            raise bad_request(f"name must be text, got {name!r}")
        _found(registry, episode_id).give_reward(body.get("reward"), name, body.get("why"))
        return {"name": name, "reward": body["reward"]}

    @app.post("/episodes/{episode_id}/end")
    async def end(episode_id: str, request: Request) -> dict[str, Any]:
        body = await _json(request)
        episode = _found(registry, episode_id)
        reason = body.get("truncated", "")
        if not isinstance(reason, str):
            raise bad_request(f"truncated must be the reason as text, got {reason!r}")
        if "reward" in body:
            episode.give_reward(body["reward"], why=body.get("why"))
        episode.finish(reason)
        return await registry.outcome(episode_id)


def _found(registry: EpisodeRegistry, episode_id: str, status: int = 404) -> ServedEpisode:
    if episode_id in registry.episodes:
        return registry.episodes[episode_id]
    how = registry.ended.get(episode_id)
    if how is not None:
        raise PolicyApiError(410, "episode_over", f"episode {episode_id!r} has ended: {how}")
    raise PolicyApiError(
        status,
        "no_such_episode",
        f"there is no open episode {episode_id!r}: the id is mistyped, or the episode ended long "
        f"ago; POST /episodes opens one, and the key {_NO_EPISODE[0]!r} asks for an answer of no "
        "episode",
    )


def _refused(_: Scope, status: int, message: str) -> Response:
    error = PolicyApiError(status, "refused", message)
    return JSONResponse(error.body(), status, {"x-should-retry": "false"})


def _has_episode(registry: EpisodeRegistry, scope: Scope, headers: Headers) -> bool:
    """Whether a request names an episode of this endpoint: its id cannot be guessed."""
    _, first, *rest = str(scope["path"]).split("/")
    named = {bearer(headers), rest[0] if first == "episodes" and rest else ""}
    return bool(named & (registry.episodes.keys() | registry.ended.keys()))


def _asked(registry: EpisodeRegistry, request: Request) -> ServedEpisode | None:
    """The episode that a request's path or API key names; None for a request without an episode."""
    if "episode_id" in request.path_params:
        return _found(registry, request.path_params["episode_id"])
    key = bearer(request.headers)
    # In a time that tells nothing of the token.
    is_token = hmac.compare_digest(key.encode(), (registry.token or "").encode())
    no_episode = key.lower() in ("", *_NO_EPISODE) or is_token
    return None if no_episode else _found(registry, key, 401)


async def _complete(
    registry: EpisodeRegistry, request: Request, answer_type: type[Answer]
) -> Response:
    episode = _asked(registry, request)
    answer = answer_type(await _json(request), {} if episode is None else episode.threads)
    stream = StreamWriter(answer.chat, partial(_disconnected, request))
    complete = registry.complete_standalone if episode is None else episode.complete

    async def generate() -> TurnResult:
        turn = await complete(stream)
        if isinstance(answer, ResponseAnswer):
            answer.record(turn)
        return turn

    def done(generating: asyncio.Task[TurnResult]) -> None:
        stream.news.set()
        if not generating.cancelled():
            # seen: a client that leaves between two events never asks for the result
            generating.exception()

    generating = asyncio.create_task(generate())
    generating.add_done_callback(done)
    try:
        if not answer.chat.stream:
            await asyncio.wait([generating])
            return JSONResponse(answer.body(generating.result(), stream))
        await stream.news.wait()
        if generating.done():
            # an error before the first token has its own HTTP status
            generating.result()
    except asyncio.CancelledError:
        generating.cancel()
        raise
    return StreamingResponse(_events(answer, generating, stream), media_type="text/event-stream")


async def _events(
    answer: Answer, generating: asyncio.Future[TurnResult], stream: StreamWriter
) -> AsyncIterator[str]:
    """All events of a streamed answer, as soon as they are known."""
    try:
        yield "".join(answer.opening())
        while not generating.done():
            stream.news.clear()
            for delta in stream.deltas():
                yield "".join(answer.delta(delta, stream))
            await stream.news.wait()
        turn = generating.result()
    except PolicyApiError as error:
        yield answer.failure(error)
        return
    finally:
        # the client has left
        generating.cancel()
    for delta in stream.final_deltas(turn):
        yield "".join(answer.delta(delta, stream))
    yield "".join(answer.closing(turn, stream))


async def _disconnected(request: Request) -> None:
    """Returns after the client has closed its connection: no other message follows a read body."""
    while (await request.receive())["type"] != "http.disconnect":
        await asyncio.sleep(0)


async def _json(request: Request) -> Any:
    raw = await request.body()
    try:
        body = parse_json(raw, max_nodes=_MAX_NODES) if raw else {}
    except ValueError as error:
        raise bad_request(f"the body must be JSON ({error})") from None
    if not isinstance(body, dict):
        raise bad_request(f"the body must be a JSON object, got {type(body).__name__}")
    return body
