"""Train: what packed rows, logprobs in chunks, FSDP2 and shared prefixes cost on a CPU.

``python -m benchmarks.train`` measures all of it in about five minutes, ``--only`` one part. Each
part is shown, and recorded in a file of its own, as soon as it is measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from benchmarks.figures import Figures, add_arguments, measure_parts
from benchmarks.trainer import backend_cost, logprob_memory, padding, prefix_cost

__all__ = ["PARTS", "Sizes"]

PARTS: dict[str, Callable[[Figures, argparse.Namespace], None]] = {
    "padding": padding.measure,
    "logprobs": logprob_memory.measure,
    "backends": backend_cost.measure,
    "prefixes": prefix_cost.measure,
}


@dataclass(frozen=True)
class Sizes:
    """Of what is measured.

    Args:
        shape: of the model of padding and prefixes.
        samples: of padding.
        median: tokens of a sample.
        row_tokens: most of a packed row.
        batch_samples: of a padded batch.
        head_width: of the logprobs whose memory is measured.
        vocab_size: of those, and of all logprobs on paper.
        logprob_tokens: of both.
        step_shape: of the model of the backends.
        step_lengths: of a row's samples there.
        group: samples, tokens of their prompt, and of each one's own.
    """

    shape: str = "8M"
    samples: int = 32
    median: int = 140
    row_tokens: int = 2048
    batch_samples: int = 4
    head_width: int = 128
    vocab_size: int = 151_936
    logprob_tokens: int = 4096
    step_shape: str = "50M"
    step_lengths: Sequence[int] = (256,) * 4
    group: tuple[int, int, int] = (8, 512, 128)


TINY = Sizes(
    shape="tiny",
    samples=12,
    median=12,
    row_tokens=96,
    head_width=64,
    vocab_size=300_000,
    logprob_tokens=600,
    step_shape="tiny",
    step_lengths=(20, 12),
    group=(3, 24, 6),
)
"""For a trial of the code; its figures say nothing."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train", description=__doc__)
    parser.add_argument(
        "--only",
        choices=PARTS,
        action="append",
        help="one part; may be given several times",
    )
    parser.add_argument(
        "--rounds", type=int, default=4, help="of what is compared in turn (4)"
    )
    parser.add_argument(
        "--tiny", dest="sizes", action="store_const", const=TINY, help="a trial of the code"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.set_defaults(sizes=Sizes())
    add_arguments(parser, benchmark="train")
    arguments = parser.parse_args(argv)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return measure_parts(PARTS, arguments)
    finally:
        torch.set_num_threads(before)


if __name__ == "__main__":
    sys.exit(main())
