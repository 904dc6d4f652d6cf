"""Partition: measures what keeping rollouts of a group together saves, and how even the ranks are.

``python -m benchmarks.partition`` cuts batches of realistic lengths: 64 groups of 8 in one
mini-batch, prompts of 512 to 2,048 tokens, own parts lognormal with median 3,000 and σ 0.6,
truncated at 14,336. It counts the tokens that the packer really puts into each micro-batch.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from agentrl.training import Layout, Plan
from agentrl.training.data.partition import partition
from agentrl.training.data.prefix_tree import ROOT, PrefixOrder, Span, shared_spans
from benchmarks.figures import Figures, add_arguments

__all__ = ["Rollouts", "main", "passes"]

GROUPS = 64
ROLLOUTS = 8
PROMPT_TOKENS = (512, 2048)
MEDIAN_TOKENS = 3000
SIGMA = 0.6
MAX_TOKENS = 16_384 - PROMPT_TOKENS[1]  # longer ones would be truncated
LENGTH_SCALE = 30_000.0
COORDINATES = (1, 2, 8)
SAVED = {16_384: 0.75, 32_768: 0.90}
LIMIT_MS = 100.0

NOTES = (
    "Each figure is the worst of the seeds. The possible saving is that of groups that lie whole "
    "in one micro-batch.",
    f"The cost of a span of m tokens behind f is m + ((f + m)² − f²)/ℓ, ℓ = {LENGTH_SCALE:,.0f} "
    "(28 layers of width 2,048 with 1.7 billion parameters).",
    "Ranks wait for each other at every micro-batch where weights are gathered: `with waits` adds "
    "up the costliest micro-batch of each turn.",
    "`by size alone` is the partition of a model that holds each sample whole; what its samples "
    "share, they share by chance.",
    "Times are processor time of the thread.",
)


class Rollouts:
    """A batch of groups that share their prompts.

    Args:
        seed: of lengths and tokens.

    Attributes:
        token_ids: ``[T]``.
        cu_seqlens: ``[S+1]``.
        groups: ``[S]``.
        possible: tokens that whole groups would save.
    """

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        samples = []
        self.possible = 0
        for _ in range(GROUPS):
            prompt = rng.integers(
                0, 1000, rng.integers(PROMPT_TOKENS[0], PROMPT_TOKENS[1] + 1)
            )
            self.possible += (ROLLOUTS - 1) * prompt.size
            for own in rng.lognormal(np.log(MEDIAN_TOKENS), SIGMA, ROLLOUTS).clip(
                1, MAX_TOKENS
            ):
                samples.append(np.concatenate([prompt, rng.integers(0, 1000, int(own))]))
        order = rng.permutation(len(samples))  # nothing depends on the order of rows
        self.groups: npt.NDArray[np.int64] = (np.arange(len(samples)) // ROLLOUTS)[order]
        lengths = [samples[row].size for row in order]
        self.cu_seqlens = np.cumsum([0, *lengths]).astype(np.int32)
        self.token_ids = np.concatenate([samples[row] for row in order]).astype(np.int32)

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """``[S]`` tokens of each sample."""
        return np.diff(self.cu_seqlens).astype(np.int32)

    def spans(self, rows: Sequence[int]) -> list[Span]:
        """What the packer computes of a micro-batch."""
        found: list[Span] = []
        for group in set(self.groups[list(rows)].tolist()):
            members = [row for row in rows if self.groups[row] == group]
            ends = self.cu_seqlens
            found += shared_spans(
                [self.token_ids[ends[row] : ends[row + 1]] for row in members]
            )[0]
        return found or [Span(ROOT, 0, 1)]


def passes(plan: Plan, rollouts: Rollouts) -> list[list[tuple[int, float]]]:
    """Packed tokens and cost of each micro-batch, by coordinate."""

    def cost(span: Span) -> float:
        return span.size + ((span.first + span.size) ** 2 - span.first**2) / LENGTH_SCALE

    return [
        [
            (sum(span.size for span in spans), sum(map(cost, spans)))
            for spans in (rollouts.spans(rows) for rows in part.micro_batches)
        ]
        for part in plan.coordinates
    ]


def measure(
    seed: int, coordinates: int, capacity: int, *, together: bool = True
) -> dict[str, float]:
    """The figures of one batch; ``together`` tells the partition what its samples share."""
    rollouts = Rollouts(seed)
    layout = Layout(coordinates, capacity, LENGTH_SCALE)
    start = time.thread_time()
    prefixes = PrefixOrder.of(rollouts.token_ids, rollouts.cu_seqlens, rollouts.groups)
    found = time.thread_time()
    (plan,) = partition(
        rollouts.lengths,
        rollouts.groups,
        seed=seed,
        layout=layout,
        prefixes=prefixes if together else None,
    )
    end = time.thread_time()
    done = passes(plan, rollouts)
    over = [tokens for part in done for tokens, _ in part if tokens > capacity]
    if over:
        raise AssertionError(f"a micro-batch of {capacity} tokens holds {over[0]}")
    tokens = sum(tokens for part in done for tokens, _ in part)
    fillers = sum(not rows for part in plan.coordinates for rows in part.micro_batches)
    loads = [sum(cost for _, cost in part) for part in done]
    mean = float(np.mean(loads))
    waits = sum(max(cost for _, cost in turn) for turn in zip(*done, strict=True))
    return {
        "saved": (rollouts.token_ids.size + fillers - tokens) / rollouts.possible,
        "highest": max(loads) / mean,
        "lockstep": waits / mean,
        "micro_batches": len(done[0]),
        "filled": tokens / (coordinates * len(done[0]) * capacity),
        "prefixes_ms": 1000 * (found - start),
        "partition_ms": 1000 * (end - found),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.partition", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=5, help="batches of each layout (5)")
    add_arguments(parser, benchmark="partition")
    arguments = parser.parse_args(argv)
    seeds = range(arguments.seeds)
    figures = Figures()
    slowest = prefixes = 0.0
    for capacity, least in SAVED.items():
        for coordinates in COORDINATES:
            runs = [measure(seed, coordinates, capacity) for seed in seeds]
            name = f"{capacity:,} tokens, dp {coordinates}"
            figures.at_least(f"{name}: saved", min(r["saved"] for r in runs), "", least)
            if coordinates > 1:
                highest = max(r["highest"] for r in runs)
                figures.at_most(f"{name}: highest load over the mean", highest, "x", 1.03)
            figures.report(
                f"{name}: with waits over the mean", max(r["lockstep"] for r in runs), "x"
            )
            figures.report(
                f"{name}: micro-batches filled", min(r["filled"] for r in runs), ""
            )
            if coordinates == COORDINATES[-1]:
                alone = [
                    measure(seed, coordinates, capacity, together=False) for seed in seeds
                ]
                figures.report(
                    f"{name}: saved by size alone", min(r["saved"] for r in alone), ""
                )
            slowest = max(slowest, *(r["partition_ms"] for r in runs))
            prefixes = max(prefixes, *(r["prefixes_ms"] for r in runs))
    figures.at_most("partition of 512 samples, the slowest", slowest, "ms", LIMIT_MS)
    figures.report("common beginnings of 512 samples, the slowest", prefixes, "ms")
    for note in NOTES:
        figures.note(note)
    return figures.finish(arguments, seeds=list(seeds))


if __name__ == "__main__":
    sys.exit(main())
