"""Role: a model on one rank, loaded, measured and given to its backend."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch

from agentrl.errors import ConfigError
from agentrl.training.backends.backend import TrainBackend
from agentrl.training.backends.fsdp2 import Fsdp2Backend
from agentrl.training.backends.plain import PlainBackend
from agentrl.training.backends.residency import OFFLOADED
from agentrl.training.data.packing import Cut, Extras, Packed, micro_batches
from agentrl.training.models.block_forward import rounded_length, wrap_blocks
from agentrl.training.models.names import torch_dtype
from agentrl.training.models.packed_model import (
    BackendName,
    ModelSpec,
    PackedModel,
    check_layout,
    column_dtype,
)
from agentrl.training.parallel.process_group import DistSpec
from agentrl.types import BatchShard, Dispatch, register, registration

_BACKENDS: Mapping[BackendName, type[TrainBackend]] = {
    "fsdp2": Fsdp2Backend,
    "plain": PlainBackend,
}


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the driver must know of a model.

    Args:
        num_parameters: in all, tied ones once.
        vocab_size: of the output layer, padding included.
        length_scale: ℓ of the partition's cost n + n²/ℓ, tokens.
        max_tokens: longest sequence that it has positions for; None where it sets no bound.
        shares_prefixes: whether it computes the common beginning of a micro-batch's samples once.
    """

    num_parameters: int
    vocab_size: int
    length_scale: float
    max_tokens: int | None = None
    shares_prefixes: bool = False


class Role:
    """One rank of a role. ``process_group.join`` comes first; every method is called on all ranks
    alike.

    Args:
        spec: what to build.
        place: this rank's place.

    Raises:
        DataError: the folder holds no model of the kind.
        ConfigError: the family can't be read packed, or the backend can't run it.

    Attributes:
        backend: holds and runs the model.
        model: of the backend; its parameters are read through ``backend.state`` alone.
        column_dtype: of the columns that it returns, float32 but for a float64 model.
    """

    trains = False
    """Whether its weights move; those of others are frozen."""
    model: PackedModel

    def __init__(self, spec: ModelSpec, place: DistSpec) -> None:
        if spec.deterministic:
            _use_deterministic_kernels()
        self.spec = spec
        self.device = torch.device(place.device)
        self.dtype = torch_dtype(spec.dtype)
        self.column_dtype = column_dtype(self.dtype)
        check_layout(spec.model_path, f"{spec.setting}={spec.model_path!r}", place.tp, place.sp)
        self._cut = Cut(place.sp, place.sp_rank)
        self.model = self.load_model()
        if spec.head_dtype is not None:
            if not isinstance(self.model.head, torch.nn.Linear):
                raise ConfigError(
                    f"ModelConfig.head_dtype={spec.head_dtype!r} needs a linear output layer, got "
                    f"a {type(self.model.head).__name__}; leave it out, or choose another family"
                )
            self.model.head_dtype = torch_dtype(spec.head_dtype)
        if spec.compile:  # chosen rows would make a graph for each of their numbers
            self.model.skips_mlp_rows = False
            self.model.compile_scores()
        if spec.gradient_checkpointing or spec.compile:
            blocks = self.model.blocks()
            wrap_blocks(blocks, recompute=spec.gradient_checkpointing, compiles=spec.compile)
        if not self.trains:
            self.model.requires_grad_(False)
        self._facts = _facts_of(self.model)
        self.backend = _BACKENDS[spec.backend](self.model, place, self.dtype, spec.sharding)
        self.backend.residency.offloaded = OFFLOADED[spec.offload]
        self.backend.residency.evict(*OFFLOADED[spec.offload])

    def __init_subclass__(cls) -> None:
        """Has what a registered method needs on the device while it runs."""
        super().__init_subclass__()
        for name, method in list(vars(cls).items()):
            if hasattr(method, "__registration__"):
                setattr(cls, name, _holding(method))

    def load_model(self) -> PackedModel:
        """The model of ``spec`` for ``device``, not sharded yet, and mostly without its weights."""
        raise NotImplementedError

    @register(Dispatch.FIRST, needs=())
    def facts(self) -> ModelInfo:
        """Sizes of the model."""
        return self._facts

    def packed(self, shard: BatchShard, extras: Extras | None = None) -> Iterator[Packed]:
        """The micro-batches of a shard as rows for the model, each copied to the device at once."""
        shares = self.model.shares_prefixes
        length_of = rounded_length if self.spec.compile else None
        return micro_batches(
            shard,
            self.device,
            share_prefixes=shares,
            extras=extras,
            cut=self._cut,
            length_of=length_of,
        )


def _holding(method: Callable[..., Any]) -> Callable[..., Any]:
    needs = registration(method).needs

    @wraps(method)
    def held(role: Role, *args: Any, **keywords: Any) -> Any:
        with role.backend.residency.holding(*needs):
            return method(role, *args, **keywords)

    return held


def _facts_of(model: PackedModel) -> ModelInfo:
    """Sizes of a model that is not sharded yet."""
    config: Any = model.config.get_text_config()
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    # a token costs 6P in its products, and 6·2·n/2·width in the scores of each layer at length n
    width = config.num_attention_heads * getattr(
        config, "head_dim", config.hidden_size // config.num_attention_heads
    )
    scale = num_parameters / (config.num_hidden_layers * width)
    longest = getattr(config, "max_position_embeddings", None)
    return ModelInfo(
        num_parameters, int(config.vocab_size), float(scale), longest, model.shares_prefixes
    )


def _use_deterministic_kernels() -> None:
    """Refuses kernels whose result depends on timing, and seeds torch, in this process.

    Call it before the first CUDA kernel, because cuBLAS reads its workspace setting once.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(0)
