"""SGLang servers: their command line, environment and client."""

from __future__ import annotations

import base64
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl.engines.base import EnginePlace, SharedGpus
from agentrl.engines.find import engines_with
from agentrl.engines.servers.client import EncodedTensors, WeightLabels
from agentrl.engines.servers.program.launch import ProgramServers, server_seed
from agentrl.engines.servers.server import HOST
from agentrl.engines.sglang.client import SGLangClient
from agentrl.engines.sglang.model_check import SPARE_POSITIONS
from agentrl.engines.sglang.routed_experts import ServedExperts
from agentrl.engines.sglang.sglang_spec import SGLangEngineSpec
from agentrl.engines.torch.model.families import is_mixture
from agentrl.engines.weights import WeightArray
from agentrl.errors import ConfigError, MachineError
from agentrl.types import RoutingShape
from agentrl.types.user_code.load import load_object

# The KV cache is bounded by its tokens, and the fraction by nothing: a server does not start where
# its weights take more than that of the free memory, or others do while it loads.
_CPU_ARGUMENTS: Mapping[str, object] = {
    "device": "cpu",
    "attention-backend": "torch_native",
    "disable-cuda-graph": True,
    "mem-fraction-static": 0.9,
}
_CPU_SEQUENCES = 64
_ON_GPU = ("-m", "sglang.launch_server")
# Without -P it could import what lies beside it.
_ON_CPU = ("-P", str(Path(__file__).parent / "server_side" / "forking_launch.py"))
_GIB = 2**30
_MIB = 2**20
_WORK = ((20, 2048, 8), (60, 4096, 160), (160, 8192, 512), (math.inf, 16384, 512))
"""SGLang's own choices by a GPU's GiB: tokens of a prefill chunk, and sequences of its largest
graph."""


def kv_memory_fraction(shared: SharedGpus) -> float:
    """Share of a GPU's free memory for a server's weights and KV, where ranks have it in turn.

    It is (F - T - S) / F. F is free while the trainer waits in the host's memory, and is what
    SGLang takes its share of. T is what the trainer may bring back meanwhile. S is what a server
    needs beside weights and KV, by SGLang's own estimate: 1.5 MiB for each token of a prefill
    chunk, 2 MiB for each sequence of a graph.

    Raises:
        MachineError: nothing is left.
    """
    free, trainer = shared.free_bytes, shared.trainer_bytes
    tokens, sequences = next(rest for limit, *rest in _WORK if free < limit * _GIB)
    work = tokens * 3 * _MIB // 2 + sequences * 2 * _MIB
    left = free - trainer - work
    if left <= 0:
        raise MachineError(
            f"GPU {', '.join(shared.ids)} has {free / _GIB:.1f} GiB for a server beside the "
            f"trainer, of which a checkpoint or a score may need {trainer / _GIB:.1f} GiB and the "
            f"server's own work {work / _GIB:.1f} GiB, so that nothing is left for its weights and "
            "KV; train on more ranks, or set SGLangEngineSpec.kv_memory_fraction"
        )
    return math.floor(1000 * left / free) / 1000


class SGLangServers(ProgramServers[SGLangEngineSpec]):
    """``ServerKind`` of SGLang; see ``ProgramServers``.

    Args:
        place: what is served.
        spec: how.

    Attributes:
        routing: see ``ServerKind.routing``.

    Raises:
        ConfigError: float32 on a GPU, which a server would say minutes later, in its log; or a
            mixture of experts with tied embeddings, of which it would say nothing.
    """

    def __init__(self, place: EnginePlace, spec: SGLangEngineSpec) -> None:
        super().__init__(place, spec)
        if self.sizes.ties_embeddings and is_mixture(Path(place.model)):
            raise ConfigError(
                f"SGLang does not tie the output layer of a mixture of experts, and {place.model} "
                "has tie_word_embeddings=true, so that every logit would be 0; use "
                "rollout.engine=torch, or save the model with an output layer of its own"
            )
        experts = ServedExperts.of(place)
        self.routing: RoutingShape | None = None if experts is None else experts.routing
        # the RMSNorm of sgl_kernel "failed to dispatch data type Float"
        if not spec.urls and self.device == "cuda" and place.dtype == "float32":
            raise ConfigError(
                "EnginePlace.dtype must be bfloat16 for SGLang servers on a GPU (its kernels there "
                "have no float32), got 'float32'; set it, or SGLangEngineSpec.device=cpu"
            )
        if not spec.urls and self.device == "cpu" and self.routing is not None:
            raise ConfigError(
                "EnginePlace.routed_experts needs SGLang servers on a GPU (they keep experts in "
                "memory that CUDA registers), got SGLangEngineSpec.device='cpu'; set "
                "TrainConfig.router_replay=off, or use the engine "
                f"{engines_with('routed_experts')}"
            )

    takes_changes = True

    def client(self, name: str, url: str, labels: WeightLabels) -> SGLangClient:
        """A client of one server."""
        return SGLangClient(name, url, self.place, self.spec, labels)

    def bucket(self, arrays: Sequence[WeightArray]) -> EncodedTensors:
        """See ``ServerKind.bucket``: base64 of the pickled bucket."""
        pickled = load_object("agentrl.engines.sglang.tensor_bucket:flattened_bucket")(
            arrays
        )
        return EncodedTensors((base64.b64encode(pickled).decode(),), "flattened_bucket")

    def shared(self, by_rank: Sequence[bytes]) -> EncodedTensors:
        """See ``ServerKind.shared``: in base64."""
        texts = tuple(base64.b64encode(pickled).decode() for pickled in by_rank)
        # ``direct`` copies each tensor to the parameter of its name
        return EncodedTensors(texts, "direct" if len(texts) > 1 else None)

    def command(self, *, model: Path, port: int) -> list[str]:
        """See ``ServerKind.command``."""
        spec = self.spec
        place = self.place
        needs_tokenizer = place.stop_strings or self.sizes.sees_images
        arguments: dict[str, object] = dict(_CPU_ARGUMENTS) if self.device == "cpu" else {}
        arguments |= {
            "model-path": str(model),
            "host": HOST,
            "port": port,
            "dtype": place.dtype,
            "context-length": place.context_tokens + SPARE_POSITIONS,
            "skip-server-warmup": True,
            "random-seed": server_seed(),
            # else the scheduler spins, and takes a core from training
            "sleep-on-idle": True,
            "skip-tokenizer-init": not needs_tokenizer,
            # PIL's pixels, whatever else is installed there
            "disable-fast-image-processor": self.sizes.sees_images,
            "tp-size": spec.tp_size if spec.tp_size > 1 else None,
            "max-running-requests": spec.max_running_requests,
            "page-size": spec.page_size,
            "max-total-tokens": self._kv_tokens(),
            "enable-return-routed-experts": self.routing is not None,
        }
        arguments |= self._shared_arguments()
        if spec.kv_memory_fraction is not None:
            arguments["mem-fraction-static"] = spec.kv_memory_fraction
        return self.words(_ON_CPU if self.device == "cpu" else _ON_GPU, arguments)

    def own_environment(self) -> dict[str, str]:
        """See ``ProgramServers.own_environment``."""
        own = {
            # ids beside images stay as they are sent
            "SGLANG_MM_AVOID_RETOKENIZE": "1",
            # for SPARE_POSITIONS, which no token reaches
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
        }
        if self.device == "cpu":
            own["SGLANG_USE_CPU_ENGINE"] = "1"
            # it gives up 10 s before we do by default
            own["SGLANG_HEALTH_CHECK_TIMEOUT"] = f"{self.health_s - 10:.0f}"
            if (ranks := self.spec.tp_size) > 1:
                cores = itertools.cycle(sorted(os.sched_getaffinity(0)))
                own["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(
                    map(str, itertools.islice(cores, ranks))
                )
        return own

    def _shared_arguments(self) -> dict[str, object]:
        """What gives memory back to the ranks, and leaves them some, where they train in turn."""
        shared = self.place.shared
        if shared is None or not self.shared_ids or not shared.free_bytes:
            return {}
        own: dict[str, object] = {"enable-memory-saver": True}
        if self.spec.kv_memory_fraction is None:
            own["mem-fraction-static"] = kv_memory_fraction(shared)
        return own

    def _kv_tokens(self) -> int | None:
        """SGLang sizes its KV cache by a device's memory, which says nothing without a device."""
        if self.place.kv_tokens is not None:
            return self.place.kv_tokens + SPARE_POSITIONS
        if self.device != "cpu":
            return None
        return _CPU_SEQUENCES * (self.place.context_tokens + SPARE_POSITIONS)
