"""App: the routes of each dialect, and those that reward and end an episode."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.datastructures import Headers
from starlette.types import Scope

from agentrl.agent_server.api.api_error import PolicyApiError, bad_request
from agentrl.agent_server.api.chat_completions import CompletionAnswer
from agentrl.agent_server.api.dialect import Answer, Asked
from agentrl.agent_server.api.messages import MessageAnswer
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

_DIALECTS: Sequence[type[Answer]] = (CompletionAnswer, ResponseAnswer, MessageAnswer)


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
        admitted=partial(_is_admitted, registry),
    )

    @app.exception_handler(PolicyApiError)
    @app.exception_handler(WireFault)
    async def failed(request: Request, error: PolicyApiError | WireFault) -> Response:
        refusal = error if isinstance(error, PolicyApiError) else bad_request(str(error))
        return _refusal(request.url.path, refusal)

    @app.head("/")
    @app.head("/episodes/{episode_id}")
    async def is_up() -> Response:
        return Response()

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

    for dialect in _DIALECTS:
        _add_completion_routes(app, registry, dialect)
    _add_episode_routes(app, registry)

    @app.post(f"/v1/{MessageAnswer.path}/count_tokens")
    @app.post(f"/episodes/{{episode_id}}/v1/{MessageAnswer.path}/count_tokens")
    async def count(request: Request) -> dict[str, int]:
        episode = _asked_episode(registry, request)
        chat = MessageAnswer(await _asked(request, episode)).chat
        count = registry.count_standalone if episode is None else episode.count_tokens
        return {"input_tokens": count(chat)}

    return app


def _add_completion_routes(
    app: FastAPI, registry: EpisodeRegistry, dialect: type[Answer]
) -> None:
    @app.post(f"/v1/{dialect.path}")
    @app.post(f"/episodes/{{episode_id}}/v1/{dialect.path}")
    async def complete(request: Request) -> Response:
        return await _complete(registry, request, dialect)


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
        raise PolicyApiError(
            410, "episode_over", f"episode {episode_id!r} has ended: {how}"
        )
    raise PolicyApiError(
        status,
        "no_such_episode",
        f"there is no open episode {episode_id!r}: the id is mistyped, or the episode ended long "
        f"ago; POST /episodes opens one, and the key {_NO_EPISODE[0]!r} asks for an answer of no "
        "episode",
    )


def _refused(scope: Scope, status: int, message: str) -> Response:
    return _refusal(scope["path"], PolicyApiError(status, "refused", message))


def _refusal(path: str, error: PolicyApiError) -> Response:
    """An error in the shape of the dialect whose route was asked."""
    dialect = next(
        (one for one in _DIALECTS if f"/v1/{one.path}" in path), CompletionAnswer
    )
    # clients would otherwise retry after a 5xx, although the episode is over
    return JSONResponse(
        dialect.error_body(error), error.status, {"x-should-retry": "false"}
    )


def _key(headers: Headers) -> str:
    """The API key of a request: OpenAI's clients send a bearer, Anthropic's a header of its own."""
    return bearer(headers) or headers.get("x-api-key", "")


def _is_token(registry: EpisodeRegistry, key: str) -> bool:
    # In a time that tells nothing of the token.
    return hmac.compare_digest(key.encode(errors="replace"), registry.token.encode())


def _is_admitted(registry: EpisodeRegistry, scope: Scope, headers: Headers) -> bool:
    """Whether a request names the episode of this endpoint that it is about, whose id cannot be
    guessed, or brings the token as Anthropic's clients do.
    """
    key = _key(headers)
    match str(scope["path"]).split("/")[1:]:
        case ["episodes", name, *_]:
            named = name
        case ["v1", *_] | [""]:
            named = key
        # Such as the one that opens episodes.
        case _:
            named = ""
    return named in registry.episodes or named in registry.ended or _is_token(registry, key)


def _asked_episode(registry: EpisodeRegistry, request: Request) -> ServedEpisode | None:
    """The episode that a request's path or API key names; None for a request without an episode."""
    if "episode_id" in request.path_params:
        return _found(registry, request.path_params["episode_id"])
    key = _key(request.headers)
    no_episode = key.lower() in ("", *_NO_EPISODE) or _is_token(registry, key)
    return None if no_episode else _found(registry, key, 401)


async def _asked(request: Request, episode: ServedEpisode | None) -> Asked:
    body, headers = await _json(request), dict(request.headers)
    if episode is None:
        # nothing is kept of it, so nothing can be noted
        return Asked(body, headers, strict=True)
    return Asked(body, headers, episode.threads, episode.strict_keys)


async def _complete(
    registry: EpisodeRegistry, request: Request, dialect: type[Answer]
) -> Response:
    episode = _asked_episode(registry, request)
    answer = dialect(await _asked(request, episode))
    stream = StreamWriter(answer.chat, partial(_disconnected, request))
    complete = registry.complete_standalone if episode is None else episode.complete

    async def generate() -> TurnResult:
        turn = await complete(stream)
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
    return StreamingResponse(
        _events(answer, generating, stream), media_type="text/event-stream"
    )


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
        # what JSON has no word for could be neither rendered nor answered
        body = parse_json(raw, max_nodes=_MAX_NODES, finite=True) if raw else {}
    except ValueError as error:
        raise bad_request(f"the body must be JSON ({error})") from None
    if not isinstance(body, dict):
        raise bad_request(f"the body must be a JSON object, got {type(body).__name__}")
    return body
