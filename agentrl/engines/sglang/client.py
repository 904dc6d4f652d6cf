"""SGLang client: one server's HTTP interface; nothing is sent that is known to break a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextlib import aclosing, suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.engines.base import EnginePlace, PauseMode, Tag
from agentrl.engines.held_weights import HeldTensor
from agentrl.engines.servers.client import (
    EncodedTensors,
    NamedTensors,
    NewVersion,
    WeightLabels,
    dtype_name,
)
from agentrl.engines.servers.http_client import HttpClient, RefusedError, ServerLostError
from agentrl.engines.servers.program.tensor_names import part_names
from agentrl.engines.sglang.capabilities import (
    DIGESTS_SINCE,
    IMAGES_SINCE,
    SPANS_SINCE,
)
from agentrl.engines.sglang.environment import SGLANG
from agentrl.engines.sglang.model_check import model_problem, rank_shards
from agentrl.engines.sglang.routed_experts import ServedExperts
from agentrl.engines.sglang.sglang_spec import SGLangEngineSpec
from agentrl.engines.sglang.stream import tell_new
from agentrl.engines.sglang.wire import generate_body, read_answer, read_score, score_body
from agentrl.engines.tensor_parallel import Shards
from agentrl.engines.weights import read_config
from agentrl.errors import EngineError
from agentrl.types import Completion, GenerateRequest

_SERVER_TAGS: Mapping[Tag, str] = {"graphs": "cuda_graph"}
"""SGLang's names of what it calls otherwise."""


class SGLangClient(HttpClient):
    """``ServerClient`` of SGLang; used from one event loop.

    Args:
        name: for messages.
        url: ``http://host:port``.
        place: what it should serve.
        spec: limits of its calls.
        labels: of weights.

    Attributes:
        version: of the server; known after ``probe``.
        brackets_updates: whether tensors are accepted between ``/begin_weight_update`` and
            ``/end_weight_update`` alone; known likewise.
    """

    def __init__(
        self,
        name: str,
        url: str,
        place: EnginePlace,
        spec: SGLangEngineSpec,
        labels: WeightLabels,
    ) -> None:
        super().__init__(name, url, spec, place.api_key)
        self._place = place
        self._experts = ServedExperts.of(place)
        self._labels = labels
        self._info: Mapping[str, Any] = {}
        self.version: tuple[int, ...] = ()
        self.brackets_updates = False
        self._answered_without_spans = False
        self._released: set[Tag] = set()
        self._groups: set[str] = set()

    @property
    def num_ranks(self) -> int:
        """Tensor-parallel ranks of the server; known after ``probe``."""
        return int(self._info.get("tp_size") or 1)

    @property
    def reports_versions(self) -> bool:
        """See ``ServerClient.reports_versions``."""
        return self.version >= SPANS_SINCE and not self._answered_without_spans

    def shards(self, shapes: Mapping[str, tuple[int, ...]]) -> Shards:
        """See ``ServerClient.shards``."""
        return rank_shards(
            self._place, shapes, self.num_ranks, str(self._info.get("device"))
        )

    async def probe(self) -> None:
        """See ``ServerClient.probe``."""
        self._info = await self.ask("/server_info")
        self.version = SGLANG.require(self._info.get("version"), self.name)
        self.brackets_updates = await self.has_route("/begin_weight_update")

    async def check_model(self) -> None:
        """See ``ServerClient.check_model``."""
        served = await self.ask("/model_info")
        if problem := model_problem(self._place, self._info, served):
            raise EngineError(f"{self.name} {problem}", retryable=False)
        if self._experts is not None and not self._info.get("enable_return_routed_experts"):
            raise EngineError(
                f"{self.name} tells no experts of its tokens, which train.router_replay needs; "
                "start it with --enable-return-routed-experts",
                retryable=False,
            )

    async def attach(self) -> bool:
        """See ``ServerClient.attach``."""
        await self.act("/abort_request", {"abort_all": True})
        await self.resume()
        if await self.has_route("/end_weight_update"):
            with suppress(RefusedError):
                # none was open
                await self._success("/end_weight_update", {})
        try:
            await self.act("/flush_cache", {})
        except RefusedError:
            # a request still runs
            return False
        return True

    async def generate(self, request: GenerateRequest, rid: str) -> Completion:
        """See ``ServerClient.generate``."""
        if request.media and self.version < IMAGES_SINCE:
            raise EngineError(
                f"request {request.request_id!r} has images, and {self.name} is SGLang "
                f"{self._info.get('version')}, which encodes the tokens around them again; use a "
                "newer one",
                retryable=False,
            )
        body = generate_body(request, rid, wants_experts=self._experts is not None)
        if request.on_tokens is None:
            answer = await self.json("/generate", body, timeout_s=None)
        else:
            answer = await self._stream(body, request)
        completion = read_answer(
            request,
            answer,
            server=self.name,
            version_of=self._labels.version_of,
            experts=self._experts,
        )
        self._answered_without_spans |= "weight_versions" not in answer["meta_info"]
        return completion

    async def score(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """See ``ServerClient.score``."""
        body = score_body(token_ids)
        answer = await self.json("/generate", body, timeout_s=self.spec.call_timeout_s)
        return read_score(answer, token_ids, server=self.name)

    async def abort(self, rid: str) -> None:
        """Ends a request; one that the server does not know is ignored."""
        await self.act("/abort_request", {"rid": rid})

    async def pause(self, mode: PauseMode) -> None:
        """Stops generating; ``retract`` gives the KV of running requests up."""
        # SGLang has no mode that waits. Nothing runs by now, so that nothing is retracted.
        await self.act(
            "/pause_generation", {"mode": "retract" if mode == "drain" else mode}
        )

    async def resume(self) -> None:
        """Goes on generating."""
        await self.act("/continue_generation", {})

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
        await self._occupy("/release_memory_occupation", set(tags) - self._released)
        self._released |= set(tags)

    async def regain(self, tags: Sequence[Tag]) -> None:
        """Takes memory back; what was not released is left out, since resuming it kills the
        server.
        """
        await self._occupy("/resume_memory_occupation", set(tags) & self._released)
        self._released -= set(tags)

    async def _occupy(self, route: str, tags: Set[Tag]) -> None:
        if tags:
            body = {"tags": sorted(_SERVER_TAGS.get(tag, tag) for tag in tags)}
            await self.send(route, body, timeout_s=self.spec.update_timeout_s)

    async def begin_update(self) -> None:
        """Opens the bracket that tensors must stand in, where the server wants one."""
        if self.brackets_updates:
            await self._success("/begin_weight_update", {"selector": "all"})

    async def end_update(self) -> None:
        """Closes the bracket."""
        if self.brackets_updates:
            await self._success("/end_weight_update", {})

    async def label(self, label: str) -> None:
        """Names the weights served now; requests in flight go on."""
        await self._success(
            "/update_weight_version", {"new_version": label, "abort_all_requests": False}
        )

    async def load_folder(self, folder: str, new: NewVersion) -> None:
        """Loads weights from a folder that the server can read."""
        body = {"model_path": folder, "load_format": "auto"}
        await self._load("/update_weights_from_disk", body, new)

    async def load_tensors(self, tensors: EncodedTensors, new: NewVersion | None) -> None:
        """Loads tensors; returns when each rank has its part.

        Args:
            tensors: base64 of a pickle. A handle of torch's ``file_descriptor`` sharing in it would
                hang the server.
            new: given with the last tensors alone.
        """
        body = {
            # Each rank reads the entry of its own number.
            "serialized_named_tensors": [*tensors.texts]
            * (self.num_ranks // len(tensors.texts)),
            "load_format": tensors.form,
        }
        await self._load("/update_weights_from_tensor", body, new)

    async def join_group(
        self, name: str, *, host: str, port: int, rank: int, world_size: int, backend: str
    ) -> None:
        """Makes the server's ranks join a process group of the trainer's; returns when all have
        joined.
        """
        body = {
            "master_address": host,
            "master_port": port,
            "rank_offset": rank,
            "world_size": world_size,
            "group_name": name,
            "backend": backend,
        }
        await self._success("/init_weights_update_group", body)
        self._groups.add(name)

    async def leave_groups(self) -> None:
        """Leaves all that it joined."""
        while self._groups:
            name = self._groups.pop()
            await self._success("/destroy_weights_update_group", {"group_name": name})

    async def receive(
        self, name: str, tensors: NamedTensors, new: NewVersion | None
    ) -> None:
        """Receives tensors by broadcast, one after the other; returns when they are loaded.

        Args:
            name: a group that it joined.
            tensors: in the order of the broadcasts; their names, dtypes and shapes are sent.
            new: given with the last of an update alone.

        Raises:
            EngineError: it never joined, so that the call would be refused while the trainer hangs
                in its broadcast.
        """
        if name not in self._groups:
            raise EngineError(
                f"{self.name} did not join the group {name!r}; call join_group() first",
                retryable=False,
            )
        body = {
            "names": [name for name, _ in tensors],
            "dtypes": [dtype_name(tensor) for _, tensor in tensors],
            "shapes": [tensor.shape for _, tensor in tensors],
            "group_name": name,
        }
        await self._load("/update_weights_from_distributed", body, new)

    async def digests(self) -> Mapping[HeldTensor, str]:
        """See ``ServerClient.digests``: SHA-256 on a CPU, on a GPU a hash of SGLang's own, which is
        as much a function of the bits alone.
        """
        ranks = await self._checksums()
        where = self._info.get("device") or "cpu"
        config = read_config(self._place.model)
        return {
            HeldTensor(
                f"{name!r} ({where}, rank {rank} of {len(ranks)})", part_names(name, config)
            ): digest
            for rank, digests in enumerate(ranks)
            for name, digest in digests.items()
        }

    async def _checksums(self) -> Sequence[Mapping[str, str]]:
        """The server's own digest of each tensor under its own names, one mapping a tensor-parallel
        rank; none where it cannot be asked.
        """
        if self.version < DIGESTS_SINCE:
            return []
        timeout_s = self.spec.update_timeout_s
        answer = await self.json(
            "/weights_checker", {"action": "checksum"}, timeout_s=timeout_s
        )
        try:
            ranks = [dict(rank["checksums"]) for rank in answer["ranks"]]
        except (KeyError, TypeError, ValueError):
            ranks = []
        if not answer.get("success") or not ranks:
            raise ServerLostError(f"{self.name} made no checksums: {answer.get('message')}")
        return ranks

    async def _stream(
        self, body: Mapping[str, Any], request: GenerateRequest
    ) -> Mapping[str, Any]:
        """The last of the answers of a request that tells its tokens as they come."""
        route = "/generate"
        answer: Mapping[str, Any] | None = None
        told = 0
        async with aclosing(self.events(route, {**body, "stream": True})) as answers:
            async for answer in answers:
                told = tell_new(request, answer, told)
        if answer is None:
            raise ServerLostError(f"{self.name} answered {route} with a stream of nothing")
        return answer

    async def _load(
        self, route: str, body: Mapping[str, Any], new: NewVersion | None
    ) -> None:
        """A call that brings weights; requests in flight go on."""
        labelled = {"weight_version": new.label} if new else {}
        flush = new is not None and new.flush
        await self._success(
            route, {**body, **labelled, "flush_cache": flush, "abort_all_requests": False}
        )

    async def _success(self, route: str, body: Mapping[str, Any]) -> None:
        """A call that says in its answer whether it succeeded."""
        answer = await self.json(route, body, timeout_s=self.spec.update_timeout_s)
        if not answer.get("success"):
            raise RefusedError(
                f"{self.name} did not do {route}: {answer.get('message') or 'no reason given'}"
            )
