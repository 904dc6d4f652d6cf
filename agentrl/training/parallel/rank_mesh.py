"""Rank mesh: the DeviceMesh and the process groups of a role's layout.

``rank = (d · sp + s) · tp + t``: data outermost, and tensor-parallel ranks are neighbours. Of the
data coordinates ``d = r · size + z``, r is the replica and z the shard under ``hybrid``.

A weight is sharded over z and s, and over t where it is tensor parallel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from agentrl.errors import ConfigError
from agentrl.training.parallel.layout_rules import check_ranks, shard_replicas
from agentrl.training.parallel.process_group import SHARED, DistSpec

ShardMode = Literal["full", "grad_op", "hybrid"]
"""How weights lie over data-parallel ranks."""

GradientSync = Literal["micro_batch", "mini_batch"]
"""When ranks sum their gradients."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """How FSDP2 holds a model; picklable.

    Args:
        mode: ``full`` gathers a layer for its forward and again for its backward; ``grad_op`` keeps
            it gathered from the first forward of a step to its last backward; ``hybrid`` shards as
            ``full`` within groups of data coordinates, which are replicas of each other.
        size: data coordinates of such a group; for ``hybrid`` alone.
        gradient_sync: ``micro_batch`` keeps a shard of the gradient; ``mini_batch`` keeps the whole
            of it, in float32, and sums over ranks once.
    """

    mode: ShardMode = "full"
    size: int | None = None
    gradient_sync: GradientSync = "micro_batch"


FULL = Sharding()
"""Weights, gradients and optimizer sharded over all ranks."""


@dataclass(frozen=True, slots=True)
class RankMesh:
    """Where a role's weights and rows lie.

    Args:
        data: the mesh that FSDP2 shards over: ``fsdp``, after ``replicate`` where there are
            replicas.
        tensor: the mesh of the ranks that hold a layer together; None for one.
        sequence: the ranks that hold a row together; None for one.
    """

    data: DeviceMesh
    tensor: DeviceMesh | None
    sequence: dist.ProcessGroup | None


def rank_mesh(place: DistSpec, sharding: Sharding) -> RankMesh:
    """The mesh of a layout; every rank calls it alike, in the process group of ``place``.

    Raises:
        ConfigError: the ranks cannot be divided so.
    """
    replicas = num_replicas(place, sharding)
    key = (RankMesh, replicas, place.tp, place.sp)
    if key not in SHARED:  # making a mesh makes process groups
        SHARED[key] = _make(place, replicas)
    made: RankMesh = SHARED[key]
    return made


def num_replicas(place: DistSpec, sharding: Sharding) -> int:
    """Groups of data coordinates that each hold all weights.

    Raises:
        ConfigError: ``hybrid`` has no size, another mode has one, or it does not divide the data
            coordinates.
    """
    check_ranks(place.world_size, place.tp, place.sp)
    if sharding.mode != "hybrid":
        if sharding.size is not None:
            raise ConfigError(
                f"TrainConfig.shard_size is for TrainConfig.shard='hybrid' alone, got "
                f"{sharding.size} with {sharding.mode!r}; leave it out"
            )
        return 1
    return shard_replicas(place.dp, sharding.size)


def _make(place: DistSpec, replicas: int) -> RankMesh:
    dims = {"fsdp": place.world_size // replicas // place.tp}
    if replicas > 1:
        dims = {"replicate": replicas, **dims}
    if place.tp > 1:
        dims["tp"] = place.tp
    whole = init_device_mesh(place.device_type, tuple(dims.values()), mesh_dim_names=tuple(dims))
    names = tuple(name for name in dims if name != "tp")
    return RankMesh(
        data=whole[names] if place.tp > 1 else whole,
        tensor=whole["tp"] if place.tp > 1 else None,
        sequence=_sequence_group(place) if place.sp > 1 else None,
    )


def _sequence_group(place: DistSpec) -> dist.ProcessGroup:
    rows = [
        [(d * place.sp + s) * place.tp + t for s in range(place.sp)]
        for d in range(place.dp)
        for t in range(place.tp)
    ]
    own: dist.ProcessGroup | None
    own, _ = dist.new_subgroups_by_enumeration(rows)  # type: ignore[no-untyped-call]
    assert own is not None, "every rank is in one row"
    return own
