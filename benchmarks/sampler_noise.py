"""Sampler noise: what corrections are worth where the sampler is not the policy
(``python -m benchmarks.sampler_noise``).

A policy that has learned ``benchmarks/doors/config.yaml`` is trained on, with
the engine of
``benchmarks/noisy_engine.py``. Runs differ in ``algorithm.rollout_correction`` alone; one has no
noise. What each is worth at its end is seen without noise, on held-out tasks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from benchmarks import noisy_engine
from benchmarks.doors.runs import CONFIG, column, train, warm_up
from benchmarks.figures import Figures, add_arguments

ENGINE = f"{Path(noisy_engine.__file__)}:NoisyEngineSpec"
SEEDS = (0, 1, 2)
START_STEPS = 100
STEPS = 60
HELD_OUT = "{doors: {data: 'task.py:tasks', args: {split: held_out}, num_tasks: 300}}"
ENOUGH = 0.1
"""Accuracy that is lost where a run degrades."""
HELD = 0.05
"""Most accuracy that is lost where a run holds."""
PROMPTS = "stages.rl.train.batch_prompts=4"
CORRECTION = "stages.rl.algorithm.rollout_correction"
CORRECTIONS: Mapping[str, tuple[str, ...]] = {
    "token": (f"{CORRECTION}.level=token",),
    "sequence": (f"{CORRECTION}.level=sequence",),
    "geometric": (f"{CORRECTION}.level=geometric",),
    "geometric, band": (
        f"{CORRECTION}.level=geometric",
        f"{CORRECTION}.floor=0.5",
        f"{CORRECTION}.outside=mask",
    ),
    "token, band": (
        f"{CORRECTION}.level=token",
        f"{CORRECTION}.floor=0.5",
        f"{CORRECTION}.outside=mask",
    ),
    "rejection": (f"{CORRECTION}.reject=token", f"{CORRECTION}.reject_above=0.5"),
    "token, rejection": (
        f"{CORRECTION}.level=token",
        f"{CORRECTION}.reject=token",
        f"{CORRECTION}.reject_above=0.5",
    ),
}
VARIANTS: Mapping[str, tuple[str, ...]] = {"uncorrected": (), **CORRECTIONS}
LEVELS = ("geometric", "token", "sequence")
MILD = 1.0
"""Noise at which effective sample sizes are compared, nats. Under much more every weight of a
sequence is next to 0, and so all are alike."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is not there yet, then report."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser, benchmark="sampler_noise")
    parser.add_argument(
        "--runs",
        type=Path,
        help="folder of the run directories; finished ones are not run again",
    )
    parser.add_argument(
        "--noise", type=float, default=4.0, help="standard deviation in nats"
    )
    arguments = parser.parse_args(argv)
    folder = arguments.runs or Path(tempfile.mkdtemp(prefix="agentrl-noise-"))
    folder.mkdir(parents=True, exist_ok=True)
    model = warm_up(folder / "warmup")
    noise = noisy(arguments.noise)
    for seed in SEEDS:
        seeded = (f"run.seed={seed}", PROMPTS)
        start = run_of(folder, "start", seed)
        train(start, model, (*seeded, f"stages.rl.train.steps={START_STEPS}"))
        learned = start / "models" / "rl"
        settings = (*seeded, f"stages.rl.train.steps={STEPS}")
        train(run_of(folder, "clean", seed), learned, settings)
        for name, own in VARIANTS.items():
            train(run_of(folder, name, seed), learned, (*settings, *noise, *own))
        mild = noisy(MILD)
        for level in LEVELS:
            train(
                mild_run(folder, level, seed),
                learned,
                (*settings, *mild, *CORRECTIONS[level]),
            )
    figures = Figures()
    report(figures, folder)
    figures.note(
        f"Accuracy: one episode of each of 300 held-out tasks, sampled without noise; means of "
        f"{len(SEEDS)} seeds, each from its own start of {START_STEPS} steps without noise. Then "
        f"{STEPS} steps follow with noise of {arguments.noise:g} nats on the sampler's logits, "
        "whose logprobs have it too. Without a correction, or with weights near 1, tokens that "
        "noise alone brought are learned as if the policy had chosen them."
    )
    figures.note(
        "The noise and the number of steps were chosen on seed 9. A geometric mean weighs all "
        "tokens of a sequence alike and so hides single ones; its band leaves out such sequences. "
        "Rejection and the band of tokens keep tokens that the noise made likelier than they are "
        "at their full weight, or near it, which is a bias: they go with weights."
    )
    return figures.finish(arguments, seeds=SEEDS)


def noisy(scale: float) -> tuple[str, str]:
    """Settings of a sampler with so much noise."""
    return f"stages.rl.rollout.engine={ENGINE}", f"stages.rl.rollout.noisy.scale={scale}"


def run_of(folder: Path, name: str, seed: int) -> Path:
    """The run directory of a variant."""
    return folder / f"{name.replace(', ', '-').replace(' ', '_')}-{seed}"


def mild_run(folder: Path, level: str, seed: int) -> Path:
    """The run directory of a correction under mild noise."""
    return run_of(folder, f"{level}, mild", seed)


def report(figures: Figures, folder: Path) -> None:
    """Accuracies at the end, and what share of the tokens the weights are worth."""

    def of_all(name: str) -> float:
        return mean(accuracy(run_of(folder, name, seed)) for seed in SEEDS)

    def sample_size(name: str) -> float:
        runs = (mild_run(folder, name, seed) for seed in SEEDS)
        return mean(float(column(run, "mismatch/ess").mean()) for run in runs)

    start = of_all("start")
    figures.report("start, accuracy", start, "")
    figures.report("no noise, accuracy", of_all("clean"), "")
    uncorrected = of_all("uncorrected")
    figures.report("uncorrected, accuracy", uncorrected, "")
    figures.at_least("uncorrected, accuracy lost", start - uncorrected, "", ENOUGH)
    for name in CORRECTIONS:
        found = of_all(name)
        figures.report(f"{name}, accuracy", found, "")
        figures.at_most(f"{name}, accuracy lost", start - found, "", HELD)
    sizes = {level: sample_size(level) for level in LEVELS}
    for level, size in sizes.items():
        figures.report(f"{level}, effective sample size under {MILD:g} nats", size, "")
    geometric, token, sequence = sizes.values()
    figures.at_most("effective sample size, token less geometric", token - geometric, "", 0)
    figures.at_most("effective sample size, sequence less token", sequence - token, "", 0)


def accuracy(run: Path) -> float:
    """Of the run's last model, without noise; kept beside the run once it is known.

    Raises:
        RuntimeError: infrastructure failed an episode.
    """
    kept = run.with_name(f"{run.name}.accuracy.json")
    if not kept.is_file():
        command = [
            sys.executable,
            "-m",
            "agentrl",
            "eval",
            str(run / "models/rl"),
            str(CONFIG),
        ]
        done = subprocess.run(
            [*command, "--json", f"eval.sets={HELD_OUT}"], check=True, capture_output=True
        )
        kept.write_bytes(done.stdout)
    found = json.loads(kept.read_text(encoding="utf-8"))
    if found["failed_samples"]:
        raise RuntimeError(
            f"{found['failed_samples']} episodes of {run.name} failed; try again"
        )
    return float(found["sources"]["doors"]["avg@1"]["value"])


if __name__ == "__main__":
    sys.exit(main())
