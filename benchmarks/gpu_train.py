"""GPU train: attentions, throughput and memory of the trainer on the CUDA device at hand.

``python -m benchmarks.gpu_train`` compares the attentions that are installed with ``segments``, and
measures optimizer steps of a random Qwen3 0.6B and 4B: tokens a second, MFU, and the peak of memory
against the count on paper. It needs a CUDA device, and says so where there is none; ``--device cpu
--tiny`` tries the same code on a CPU. ``torchrun --nproc-per-node GPUS -m benchmarks.gpu_train
--layouts`` runs each layout of several GPUs instead.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

import torch

from agentrl.training.data.kernel_attention import AttentionName
from benchmarks.figures import NOT_HERE, Figures, add_arguments, measure_parts
from benchmarks.trainer import gpu_attention, gpu_layouts, gpu_throughput

__all__ = ["PARTS", "TINY", "Sizes"]

PARTS: dict[str, Callable[[Figures, argparse.Namespace], None]] = {
    "attention": gpu_attention.measure,
    "throughput": gpu_throughput.measure,
}
RECOMPUTE = {"false": False, "selective": "selective", "true": True}


@dataclass(frozen=True)
class Sizes:
    """Of what is measured.

    Args:
        shapes: of the models that are trained; layouts take the last.
        rows: lengths of a row's samples, the preferred first; layouts take the last.
        product: rows and columns of the matrices whose product shows the device's peak.
        attention_shape: of the model that attentions are compared on.
        attention_layers: of it.
        attention_lengths: of the samples of its row.
        group: samples, tokens of their prompt, and of each one's own.
    """

    shapes: Sequence[str] = ("0.6B", "4B")
    rows: Sequence[Sequence[int]] = ((2048,) * 8, (2048,) * 4)
    product: int = 8192
    attention_shape: str = "0.6B"
    attention_layers: int = 4
    attention_lengths: Sequence[int] = (1500, 333, 1, 700, 64)
    group: tuple[int, int, int] = (8, 512, 128)


TINY = Sizes(
    shapes=("tiny",),
    rows=((20, 12),),
    product=64,
    attention_shape="tiny",
    attention_layers=2,
    attention_lengths=(15, 1, 9),
    group=(3, 8, 4),
)
"""For a trial of the code; its figures say nothing."""


def missing(arguments: argparse.Namespace) -> str | None:
    """What this machine lacks, and the remedy; None where nothing is missing."""
    if arguments.device == "cpu":
        if arguments.sizes is TINY:
            return None
        return (
            "--device cpu only tries the code: add --tiny, or leave --device out on a GPU"
        )
    if not torch.cuda.is_available():
        return (
            f"benchmarks.gpu_train needs a CUDA device and torch {torch.__version__} finds none; "
            "run it on a machine with a GPU and a torch built for CUDA, or try its code by "
            "--device cpu --tiny"
        )
    return None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_train", description=__doc__
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--tiny", dest="sizes", action="store_const", const=TINY, help="a trial of the code"
    )
    parser.add_argument(
        "--only",
        choices=PARTS,
        action="append",
        help="one part; may be given several times",
    )
    parser.add_argument(
        "--layouts", action="store_true", help="layouts of the ranks that torchrun started"
    )
    parser.add_argument(
        "--shape",
        action="append",
        help="a shape of benchmarks/trainer/shapes.py (0.6B, 4B)",
    )
    parser.add_argument("--attention", choices=get_args(AttentionName), default="auto")
    parser.add_argument("--row-tokens", type=int, help="of a micro-batch (what fits)")
    parser.add_argument(
        "--recompute", choices=RECOMPUTE, help="of layers (the least that fits)"
    )
    parser.add_argument("--shard", choices=("full", "grad_op"), default="full")
    parser.add_argument("--compile", action="store_true", help="compile layers")
    parser.add_argument("--micro-batches", type=int, default=2, help="of a step (2)")
    parser.add_argument("--steps", type=int, default=5, help="timed (5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(sizes=Sizes())
    add_arguments(parser, benchmark="gpu_train")
    arguments = parser.parse_args(argv)
    told = missing(arguments)
    if told is not None:
        print(told)
        return NOT_HERE
    if arguments.recompute is not None:
        arguments.recompute = RECOMPUTE[arguments.recompute]
    if not arguments.layouts:
        arguments.device = "cuda:0" if arguments.device == "cuda" else "cpu"
        return measure_parts(PARTS, arguments)
    figures = Figures()
    gpu_layouts.measure(figures, arguments)
    if gpu_layouts.own_place(arguments.device).rank != 0:
        return 0
    return figures.finish(arguments, seeds=[arguments.seed])


if __name__ == "__main__":
    sys.exit(main())
