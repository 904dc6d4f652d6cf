"""GPU device: the device that a benchmark runs on, its clock, its memory and its peak.

A CPU has the same, so that whatever runs on a GPU can be tried without one.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.trainer.memory_count import LiveStorages

__all__ = ["BF16_PEAKS", "Bench", "datasheet_peak", "measured_peak"]

BF16_PEAKS: Sequence[tuple[str, float]] = (
    ("B200", 2250e12),
    ("H200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("H800", 989e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("L40S", 362e12),
    ("RTX 4090", 165e12),
)
"""Dense bfloat16 products with float32 sums, FLOP/s by NVIDIA's data sheets. The first name that a
device's name contains is its own."""


class Bench:
    """A device under measurement.

    Args:
        device: ``cuda:<index>`` or ``cpu``.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_cuda = device.type == "cuda"

    @property
    def name(self) -> str:
        """As its maker calls it."""
        return torch.cuda.get_device_name(self.device) if self.is_cuda else "CPU"

    @property
    def memory(self) -> float:
        """Bytes; a CPU's are not asked for."""
        if not self.is_cuda:
            return float("inf")
        return float(torch.cuda.get_device_properties(self.device).total_memory)

    def seconds(self, run: Callable[[], object]) -> float:
        """Of a call, until the device has done what it began."""
        self._wait()
        begin = time.perf_counter()
        run()
        self._wait()
        return time.perf_counter() - begin

    def peak_bytes(self, run: Callable[[], object], known: Sequence[Tensor]) -> int:
        """The most that tensors held at once during a call, those before it included.

        Args:
            run: the call.
            known: all that lives before it, for a device that does not count.
        """
        gc.collect()
        if self.is_cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
            self.seconds(run)
            return torch.cuda.max_memory_allocated(self.device)
        live = LiveStorages(known)
        with live:
            run()
        return live.peak

    def free(self) -> None:
        """Gives memory that nothing holds back to the device."""
        gc.collect()
        if self.is_cuda:
            torch.cuda.empty_cache()

    def _wait(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize(self.device)


def datasheet_peak(name: str) -> float | None:
    """FLOP/s of a device by its name; None for one that is not in ``BF16_PEAKS``."""
    return next((peak for part, peak in BF16_PEAKS if part in name), None)


def measured_peak(bench: Bench, size: int) -> float:
    """FLOP/s of a product of two bfloat16 matrices of random numbers, the best of a few.

    Args:
        bench: the device.
        size: rows and columns of each.
    """
    one, other = (
        torch.randn(size, size, device=bench.device, dtype=torch.bfloat16) for _ in range(2)
    )
    seconds = [bench.seconds(lambda: one @ other) for _ in range(10)]
    return 2 * size**3 / min(seconds)
