"""GPU throughput: optimizer steps of a random policy: tokens a second, MFU, and peak memory.

- The least recomputation and the longest row that fit by the count on paper are chosen.
- MFU counts the model's own operations (``model_flops``) over the whole step, optimizer included;
  recomputation does not count.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import torch
import torch.distributed as dist
from torch import Tensor

from agentrl.training import DistSpec, OptimSpec, join, leave
from agentrl.training.backends.backend import StatSum
from agentrl.training.backends.fsdp2 import Fsdp2Backend
from agentrl.training.backends.packed_backend import PackedBackend
from agentrl.training.data.kernel_attention import BY_ROW, choose_attention
from agentrl.training.data.packing import Packed
from agentrl.training.models.trunk import Recompute
from agentrl.training.parallel.process_group import FULL, Sharding
from benchmarks.figures import Figures
from benchmarks.trainer.gpu_device import Bench, datasheet_peak, measured_peak
from benchmarks.trainer.gpu_model import device_policy, model_flops
from benchmarks.trainer.memory_count import GIB, Count, on_paper
from benchmarks.trainer.shapes import SHAPES, packed_row

__all__ = ["Fit", "fitting", "held_tensors", "measure", "step_on"]

GOAL = ("4B", 0.45)
SAFE = 0.88
"""Of a device's memory that the count may take: fragments and workspaces come on top."""
RECOMPUTE: tuple[Recompute, ...] = (False, "selective", True)


@dataclass(frozen=True, slots=True)
class Fit:
    """How a step is run.

    Args:
        lengths: of a row's samples.
        recompute: of layers.
        count: on paper.
    """

    lengths: tuple[int, ...]
    recompute: Recompute
    count: Count


def fitting(
    shape: str,
    rows: Sequence[Sequence[int]],
    recomputes: Sequence[Recompute],
    memory: float,
    attention: str,
    dtype: torch.dtype,
    sharding: Sharding = FULL,
) -> Fit | None:
    """The first recomputation, with the first of the rows, that fits; None where none does. Call it
    outside of a process group.

    Args:
        shape: of the model.
        rows: lengths of samples, in the order in which they are tried for each recomputation.
        recomputes: of layers, likewise.
        memory: bytes of the device.
        attention: on paper.
        dtype: of the forward pass.
        sharding: of the backend.
    """
    for recompute in recomputes:
        for lengths in rows:
            count = on_paper(
                shape,
                1,
                lengths,
                recompute=recompute,
                dtype=dtype,
                attention=attention,
                sharding=sharding,
            )
            if count.total <= SAFE * memory:
                return Fit(tuple(lengths), recompute, count)
    return None


ALONE = DistSpec()


def step_on(
    backend: PackedBackend, rows: Sequence[Packed], place: DistSpec = ALONE
) -> Callable[[], tuple[float, float]]:
    """An optimizer step on micro-batches: the loss over all ranks, and the gradient's norm.

    Args:
        backend: with its optimizer.
        rows: of the micro-batches.
        place: of the rank; every data coordinate has the same rows.
    """
    # A slice has its own targets alone, and its loss reads those of the whole row.
    tokens = _over_ranks(sum(row.targets.numel() for row in rows)) / place.tp

    def step() -> tuple[float, float]:
        losses = []

        def loss(_: Packed, answer: tuple[Tensor, Tensor], __: StatSum) -> Tensor:
            own = -answer[0].double().sum() / tokens
            losses.append(own.detach())
            return own

        backend.run(rows, loss)
        norm = backend.step(1.0, 1.0).grad_norm
        return place.dp * float(sum(losses)), norm

    return step


def _over_ranks(number: float) -> float:
    """The sum over all ranks, where there are several."""
    if not dist.is_initialized():
        return number
    numbers: list[float] = [0.0] * dist.get_world_size()
    dist.all_gather_object(numbers, number)
    return sum(numbers)


def held_tensors(backend: PackedBackend, rows: Sequence[Packed]) -> Iterator[Tensor]:
    """Weights, gradients, moments and rows."""
    for one in backend.state().values():
        yield one
        if one.grad is not None:
            yield one.grad
    yield from backend._moments()
    for row in rows:
        yield from (
            value
            for one in fields(row)
            if isinstance(value := getattr(row, one.name), Tensor)
        )


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Each shape on one device."""
    bench = Bench(torch.device(arguments.device))
    peaks = {"measured": measured_peak(bench, arguments.sizes.product)}
    sheet = datasheet_peak(bench.name)
    if sheet is not None:
        peaks["data sheet"] = sheet
        figures.report("bfloat16 by the data sheet", sheet / 1e12, "TFLOP/s")
    figures.report(
        "bfloat16, the largest product measured", peaks["measured"] / 1e12, "TFLOP/s"
    )
    bench.free()
    for shape in arguments.shape or arguments.sizes.shapes:
        print(f"   {shape}", flush=True)
        _measure_one(figures, shape, arguments, bench, peaks)
        bench.free()
    figures.note(
        f"Throughput: a random Qwen3 on {bench.name}, backend fsdp2 on one rank, "
        f"train.shard={arguments.shard}, float32 weights, AdamW; a step has "
        f"{arguments.micro_batches} micro-batches, forward and backward, clipping and optimizer; "
        f"medians of {arguments.steps} steps after two. MFU is of the data sheet's dense bfloat16 "
        "where the device is known, else of the product measured here. The count on paper is "
        "benchmarks.memory's, of layers that are not compiled; a device's own is its allocator's "
        "peak of tensors."
    )


def _measure_one(
    figures: Figures,
    shape: str,
    arguments: argparse.Namespace,
    bench: Bench,
    peaks: dict[str, float],
) -> None:
    size = arguments.sizes
    dtype = torch.bfloat16 if bench.is_cuda else torch.float32
    attention = choose_attention(arguments.attention, bench.device, dtype)
    rows = size.rows if arguments.row_tokens is None else _rows(arguments.row_tokens)
    recomputes = RECOMPUTE if arguments.recompute is None else (arguments.recompute,)
    # a kernel that takes whole rows keeps what varlen's does
    on_one = "varlen" if attention == BY_ROW or attention.startswith("flash") else attention
    sharding = Sharding(arguments.shard)
    fit = fitting(shape, rows, recomputes, bench.memory, on_one, dtype, sharding)
    if fit is None:
        figures.note(
            f"{shape} was left out: no row fits into {bench.memory / GIB:.0f} GiB."
        )
        return
    place = DistSpec(device=str(bench.device))
    join(place)
    try:
        model = device_policy(
            shape,
            attention,
            bench.device,
            recompute=fit.recompute,
            compiles=arguments.compile,
            seed=arguments.seed,
        )
        vocab_size = int(SHAPES[shape]["vocab_size"])
        packed = [
            packed_row(fit.lengths, vocab_size, bench.device, seed)
            for seed in range(arguments.micro_batches)
        ]
        flops = sum(
            model_flops(model, fit.lengths, row.logit_rows.numel()) for row in packed
        )
        backend = Fsdp2Backend(model, place, dtype, sharding)
        backend.optimize_by(OptimSpec())
        step = step_on(backend, packed)
        for _ in range(2):  # kernels are chosen, compiled and warm
            step()
        seconds = [bench.seconds(step) for _ in range(arguments.steps)]
        passes = bench.peak_bytes(step, list(held_tensors(backend, packed)))
    finally:
        leave()
    spent = statistics.median(seconds)
    tokens = sum(fit.lengths) * len(packed)
    label = f"{shape}, {attention}" + (", compiled" if arguments.compile else "")
    figures.report(f"{label}: tokens of a row", sum(fit.lengths), "")
    kept = {False: 0.0, "selective": 0.5, True: 1.0}[fit.recompute]
    figures.report(f"{label}: layers recomputed (.5: selective)", kept, "")
    figures.report(f"{label}: a step", spent, "s")
    figures.report(f"{label}: throughput", tokens / spent, "tokens/s")
    for name, peak in peaks.items():
        mfu = flops / spent / peak
        if name == list(peaks)[-1] and shape == GOAL[0]:
            figures.at_least(f"{label}: MFU, {name}", mfu, "", GOAL[1])
        else:
            figures.report(f"{label}: MFU, {name}", mfu, "")
    figures.report(f"{label}: peak of tensors", passes / GIB, "GiB")
    figures.report(f"{label}: the count on paper", fit.count.total / GIB, "GiB")
    figures.report(f"{label}: peak over the count", passes / fit.count.total, "x")


def _rows(tokens: int) -> Sequence[Sequence[int]]:
    """Samples of at most 2,048 tokens."""
    whole, rest = divmod(tokens, 2048)
    return ((*(2048,) * whole, *([rest] if rest else [])),)
