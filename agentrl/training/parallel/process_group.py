"""Process group: joins and leaves the group of one pool's roles, and lays their mesh over it.

``rank = ((d · pp + p) · sp + s) · tp + t``: data outermost, then the stages of a pipeline, and
tensor-parallel ranks are neighbours. Of the data coordinates ``d = r · size + z``, r is the
replica and z the shard under ``hybrid``.

A weight is sharded over z and s, and over t where it is tensor parallel. To experts all ranks of a
replica are alike: neighbours among them share the experts of a layer, and what those hold is
sharded over the others.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from agentrl.errors import ConfigError, StoreError, TrainingError
from agentrl.training.device import check_gpu, num_gpus
from agentrl.training.parallel.layout_rules import (
    check_expert_ranks,
    check_ranks,
    shard_replicas,
)


@dataclass(frozen=True, slots=True)
class DistSpec:
    """A rank's place.

    Args:
        rank: global, from 0.
        world_size: the number of ranks.
        master_addr: the address of rank 0; unused for a world of one.
        port: where rank 0 listens, or will; unused for a world of one.
        device: ``cpu`` (collectives over gloo) or ``cuda:<index>`` (over nccl).
        timeout_s: deadline of joining and of every collective, seconds.
        tp: ranks that hold one layer together.
        sp: ranks that hold one packed row together.
        pp: stages that the layers are divided into.
    """

    rank: int = 0
    world_size: int = 1
    master_addr: str = "127.0.0.1"
    port: int = 0
    device: str = "cpu"
    timeout_s: float = 600.0
    tp: int = 1
    sp: int = 1
    pp: int = 1

    @property
    def dp(self) -> int:
        """Data coordinates: ranks that get different samples."""
        return self.world_size // (self.tp * self.sp * self.pp)

    @property
    def sp_rank(self) -> int:
        """This rank's place among those that hold its row."""
        return self.rank // self.tp % self.sp

    @property
    def is_first_of_data(self) -> bool:
        """Whether this rank speaks for its data coordinate (tp = sp = 0 of the last stage)."""
        stage = self.tp * self.sp
        return self.rank % (stage * self.pp) == stage * (self.pp - 1)

    @property
    def device_type(self) -> Literal["cpu", "cuda"]:
        """The type of ``device``."""
        return "cuda" if self.device.startswith("cuda") else "cpu"


SHARED: dict[object, Any] = {}
"""What roles make of the process group and share, such as meshes; ``join`` and ``leave`` empty it.
"""


_listening: dict[int, TCPStore] = {}
"""By port, where this process listens for the ranks of a group that it has not joined yet."""


def listen(host: str) -> int:
    """Opens, in the process of rank 0, the store by which the ranks of a group find each other.

    Returns:
        Its port. It is held from here on: one that is only looked up may be taken before the ranks
        come.
    """
    store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
    _listening[store.port] = store
    return store.port


def store_of(rank: int, host: str, port: int, timeout: timedelta) -> TCPStore:
    """The store at which the ranks of a group meet; rank 0 opens it where ``listen`` did not."""
    if rank == 0 and port in _listening:
        return _listening.pop(port)
    return TCPStore(
        host, port, is_master=rank == 0, timeout=timeout, wait_for_workers=False
    )


def join(spec: DistSpec) -> None:
    """Joins the process group; a process that is already in one of the same shape and device
    stays there.

    A world of one needs no port, because its store is in the process.

    Raises:
        ConfigError: CUDA is asked for, and torch sees no GPU.
        TrainingError: other ranks did not join in time, or this process is in another group.
    """
    if spec.device_type == "cuda":
        check_gpu(num_gpus(), f"by torch in the process of rank {spec.rank}")
        torch.cuda.set_device(spec.device)
    backend = "cpu:gloo,cuda:nccl" if spec.device_type == "cuda" else "gloo"
    if dist.is_initialized():
        # a group of the CPU has no collective of GPUs, and one of GPUs would hide a wrong device
        device = "cuda" if "nccl" in dist.get_backend_config() else "cpu"
        now = (dist.get_rank(), dist.get_world_size(), device)
        asked = (spec.rank, spec.world_size, spec.device_type)
        if now != asked:
            raise TrainingError(
                "this process is rank {} of {} on {} already, ".format(*now)
                + "asked to be {} of {} on {}; leave() the old group first".format(*asked),
                rank=spec.rank,
            )
        return
    SHARED.clear()
    timeout = timedelta(seconds=spec.timeout_s)
    try:
        dist.init_process_group(
            backend,
            store=HashStore()
            if spec.world_size == 1
            else store_of(spec.rank, spec.master_addr, spec.port, timeout),
            rank=spec.rank,
            world_size=spec.world_size,
            timeout=timeout,
        )
    except dist.DistError as error:
        raise TrainingError(
            f"rank {spec.rank} of {spec.world_size} could not join at "
            f"{spec.master_addr}:{spec.port} within {spec.timeout_s:g} s: {error}",
            rank=spec.rank,
        ) from error


def agree(error: StoreError | None, group: dist.ProcessGroup | None = None) -> None:
    """Raises the first rank's error on every rank; collective."""
    found: list[StoreError | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, error, group=group)
    for rank, one in enumerate(found):
        if one is not None:
            raise one if rank == dist.get_rank() else type(one)(f"rank {rank}: {one}")


def leave() -> None:
    """Leaves the process group, if the process is in one."""
    # What roles share holds process groups of the one that is left.
    SHARED.clear()
    if dist.is_initialized():
        dist.destroy_process_group()
        # a thread of gloo that lets go of a tensor while the interpreter ends aborts the process
        gc.collect()


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
        ep: ranks that share the experts of each layer.
    """

    mode: ShardMode = "full"
    size: int | None = None
    gradient_sync: GradientSync = "micro_batch"
    ep: int = 1


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
    whole = _mesh(place, replicas, "tp", place.tp)
    key = (RankMesh, place.tp, place.sp)
    if place.sp > 1 and key not in SHARED:
        SHARED[key] = _sequence_group(place)
    return RankMesh(
        data=_without(whole, "tp"),
        tensor=whole["tp"] if place.tp > 1 else None,
        sequence=SHARED.get(key),
    )


@dataclass(frozen=True, slots=True)
class ExpertMesh:
    """Where the experts of a mixture lie.

    Args:
        data: the mesh that FSDP2 shards them over, as ``RankMesh.data``.
        experts: the mesh of the ranks that share those of a layer; None for one.
    """

    data: DeviceMesh
    experts: DeviceMesh | None


def expert_mesh(place: DistSpec, sharding: Sharding) -> ExpertMesh:
    """The mesh of the experts of a mixture; every rank calls it alike, as ``rank_mesh``.

    Raises:
        ConfigError: the ranks cannot be divided so.
    """
    replicas, ep = num_replicas(place, sharding), sharding.ep
    check_expert_ranks(place.world_size // replicas, ep)
    whole = _mesh(place, replicas, "ep", ep)
    return ExpertMesh(data=_without(whole, "ep"), experts=whole["ep"] if ep > 1 else None)


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


def _mesh(place: DistSpec, replicas: int, name: str, size: int) -> DeviceMesh:
    """The mesh of all ranks, of which ``size`` neighbours are the axis ``name``; without that axis
    for one."""
    # Ranks that hold a row together are shards too: each has the gradients of its slice alone.
    dims = {"fsdp": place.world_size // replicas // size}
    if replicas > 1:
        dims = {"replicate": replicas, **dims}
    if size > 1:
        dims[name] = size
    key = (DeviceMesh, *dims.items())
    # Making a mesh makes process groups, so that the roles of a process share one.
    if key not in SHARED:
        SHARED[key] = init_device_mesh(
            place.device_type, tuple(dims.values()), mesh_dim_names=tuple(dims)
        )
    made: DeviceMesh = SHARED[key]
    return made


def _without(mesh: DeviceMesh, name: str) -> DeviceMesh:
    names = mesh.mesh_dim_names
    assert names is not None, "_mesh names them"
    return mesh[tuple(one for one in names if one != name)] if name in names else mesh


def _sequence_group(place: DistSpec) -> dist.ProcessGroup:
    rows = [
        [(d * place.sp + s) * place.tp + t for s in range(place.sp)]
        for d in range(place.dp)
        for t in range(place.tp)
    ]
    own: dist.ProcessGroup | None
    # Every rank makes every group, in one order: all ranks meet in the making of each.
    own, _ = dist.new_subgroups_by_enumeration(rows)  # type: ignore[no-untyped-call]
    assert own is not None, "every rank is in one row"
    return own
