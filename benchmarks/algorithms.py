"""Algorithms: what each learns on the code example (``python -m benchmarks.algorithms``).

All runs start from one warm-up, and play 8 prompts a step, 8 rollouts each, in 4 updates: with one,
the ratio to the old policy is 1, and half of the algorithms are the same. The learning rate of an
algorithm is the better of two on a seed of its own; other seeds are reported. The code example's
sandbox, which takes most of its time and has no part in what an algorithm learns, is replaced by
``benchmarks/algorithms_tool.py``, but for the runs whose critic is judged.

Two runs go on at once. A run that is finished is not run again, and one that was interrupted goes
on, so that ``--runs FOLDER`` may be given again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median, stdev

from benchmarks.figures import Figures, add_arguments

__all__ = ["ALGORITHMS", "DAPO", "Run"]

CONFIG = Path(__file__).resolve().parents[1] / "examples" / "code" / "config.yaml"
TOOL = f"{Path(__file__).with_name('algorithms_tool.py')}:python"
RATES = ("3.0e-4", "6.0e-4")
TUNING_SEED = 9
SEEDS = (0, 1, 2)
STEPS = 50
AT = (25, 50)
QUIET_STEPS = 10
"""Of a run that is alone on the machine, for its seconds."""
LAST = 20
"""Steps over whose median a critic is judged."""

CRITIC = (
    "stages.rl.critic.stage=model",
    "critic.optim.lr=2.0e-3",
    "algorithm.critic_warmup_steps=10",
)
OVERLONG = "algorithm.overlong={max_tokens: 320, buffer_tokens: 128}"

ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "grpo": ("algorithm.name=grpo",),
    "dr_grpo": ("algorithm.name=dr_grpo", "algorithm.constant_tokens=320"),
    "dapo": ("algorithm.name=dapo", OVERLONG),
    "rloo": ("algorithm.name=rloo",),
    "remax": ("algorithm.name=remax",),
    "reinforce_plus_plus": ("algorithm.name=reinforce_plus_plus",),
    "reinforce_plus_plus, baseline group": (
        "algorithm.name=reinforce_plus_plus",
        "algorithm.baseline=group",
    ),
    "gspo": ("algorithm.name=gspo",),
    "cispo": ("algorithm.name=cispo",),
    "sapo": ("algorithm.name=sapo",),
    "dppo, tv": ("algorithm.name=dppo",),
    "dppo, kl": (
        "algorithm.name=dppo",
        "algorithm.divergence=kl",
        "algorithm.clip_low=0.05",
        "algorithm.clip_high=0.05",
    ),
    # One tool call whose result is right or wrong: turns tell nothing that totals do not.
    "gigpo": ("algorithm.name=gigpo", "algorithm.filter_zero_variance=true"),
    "turn_grpo": ("algorithm.name=turn_grpo", "algorithm.filter_zero_variance=true"),
    "echo": ("algorithm.name=echo",),
    "ppo": ("algorithm.name=ppo", *CRITIC),
    "ppo, 16 prompts": (
        "algorithm.name=ppo",
        "train.batch_prompts=16",
        "train.mini_batch_prompts=4",
        *CRITIC,
    ),
    "pf_ppo": ("algorithm.name=pf_ppo", *CRITIC),
    "vapo": ("algorithm.name=vapo", *CRITIC),
    "distillation": ("algorithm.name=distillation", "stages.rl.reference.path={teacher}"),
}
JUDGED = "ppo, 16 prompts"
"""Whose critic has to foretell: with the example's own batch, since its settings were found so."""
JUDGED_RATE = "7.5e-5"
"""Its one rate: at the others nearly every episode is right after half of the steps, and what is
left to foretell is chance."""
LEARN = ("gspo", "dapo", "gigpo", "distillation")
"""Algorithms that should gain at least half of what GRPO does."""

DAPO: Mapping[str, tuple[str, ...]] = {
    "dapo": (),
    "dapo without clip-higher": ("algorithm.clip_high=0.2",),
    "dapo without dynamic sampling": ("algorithm.filter_zero_variance=false",),
    "dapo without the mean over tokens": ("algorithm.reduction=trajectory_mean",),
    "dapo without overlong shaping": ("algorithm.overlong={}",),
}

NOTES = (
    "Accuracy: one sampled episode of each of 500 held-out problems. Each row is the mean of the "
    "seeds named above, with the lowest and the highest; the rate is the better of 3e-4 and 6e-4 "
    f"on seed {TUNING_SEED}, and DAPO's for its variants. Seconds are the median of the first "
    f"{QUIET_STEPS} steps of a run with nothing beside it. The code example's tool runs without a "
    "sandbox here.",
    "Every algorithm sees as many episodes, but for those that filter groups of equal rewards and "
    "play others in their place, and for ReMax, which plays one more a group. An order of "
    "algorithms cannot be read off one small task.",
    "PPO with 16 prompts, in the example's sandbox, sees twice the episodes. Its critic's rate and "
    f"warm-up, and the batch, were chosen on seed {TUNING_SEED}, of six settings; then the "
    f"policy's rate of {JUDGED_RATE}: at 3e-4 nearly every episode was right after half of the "
    "steps, and of what chance leaves the critic foretold .25 on seed 2.",
    "DAPO's intervals: 95%, of the mean over the seeds, by Student's t.",
    "ECHO: at its rate, the better one on seed 9, the policy stopped calling its tool on seed 1 "
    "(.226). VAPO learned least: of 8 prompts a step its critic foretold little.",
)
STUDENT_T = 4.303
"""The two-sided 95% quantile for three seeds (two degrees of freedom)."""


@dataclass(frozen=True)
class Run:
    """A training run from the common warm-up.

    Args:
        name: of its folder.
        settings: of the command line; ``{teacher}`` stands for the teacher's folder.
        seed: ``run.seed``.
        rate: the learning rate.
    """

    name: str
    settings: tuple[str, ...]
    seed: int
    rate: str


def run_of(algorithm: str, rate: str, seed: int) -> Run:
    """The run of an algorithm, or of a variant of DAPO."""
    known = {
        **ALGORITHMS,
        **{name: (*ALGORITHMS["dapo"], *own) for name, own in DAPO.items()},
    }
    tool = () if algorithm == JUDGED else (f"env.tools=[{TOOL}]",)
    folder = algorithm.replace(", ", "-").replace(" ", "_")
    return Run(f"{folder}-{rate}-{seed}", (*tool, *known[algorithm]), seed, rate)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what is not there yet, then reports."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.algorithms",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser, benchmark="algorithms")
    parser.add_argument(
        "--runs", type=Path, metavar="FOLDER", help="of the run directories"
    )
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="one algorithm or variant"
    )
    parser.add_argument("--dapo", action="store_true", help="DAPO's ablation too")
    parser.add_argument("--at-once", type=int, default=2, help="runs beside each other (2)")
    parser.add_argument(
        "--report", action="store_true", help="run nothing, and report what is finished"
    )
    arguments = parser.parse_args(argv)
    folder = arguments.runs or Path(tempfile.mkdtemp(prefix="agentrl-algorithms-"))
    names = arguments.only or list({**ALGORITHMS, **(DAPO if arguments.dapo else {})})
    if unknown := set(names) - ALGORITHMS.keys() - DAPO.keys():
        parser.error(f"--only has {sorted(unknown)}; known are {[*ALGORITHMS, *DAPO]}")
    if not arguments.report:
        run_all(folder, names, arguments.at_once)
    figures = Figures()
    report(figures, folder, names)
    for note in NOTES:
        figures.note(note)
    return figures.finish(arguments, seeds=SEEDS)


def run_all(folder: Path, names: Sequence[str], at_once: int) -> None:
    """The warm-up, the teacher, the runs that choose a rate, then those that are reported."""
    warm_up(folder)
    if "distillation" in names:
        teacher = ("train.steps=36", "train.batch_prompts=16", f"env.tools=[{TOOL}]")
        train(folder, Run("teacher", teacher, 8, RATES[-1]))
    with ThreadPoolExecutor(at_once) as pool:
        # so that what is finished can be reported
        for start in range(0, len(names), at_once):
            some = names[start : start + at_once]
            tuning = dict.fromkeys(run for name in some for run in tuning_runs(name))
            list(pool.map(lambda run: train(folder, run), tuning))
            chosen = [
                run_of(name, best_rate(folder, name), seed)
                for seed in SEEDS
                for name in some
            ]
            list(pool.map(lambda run: train(folder, run), chosen))
    for name in names:
        train(folder, quiet_run(folder, name))


def warm_up(folder: Path) -> None:
    """The model that all runs start from: the example's own warm-up."""
    place = folder / "warmup"
    if (place / "summary.json").is_file():
        return
    given = (
        f"run.dir={place}",
        f"run.seed={TUNING_SEED}",
        "stages.rl.steps=1",
        "stages.rl.eval.sets.code.num_tasks=500",
        "stages.rl.eval.sets.code_sharpened.num_tasks=1",
        "stages.rl.eval.sets.code_without_tool.num_tasks=1",
    )
    agentrl_train(place, given)


def train(folder: Path, run: Run) -> None:
    """The run, unless it is finished."""
    place = folder / run.name
    if not (place / "summary.json").is_file():
        agentrl_train(place, (f"run.dir={place}", *settings_of(folder, run)))


def settings_of(folder: Path, run: Run) -> tuple[str, ...]:
    """The run's settings of the command line, beside its folder."""
    own = (
        text.replace("{teacher}", str(folder / "teacher/models/rl"))
        for text in run.settings
    )
    return (
        f"run.seed={run.seed}",
        f"model.path={folder / 'warmup/models/warmup'}",
        "placement.mode=inline",
        f"optim.lr={run.rate}",
        f"train.steps={STEPS}",
        "train.batch_prompts=8",
        "train.mini_batch_prompts=2",
        "stages.rl.eval.before=false",
        "stages.rl.eval.greedy=false",
        f"stages.rl.eval.every={AT[0]}",
        "stages.rl.eval.sets={code: {data: 'task.py:tasks', args: {split: held_out}, "
        "num_tasks: 500}}",
        *own,
    )


def agentrl_train(place: Path, settings: Sequence[str]) -> None:
    """``agentrl train`` on the code example; an interrupted run goes on.

    Raises:
        RuntimeError: the run failed; its output lies beside its folder.
    """
    going_on = ["--resume"] if (place / "run.json").is_file() else []
    command = [sys.executable, "-m", "agentrl", "train", str(CONFIG), *settings, *going_on]
    place.parent.mkdir(parents=True, exist_ok=True)
    told = place.with_name(f"{place.name}.log")
    print(f"--- {place.name}", flush=True)
    with told.open("a", encoding="utf-8") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, stdout=log, stderr=log, env=environment)
    if done.returncode:
        raise RuntimeError(f"{place.name} ended with {done.returncode}; see {told}")


def tuning_runs(name: str) -> list[Run]:
    """A run for each rate that is tried; a variant of DAPO has DAPO's."""
    tuned = "dapo" if name in DAPO else name
    rates = (JUDGED_RATE,) if name == JUDGED else RATES
    return [run_of(tuned, rate, TUNING_SEED) for rate in rates]


def quiet_run(folder: Path, name: str) -> Run:
    """A short run that nothing is beside."""
    run = run_of(name, best_rate(folder, name), SEEDS[0])
    own = (*run.settings, f"train.steps={QUIET_STEPS}", "stages.rl.eval.sets={}")
    return replace(run, name=f"{run.name}-quiet", settings=own)


def best_rate(folder: Path, name: str) -> str:
    """The rate whose run is the better one at its end, on the seed that is for this."""
    return max(
        tuning_runs(name), key=lambda run: accuracies(folder / run.name)[AT[-1]]
    ).rate


def report(figures: Figures, folder: Path, names: Sequence[str]) -> None:
    """Figures of what is finished."""
    before = warm_up_accuracy(folder)
    figures.report("warm-up, accuracy", before, "")
    gains: dict[str, float] = {}
    for name in names:
        if not all(finished(folder, run) for run in tuning_runs(name)):
            continue
        rate = best_rate(folder, name)
        runs = [folder / run_of(name, rate, seed).name for seed in SEEDS]
        done = [run for run in runs if (run / "summary.json").is_file()]
        told = f"{name} ({float(rate):g}, {len(done)} of {len(SEEDS)} seeds)"
        for step in AT if done else ():
            values = [accuracies(run)[step] for run in done]
            figures.report(f"{told}, accuracy at {step}", mean(values), "")
            figures.report(f"{told}, lowest at {step}", min(values), "")
            figures.report(f"{told}, highest at {step}", max(values), "")
        if done:
            quiet = quiet_run(folder, name)
            if finished(folder, quiet):
                figures.report(f"{told}, a step alone", seconds(folder / quiet.name), "s")
            gains[name] = mean(accuracies(run)[AT[-1]] for run in done) - before
        report_targets(figures, name, told, done, gains)


def report_targets(
    figures: Figures, name: str, told: str, done: Sequence[Path], gains: Mapping[str, float]
) -> None:
    """What some algorithms have to reach."""
    if name == JUDGED:
        for run in done:
            told = f"{name}, seed {run.name.rpartition('-')[2]}"
            figures.at_least(f"{told}, accuracy at 50", accuracies(run)[50], "", 0.60)
            explained = [value for _, value in logged(run, "critic/explained_variance")]
            figures.at_least(
                f"{told}, explained variance", median(explained[-LAST:]), "", 0.3
            )
    if name in LEARN and {name, "grpo"} <= gains.keys():
        share = gains[name] / gains["grpo"]
        figures.at_least(f"{told}, gain as a share of grpo's", share, "x", 0.5)
    if name in DAPO and len(done) == len(SEEDS):
        values = [accuracies(run)[AT[-1]] for run in done]
        half = STUDENT_T * stdev(values) / len(values) ** 0.5
        figures.report(f"{told}, half of the interval at 50", half, "")


def finished(folder: Path, run: Run) -> bool:
    return (folder / run.name / "summary.json").is_file()


def accuracies(run: Path) -> dict[int, float]:
    """Accuracy on the held-out problems by step."""
    return dict(logged(run, "eval/code/sampled"))


def warm_up_accuracy(folder: Path) -> float:
    """Sampled accuracy of the common warm-up."""
    summary = json.loads((folder / "warmup/summary.json").read_text(encoding="utf-8"))
    return float(summary["eval"]["code"]["before"]["sampled"])


def seconds(run: Path) -> float:
    """The median of the run's steps."""
    return median(value for _, value in logged(run, "time/step_s"))


def logged(run: Path, metric: str) -> Iterator[tuple[int, float]]:
    """Steps and values of a metric."""
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if metric in row:
            yield int(row["step"]), float(row[metric])


if __name__ == "__main__":
    sys.exit(main())
