"""vLLM servers: their command line, environment and client."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.engines.base import EnginePlace
from agentrl.engines.servers.client import EncodedTensors, WeightLabels
from agentrl.engines.servers.program.launch import ProgramServers, server_seed
from agentrl.engines.servers.server import HOST
from agentrl.engines.vllm.client import VLLMClient
from agentrl.engines.vllm.launch_words import MEANING, SERVER_SIDE
from agentrl.engines.vllm.vllm_spec import VLLMEngineSpec
from agentrl.engines.weights import WeightArray, read_config, write_weights
from agentrl.errors import ConfigError

_CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Of vLLM 0.32's attention on a CPU; another one kills the server."""
_CPU_SEQUENCES = 64
_PIL = '{"use_fast": false}'
_BLOCK = 128
"""Tokens of a block of vLLM's cache on a CPU; on a GPU they are 16."""
_BYTES = {"float32": 4, "bfloat16": 2}


class VLLMServers(ProgramServers[VLLMEngineSpec]):
    """``ServerKind`` of vLLM; see ``ProgramServers``.

    Args:
        place: what is served.
        spec: how.

    Raises:
        ConfigError: heads of a size that kills a server on a CPU, GPUs that it would have in turn
            with ranks without ``kv_memory_fraction``, or experts that nobody tells.
    """

    routing = None
    # what a layer holds of several tensors is made anew from all of them
    takes_changes = False

    def __init__(self, place: EnginePlace, spec: VLLMEngineSpec) -> None:
        super().__init__(place, spec)
        self._seeds: dict[str, int] = {}
        if place.routed_experts:
            raise ConfigError(
                "EnginePlace.routed_experts must be off for vLLM servers, got True; set "
                "TrainConfig.router_replay=off"
            )
        if spec.urls:
            return
        size = self._head_size
        if self.device == "cpu" and size not in _CPU_HEAD_SIZES:
            raise ConfigError(
                f"vLLM on a CPU has attention for heads of {', '.join(map(str, _CPU_HEAD_SIZES))} "
                f"numbers, {place.model} has heads of {size}; use the engine 'torch' or 'sglang'"
            )
        if self.shared_ids and spec.kv_memory_fraction is None:
            raise ConfigError(
                "VLLMEngineSpec.kv_memory_fraction must be set for servers that have GPUs "
                f"{', '.join(self.shared_ids)} in turn with ranks (a share of each GPU's whole "
                "memory), got None"
            )

    def client(self, name: str, url: str, labels: WeightLabels) -> VLLMClient:
        """A client of one server."""
        return VLLMClient(name, url, self.place, self.spec, labels, self._seeds)

    def bucket(self, arrays: Sequence[WeightArray]) -> EncodedTensors:
        """See ``ServerKind.bucket``: a file of safetensors in base64."""
        file = io.BytesIO()
        write_weights(file, arrays)
        return EncodedTensors((base64.b64encode(file.getbuffer()).decode(),), "safetensors")

    def shared(self, by_rank: Sequence[bytes]) -> EncodedTensors:
        """See ``ServerKind.shared``: in base64."""
        texts = tuple(base64.b64encode(pickled).decode() for pickled in by_rank)
        return EncodedTensors(texts, "shared")

    def own_environment(self) -> Mapping[str, str]:
        """See ``ProgramServers.own_environment``."""
        own = {
            # the routes that pause, abort and bring weights
            "VLLM_SERVER_DEV_MODE": "1",
            # its second runner knows no logits processors of this kind
            "VLLM_USE_V2_MODEL_RUNNER": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONPATH": str(SERVER_SIDE),
        }
        on_cpu = {
            # else each rank takes the cores that it finds, training's too
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # the first request would wait a minute for a compiler, which a machine may lack
            "TORCHDYNAMO_DISABLE": "1",
        }
        return own | (on_cpu if self.device == "cpu" else {})

    def command(self, *, model: Path, port: int) -> list[str]:
        """See ``ServerKind.command``."""
        spec = self.spec
        place = self.place
        on_cpu = self.device == "cpu"
        return self.words(
            ("-m", "vllm.entrypoints.cli.main", "serve"),
            {
                "model": str(model),
                "host": HOST,
                "port": port,
                "dtype": place.dtype,
                "max-model-len": place.context_tokens,
                "skip-tokenizer-init": not (place.stop_strings or self.sizes.sees_images),
                # PIL's pixels, which are the trainer's, and no others
                "mm-processor-kwargs": _PIL if self.sizes.sees_images else None,
                "generation-config": "vllm",
                # its own default is 0, for every server
                "seed": server_seed(),
                **MEANING,
                "enable-prompt-tokens-details": True,
                "disable-uvicorn-access-log": True,
                "enforce-eager": on_cpu,
                "enable-sleep-mode": bool(self.shared_ids),
                "tensor-parallel-size": spec.tp_size if spec.tp_size > 1 else None,
                "max-num-seqs": spec.max_running_requests,
                "gpu-memory-utilization": spec.kv_memory_fraction,
                "kv-cache-memory-bytes": self._kv_bytes(),
            },
        )

    @property
    def _head_size(self) -> int:
        return int(
            self._text.get("head_dim")
            or int(self._text["hidden_size"]) // self.sizes.num_heads
        )

    @property
    def _text(self) -> Mapping[str, Any]:
        """The language model's part of the configuration."""
        config = read_config(self.place.model)
        text: Mapping[str, Any] = config.get("text_config") or config
        return text

    def _kv_bytes(self) -> int | None:
        """Of a rank's KV cache; None leaves it to vLLM, which on a CPU takes a share of the
        machine's whole memory."""
        tokens = self.place.kv_tokens
        if tokens is None:
            if self.device != "cpu" or self.spec.kv_memory_fraction is not None:
                return None
            tokens = _CPU_SEQUENCES * self.place.context_tokens
        heads = int(self._text.get("num_key_value_heads") or self.sizes.num_heads)
        a_rank = max(heads // self.spec.tp_size, 1)
        a_token = 2 * int(self._text["num_hidden_layers"]) * a_rank * self._head_size
        # a request holds whole blocks
        whole = -(-tokens // _BLOCK) + 1
        return whole * _BLOCK * a_token * _BYTES[self.place.dtype]
