"""GPU layouts: the layouts of several ranks, each against the first: the same step, and its speed.

Each rank is a process of ``torchrun``. All data coordinates get the same rows, so that loss and
gradient are those of one rank whatever the layout.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Mapping
from dataclasses import replace

import torch

from agentrl.training import DistSpec, OptimSpec, join, leave
from agentrl.training.backends.fsdp2 import Fsdp2Backend
from agentrl.training.data.kernel_attention import choose_attention
from agentrl.training.data.packing import Cut, Packed, PackedMicroBatches
from agentrl.training.parallel.process_group import Sharding
from benchmarks.figures import Figures
from benchmarks.trainer.gpu_device import Bench, datasheet_peak, measured_peak
from benchmarks.trainer.gpu_model import device_policy, model_flops
from benchmarks.trainer.gpu_throughput import step_on
from benchmarks.trainer.memory_count import GIB
from benchmarks.trainer.shapes import SHAPES, batch_of, shard_of

__all__ = ["layouts_of", "measure", "own_place"]

NEAR = 2e-2
Layout = tuple[DistSpec, Sharding]


def own_place(device: str, environment: Mapping[str, str] = os.environ) -> DistSpec:
    """This rank's place, as ``torchrun`` says it.

    Args:
        device: ``cuda`` or ``cpu``.
        environment: of the process.

    Raises:
        SystemExit: the process was not started by ``torchrun``, or for one rank.
    """
    size = int(environment.get("WORLD_SIZE", "1"))
    if size < 2:
        raise SystemExit(
            "--layouts needs two ranks or more, started by torchrun: "
            "torchrun --nproc-per-node GPUS -m benchmarks.gpu_train --layouts"
        )
    is_cuda = device.startswith("cuda")
    return DistSpec(
        rank=int(environment["RANK"]),
        world_size=size,
        master_addr=environment["MASTER_ADDR"],
        port=int(environment["MASTER_PORT"]),
        device=f"cuda:{environment['LOCAL_RANK']}" if is_cuda else "cpu",
    )


def layouts_of(place: DistSpec, heads: int) -> dict[str, Layout]:
    """The layouts that the ranks allow, by name.

    Args:
        place: a rank.
        heads: query heads.
    """
    size = place.world_size
    found: dict[str, Layout] = {
        "full": (place, Sharding()),
        "grad_op": (place, Sharding("grad_op")),
        "full, gradients summed once": (place, Sharding(gradient_sync="mini_batch")),
    }
    if size % 2 == 0:
        found["hybrid"] = (place, Sharding("hybrid", size // 2))
    for ways in (2, size):
        if size % ways == 0 and heads % ways == 0:
            found[f"tp {ways}"] = (replace(place, tp=ways), Sharding())
            found[f"sp {ways}"] = (replace(place, sp=ways), Sharding())
    return found


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Every layout, on all ranks; rank 0 has the figures."""
    size = arguments.sizes
    place = own_place(arguments.device)
    shape = (arguments.shape or size.shapes)[-1]
    bench = Bench(torch.device(place.device))
    join(place)
    try:
        peak = datasheet_peak(bench.name) or measured_peak(bench, size.product)
        first: tuple[float, float] | None = None
        for name, layout in layouts_of(
            place, int(SHAPES[shape]["num_attention_heads"])
        ).items():
            found = _measure_one(
                figures, f"{shape}, {name}", shape, layout, arguments, bench, peak
            )
            first = first or found
            off = max(abs(a / b - 1) for a, b in zip(found, first, strict=True))
            figures.at_most(
                f"{shape}, {name}: loss and gradient norm, off by", off, "", NEAR
            )
            bench.free()
    finally:
        leave()
    figures.note(
        f"Layouts: {place.world_size} ranks, a random Qwen3 {shape} on {bench.name}, attention "
        "auto, layers recomputed; every data coordinate has the same rows. MFU is of each device."
    )


def _measure_one(
    figures: Figures,
    label: str,
    shape: str,
    layout: Layout,
    arguments: argparse.Namespace,
    bench: Bench,
    peak: float,
) -> tuple[float, float]:
    """Loss and gradient norm of the first step."""
    place, sharding = layout
    dtype = torch.bfloat16 if bench.is_cuda else torch.float32
    attention = choose_attention("auto", bench.device, dtype)
    lengths = arguments.sizes.rows[-1]
    model = device_policy(
        shape, attention, bench.device, recompute=True, seed=arguments.seed
    )
    batch = batch_of(lengths, int(SHAPES[shape]["vocab_size"]), arguments.seed)
    samples = range(batch.num_samples)
    shard = shard_of(batch, [samples] * arguments.micro_batches)
    rows: list[Packed] = list(
        PackedMicroBatches(
            shard, bench.device, share_prefixes=False, cut=Cut(place.sp, place.sp_rank)
        )
    )
    flops = place.dp * sum(
        model_flops(model, lengths, row.logit_rows.numel()) for row in rows
    )
    backend = Fsdp2Backend(model, place, dtype, sharding)
    backend.optimize_by(OptimSpec())
    step = step_on(backend, rows, place)
    found = step()
    step()
    seconds = [bench.seconds(step) for _ in range(arguments.steps)]
    spent = statistics.median(seconds)
    tokens = place.dp * sum(lengths) * len(rows)
    figures.report(f"{label}: throughput", tokens / spent, "tokens/s")
    figures.report(f"{label}: MFU", flops / spent / peak / place.world_size, "")
    if bench.is_cuda:
        used = torch.cuda.max_memory_allocated(bench.device)
        torch.cuda.reset_peak_memory_stats(bench.device)
        figures.report(f"{label}: peak of tensors a rank", used / GIB, "GiB")
    return found
