"""GRPO step: what the sandbox adds to a GRPO step of the code example.

Blocks of both sides take turns. An episode's calls overlap with the generation of others, so that
what is measured is what overlap does not hide.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from benchmarks.figures import ROOT, Figures
from benchmarks.step import (
    CODE,
    COLD_STEPS,
    Side,
    checkpoint,
    median_of,
    sandbox_share,
    scratch,
    train,
)

__all__ = ["measure"]

HERE = ROOT / "benchmarks" / "sandboxes"
SIZES: Mapping[str, tuple[str, ...]] = {
    "0.65M": (),
    "4.7M": (f"model.build={HERE / 'wide.py'}:build_model", "stages.warmup.steps=200"),
}
BOUND = {"4.7M": 15.0}
SIDES: Mapping[str, tuple[str, ...]] = {
    "in a sandbox": (),
    "in process": (f"env.tools=[{HERE / 'in_process.py'}:python]",),
}


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Both sizes."""
    arguments.cache.mkdir(parents=True, exist_ok=True)
    for size, overrides in SIZES.items():
        # the example's own, which benchmarks.step has too
        name = f"code-{size}" if overrides else "code"
        model = checkpoint(
            arguments.cache, name, CODE, seed=arguments.seed, overrides=overrides
        )
        sides = {name: Side() for name in SIDES}
        with scratch() as folder:
            for block in range(arguments.blocks):
                for name in list(SIDES)[:: 1 if block % 2 else -1]:
                    run = folder / f"{name.replace(' ', '-')}-{block}"
                    sides[name].add_block(_train(run, model, arguments, SIDES[name]))
            share = sandbox_share(folder / f"in-a-sandbox-{arguments.blocks - 1}")
        seconds = {
            name: median_of(side.rows, "time/step_s") for name, side in sides.items()
        }
        for name, side in sides.items():
            figures.report(f"step at {size}, tool {name}", seconds[name], "s")
            figures.report(
                f"step at {size}, rollout, tool {name}",
                median_of(side.rows, "time/wait_rollout_s"),
                "s",
            )
        added = 100 * (seconds["in a sandbox"] / seconds["in process"] - 1)
        if size in BOUND:
            figures.at_most(
                f"step at {size}: added by the sandbox", added, "%", BOUND[size]
            )
        else:
            figures.report(f"step at {size}: added by the sandbox", added, "%")
        figures.report(
            f"step at {size}: share of an episode's time in its sandbox", 100 * share, "%"
        )


def _train(
    run: Path, model: Path, arguments: argparse.Namespace, overrides: tuple[str, ...]
) -> list[Mapping[str, object]]:
    steps = f"train.steps={arguments.block_steps + COLD_STEPS}"
    plain = (
        f"model.path={model}",
        "eval.sets={}",
        "stages.rl.eval.sets={}",
        f"run.seed={arguments.seed}",
        steps,
    )
    return list(train(CODE / "config.yaml", run, *plain, *overrides))
