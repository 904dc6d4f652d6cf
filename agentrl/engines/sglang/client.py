"""One server's HTTP interface: each call by name, each failure named, nothing sent that is known to break it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import httpx

from agentrl.engines.base import Tag
from agentrl.engines.sglang.errors import RefusedError, ServerLostError, refusal
from agentrl.engines.sglang.stream import events
from agentrl.engines.sglang.versions import Dialect, dialect_of
from agentrl.errors import EngineError

__all__ = ["ServerClient"]

_SERVER_TAGS: Mapping[Tag, str] = {
    "weights": "weights",
    "kv_cache": "kv_cache",
    "graphs": "cuda_graph",
}
_CONNECT_S = 10.0
_KEPT_S = 2.0
"""Of an idle connection: SGLang closes one after 5 s, and a call that it closes under would look like a lost server."""


class ServerClient:
    """Calls one server; used from one event loop.

    Args:
        name: for messages.
        url: ``http://host:port``.
        call_timeout_s: of every call but ``generate``, which has no limit of its own.
        update_timeout_s: of calls that move weights.
        api_key: sent as a bearer token where the server asks for one.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        call_timeout_s: float,
        update_timeout_s: float,
        api_key: str | None = None,
    ) -> None:
        self.name, self.url = name, url.rstrip("/")
        self._call_timeout_s, self._update_timeout_s = call_timeout_s, update_timeout_s
        self._dialect: Dialect | None = None
        self._tp_size = 1
        self._released: set[Tag] = set()
        self._groups: set[str] = set()
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=64, keepalive_expiry=_KEPT_S
            ),
            trust_env=False,
        )

    @property
    def dialect(self) -> Dialect:
        """Of the server's version; known after ``probe``."""
        if self._dialect is None:
            raise EngineError(
                f"{self.name} was not probed yet; call probe() first", retryable=False
            )
        return self._dialect

    @property
    def tp_size(self) -> int:
        """Tensor-parallel ranks of the server; known after ``probe``."""
        return self._tp_size

    async def probe(self) -> Mapping[str, Any]:
        """``/server_info``; from here on the server's dialect is known.

        Raises:
            MachineError: a version that agentrl does not know.
        """
        info = await self._json("GET", "/server_info")
        self._dialect = dialect_of(info.get("version"), self.name)
        self._tp_size = int(info.get("tp_size") or 1)
        return info

    async def model_info(self) -> Mapping[str, Any]:
        """What model it serves, under which weight version."""
        return await self._json("GET", "/model_info")

    async def healthy(self, timeout_s: float) -> bool:
        """Whether it answers ``/health``, for which it generates a token where nothing else runs."""
        try:
            return (await self._http.get("/health", timeout=timeout_s)).status_code == 200
        except httpx.HTTPError:
            return False

    async def generate(
        self, body: Mapping[str, Any], grows: Callable[[Mapping[str, Any]], None] | None = None
    ) -> Mapping[str, Any]:
        """One completion. Its duration is bounded by the caller: a pause may last.

        Args:
            body: see ``wire.generate_body``.
            grows: is given the answer each time that it has grown.
        """
        if grows is None:
            return await self._json("POST", "/generate", body, timeout_s=None)
        route, answer = "/generate", None
        with self._named(route, None):
            timeout = httpx.Timeout(None, connect=_CONNECT_S)
            async with self._http.stream(
                "POST", route, json={**body, "stream": True}, timeout=timeout
            ) as response:
                if response.status_code >= 400:
                    raise refusal(self.name, route, response.status_code, await response.aread())
                async for event in events(response.aiter_bytes()):
                    answer = self._object(route, event)
                    grows(answer)
        if answer is None:
            raise ServerLostError(f"{self.name} answered {route} with a stream of nothing")
        return answer

    async def abort(self, rid: str) -> None:
        """Ends a request; one that the server does not know is ignored."""
        await self._call("POST", "/abort_request", {"rid": rid})

    async def abort_all(self) -> None:
        """Ends every request, whoever sent it."""
        await self._call("POST", "/abort_request", {"abort_all": True})

    async def pause(self, mode: Literal["retract", "in_place"]) -> None:
        """Stops generating; ``retract`` gives the KV of running requests up."""
        await self._call("POST", "/pause_generation", {"mode": mode})

    async def resume(self) -> None:
        """Goes on generating."""
        await self._call("POST", "/continue_generation", {})

    async def flush(self) -> bool:
        """Empties the KV cache; whether it did, which it cannot while requests run."""
        try:
            await self._call("POST", "/flush_cache", {})
        except RefusedError:
            return False
        return True

    async def release(self, tags: Sequence[Tag], *, running: int) -> None:
        """Gives memory back. The server dies where a request holds KV, so that is refused here.

        Args:
            tags: what; those released already are left out.
            running: requests in flight that were not retracted.

        Raises:
            EngineError: requests run.
        """
        if running:
            raise EngineError(
                f"{self.name}: memory can be released when nothing runs, {running} requests do; "
                "call pause('drain') or pause('retract') first",
                retryable=False,
            )
        if wanted := [tag for tag in tags if tag not in self._released]:
            await self._call(
                "POST",
                "/release_memory_occupation",
                {"tags": [_SERVER_TAGS[tag] for tag in wanted]},
                update=True,
            )
            self._released |= set(wanted)

    async def regain(self, tags: Sequence[Tag]) -> None:
        """Takes memory back; what was not released is left out, since resuming it kills the server."""
        if wanted := [tag for tag in tags if tag in self._released]:
            await self._call(
                "POST",
                "/resume_memory_occupation",
                {"tags": [_SERVER_TAGS[tag] for tag in wanted]},
                update=True,
            )
            self._released -= set(wanted)

    async def begin_update(self) -> None:
        """Opens the bracket that tensors must stand in, where the server wants one."""
        if self.dialect.brackets_updates:
            await self._success("/begin_weight_update", {"selector": "all"})

    async def end_update(self) -> None:
        """Closes the bracket."""
        if self.dialect.brackets_updates:
            await self._success("/end_weight_update", {})

    async def label(self, label: str) -> None:
        """Names the weights served now; requests in flight go on."""
        await self._success(
            "/update_weight_version", {"new_version": label, "abort_all_requests": False}
        )

    async def load_folder(self, folder: str, *, label: str, flush: bool) -> None:
        """Loads weights from a folder that the server can read."""
        body = {
            "model_path": folder,
            "load_format": "auto",
            "weight_version": label,
            "abort_all_requests": False,
        }
        await self._success("/update_weights_from_disk", {**body, "flush_cache": flush})

    async def load_bucket(self, payload: str, *, label: str | None, flush: bool) -> None:
        """Loads tensors from a flattened bucket.

        Args:
            payload: base64 of the pickled bucket, holding the tensors by value: a handle of torch's
                ``file_descriptor`` sharing would hang the server.
            label: given with the last bucket alone.
            flush: empty the KV cache.
        """
        body = {
            "serialized_named_tensors": [payload] * self._tp_size,
            "load_format": "flattened_bucket",
            "flush_cache": flush,
            "abort_all_requests": False,
        }
        await self._success(
            "/update_weights_from_tensor", body | ({"weight_version": label} if label else {})
        )

    async def join_group(
        self, name: str, *, host: str, port: int, rank: int, world_size: int, backend: str
    ) -> None:
        """Makes the server's ranks join a process group of the trainer's; returns when all have joined."""
        body = {
            "master_address": host,
            "master_port": port,
            "rank_offset": rank,
            "world_size": world_size,
        }
        await self._success(
            "/init_weights_update_group", {**body, "group_name": name, "backend": backend}
        )
        self._groups.add(name)

    async def leave_group(self, name: str) -> None:
        """Leaves it; one that it never joined is ignored."""
        if name in self._groups:
            self._groups.discard(name)
            await self._success("/destroy_weights_update_group", {"group_name": name})

    async def receive(
        self,
        name: str,
        tensors: Sequence[tuple[str, str, Sequence[int]]],
        *,
        label: str | None,
        flush: bool,
    ) -> None:
        """Receives tensors by broadcast, one after the other; returns when they are loaded.

        Args:
            name: a group that it joined.
            tensors: ``(name, dtype, shape)`` in the order of the broadcasts.
            label: given with the last of an update alone.
            flush: empty the KV cache.

        Raises:
            EngineError: it never joined, so that the call would be refused while the trainer hangs in its broadcast.
        """
        if name not in self._groups:
            raise EngineError(
                f"{self.name} did not join the group {name!r}; call join_group() first",
                retryable=False,
            )
        body: dict[str, Any] = {
            "names": [tensor for tensor, _, _ in tensors],
            "dtypes": [dtype for _, dtype, _ in tensors],
            "shapes": [list(shape) for _, _, shape in tensors],
            "group_name": name,
            "flush_cache": flush,
            "abort_all_requests": False,
        }
        await self._success(
            "/update_weights_from_distributed", body | ({"weight_version": label} if label else {})
        )

    async def digests(self) -> Sequence[Mapping[str, str]]:
        """The server's own digest of each tensor under its own names, one mapping a tensor-parallel rank."""
        answer = await self._json(
            "POST", "/weights_checker", {"action": "checksum"}, timeout_s=self._update_timeout_s
        )
        ranks = answer.get("ranks")
        if not answer.get("success") or not isinstance(ranks, list):
            raise ServerLostError(f"{self.name} made no checksums: {answer.get('message')}")
        return [dict(rank["checksums"]) for rank in ranks]

    async def close(self) -> None:
        """Closes the connections; calls in flight fail."""
        await self._http.aclose()

    async def _success(self, route: str, body: Mapping[str, Any]) -> None:
        """A call that says in its answer whether it succeeded."""
        answer = await self._json("POST", route, body, timeout_s=self._update_timeout_s)
        if not answer.get("success"):
            raise RefusedError(
                f"{self.name} did not do {route}: {answer.get('message') or 'no reason given'}"
            )

    async def _json(
        self,
        method: str,
        route: str,
        body: Mapping[str, Any] | None = None,
        timeout_s: float | None = -1.0,
    ) -> Mapping[str, Any]:
        content = await self._send(
            method, route, body, self._call_timeout_s if timeout_s == -1.0 else timeout_s
        )
        return self._object(route, content)

    def _object(self, route: str, content: bytes) -> Mapping[str, Any]:
        try:
            answer = json.loads(content)
        except ValueError as error:
            raise ServerLostError(
                f"{self.name} answered {route} with {len(content)} bytes that are no JSON ({error})"
            ) from error
        if not isinstance(answer, dict):
            raise ServerLostError(
                f"{self.name} answered {route} with a {type(answer).__name__}, not an object"
            )
        return answer

    async def _call(
        self, method: str, route: str, body: Mapping[str, Any], *, update: bool = False
    ) -> None:
        await self._send(
            method, route, body, self._update_timeout_s if update else self._call_timeout_s
        )

    async def _send(
        self, method: str, route: str, body: Mapping[str, Any] | None, timeout_s: float | None
    ) -> bytes:
        with self._named(route, timeout_s):
            answer = await self._http.request(
                method, route, json=body, timeout=httpx.Timeout(timeout_s, connect=_CONNECT_S)
            )
        if answer.status_code >= 400:
            raise refusal(self.name, route, answer.status_code, answer.content)
        return answer.content

    @contextmanager
    def _named(self, route: str, timeout_s: float | None) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException as error:
            raise ServerLostError(
                f"{self.name} did not answer {route} within {timeout_s or _CONNECT_S:g} s ({type(error).__name__})"
            ) from error
        except httpx.RemoteProtocolError as error:
            raise ServerLostError(
                f"{self.name} broke off in its answer to {route}: {error}"
            ) from error
        except httpx.HTTPError as error:
            raise ServerLostError(
                f"{self.name} at {self.url} cannot be reached for {route}: {type(error).__name__}: {error}"
            ) from error
