"""OpenEnv environment: plays an episode in a session of an OpenEnv server, over one WebSocket.

- Requests and answers alternate. A request is sent once: only what the server refused unread, since
  it was full, is asked again, on another socket.
- What the server does wrong is no doing of the policy: the episode fails and is tried again. A
  server that fails twice under the same episode's own action is the policy's doing, as with tools.
- Answers are waited for up to ``deadline_s``; no other deadline counts the wait.

The protocol: https://github.com/meta-pytorch/OpenEnv, ``openenv.core.env_server`` of version 0.3.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx

from agentrl.envs.adapters.seat import NO_ARGS, Moved, SoloSeatEnv, said_aloud
from agentrl.errors import ConfigError, EnvError, ToolError
from agentrl.guards.parsing import JSONFault, read_json
from agentrl.guards.secret_mask import beginning
from agentrl.tools import Tool
from agentrl.tools.execution.faults import EndpointFault, tool_error
from agentrl.tools.execution.gates import gate_of
from agentrl.types import Action, Observation, Task, ToolCall
from agentrl.types.clock import backoff_s, clock_paused
from agentrl.types.user_code.load import needed

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

logger = logging.getLogger(__name__)

_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_CONNECT_S = 10.0
_CLOSE_S = 2.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_LONGEST_TEXT = 500
# RFC 6455, 7.4.1.
_TOO_BIG = 1009
_FULL = "CAPACITY_REACHED"
_REFUSED = "VALIDATION_ERROR"
_RAISED = "EXECUTION_ERROR"


class OpenEnv(SoloSeatEnv):
    """An environment on an OpenEnv server; each episode is a session of its own.

    The server's reward counts as it is, and ``done`` terminates. Needs ``pip install
    'websockets>=15'``.

    Args:
        task: its messages open the conversation, before the first observation;
            ``info["env_args"]`` are joined to ``env_args``.
        url: the server, such as ``http://127.0.0.1:8000``.
        action_field: the field of an action that the model's message goes into, as text. Without
            it the message is the action, as a JSON object.
        by_tool: whether the model acts by the tool ``act`` instead, whose arguments are the fields
            of an action as the server describes them.
        observation_field: the field of an observation that the model is shown, where that is a
            text; an observation without it is shown as JSON.
        env_args: sent with ``reset`` beside the seed.
        deadline_s: seconds until the server has answered a request.
        wait_s: seconds that an episode waits for a server that is full or not up.
        max_message_bytes: of an answer.

    Raises:
        ConfigError: websockets is missing, or a setting breaks a rule.
    """

    def __init__(
        self,
        task: Task,
        *,
        url: str,
        action_field: str | None = None,
        by_tool: bool = False,
        observation_field: str = "text",
        env_args: Mapping[str, Any] = NO_ARGS,
        deadline_s: float = 60.0,
        wait_s: float = 600.0,
        max_message_bytes: int = 2**20,
    ) -> None:
        rules = (
            ("deadline_s", deadline_s > 0, "more than 0", deadline_s),
            ("wait_s", wait_s >= 0, "at least 0", wait_s),
            ("max_message_bytes", max_message_bytes > 0, "more than 0", max_message_bytes),
            (
                "action_field",
                not (by_tool and action_field),
                "left out with by_tool: true",
                action_field,
            ),
        )
        for name, holds, rule, value in rules:
            if not holds:
                raise ConfigError(f"OpenEnv.{name} must be {rule}, got {value!r}")
        super().__init__(task, env_args)
        self._session = _Session(url, deadline_s, wait_s, max_message_bytes)
        self._action_field = action_field
        self._by_tool = by_tool
        self._observation_field = observation_field
        self._owed = 0.0

    async def reset(self, *, seed: int) -> Observation:
        """The task's messages and the first observation.

        Raises:
            ToolFaultError: the server could not be reached, stayed full, or failed.
            EnvError: it refused the reset, or gave an episode that is over.
        """
        answer = await self._session.open({**self.env_args, "seed": seed})
        if self._by_tool:
            schema = await self._session.action_schema()
            self.act_by(lambda act: _act_tool(schema, act))
        if answer.done:
            raise EnvError(
                f"OpenEnv: {self._session.name} says done in its answer to reset; "
                f"see its env_args {self.env_args}"
            )
        self._owed = answer.reward
        return self.opened(self._rendered(answer))

    async def moved(self, action: Action) -> Moved:
        """See ``SoloSeatEnv.moved``.

        Raises:
            ToolFaultError: the server failed.
            EnvError: the environment there raised.
        """
        chosen = self._chosen(action)
        fault = chosen if isinstance(chosen, str) else ""
        if not isinstance(chosen, str):
            answer = await self._session.step(chosen, self.episode_id)
            fault = answer.refused
        if fault:
            return Moved(f"This is no valid action: {fault}", is_invalid=True)
        reward, self._owed = self._owed + answer.reward, 0.0
        return Moved(self._rendered(answer), reward, answer.done)

    async def close(self) -> None:
        """End the session."""
        await self._session.close()

    def _chosen(self, action: Action) -> dict[str, Any] | str:
        """The action, or what is wrong with it."""
        if self._by_tool:
            return self._called[0] if len(self._called) == 1 else "call act once."
        text = said_aloud(action)
        if self._action_field is not None:
            return {self._action_field: text}
        try:
            value, end = read_json(text, 0)
        except JSONFault as fault:
            return f"say only a JSON object; {fault}."
        if not isinstance(value, dict) or text[end:].strip():
            return "say only a JSON object."
        return value

    def _rendered(self, answer: _Answer) -> str:
        text = answer.observation.get(self._observation_field)
        if isinstance(text, str):
            return text
        return json.dumps(answer.observation, ensure_ascii=False)


def _act_tool(schema: Mapping[str, Any], act: Callable[..., str]) -> Tool:
    fields = dict(schema.get("properties") or {})
    if "metadata" not in schema.get("required", ()):
        # Every action has it, and it is not the model's to fill.
        fields.pop("metadata", None)
    named = {
        "name": "act",
        "description": str(schema.get("description") or "Act in the environment."),
        "parameters": {**schema, "properties": fields},
    }
    return Tool.from_schema(named, act)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a server answered.

    Args:
        observation: its fields.
        reward: 0 where it gave none.
        done: the episode is over.
        refused: why the action fits no action of the server's; empty where it does.
    """

    observation: Mapping[str, Any]
    reward: float = 0.0
    done: bool = False
    refused: str = ""


# No error by name: it is what a server did, which is told in other words.
class _ServerFault(Exception):  # noqa: N818
    """A server failed.

    Args:
        text: what it did.
        sent: it may have been sent the request.
        unread: it has carried out nothing, so that it may be asked again.
    """

    def __init__(self, text: str, *, sent: bool = True, unread: bool = False) -> None:
        super().__init__(text)
        self.sent = sent
        self.unread = unread


class _Session:
    """One session of a server, over one socket; belongs to one event loop."""

    def __init__(self, url: str, deadline_s: float, wait_s: float, max_bytes: int) -> None:
        with needed("OpenEnv", "openenv"):
            import websockets  # noqa: F401
        self._ws_url, self._http_url, self._is_local = _addresses(url)
        self.name = f"the server {self._http_url}"
        self._deadline_s = deadline_s
        self._wait_s = wait_s
        self._max_bytes = max_bytes
        self._socket: ClientConnection | None = None
        # How many episodes of this process are served, and how often it answered.
        self._gate = gate_of(f"openenv {self._ws_url}")

    async def action_schema(self) -> Mapping[str, Any]:
        """The JSON Schema of an action, as the server tells it."""
        try:
            # A proxy of the environment's cannot reach this machine's own loopback.
            async with httpx.AsyncClient(
                timeout=self._deadline_s, trust_env=not self._is_local
            ) as client:
                answer = await client.get(f"{self._http_url}/schema")
        except httpx.TransportError as error:
            raise self._failed(
                _ServerFault(f"cannot be reached ({_named(error)})")
            ) from error
        # A body that is no JSON gets the error below, which says what a server must answer.
        with suppress(ValueError, RecursionError):
            found = answer.json()
            if isinstance(found, dict) and isinstance(schema := found.get("action"), dict):
                return schema
        raise EnvError(
            f"OpenEnv.by_tool needs the schema of an action, and {self.name} answered "
            f"{answer.status_code} at /schema, without one; set by_tool: false",
            retryable=False,
        )

    async def open(self, data: Mapping[str, Any]) -> _Answer:
        """The first observation, once the server has a place."""
        ends_at = time.monotonic() + self._wait_s
        with clock_paused():
            for attempt in itertools.count():
                try:
                    return await self._reset(data)
                except _ServerFault as fault:
                    await self.close(last=fault.unread)
                    if not fault.unread:
                        raise self._failed(fault) from fault
                    pause_s = backoff_s(
                        attempt, first_s=_FIRST_PAUSE_S, longest_s=_LONGEST_PAUSE_S
                    )
                    if time.monotonic() + pause_s > ends_at:
                        late = f"{fault}, and did for OpenEnv.wait_s={self._wait_s:g}; raise it"
                        raise self._failed(_ServerFault(late, sent=False)) from fault
                    if attempt == 0:
                        logger.warning(
                            "OpenEnv: %s %s; an episode waits for it, up to wait_s=%g",
                            self.name,
                            fault,
                            self._wait_s,
                            extra={"event": "openenv_waits", "error": str(fault)},
                        )
                await asyncio.sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")

    async def step(self, action: dict[str, Any], episode_id: str) -> _Answer:
        """What an action caused."""
        async with self._gate.entered(episode_id):
            try:
                return self._read(await self._exchange("step", action))
            except _ServerFault as fault:
                raise self._failed(fault, action) from fault

    async def close(self, *, last: bool = False) -> None:
        """Tell the server, and close the socket.

        Args:
            last: let the server close it first, as one does that is full.
        """
        from websockets.exceptions import WebSocketException

        socket, self._socket = self._socket, None
        if socket is None:
            return
        if last:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await socket.wait_closed()
        # A server that hears no more has no session left to end.
        with suppress(WebSocketException, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await socket.send('{"type": "close"}')
        await socket.close()

    async def _reset(self, data: Mapping[str, Any]) -> _Answer:
        self._socket = await self._connected()
        answer = self._read(await self._exchange("reset", data))
        if answer.refused:
            raise EnvError(
                f"OpenEnv.env_args: {self.name} refused to reset with {dict(data)}: "
                f"{answer.refused}",
                retryable=False,
            )
        return answer

    async def _connected(self) -> ClientConnection:
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidHandshake, InvalidStatus

        try:
            return await connect(
                self._ws_url,
                open_timeout=_CONNECT_S,
                close_timeout=_CLOSE_S,
                # A busy server answers late; deadline_s says how late.
                ping_timeout=None,
                max_size=self._max_bytes,
                proxy=None if self._is_local else True,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            if status == 429 or status >= 500:
                raise _ServerFault(f"answered {status} at /ws", unread=True) from error
            raise EnvError(
                f"OpenEnv.url: {self.name} answered {status} at /ws, where an OpenEnv server takes "
                "sessions; see its url",
                retryable=False,
            ) from error
        except (OSError, TimeoutError, InvalidHandshake) as error:
            raise _ServerFault(
                f"cannot be reached ({_named(error)})", unread=True
            ) from error

    async def _exchange(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a request, as it came."""
        from websockets.exceptions import ConnectionClosed

        socket = self._socket
        assert socket is not None, "reset comes first"
        # A server that is full says so before it is asked.
        if kind != "reset":
            await _check_silent(socket)
        try:
            with clock_paused():
                async with asyncio.timeout(self._deadline_s):
                    # What it said before may tell why.
                    with suppress(ConnectionClosed):
                        await socket.send(json.dumps({"type": kind, "data": data}))
                    raw = await socket.recv()
        except TimeoutError as error:
            raise _ServerFault(
                f"did not answer {kind} within OpenEnv.deadline_s={self._deadline_s:g}; raise it, "
                "or see the server's log"
            ) from error
        except ConnectionClosed as error:
            if error.sent is not None and error.sent.code == _TOO_BIG:
                raise _ServerFault(
                    f"answered {kind} with more than OpenEnv.max_message_bytes={self._max_bytes}; "
                    "raise it, or let the server say less"
                ) from error
            raise _ServerFault(f"closed the socket during {kind} ({error})") from error
        message = _message(raw)
        self._gate.count_answer()
        return message

    def _read(self, message: Mapping[str, Any]) -> _Answer:
        data = message["data"]
        if message["type"] == "observation":
            return _answer(data)
        code, text = data.get("code"), beginning(str(data.get("message")), _LONGEST_TEXT)
        if code == _REFUSED:
            return _Answer({}, refused=_reasons(data.get("errors")) or text)
        if code == _RAISED:
            raise EnvError(f"OpenEnv: the environment on {self.name} raised: {text}")
        raise _ServerFault(f"answered {code}: {text}", unread=code == _FULL)

    def _failed(
        self, fault: _ServerFault, action: Mapping[str, Any] | None = None
    ) -> ToolError:
        """The error that ends the episode."""
        by_call = action is not None and fault.sent
        return tool_error(
            ToolCall("", "OpenEnv", action or {}),
            EndpointFault(f"{self.name} {fault}", fault.sent, by_call),
            alone=self._gate.is_alone(),
            answers=self._gate.num_answers,
        )


async def _check_silent(socket: ClientConnection) -> None:
    """Refuses a socket that was closed since the last answer, or brought what nobody asked for:
    it would be taken for the next answer.
    """
    from websockets.exceptions import ConnectionClosed

    try:
        async with asyncio.timeout(0):
            await socket.recv()
    except TimeoutError:
        return
    except ConnectionClosed as error:
        raise _ServerFault(
            f"closed the socket between two turns ({error})", sent=False
        ) from error
    raise _ServerFault("sent a message that nobody asked for", sent=False)


def _message(raw: str | bytes) -> Mapping[str, Any]:
    """A message of the server's, of one of the two kinds that answer."""
    if isinstance(raw, bytes):
        raise _not_the_protocol(f"{len(raw)} bytes")
    try:
        value, end = read_json(raw, 0)
    except JSONFault as fault:
        raise _not_the_protocol(f"{beginning(raw, _LONGEST_TEXT)!r} ({fault})") from fault
    match value:
        case {"type": "observation" | "error" as kind, "data": dict() as data}:
            if not raw[end:].strip():
                return {"type": kind, "data": data}
    raise _not_the_protocol(repr(beginning(raw, _LONGEST_TEXT)))


def _answer(data: Mapping[str, Any]) -> _Answer:
    observation, reward, done = (data.get(key) for key in ("observation", "reward", "done"))
    if not isinstance(observation, dict) or not isinstance(done, bool):
        raise _not_the_protocol(
            f"observation={beginning(str(observation), _LONGEST_TEXT)!r} "
            f"done={beginning(str(done), 80)!r}"
        )
    if reward is not None and not isinstance(reward, int | float):
        raise _not_the_protocol(f"reward={beginning(str(reward), 80)!r}")
    try:
        return _Answer(observation, float(reward or 0.0), done)
    except OverflowError as error:
        raise _not_the_protocol(f"reward={beginning(str(reward), 80)}") from error


def _not_the_protocol(found: str) -> _ServerFault:
    return _ServerFault(
        f"must answer in OpenEnv's protocol, with an observation or an error, and sent {found}"
    )


def _reasons(errors: object) -> str:
    """The server's reasons to refuse an action, in words."""
    found = [
        f"{'.'.join(map(str, loc))}: {message}" if loc else message
        for error in (errors if isinstance(errors, list) else [])
        if isinstance(error, dict)
        and isinstance(message := error.get("msg"), str)
        and isinstance(loc := error.get("loc", []), list)
    ]
    return beginning("; ".join(found), _LONGEST_TEXT)


def _addresses(url: str) -> tuple[str, str, bool]:
    """Where sessions are opened, what is before the paths of the server's, and whether that is this
    machine.
    """
    try:
        parts = urlsplit(url)
        scheme, host, _ = _SCHEMES.get(parts.scheme), parts.hostname, parts.port
    except ValueError:
        scheme = host = None
    if scheme is None or not host:
        raise ConfigError(
            f"OpenEnv.url must be the address of a server, as http://HOST:PORT, got {url!r}"
        )
    place = parts.netloc + parts.path.rstrip("/").removesuffix("/ws")
    http = "https" if scheme == "wss" else "http"
    return f"{scheme}://{place}/ws", f"{http}://{place}", host in _LOOPBACK


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
