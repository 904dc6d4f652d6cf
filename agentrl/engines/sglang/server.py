"""One server: how it comes up, what it must be, whether it lives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

from agentrl.engines.sglang.client import ServerClient
from agentrl.engines.sglang.digests import differing, unknown_names
from agentrl.engines.sglang.errors import RefusedError, ServerLostError
from agentrl.engines.sglang.launch import (
    SPARE_POSITIONS,
    free_port,
    server_command,
    server_environment,
    server_url,
)
from agentrl.engines.sglang.process import ServerProcess
from agentrl.engines.sglang.sglang_spec import SGLangEngineSpec
from agentrl.engines.sglang.weights import WeightArray, tensor_shapes
from agentrl.errors import EngineError, MachineError

__all__ = ["Server", "ServerState"]

ServerState: TypeAlias = Literal["starting", "serving", "lost", "gone"]
"""``lost``: it does not answer, and may come back; ``gone``: it was given up."""

_POLL_S = 0.5
_HEALTH_S = 30.0
_PORT_TRIES = 2


class Server:
    """A server that is started here, or one that is given by its URL. Used from one event loop.

    Args:
        index: its place among the others.
        spec: how it is started, and what it must be.
        url: of a given server.
    """

    def __init__(self, index: int, spec: SGLangEngineSpec, url: str | None = None) -> None:
        self.name = f"server {index}" + (f" ({url})" if url else "")
        self.state: ServerState = "starting"
        self.running = 0
        self.restarts = 0
        self.calls: set[asyncio.Task[Mapping[str, Any]]] = set()
        self._spec, self._url = spec, url
        self._log = Path(spec.folder) / f"server-{index}.log"
        self._process: ServerProcess | None = None
        self._client: ServerClient | None = None
        self._device = ""

    @property
    def serving(self) -> bool:
        """Whether it may be sent requests."""
        return self.state == "serving"

    @property
    def given(self) -> bool:
        """Whether it belongs to someone else."""
        return self._url is not None

    @property
    def client(self) -> ServerClient:
        """Its HTTP interface."""
        if self._client is None:
            raise EngineError(f"{self.name} was not started", retryable=False)
        return self._client

    @property
    def exited(self) -> bool:
        """Whether the process started here has ended."""
        return self._process is not None and self._process.exit_code is not None

    async def start(self, model: Path, label: str) -> None:
        """Starts it, or finds the given one, and waits until it generates; the caller lets it serve.

        Args:
            model: folder of the weights to serve, for a server started here.
            label: of those weights.

        Raises:
            MachineError: it did not come up in time, ended, or has an unknown version.
            EngineError: it serves another model, or a shorter context.
        """
        await self.end()
        for left in reversed(range(_PORT_TRIES)):
            port = free_port()
            self._client = ServerClient(
                self.name,
                self._url or server_url(port),
                call_timeout_s=self._spec.call_timeout_s,
                update_timeout_s=self._spec.update_timeout_s,
                api_key=self._spec.api_key,
            )
            if not self.given:
                command = server_command(self._spec, model=model, port=port, label=label)
                self._process = ServerProcess(command, server_environment(self._spec), self._log)
            if await self._ready():
                break
            assert self._process is not None
            tail = self._process.log_tail()
            if not left or "address already in use" not in tail.lower():
                raise MachineError(
                    f"{self.name} ended while it started; the end of its log {self._log}:\n{tail}"
                )
            await self.end()
        info = await self.client.probe()
        self._device = str(info.get("device"))
        await self._check_model(info)
        if self.given:
            await self.client.label(label)

    async def healthy(self) -> bool:
        """Whether it answers."""
        return not self.exited and await self.client.healthy(_HEALTH_S)

    async def verify(self, weights: Mapping[str, WeightArray], num_kv_heads: int) -> int:
        """Compares what it holds with what it should, by its own digests.

        Returns:
            Tensors that were compared; 0 where its version or device offers no digest known here.

        Raises:
            EngineError: a tensor differs.
        """
        if not self.client.dialect.digests or self._device != "cpu":
            return 0
        wrong, compared = differing(weights, await self.client.digests(), num_kv_heads)
        if wrong:
            raise EngineError(
                f"{self.name} holds other weights than it should in {len(wrong)} of {compared} tensors, "
                f"first {wrong[0]!r}",
                retryable=False,
            )
        return compared

    def lose(self) -> None:
        """It answers no more: calls in flight end, and their requests go elsewhere."""
        if self.state != "gone":
            self.state = "lost"
        for call in self.calls:
            call.cancel()

    async def end(self) -> None:
        """Ends what was started here; a given server goes on."""
        process, self._process = self._process, None
        client, self._client = self._client, None
        if process is not None:
            await asyncio.to_thread(process.end)
        if client is not None:
            await client.close()

    async def _ready(self) -> bool:
        """Whether it came up; False where its process ended."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._spec.startup_timeout_s
        adopted = not self.given
        while loop.time() < deadline:
            if self.exited:
                return False
            adopted = adopted or await self._adopt()
            if adopted and await self.client.healthy(_HEALTH_S):
                return True
            await asyncio.sleep(_POLL_S)
        what = "the given server" if self.given else f"its log is {self._log}"
        raise MachineError(
            f"{self.name} did not answer within rollout.sglang.startup_timeout_s={self._spec.startup_timeout_s:g} "
            f"({what}); raise it, or look why it does not start"
        )

    async def _adopt(self) -> bool:
        """Ends what a former owner left in a given server: requests, a pause, an open update, KV of its weights.

        Returns:
            Whether that is done; False where it does not answer, or still ends requests.
        """
        try:
            await self.client.probe()
            await self.client.abort_all()
            await self.client.resume()
            with suppress(RefusedError):  # none was open
                await self.client.end_update()
            return await self.client.flush()
        except ServerLostError:
            return False

    async def _check_model(self, info: Mapping[str, Any]) -> None:
        """Holds it against the model's own ``config.json``."""
        config, served = self._spec.read_config(), await self.client.model_info()
        for what in ("architectures", "model_type"):
            if served.get(what) not in (config.get(what), None):
                raise EngineError(
                    f"{self.name} serves another model: {what} is {served[what]!r}, {self._spec.model_path} has "
                    f"{config.get(what)!r}; start it with this model",
                    retryable=False,
                )
        if (dtype := _dtype(str(info.get("dtype")), config)) != self._spec.dtype:
            raise EngineError(
                f"{self.name} computes in {dtype} (its --dtype is {info.get('dtype')!r}), rollout.dtype="
                f"{self._spec.dtype!r} is wanted; start it with --dtype {self._spec.dtype}, or change the setting",
                retryable=False,
            )
        if preferred := served.get("preferred_sampling_params"):
            raise EngineError(
                f"{self.name} samples with {preferred} what a request leaves open, so that logprobs would be those of "
                "another distribution; start it without --preferred-sampling-params",
                retryable=False,
            )
        await self._check_shape(config, str(info.get("model_path")))
        longest = int(info.get("max_req_input_len") or 0)
        if longest and longest < self._spec.context_tokens:
            raise EngineError(
                f"{self.name} takes prompts below {longest} tokens, rollout.context_tokens="
                f"{self._spec.context_tokens} needs more; start it with --context-length "
                f"{self._spec.context_tokens + SPARE_POSITIONS} and as many --max-total-tokens, or lower it",
                retryable=False,
            )

    async def _check_shape(self, config: Mapping[str, Any], served: str) -> None:
        """Its sizes, where the folder that it was started with can be read from here, and the names of its tensors,
        where it tells them.

        A given server may hold any weights of this model: the first update replaces them, and compares them after.
        """
        try:
            other = json.loads((Path(served) / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            other = config  # on another machine, or under another path
        for key in ("vocab_size", "hidden_size", "num_hidden_layers"):
            if config.get(key) != other.get(key):
                raise EngineError(
                    f"{self.name} serves another model: {key} is {other.get(key)}, {self._spec.model_path} has "
                    f"{config.get(key)}; start it with this model",
                    retryable=False,
                )
        if self.client.dialect.digests:
            own = tensor_shapes(Path(self._spec.model_path)).keys()
            unknown = unknown_names(own, await self.client.digests())
            if unknown:
                raise EngineError(
                    f"{self.name} serves another model: {self._spec.model_path} has no {unknown[0]!r}; "
                    "start it with this model",
                    retryable=False,
                )


def _dtype(asked: str, config: Mapping[str, Any]) -> str:
    """What SGLang makes of its ``--dtype``: ``auto`` is the model's own, but 16 bits where that is float32."""
    if asked != "auto":
        return {"float": "float32", "half": "float16"}.get(asked, asked)
    own = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    narrow = "bfloat16" if str(config.get("model_type")).startswith("gemma") else "float16"
    return narrow if own == "float32" else own
