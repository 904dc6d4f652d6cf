"""LoRA: what an adapter learns on the code example beside full training (``python -m
benchmarks.lora``).

Each seed warms one model up. From there GRPO trains all of it, or an adapter of rank 8, at three
learning rates each; what counts is the greedy accuracy on fresh problems that the best of the three
gains. Run it on a quiet machine: 21 runs, about an hour.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import Figures, add_arguments
from benchmarks.fresh.examine import fresh_accuracies
from benchmarks.learning import CODE_ALONE, SEEDS, Run, train

RANK = 8
RATES = {"whole": (3e-4, 6e-4, 1.2e-3), "adapter": (2e-3, 6e-3, 2e-2)}
"""The example's own rate, its half and its double; an adapter takes about ten times as much."""
WARM_UP = ("stages.rl.steps=1", *CODE_ALONE)


def runs(start: Run, more: Sequence[str]) -> list[tuple[str, float, Run]]:
    """What is trained, at which rate, from a run's warm-up."""
    found = []
    # in turn, so that a benchmark that is stopped has runs of both kinds
    for rates in zip(*RATES.values(), strict=True):
        for kind, rate in zip(RATES, rates, strict=True):
            settings = (
                f"optim.lr={rate:g}",
                *([f"model.lora.rank={RANK}"] if kind == "adapter" else []),
                *CODE_ALONE,
                *more,
            )
            name = f"{kind}-{rate:g}-{start.seed}"
            found.append((kind, rate, Run(name, "code", settings, start.seed, start)))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what is not there yet, then reports."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lora", description=__doc__)
    add_arguments(parser, benchmark="lora")
    parser.add_argument(
        "--runs",
        type=Path,
        help="folder of the run directories; finished ones are not run again",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument(
        "--set", nargs="*", default=[], help="further settings of every run"
    )
    arguments = parser.parse_args(argv)
    folder = arguments.runs or Path(tempfile.mkdtemp(prefix="agentrl-lora-"))
    figures = Figures()
    for seed in arguments.seeds:
        warm = Run(f"warm-{seed}", "code", (*WARM_UP, *arguments.set), seed)
        train(warm, folder / warm.name)
        before = fresh_accuracies(folder / warm.name, "code", stages=("before",))["before"]
        figures.report(f"code, seed {seed}, greedy before", before["greedy"], "")
        best = dict.fromkeys(RATES, float("-inf"))
        for kind, rate, run in runs(warm, arguments.set):
            train(run, folder / run.name)
            after = fresh_accuracies(folder / run.name, "code", stages=("after",))["after"]
            gain = after["greedy"] - before["greedy"]
            figures.report(f"code, seed {seed}, {kind} at {rate:g}, greedy gain", gain, "")
            best[kind] = max(best[kind], gain)
        figures.at_least(
            f"code, seed {seed}, adapter of rank {RANK}, best gain as a share of full training's",
            best["adapter"] / best["whole"] if best["whole"] > 0 else 0.0,
            "",
            0.5,
        )
    figures.note(
        f"Adapters of rank {RANK} and alpha 32 beside all linear layers of the blocks. All runs of "
        "a seed start from one warm-up; the rates are those of the first half of the steps."
    )
    return figures.finish(arguments, seeds=arguments.seeds)


if __name__ == "__main__":
    sys.exit(main())
