"""Device: where a run trains and plays, as ``placement.device`` asks for it.

torch is imported when a device is looked for.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

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


PEAK_TFLOPS: Mapping[str, float] = {
    "A100": 312.0,
    "A10": 125.0,
    "L40S": 362.0,
    "L4": 121.0,
    # It stands before the H100 alone, whose one word it has too: the first that fits is taken.
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "H200": 989.0,
    "B200": 2250.0,
}
"""Dense products in bfloat16, by a part of the device's name, from NVIDIA's data sheets."""

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, as torch describes it."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.name} ({self.memory_bytes / _GIB:.0f} GiB, capability "
            f"{'.'.join(map(str, self.capability))})"
        )


def gpus() -> list[Gpu]:
    """Those that torch sees in this process."""
    import torch

    found = [torch.cuda.get_device_properties(index) for index in range(num_gpus())]
    return [Gpu(one.name, (one.major, one.minor), one.total_memory) for one in found]


def devices_line(processes: Sequence[tuple[str, str]]) -> str:
    """Where a run computes: ``2 x NVIDIA H200 (...) on host-a``.

    Args:
        processes: host and device of each.
    """
    told = []
    for host, device in dict.fromkeys(processes):
        number = processes.count((host, device))
        told.append(f"{f'{number} x ' if number > 1 else ''}{device} on {host}")
    return "computes on " + ", ".join(told)


def mfu(name: str, flops: float, seconds: float) -> float | None:
    """Model FLOPs utilisation, from 0 to 1; None for a device whose peak is not known.

    Args:
        name: of the device.
        flops: of one process, 6 for each parameter and token of a forward and backward
            (arXiv:2204.02311, appendix B, without its term of attention).
        seconds: that they took.
    """
    # Whole words are compared: "A10" is a part of "A100", and "L4" of "L40S".
    words = set(name.replace("-", " ").split())
    peak = next(
        (peak for one, peak in PEAK_TFLOPS.items() if words.issuperset(one.split())), None
    )
    return None if peak is None or seconds <= 0 else flops / (seconds * peak * 1e12)


class DeviceMeter:
    """What one update asks of its process's GPU; nothing of a CPU.

    Args:
        device: torch's.
        flops_per_token: of a forward and backward.
        dtype: of the products; the table of peaks is of bfloat16.
    """

    def __init__(self, device: Any, flops_per_token: float, dtype: str) -> None:
        self._device = device
        self._flops_per_token = flops_per_token
        self._dtype = dtype
        self._tokens = 0
        self._start = time.monotonic()
        if device.type == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats(device)

    def add(self, tokens: int) -> None:
        """So many more tokens went forward and backward."""
        self._tokens += tokens

    def metrics(self) -> dict[str, float]:
        """``gpu/...`` by name, once the device has done its work; nothing without any."""
        if self._device.type != "cuda" or not self._tokens:
            return {}
        import torch

        found = {
            "gpu/allocated_gib": torch.cuda.memory_allocated(self._device) / _GIB,
            "gpu/peak_gib": torch.cuda.max_memory_allocated(self._device) / _GIB,
        }
        seconds = time.monotonic() - self._start
        flops = self._flops_per_token * self._tokens
        name = torch.cuda.get_device_name(self._device)
        share = mfu(name, flops, seconds) if self._dtype == "bfloat16" else None
        if share is not None:
            found["gpu/mfu"] = share
        # it asks NVIDIA's own package, which may be absent
        with suppress(ModuleNotFoundError):
            found["gpu/utilisation_frac"] = torch.cuda.utilization(self._device) / 100
        return found


def check_gpu(found: int, where: str) -> None:
    """Refuses CUDA where it is not to be had.

    Args:
        found: GPUs.
        where: they were looked for.

    Raises:
        ConfigError: there is none.
    """
    if not found:
        raise ConfigError(
            f"PlacementConfig.device='cuda' needs a GPU for each process, found none {where}; set "
            "PlacementConfig.device=cpu, or use a machine with NVIDIA's driver and a torch that "
            "was built for CUDA"
        )
