"""Backend cost: FSDP2 on one rank against the backend ``plain``, by optimizer steps in turn."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from agentrl.controller.cluster.ray_role_group import _KEEP_FREED_MEMORY
from agentrl.training import DistSpec, OptimSpec, join, leave
from agentrl.training.backends.backend import StatSum
from agentrl.training.backends.fsdp2 import Fsdp2Backend
from agentrl.training.backends.packed_backend import PackedBackend
from agentrl.training.backends.plain import PlainBackend
from agentrl.training.data.packing import Packed
from agentrl.training.models.packed_model import attention_of
from agentrl.training.models.policy_model import PolicyModel
from benchmarks.figures import ROOT, Figures
from benchmarks.trainer.interleaved import in_turn, median_ratio
from benchmarks.trainer.shapes import SHAPES, config_of, packed_row, random_model

__all__ = ["compared", "measure", "step_of"]

MOST = 1.10
BACKENDS: tuple[type[PackedBackend], ...] = (PlainBackend, Fsdp2Backend)


def step_of(backend: PackedBackend, packed: Packed) -> Callable[[], tuple[float, float]]:
    """An optimizer step on one micro-batch: its loss, and the norm of its gradient."""
    backend.optimize_by(OptimSpec())

    def step() -> tuple[float, float]:
        losses = []

        def loss(row: Packed, answer: tuple[Tensor, Tensor], _: StatSum) -> Tensor:
            losses.append(-answer[0].sum() / row.targets.numel())
            return losses[-1]

        backend.run([packed], loss)
        return float(losses[0].detach()), backend.step(1.0, 1.0).grad_norm

    return step


def compared(shape: str, lengths: Sequence[int], rounds: int) -> dict[str, list[float]]:
    """Seconds of the steps of both, in this process.

    Raises:
        RuntimeError: losses or gradients differ.
    """
    place = DistSpec()
    join(place)
    try:
        packed = packed_row(lengths, int(SHAPES[shape]["vocab_size"]))
        steps = {}
        for kind in BACKENDS:
            hf = random_model(shape, "segments")
            model = PolicyModel(hf, attention_of(hf), torch.device("cpu"))
            steps[kind.name] = step_of(kind(model, place, torch.float32), packed)
        plain, fsdp2 = (step() for step in steps.values())
        if max(abs(a / b - 1) for a, b in zip(plain, fsdp2, strict=True)) > 1e-4:
            raise RuntimeError(
                f"loss and gradient norm differ: plain {plain}, fsdp2 {fsdp2}"
            )
        return in_turn(steps, rounds)
    finally:
        leave()


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Seconds of a step of both, and their ratio, in a child that keeps freed memory as the ranks
    of a run do.

    Raises:
        RuntimeError: the child failed.
    """
    size = arguments.sizes
    row = ",".join(map(str, size.step_lengths))
    command = [sys.executable, "-m", __name__, size.step_shape, row, str(arguments.rounds)]
    child = subprocess.run(
        command,
        cwd=ROOT,
        env={**_KEEP_FREED_MEMORY, **os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    if child.returncode:
        raise RuntimeError(f"the child failed:\n{child.stderr[-2000:]}")
    seconds: dict[str, list[float]] = json.loads(child.stdout.splitlines()[-1])
    with torch.device("meta"):
        whole = Qwen3ForCausalLM(config_of(size.step_shape))
    figures.report("parameters", sum(one.numel() for one in whole.parameters()) / 1e6, "M")
    for name, spent in seconds.items():
        figures.report(f"{name}: a step", statistics.median(spent), "s")
    ratio = median_ratio(seconds["fsdp2"], seconds["plain"])
    figures.at_most("fsdp2 over plain on one rank", ratio, "x", MOST)
    figures.note(
        f"Backends: a step is forward and backward of one row of {sum(size.step_lengths)} tokens, "
        "clipping and AdamW, in float32 over gloo; equal losses and gradient norms. A child has "
        "both, with glibc's settings of a run's ranks, which keep freed memory. Processor seconds "
        f"of all threads, {arguments.rounds} rounds in turn; the ratio is the median over rounds."
    )


def _main(shape: str, lengths: str, rounds: int) -> None:
    torch.set_num_threads(1)
    print(json.dumps(compared(shape, [int(one) for one in lengths.split(",")], rounds)))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
