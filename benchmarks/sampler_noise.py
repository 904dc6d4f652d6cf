"""Sampler noise: what corrections are worth where the sampler is not the policy
(``python -m benchmarks.sampler_noise``).

Every run is ``agentrl train`` on ``benchmarks/doors/config.yaml`` from one warm-up, with
``rollout.torch.sampler_noise``. Runs differ in ``algorithm.rollout_correction`` alone; one has no
noise.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.doors.runs import column, train, warm_up
from benchmarks.figures import Figures, add_arguments

SEED = 0
LAST = 10
"""Steps at the end whose mean counts."""
SETTINGS = (f"run.seed={SEED}", "stages.rl.train.batch_prompts=4", "stages.rl.train.steps=40")
CORRECTION = "stages.rl.algorithm.rollout_correction"
CORRECTIONS: Mapping[str, tuple[str, ...]] = {
    "token": (f"{CORRECTION}.level=token",),
    "sequence": (f"{CORRECTION}.level=sequence",),
    "geometric": (f"{CORRECTION}.level=geometric",),
    "icepop": (
        f"{CORRECTION}.level=token",
        f"{CORRECTION}.floor=0.5",
        f"{CORRECTION}.outside=mask",
    ),
    "rejection": (f"{CORRECTION}.reject=token", f"{CORRECTION}.reject_above=0.5"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is not there yet, then report."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser, benchmark="sampler_noise")
    parser.add_argument(
        "--runs", type=Path, help="folder of the run directories; finished ones are not run again"
    )
    parser.add_argument("--noise", type=float, default=1.0, help="standard deviation in nats")
    arguments = parser.parse_args(argv)
    folder = arguments.runs or Path(tempfile.mkdtemp(prefix="agentrl-noise-"))
    model = warm_up(folder / "warmup")
    noise = f"stages.rl.rollout.torch.sampler_noise={arguments.noise}"
    train(folder / "clean", model, SETTINGS)
    for name, settings in {"uncorrected": (), **CORRECTIONS}.items():
        train(folder / f"{name}-{arguments.noise:g}", model, (*SETTINGS, noise, *settings))
    figures = Figures()
    report(figures, folder, arguments.noise)
    figures.note(
        f"Rewards are of the sampled episodes of the last {LAST} steps, which have the noise too; "
        "without it, of a run without noise. Each line is one run of one seed."
    )
    return figures.finish(arguments, seeds=[SEED])


def report(figures: Figures, folder: Path, noise: float) -> None:
    """Rewards at the end, and what share of the tokens the weights are worth."""

    def last(name: str, metric: str) -> float:
        return float(column(folder / name, metric)[-LAST:].mean())

    figures.report("no noise, reward", last("clean", "reward/mean"), "")
    uncorrected = last(f"uncorrected-{noise:g}", "reward/mean")
    figures.report("uncorrected, reward", uncorrected, "")
    ess = {}
    for name in CORRECTIONS:
        reward = last(f"{name}-{noise:g}", "reward/mean")
        figures.report(f"{name}, reward", reward, "")
        figures.at_least(f"{name}, reward gained on uncorrected", reward - uncorrected, "", 0.1)
        ess[name] = last(f"{name}-{noise:g}", "mismatch/ess")
        figures.report(f"{name}, effective sample size", ess[name], "")
    figures.at_most(
        "effective sample size, token less geometric", ess["token"] - ess["geometric"], "", 0
    )
    figures.at_most(
        "effective sample size, sequence less token", ess["sequence"] - ess["token"], "", 0
    )


if __name__ == "__main__":
    sys.exit(main())
