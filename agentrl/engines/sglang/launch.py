"""SGLang servers: their command line, environment and client."""

from __future__ import annotations

import base64
import itertools
import math
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agentrl.engines.base import EnginePlace, SharedGpus
from agentrl.engines.find import engines_with
from agentrl.engines.servers.client import EncodedTensors, ModelSizes, WeightLabels
from agentrl.engines.servers.server import HOST
from agentrl.engines.sglang.capabilities import require_version
from agentrl.engines.sglang.client import SGLangClient
from agentrl.engines.sglang.model_check import SPARE_POSITIONS
from agentrl.engines.sglang.routed_experts import ServedExperts
from agentrl.engines.sglang.sglang_spec import SGLangEngineSpec
from agentrl.engines.torch.model.families import is_mixture
from agentrl.engines.weights import WeightArray
from agentrl.errors import ConfigError, MachineError
from agentrl.types import RoutingShape
from agentrl.types.user_code.load import load_object

if TYPE_CHECKING:
    from torch import UntypedStorage

_PROBE = (
    "import importlib.metadata as m, torch; "
    "print(m.version('sglang'), 'cuda' if torch.cuda.is_available() else 'cpu')"
)
_PROBE_S = 120.0
# The KV cache is bounded by its tokens, and the fraction by nothing: a server does not start where
# its weights take more than that of the free memory, or others do while it loads.
_CPU_ARGUMENTS: Mapping[str, object] = {
    "device": "cpu",
    "attention-backend": "torch_native",
    "disable-cuda-graph": True,
    "mem-fraction-static": 0.9,
}
_CPU_SEQUENCES = 64
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


class SGLangServers:
    """``ServerKind`` of SGLang.

    Args:
        place: what is served.
        spec: how.

    Attributes:
        routing: see ``ServerKind.routing``.

    Raises:
        ConfigError: ``context_tokens`` above what the model was made for, ``tp_size`` ranks that
            cannot share it, or float32 on a GPU; a server would say so minutes later, in its log.
            Or a mixture of experts with tied embeddings, of which it would say nothing.
        MachineError: the interpreter is missing, or its environment holds no SGLang, or an old one.
    """

    def __init__(self, place: EnginePlace, spec: SGLangEngineSpec) -> None:
        self.place = place
        self.spec = spec
        self.sizes = ModelSizes.read(place)
        heads = self.sizes.num_heads
        if not spec.urls and heads % spec.tp_size:
            raise ConfigError(
                f"SGLangEngineSpec.tp_size must divide the model's num_attention_heads={heads} "
                "(each rank of a server has as many heads as the others), got "
                f"{spec.tp_size}; choose a divisor, or set it to 1"
            )
        if self.sizes.ties_embeddings and is_mixture(Path(place.model)):
            raise ConfigError(
                f"SGLang does not tie the output layer of a mixture of experts, and {place.model} "
                "has tie_word_embeddings=true, so that every logit would be 0; use "
                "rollout.engine=torch, or save the model with an output layer of its own"
            )
        experts = ServedExperts.of(place)
        self.routing: RoutingShape | None = None if experts is None else experts.routing
        self.device = spec.device
        if not spec.urls and not spec.command:
            offered = self._ask_environment()
            self.device = spec.device or offered
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

    def client(self, name: str, url: str, labels: WeightLabels) -> SGLangClient:
        """A client of one server."""
        return SGLangClient(name, url, self.place, self.spec, labels)

    def bucket(self, arrays: Sequence[WeightArray]) -> EncodedTensors:
        """See ``ServerKind.bucket``: base64 of the pickled bucket."""
        pickled = load_object("agentrl.engines.sglang.tensor_bucket:flattened_bucket")(arrays)
        return EncodedTensors((base64.b64encode(pickled).decode(),), "flattened_bucket")

    def shared(
        self, memory: UntypedStorage, by_rank: Sequence[Sequence[WeightArray]], readers: int
    ) -> EncodedTensors:
        """See ``ServerKind.shared``: base64 of pickled lists of names and tensors."""
        encode = load_object("agentrl.engines.sglang.tensor_bucket:shared_tensors")
        pickled = [encode(memory, arrays, readers) for arrays in by_rank]
        texts = tuple(base64.b64encode(one).decode() for one in pickled)
        # ``direct`` copies each tensor to the parameter of its name
        return EncodedTensors(texts, "direct" if len(texts) > 1 else None)

    def command(self, *, model: Path, port: int, label: str) -> list[str]:
        """The command line of one server.

        Args:
            model: folder of the weights that it starts with.
            port: where it listens.
            label: of those weights.
        """
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
            "weight-version": label,
            "skip-server-warmup": True,
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
        arguments |= {
            name.lstrip("-").replace("_", "-"): value for name, value in spec.server_args.items()
        }
        words = list(spec.command) or [self._python, "-m", "sglang.launch_server"]
        for name, value in arguments.items():
            if value is None or value is False:
                continue
            words.append(f"--{name}")
            if value is not True:
                items = value if isinstance(value, list | tuple) else (value,)
                words += [str(item) for item in items]
        return words

    def environment(self, index: int = 0) -> dict[str, str]:
        """This process's environment without what belongs to its own interpreter, for its server of
        that index.

        A model that is a folder needs no look at the network; a rank has one thread unless said
        otherwise.
        """
        kept = os.environ.copy()
        for name in ("PYTHONPATH", "PYTHONHOME"):
            kept.pop(name, None)
        own = {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            # What a server says before it dies has to reach its log.
            "PYTHONUNBUFFERED": "1",
            # ids beside images stay as they are sent
            "SGLANG_MM_AVOID_RETOKENIZE": "1",
            # for SPARE_POSITIONS, which no token reaches
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
        }
        if self.device == "cpu":
            own["SGLANG_USE_CPU_ENGINE"] = "1"
            if (ranks := self.spec.tp_size) > 1:
                cores = itertools.cycle(sorted(os.sched_getaffinity(0)))
                own["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(
                    map(str, itertools.islice(cores, ranks))
                )
            kept.setdefault("OMP_NUM_THREADS", "1")
        if gpus := self._shared_ids or self._own_ids(index):
            own["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        return kept | own | dict(self.spec.env)

    @property
    def _shared_ids(self) -> tuple[str, ...]:
        """The GPUs that a server shares with ranks; none on a CPU."""
        shared = self.place.shared
        return () if shared is None or self.device == "cpu" else shared.ids

    def _own_ids(self, index: int) -> tuple[str, ...]:
        """A server's part of the GPUs that a rollout worker was given for all of its servers."""
        each = self.spec.tp_size
        seen = [one for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
        if self.device == "cpu" or len(seen) != self.spec.num_servers * each:
            return ()
        return tuple(seen[index * each : (index + 1) * each])

    def _shared_arguments(self) -> dict[str, object]:
        """What gives memory back to the ranks, and leaves them some, where they train in turn."""
        shared = self.place.shared
        if shared is None or not self._shared_ids or not shared.free_bytes:
            return {}
        own: dict[str, object] = {"enable-memory-saver": True}
        if self.spec.kv_memory_fraction is None:
            own["mem-fraction-static"] = kv_memory_fraction(shared)
        return own

    @property
    def _python(self) -> str:
        return str(self.spec.interpreter(self.place))

    def _ask_environment(self) -> Literal["cpu", "cuda"]:
        """The device that the servers' environment offers."""
        remedy = (
            "run `agentrl install sglang`, or set SGLangEngineSpec.python to the interpreter of "
            "such an environment"
        )
        if not Path(self._python).is_file():
            raise MachineError(
                f"SGLangEngineSpec.python='{self._python}' is no interpreter; {remedy}"
            )
        try:
            answer = subprocess.run(
                [self._python, "-c", _PROBE],
                env=self.environment(),
                capture_output=True,
                text=True,
                timeout=_PROBE_S,
                check=True,
            )
            version, device = answer.stdout.split()
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
            raise MachineError(
                f"{self._python} cannot run SGLang: {''.join(said)}; {remedy}"
            ) from error
        require_version(version, f"the environment of {self._python}")
        return "cuda" if device == "cuda" else "cpu"

    def _kv_tokens(self) -> int | None:
        """SGLang sizes its KV cache by a device's memory, which says nothing without a device."""
        if self.place.kv_tokens is not None:
            return self.place.kv_tokens + SPARE_POSITIONS
        if self.device != "cpu":
            return None
        return _CPU_SEQUENCES * (self.place.context_tokens + SPARE_POSITIONS)
