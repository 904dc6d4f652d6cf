"""Layout rules: how ranks may be divided, for a configuration as for the ranks; needs no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping

from agentrl.errors import ConfigError

_MEGATRON: Mapping[str, tuple[object, ...]] = {
    "LoraSpec.rank": (None,),
    "LoraSpec.path": (None,),
    "ModelConfig.dtype": (None, "bfloat16", "float32"),
    "OptimSpec.name": ("adamw",),
    "PlacementConfig.sp_size": (1,),
    "RunSection.deterministic": (False,),
    "TrainConfig.compile": (False,),
    "TrainConfig.ep_size": (1,),
    "TrainConfig.gradient_checkpointing": (False, True),
    "TrainConfig.gradient_sync": ("micro_batch",),
    "TrainConfig.offload": ("none",),
    "TrainConfig.router_aux_loss": (0.0,),
    "TrainConfig.router_replay": ("off",),
    "TrainConfig.shard": ("full",),
    "TrainConfig.vision": ("frozen",),
}
"""The values that the Megatron backend heeds of settings that others have more of."""


def check_ranks(world_size: int, tp: int, sp: int, pp: int = 1) -> None:
    """Refuses a layout that does not divide the ranks.

    Raises:
        ConfigError: as said.
    """
    sizes = {"tp_size": tp, "sp_size": sp} | ({"pp_size": pp} if pp > 1 else {})
    if world_size % math.prod(sizes.values()):
        product = " * ".join(f"PlacementConfig.{name}" for name in sizes)
        raise ConfigError(
            f"{product} must divide PlacementConfig.world_size={world_size}, got "
            f"{' * '.join(map(str, sizes.values()))}; change one of them",
            fields=[f"PlacementConfig.{name}" for name in (*sizes, "world_size")],
        )


def check_expert_ranks(ranks: int, ep: int) -> None:
    """Refuses to divide experts over ranks that cannot be grouped so.

    Args:
        ranks: that share one copy of the weights.
        ep: ranks that share the experts of a layer.

    Raises:
        ConfigError: as said.
    """
    if ranks % ep:
        raise ConfigError(
            "TrainConfig.ep_size must divide the ranks that share one copy of the weights "
            "(PlacementConfig.world_size, under TrainConfig.shard='hybrid' a group of "
            "TrainConfig.shard_size * tp_size * sp_size), "
            f"{ranks} here, got {ep}; set a divisor",
            fields=["TrainConfig.ep_size", "PlacementConfig.world_size"],
        )


def check_backend_ranks(backend: str, world_size: int, pp: int = 1) -> None:
    """Refuses more ranks than a backend runs in, and stages that it does not have.

    Raises:
        ConfigError: as said.
    """
    if backend == "plain" and world_size > 1:
        raise ConfigError(
            "TrainConfig.backend='plain' runs in one process, which needs "
            f"PlacementConfig.world_size=1, got {world_size}; set it, or TrainConfig.backend=fsdp2",
            fields=["TrainConfig.backend", "PlacementConfig.world_size"],
        )
    if backend in ("fsdp2", "plain") and pp > 1:
        raise ConfigError(
            f"PlacementConfig.pp_size={pp} divides the layers into stages, which "
            f"TrainConfig.backend={backend!r} does not; set PlacementConfig.pp_size=1, or "
            "TrainConfig.backend=megatron",
            fields=["PlacementConfig.pp_size", "TrainConfig.backend"],
        )


def check_megatron(settings: Mapping[str, object]) -> None:
    """Refuses what the Megatron backend does not heed, all at once.

    Args:
        settings: values by name; of those that it looks at, any.

    Raises:
        ConfigError: as said.
    """
    odd = {name: value for name, value in settings.items() if value not in _MEGATRON[name]}
    if odd:
        told = ", ".join(f"{name}={value!r}" for name, value in odd.items())
        raise ConfigError(
            f"TrainConfig.backend='megatron' does not heed {told}; leave that out, or set "
            "TrainConfig.backend=fsdp2",
            fields=[*odd, "TrainConfig.backend"],
        )


def shard_replicas(data_parallel: int, size: int | None) -> int:
    """Groups of ``size`` data coordinates, each of which holds all weights (``hybrid``).

    Raises:
        ConfigError: there is no size, or it does not divide the data coordinates.
    """
    fields = ["TrainConfig.shard_size", "TrainConfig.shard", "PlacementConfig.world_size"]
    if size is None:
        raise ConfigError(
            "TrainConfig.shard='hybrid' needs TrainConfig.shard_size, the data-parallel ranks that "
            "share one copy of the weights, got none; set it, to those of a machine for example",
            fields=fields[:2],
        )
    if data_parallel % size:
        raise ConfigError(
            f"TrainConfig.shard_size must divide the {data_parallel} data-parallel ranks "
            "(PlacementConfig.world_size / PlacementConfig.tp_size / PlacementConfig.sp_size), got "
            f"{size}; set a divisor",
            fields=fields,
        )
    return data_parallel // size
