"""vLLM client: one server's HTTP interface; nothing is sent that is known to break a server."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import urlencode

import numpy as np
import numpy.typing as npt

from agentrl.engines.base import EnginePlace, PauseMode, Tag
from agentrl.engines.held_weights import HeldTensor
from agentrl.engines.servers.client import (
    EncodedTensors,
    ModelSizes,
    NamedTensors,
    NewVersion,
    WeightLabels,
    dtype_name,
)
from agentrl.engines.servers.http_client import HttpClient, ServerLostError
from agentrl.engines.servers.program.tensor_names import part_names
from agentrl.engines.tensor_parallel import Shards
from agentrl.engines.vllm.environment import VLLM
from agentrl.engines.vllm.model_check import meaning_problem, model_problem, seed_problem
from agentrl.engines.vllm.vllm_spec import VLLMEngineSpec
from agentrl.engines.vllm.wire import (
    generate_body,
    joined,
    probe_bodies,
    read_answer,
    read_table,
    score_body,
    told,
)
from agentrl.engines.weights import read_config
from agentrl.errors import EngineError
from agentrl.types import Completion, GenerateRequest

_GENERATE = "/inference/v1/generate"
_PREFIX = "generate-tokens-"
"""Of the names under which vLLM keeps the requests of that route."""
_OF_NOTHING = hashlib.sha256().hexdigest()
_ROUTES = (
    _GENERATE,
    "/abort_requests",
    "/pause",
    "/resume",
    "/reset_prefix_cache",
    "/collective_rpc",
    "/update_weight_version",
    "/weight_checker",
    "/server_info",
)


class VLLMClient(HttpClient):
    """``ServerClient`` of vLLM; used from one event loop.

    Args:
        name: for messages.
        url: ``http://host:port``.
        place: what it should serve.
        spec: limits of its calls.
        labels: of weights.
        seeds: with which the engine's servers draw, by URL; each adds its own.
    """

    reports_versions = True

    def __init__(
        self,
        name: str,
        url: str,
        place: EnginePlace,
        spec: VLLMEngineSpec,
        labels: WeightLabels,
        seeds: dict[str, int],
    ) -> None:
        super().__init__(name, url, spec, place.api_key)
        self._seeds = seeds
        self._place = place
        self._labels = labels
        self._config: Mapping[str, Any] = {}
        self._held = 0
        self._asleep: set[Tag] = set()

    @property
    def num_ranks(self) -> int:
        """Tensor-parallel ranks of the server; known after ``probe``."""
        parallel = self._config.get("parallel_config") or {}
        return int(parallel.get("tensor_parallel_size") or 1)

    def shards(self, shapes: Mapping[str, tuple[int, ...]]) -> Shards:
        """See ``ServerClient.shards``: each rank reads the folder."""
        return ()

    async def probe(self) -> None:
        """See ``ServerClient.probe``.

        Raises:
            EngineError: a route that is needed is missing.
        """
        VLLM.require((await self.ask("/version")).get("version"), self.name)
        for route in _ROUTES:
            if not await self.has_route(route):
                raise EngineError(
                    f"{self.name} has no route {route}, which agentrl needs; start it with "
                    "VLLM_SERVER_DEV_MODE=1 in its environment",
                    retryable=False,
                )
        info = await self.ask("/server_info?config_format=json")
        self._config = info.get("vllm_config") or {}

    async def check_model(self) -> None:
        """See ``ServerClient.check_model``; also whether its logprobs have our meaning."""
        problem = model_problem(self._place, self._config)
        problem = problem or seed_problem(self.url, self._config, self._seeds)
        if not problem:
            # that a former owner left open, without which the server has no weights to compute with
            await self.end_update()
            size = ModelSizes.read(self._place).vocab_size
            plain, cut = [
                read_table(
                    await self._generated(body, self.spec.startup_timeout_s),
                    size,
                    server=self.name,
                )
                for body in probe_bodies(size)
            ]
            problem = meaning_problem(plain, cut)
        if problem:
            raise EngineError(f"{self.name} {problem}", retryable=False)

    async def attach(self) -> bool:
        """See ``ServerClient.attach``."""
        await self.act("/abort_requests", {})
        await self.resume()
        return await self._dropped_kv()

    async def generate(self, request: GenerateRequest, rid: str) -> Completion:
        """See ``ServerClient.generate``."""
        body = generate_body(request, rid)
        self._held += 1
        try:
            if request.on_tokens is None:
                answer = await self.json(_GENERATE, body, timeout_s=None)
            else:
                answer = await self._stream(body, request)
        finally:
            self._held -= 1
        return read_answer(
            request, answer, server=self.name, version_of=self._labels.version_of
        )

    async def score(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """See ``ServerClient.score``: each token is asked for behind those before it, since vLLM
        gives the tokens of a prompt no logprobs in this mode."""
        bodies = [
            score_body(token_ids[:end], token_ids[end]) for end in range(1, len(token_ids))
        ]
        seconds = self.spec.call_timeout_s
        answers = await asyncio.gather(*(self._generated(body, seconds) for body in bodies))
        size = ModelSizes.read(self._place).vocab_size
        tables = [read_table(answer, size, server=self.name) for answer in answers]
        found = [table[token] for table, token in zip(tables, token_ids[1:], strict=True)]
        return np.asarray(found, np.float32)

    async def abort(self, rid: str) -> None:
        """Ends a request; one that the server does not know is ignored."""
        await self.act("/abort_requests", {"request_ids": [_PREFIX + rid]})

    async def pause(self, mode: PauseMode) -> None:
        """Stops generating; ``retract`` gives the KV of running requests up. The server keeps
        them, and those that come meanwhile."""
        keeps_kv = mode == "in_place"
        await self._order("/pause", mode="keep", clear_cache=str(not keeps_kv).lower())

    async def resume(self) -> None:
        """Goes on generating."""
        await self._order("/resume")

    async def release(self, tags: Sequence[Tag], *, running: int) -> None:
        """Gives memory back; a server without ``--enable-sleep-mode`` keeps it.

        Args:
            tags: what; graphs are never released.
            running: requests in flight that were not retracted.

        Raises:
            EngineError: the server has requests: it goes on with them as soon as it wakes, before
                it has weights.
        """
        if self._held:
            raise EngineError(
                f"{self.name}: memory can be released when nothing runs, {self._held} requests do; "
                "set rollout.pause_mode=drain",
                retryable=False,
            )
        if not (self._config.get("model_config") or {}).get("enable_sleep_mode"):
            return
        if "weights" in tags:
            await self._order("/sleep", level="2", mode="keep")
        elif "kv_cache" in tags:
            await self._order("/release_kv_cache_memory")
        self._asleep |= {tag for tag in tags if tag != "graphs"}

    async def regain(self, tags: Sequence[Tag]) -> None:
        """Takes memory back. The server generates again once it has all of it, so that it is paused
        again."""
        if woken := self._asleep & set(tags):
            await self._order("/wake_up", tags=sorted(woken))
            self._asleep -= woken
            await self.pause("retract")

    async def begin_update(self) -> None:
        """See ``ServerClient.begin_update``."""
        await self._workers("begin_agentrl_update")

    async def end_update(self) -> None:
        """See ``ServerClient.end_update``."""
        await self._workers("end_agentrl_update")

    async def label(self, label: str) -> None:
        """Names the weights served now; requests in flight go on."""
        await self._update("/update_weight_version", {"new_version": label})

    async def load_folder(self, folder: str, new: NewVersion) -> None:
        """Loads weights from a folder that the server can read."""
        await self._workers("load_agentrl_folder", folder)
        await self._loaded(new)

    async def load_tensors(self, tensors: EncodedTensors, new: NewVersion | None) -> None:
        """See ``ServerClient.load_tensors``."""
        await self._workers("load_agentrl_tensors", tensors.texts, tensors.form)
        await self._loaded(new)

    async def join_group(
        self, name: str, *, host: str, port: int, rank: int, world_size: int, backend: str
    ) -> None:
        """See ``ServerClient.join_group``."""
        await self._workers(
            "join_agentrl_group", name, host, port, rank, world_size, backend
        )

    async def leave_groups(self) -> None:
        """See ``ServerClient.leave_groups``."""
        await self._workers("leave_agentrl_groups")

    async def receive(
        self, name: str, tensors: NamedTensors, new: NewVersion | None
    ) -> None:
        """See ``ServerClient.receive``."""
        dtypes = [dtype_name(tensor) for _, tensor in tensors]
        shapes = [tensor.shape for _, tensor in tensors]
        names = [own for own, _ in tensors]
        await self._workers("receive_agentrl_tensors", name, names, dtypes, shapes)
        await self._loaded(new)

    async def digests(self) -> Mapping[HeldTensor, str]:
        """See ``ServerClient.digests``: SHA-256, by rank and name. On a CPU vLLM keeps most
        weights in a packed copy alone, of which it tells nothing: those are left out."""
        answer = await self.json(
            "/weight_checker", {"action": "checksum"}, timeout_s=self.spec.update_timeout_s
        )
        config = read_config(self._place.model)
        checksums = answer.get("checksums")
        if not isinstance(checksums, Mapping):
            raise ServerLostError(f"{self.name} made no checksums: {answer.get('message')}")
        found = {}
        for key, digest in checksums.items():
            if digest == _OF_NOTHING:
                continue
            rank, _, name = key.rpartition(":")
            found[HeldTensor(f"{name!r} ({rank})", part_names(name, config))] = digest
        return found

    async def _workers(self, method: str, *arguments: Any) -> None:
        """Calls our extension in the worker of each rank."""
        await self._update("/collective_rpc", {"method": method, "args": arguments})

    async def _loaded(self, new: NewVersion | None) -> None:
        """Weights were loaded; given with the last of an update alone."""
        if new is None:
            return
        await self.label(new.label)
        if new.flush and not await self._dropped_kv():
            raise ServerLostError(f"{self.name} did not drop the KV of older weights")

    async def _generated(
        self, body: Mapping[str, Any], timeout_s: float
    ) -> Mapping[str, Any]:
        return await self.json(_GENERATE, body, timeout_s=timeout_s)

    async def _stream(
        self, body: Mapping[str, Any], request: GenerateRequest
    ) -> Mapping[str, Any]:
        """The answer to a request that tells its tokens as they come."""
        found: list[Mapping[str, Any]] = []
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        async with aclosing(self.events(_GENERATE, asked)) as events:
            async for event in events:
                found.append(event)
                ids, logprobs = told(event)
                if ids.size and request.on_tokens is not None:
                    request.on_tokens(ids, logprobs)
        return joined(found)

    async def _dropped_kv(self) -> bool:
        """Whether no KV of older weights is left; requests compute theirs again."""
        answer = await self.json(
            "/reset_prefix_cache?reset_running_requests=true",
            {},
            timeout_s=self.spec.update_timeout_s,
        )
        return bool(answer.get("success"))

    async def _update(self, route: str, body: Mapping[str, Any]) -> None:
        await self.send(route, body, timeout_s=self.spec.update_timeout_s)

    async def _order(self, route: str, **query: str | list[str]) -> None:
        """A call whose arguments are in its address."""
        await self._update(
            f"{route}?{urlencode(query, doseq=True)}" if query else route, {}
        )
