"""Role: what one rank does with a model, which its backend holds and runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from agentrl.errors import ConfigError, DataError
from agentrl.training.backends.backend import ModelInfo, RoleModel
from agentrl.training.backends.find import find_backend
from agentrl.training.data.packing import I64, Cut, Extras, Packed, PackedMicroBatches
from agentrl.training.models.packed_model import ModelSpec, column_dtype
from agentrl.training.models.trunk import rounded_length
from agentrl.training.names import torch_dtype
from agentrl.training.parallel.process_group import DistSpec
from agentrl.types import BatchShard, Dispatch, register, registration
from agentrl.types.arrays import Floats


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
        column_dtype: of the columns that it returns, float32 but for a float64 model.
        replays_routing: whether tokens go through the experts that the sampler chose. Those of
            another model, such as a frozen reference, are its own: what it says of a token would
            else depend on the policy's router.
        own_name: of a custom role, whose methods see its own columns in place of a critic's.
    """

    kind: ClassVar[Literal["policy", "values", "scores"]]
    """What its model answers; see ``RoleModel``."""
    replays_routing = False
    own_name = ""
    trains: ClassVar[bool] = False
    """Whether its weights move; those of others are frozen."""

    def __init__(self, spec: ModelSpec, place: DistSpec) -> None:
        self.spec = spec
        self.device = torch.device(place.device)
        self.dtype = torch_dtype(spec.dtype)
        self.column_dtype = column_dtype(self.dtype)
        self._cut = Cut(place.sp, place.sp_rank)
        backend = find_backend(spec.backend)
        if spec.lora is not None and not backend.has_adapters:
            raise ConfigError(
                f"TrainConfig.backend={spec.backend!r} trains no adapters, and LoraSpec asks for "
                "one; set TrainConfig.backend=fsdp2 or plain, or leave LoraSpec out"
            )
        self.backend = backend.build(spec, self.asked(), place)

    def __init_subclass__(cls) -> None:
        """Has what a registered method needs on the device while it runs."""
        super().__init_subclass__()
        for name, method in list(vars(cls).items()):
            if hasattr(method, "__registration__"):
                setattr(cls, name, _holding(method))

    def asked(self) -> RoleModel:
        """What the role asks of its model."""
        return RoleModel(self.kind, self.trains)

    @register(Dispatch.FIRST, needs=())
    def facts(self) -> ModelInfo:
        """Sizes of the model."""
        return self.backend.info

    def infer(
        self,
        shard: BatchShard,
        columns: Callable[[Packed, Any], Iterable[tuple[Floats, I64, Tensor]]],
    ) -> None:
        """Fills columns with the model's answers, without gradients; every rank takes part with
        equally many micro-batches.

        Args:
            shard: this rank's samples.
            columns: of a row and the model's answer, each column with the places of the answers;
                without places there are none.
        """

        def take(packed: Packed, answer: Any) -> None:
            for column, places, found in columns(packed, answer):
                if places.size:
                    column[places] = found.cpu().numpy()

        self.backend.infer(self.packed(shard), take)

    def packed(self, shard: BatchShard, extras: Extras | None = None) -> PackedMicroBatches:
        """The micro-batches of a shard as rows for the model.

        Raises:
            DataError: a sample is longer than what the model reads.
        """
        info, batch = self.backend.info, shard.batch
        longest = int(batch.lengths.max(initial=0))
        if info.max_tokens is not None and longest > info.max_tokens:
            raise DataError(
                f"{self.spec.setting}={self.spec.model_path!r} reads at most {info.max_tokens} "
                "tokens (its max_position_embeddings, or where a rotary scaling by the longest "
                f"sequence begins), got a sample of {longest}; lower RolloutConfig.context_tokens "
                "or leave the sample out"
            )
        if not self.replays_routing:
            batch = replace(batch, routed_experts=None)
        if self.spec.reads_policy:
            batch = replace(
                batch, token_ids=np.minimum(batch.token_ids, info.vocab_size - 1)
            )
        shard = replace(shard, batch=batch)
        return PackedMicroBatches(
            shard,
            self.device,
            share_prefixes=info.shares_prefixes,
            extras=extras,
            cut=self._cut,
            length_of=rounded_length if self.spec.compile else None,
            positions_of=self.backend.positions_of,
        )


def _holding(method: Callable[..., Any]) -> Callable[..., Any]:
    needs = registration(method).needs

    @wraps(method)
    def held(role: Role, *args: Any, **keywords: Any) -> Any:
        if role.own_name and args and isinstance(args[0], BatchShard):
            seen = args[0].batch.seen_by(role.own_name)
            args = (replace(args[0], batch=seen), *args[1:])
        with role.backend.holding(*needs):
            return method(role, *args, **keywords)

    return held
