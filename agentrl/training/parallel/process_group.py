"""Process group: joins and leaves the group that the roles of one pool share."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from agentrl.errors import TrainingError
from agentrl.training.device import check_gpus, num_gpus


@dataclass(frozen=True, slots=True)
class DistSpec:
    """A rank's place.

    Args:
        rank: global, from 0.
        world_size: the number of ranks.
        master_addr: the address of rank 0; unused for a world of one.
        port: a free port there; unused for a world of one.
        device: ``cpu`` (collectives over gloo) or ``cuda:<index>`` (over nccl).
        timeout_s: deadline of joining and of every collective, seconds.
        tp: ranks that hold one layer together.
        sp: ranks that hold one packed row together.
    """

    rank: int = 0
    world_size: int = 1
    master_addr: str = "127.0.0.1"
    port: int = 0
    device: str = "cpu"
    timeout_s: float = 600.0
    tp: int = 1
    sp: int = 1

    @property
    def dp(self) -> int:
        """Data coordinates: ranks that get different samples."""
        return self.world_size // (self.tp * self.sp)

    @property
    def sp_rank(self) -> int:
        """This rank's place among those that hold its row."""
        return self.rank // self.tp % self.sp

    @property
    def is_first_of_data(self) -> bool:
        """Whether this rank speaks for its data coordinate (tp = sp = 0)."""
        return self.rank % (self.tp * self.sp) == 0

    @property
    def device_type(self) -> Literal["cpu", "cuda"]:
        """The type of ``device``."""
        return "cuda" if self.device.startswith("cuda") else "cpu"


SHARED: dict[object, Any] = {}
"""What roles make of the process group and share, such as meshes; ``join`` and ``leave`` empty it.
"""


def join(spec: DistSpec) -> None:
    """Joins the process group; a process that is already in one of the same shape and device
    stays there.

    A world of one needs no port, because its store is in the process.

    Raises:
        ConfigError: CUDA is asked for, and torch sees no GPU.
        TrainingError: other ranks did not join in time, or this process is in another group.
    """
    if spec.device_type == "cuda":
        check_gpus(1, num_gpus(), f"by torch in the process of rank {spec.rank}")
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
        alone = spec.world_size == 1
        dist.init_process_group(
            backend,
            init_method=None if alone else f"tcp://{spec.master_addr}:{spec.port}",
            store=HashStore() if alone else None,
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


def leave() -> None:
    """Leaves the process group, if the process is in one."""
    SHARED.clear()
    if dist.is_initialized():
        dist.destroy_process_group()
        # a thread of gloo that lets go of a tensor while the interpreter ends aborts the process
        gc.collect()
