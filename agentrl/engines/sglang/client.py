"""SGLang client: one server's HTTP interface; nothing is sent that is known to break a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import httpx
import numpy as np
import numpy.typing as npt

from agentrl.engines.base import EnginePlace, Tag
from agentrl.engines.servers.client import ModelSizes, WeightLabels
from agentrl.engines.servers.errors import RefusedError, ServerLostError, refusal
from agentrl.engines.servers.http_client import CONNECT_S, HttpClient
from agentrl.engines.sglang.capabilities import Capabilities, require_version
from agentrl.engines.sglang.digests import differing
from agentrl.engines.sglang.model_check import model_problem
from agentrl.engines.sglang.sglang_spec import SGLangEngineSpec
from agentrl.engines.sglang.stream import TokenStream, events
from agentrl.engines.sglang.wire import generate_body, read_answer, read_score, score_body
from agentrl.engines.weights import WeightArray
from agentrl.errors import EngineError
from agentrl.types import Completion, GenerateRequest

_SERVER_TAGS: Mapping[Tag, str] = {
    "weights": "weights",
    "kv_cache": "kv_cache",
    "graphs": "cuda_graph",
}


class SGLangClient(HttpClient):
    """``ServerClient`` of SGLang; used from one event loop.

    Args:
        name: for messages.
        url: ``http://host:port``.
        place: what it should serve.
        spec: limits of its calls.
        sizes: of the model.
        labels: of weights.
    """

    def __init__(
        self,
        name: str,
        url: str,
        place: EnginePlace,
        spec: SGLangEngineSpec,
        sizes: ModelSizes,
        labels: WeightLabels,
    ) -> None:
        super().__init__(
            name,
            url,
            call_timeout_s=spec.call_timeout_s,
            update_timeout_s=spec.update_timeout_s,
            api_key=place.api_key,
        )
        self._place = place
        self._sizes = sizes
        self._labels = labels
        self._info: Mapping[str, Any] = {}
        self._capabilities: Capabilities | None = None
        self._answered_without_spans = False
        self._released: set[Tag] = set()
        self._groups: set[str] = set()

    @property
    def capabilities(self) -> Capabilities:
        """Abilities of the server; known after ``probe``."""
        if self._capabilities is None:
            raise EngineError(
                f"{self.name} was not probed yet; call probe() first", retryable=False
            )
        return self._capabilities

    @property
    def num_ranks(self) -> int:
        """Tensor-parallel ranks of the server; known after ``probe``."""
        return int(self._info.get("tp_size") or 1)

    @property
    def reports_versions(self) -> bool:
        """See ``ServerClient.reports_versions``."""
        return self.capabilities.reports_spans and not self._answered_without_spans

    async def probe(self) -> None:
        """See ``ServerClient.probe``."""
        self._info = await self._ask("/server_info")
        version = require_version(self._info.get("version"), self.name)
        brackets = await self.has_route("/begin_weight_update")
        self._capabilities = Capabilities(version, brackets)

    async def check_model(self) -> None:
        """See ``ServerClient.check_model``."""
        served = await self._ask("/model_info")
        digests = await self.digests() if self.capabilities.digests else []
        if problem := model_problem(self._place, self._info, served, digests):
            raise EngineError(f"{self.name} {problem}", retryable=False)

    async def attach(self) -> bool:
        """See ``ServerClient.attach``."""
        try:
            await self._ask("/server_info")
            await self._act("/abort_request", {"abort_all": True})
            await self.resume()
            if await self.has_route("/end_weight_update"):
                with suppress(RefusedError):  # none was open
                    await self._success("/end_weight_update", {})
            try:
                await self._act("/flush_cache", {})
            except RefusedError:  # a request still runs
                return False
        except ServerLostError:
            return False
        return True

    async def generate(self, request: GenerateRequest, rid: str) -> Completion:
        """See ``ServerClient.generate``."""
        if request.media and not self.capabilities.keeps_ids_beside_images:
            raise EngineError(
                f"request {request.request_id!r} has images, and {self.name} is SGLang "
                f"{self._info.get('version')}, which encodes the tokens around them again; use a "
                "newer one",
                retryable=False,
            )
        body = generate_body(request, rid)
        if request.on_tokens is None:
            answer = await self._post("/generate", body, timeout_s=None)
        else:
            answer = await self._stream(body, TokenStream(request))
        completion = read_answer(
            request,
            answer,
            server=self.name,
            vocab_size=self._sizes.vocab_size,
            version_of=self._labels.version_of,
        )
        self._answered_without_spans |= "weight_versions" not in answer["meta_info"]
        return completion

    async def score(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """See ``ServerClient.score``."""
        answer = await self._post("/generate", score_body(token_ids))
        return read_score(answer, token_ids, server=self.name)

    async def abort(self, rid: str) -> None:
        """Ends a request; one that the server does not know is ignored."""
        await self._act("/abort_request", {"rid": rid})

    async def pause(self, mode: Literal["retract", "in_place"]) -> None:
        """Stops generating; ``retract`` gives the KV of running requests up."""
        await self._act("/pause_generation", {"mode": mode})

    async def resume(self) -> None:
        """Goes on generating."""
        await self._act("/continue_generation", {})

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
            await self._act(
                "/release_memory_occupation",
                {"tags": [_SERVER_TAGS[tag] for tag in wanted]},
                update=True,
            )
            self._released |= set(wanted)

    async def regain(self, tags: Sequence[Tag]) -> None:
        """Takes memory back; what was not released is left out, since resuming it kills the
        server.
        """
        if wanted := [tag for tag in tags if tag in self._released]:
            await self._act(
                "/resume_memory_occupation",
                {"tags": [_SERVER_TAGS[tag] for tag in wanted]},
                update=True,
            )
            self._released -= set(wanted)

    async def begin_update(self) -> None:
        """Opens the bracket that tensors must stand in, where the server wants one."""
        if self.capabilities.brackets_updates:
            await self._success("/begin_weight_update", {"selector": "all"})

    async def end_update(self) -> None:
        """Closes the bracket."""
        if self.capabilities.brackets_updates:
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
            "serialized_named_tensors": [payload] * self.num_ranks,
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
        """Makes the server's ranks join a process group of the trainer's; returns when all have
        joined.
        """
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
            EngineError: it never joined, so that the call would be refused while the trainer hangs
                in its broadcast.
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
        """The server's own digest of each tensor under its own names, one mapping a tensor-parallel
        rank.
        """
        answer = await self._post(
            "/weights_checker", {"action": "checksum"}, timeout_s=self.update_timeout_s
        )
        ranks = answer.get("ranks")
        if not answer.get("success") or not isinstance(ranks, list):
            raise ServerLostError(f"{self.name} made no checksums: {answer.get('message')}")
        return [dict(rank["checksums"]) for rank in ranks]

    async def verify(self, weights: Mapping[str, WeightArray]) -> int:
        """See ``ServerClient.verify``; SGLang's digests on a GPU are of another layout."""
        if not self.capabilities.digests or self._info.get("device") != "cpu":
            return 0
        wrong, compared = differing(weights, await self.digests(), self._sizes.num_kv_heads)
        if wrong:
            raise EngineError(
                f"{self.name} holds other weights than it should in {len(wrong)} of {compared} "
                f"tensors, first {wrong[0]!r}",
                retryable=False,
            )
        return compared

    async def _stream(self, body: Mapping[str, Any], grows: TokenStream) -> Mapping[str, Any]:
        """The last of the answers of a request that tells its tokens as they come."""
        route = "/generate"
        answer = None
        with self.named(route, None):
            timeout = httpx.Timeout(None, connect=CONNECT_S)
            async with self.http.stream(
                "POST", route, json={**body, "stream": True}, timeout=timeout
            ) as response:
                if response.status_code >= 400:
                    raise refusal(self.name, route, response.status_code, await response.aread())
                async for event in events(response.aiter_bytes()):
                    answer = self.object(route, event)
                    grows(answer)
        if answer is None:
            raise ServerLostError(f"{self.name} answered {route} with a stream of nothing")
        return answer

    async def _success(self, route: str, body: Mapping[str, Any]) -> None:
        """A call that says in its answer whether it succeeded."""
        answer = await self._post(route, body, timeout_s=self.update_timeout_s)
        if not answer.get("success"):
            raise RefusedError(
                f"{self.name} did not do {route}: {answer.get('message') or 'no reason given'}"
            )

    async def _ask(self, route: str) -> Mapping[str, Any]:
        return await self.json("GET", route, timeout_s=self.call_timeout_s)

    async def _post(
        self, route: str, body: Mapping[str, Any], *, timeout_s: float | None = -1.0
    ) -> Mapping[str, Any]:
        limit = self.call_timeout_s if timeout_s == -1.0 else timeout_s
        return await self.json("POST", route, body, timeout_s=limit)

    async def _act(self, route: str, body: Mapping[str, Any], *, update: bool = False) -> None:
        """A call whose answer says nothing."""
        limit = self.update_timeout_s if update else self.call_timeout_s
        await self.send("POST", route, body, limit)
