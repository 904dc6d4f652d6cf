"""Device: where a run trains and plays, as ``train.device`` asks for it.

torch is imported when a device is looked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from agentrl.errors import ConfigError

DeviceType = Literal["cpu", "cuda"]
"""What a device is."""

FIRST_DEVICE: Mapping[DeviceType, str] = {"cpu": "cpu", "cuda": "cuda:0"}
"""torch's name of a process's device; of GPUs it sees its own alone, or takes the first."""


def device_type(asked: Literal["auto", "cpu", "cuda"]) -> DeviceType:
    """The device that ``auto`` stands for here: CUDA where torch sees a GPU, else the CPU."""
    if asked != "auto":
        return asked
    return "cuda" if num_gpus() else "cpu"


def num_gpus() -> int:
    """GPUs that torch sees in this process."""
    import torch

    return torch.cuda.device_count()


def check_gpus(needed: int, found: float, where: str) -> None:
    """Refuses CUDA where it is not to be had.

    Args:
        needed: processes, each with a GPU of its own.
        found: GPUs.
        where: they were looked for.

    Raises:
        ConfigError: there are fewer.
    """
    if found < needed:
        raise ConfigError(
            f"TrainConfig.device='cuda' needs a GPU for each of {needed} processes, found "
            f"{found:g} {where}; set TrainConfig.device=cpu, lower TrainConfig.world_size, or use "
            "a machine with NVIDIA's driver and a torch that was built for CUDA"
        )
