"""Schedule: seconds a step, staleness and what becomes of slow groups, by ``rollout.schedule``.

``python -m benchmarks.schedule --only speed`` measures on a long-tailed task, whose turns wait far
longer than they compute; ``--only accuracy`` trains the code example, its answers made as slow, by
two schedules and examines both. ``--runs FOLDER`` keeps the runs, and ``--seeds 0 1`` measures some
of them: a further call goes on with those that are missing, and reports all that it names.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from agentrl.controller.ledger import ledger_rows
from agentrl.store import RunDirectory, TrajectoryReader
from agentrl.types import load_object
from benchmarks.figures import ROOT, Figures, add_arguments, measure_parts
from benchmarks.fresh.examine import examine
from benchmarks.step import CODE, Row, checkpoint, default_cache, median_of, train

LONG_TAIL = ROOT / "benchmarks" / "long_tail"
WAITS: dict[str, float] = {"median_s": 0.5, "sigma": 1.0}
STEPS = 24
COLD_STEPS = 3
TARGET = 1.8
SYNC = "sync"
DECISIVE = "async, wait, η 2"
SCHEDULES: Mapping[str, tuple[str, ...]] = {
    SYNC: ("rollout.schedule=sync",),
    "one_step_off": ("rollout.schedule=one_step_off",),
    **{
        f"async, {rule}, η {bound}": (
            "rollout.schedule=async",
            f"rollout.on_stale={rule}",
            f"rollout.max_staleness={bound}",
        )
        for rule in ("wait", "drop")
        for bound in (1, 2, 4)
    },
}
LOST_BY_AGE = ("stale", "surplus")
SEEDS = {"speed": (0, 1, 2), "accuracy": (0, 1, 2, 3, 4)}
SLOW_CODE = (
    f"stages.rl.env.entry_point={LONG_TAIL}/task.py:SlowTools",
    "stages.rl.algorithm.rollout_correction.level=token",
    "stages.rl.algorithm.filter_zero_variance=false",
    # at the example's own 6e-4, two versions behind, one seed of three collapses
    "stages.rl.optim.lr=3e-4",
    "stages.rl.rollout.max_running=384",
    "stages.rl.eval.sets={}",
    "placement.mode=inline",
    "checkpoint.every=null",
)
MOST_LOSS = 5.0

NOTES = {
    "speed": (
        "Episodes of two turns, groups of 4, batches of 4 groups. Each turn's answer waits for a "
        "lognormal time with a median of 0.5 s and σ 1. The waits depend on the seed, the group "
        "and the rollout alone, so every schedule meets the same. The model is tiny: a step "
        "computes for less than a second. One rollout worker is bound to one core; the driver and "
        "the rank that trains are bound to another.",
        f"Seconds a step are means over the steps after the first {COLD_STEPS}; ratios are to "
        "`sync` of the same seed. Groups count that were issued before step N - η - 1 of N. The "
        "slowest tenth is that of the groups' longest episodes, also of those that were not "
        "trained. The share of a step that waits for rollouts is of the core that trains.",
    ),
    "accuracy": (
        "The code example, with a wait before each answer of its environment (lognormal, median "
        "0.3 s, σ 1), up to 384 episodes in flight, and each group trained. All runs start from "
        "the warm-up of seed 0; seeds decide tasks and samples. Both schedules train as many "
        "groups and correct by the token. Accuracies are those of 1,000 fresh problems, without "
        "waits.",
    ),
}


@dataclass(frozen=True, slots=True)
class Fates:
    """What became of the groups that were issued early enough to be trained, by the ledger.

    Attributes:
        trained: groups.
        named: groups that were dropped or failed for another reason than their age.
        lost: groups that were dropped or cancelled for their age, or have no end.
    """

    trained: frozenset[int]
    named: frozenset[int]
    lost: frozenset[int]

    @property
    def all(self) -> frozenset[int]:
        """Every group that counts."""
        return self.trained | self.named | self.lost


def fates(run_dir: Path, before_step: int) -> Fates:
    """The fates of the groups that were issued before a step was trained."""
    step = 0
    ends: dict[int, Counter[str]] = {}
    for row in ledger_rows(run_dir / "ledger.jsonl"):
        group = row["group_index"]
        if row["to"] == "trained":
            step = row["step"]
        if row["to"] == "running" and step + 1 < before_step:
            ends[group] = Counter()
        if group not in ends:
            continue
        if row["to"] in ("trained", "failed"):
            ends[group][row["to"]] += 1
        elif row["to"] in ("dropped", "cancelled"):
            ends[group]["age" if row["reason"] in LOST_BY_AGE else "named"] += 1
    trained = frozenset(group for group, end in ends.items() if end["trained"])
    named = frozenset(
        group
        for group, end in ends.items()
        if group not in trained and not end["age"] and (end["named"] or end["failed"])
    )
    return Fates(trained, named, frozenset(ends) - trained - named)


def slowest_tenth(groups: frozenset[int], seed: int, group_size: int) -> list[int]:
    """The tenth of the groups whose longest episodes wait longest."""
    wait_s = load_object("task.py:wait_s", LONG_TAIL)
    turns = load_object("task.py:TURNS", LONG_TAIL)

    def longest(group: int) -> float:
        episodes = [f"{group}-{rollout}" for rollout in range(group_size)]
        waits = [
            [wait_s(seed, one, turn, **WAITS) for turn in range(turns)] for one in episodes
        ]
        return float(max(map(sum, waits)))

    return sorted(groups, key=longest)[-max(1, round(len(groups) / 10)) :]


def busy_share(run_dir: Path) -> float:
    """The share of its core that the rollout worker was busy, between its first episodes and
    its last."""
    reader = TrajectoryReader(RunDirectory.open(run_dir))
    ids = [summary.id for summary in reader.summaries(purpose="train")]
    stored = reader.get_many([*ids[:8], *ids[-8:]])
    infos = [
        turn.info for one in stored for turn in one.trajectory.turns if "at_s" in turn.info
    ]
    infos.sort(key=lambda info: info["at_s"])
    first, last = infos[0], infos[-1]
    return float((last["cpu_s"] - first["cpu_s"]) / (last["at_s"] - first["at_s"]))


def kept_rows(config: Path, run_dir: Path, *overrides: str) -> list[Row]:
    """The metrics of a run, which is made unless it is there; one that broke off begins again."""
    kept = run_dir.with_suffix(".json")
    if not kept.is_file():
        if run_dir.exists():
            raise FileExistsError(
                f"{run_dir} must be a finished run or none, but {kept.name} is not beside it; "
                "remove the folder"
            )
        rows = train(config, run_dir, *overrides)
        kept.write_text(json.dumps(rows), encoding="utf-8")
    loaded: list[Row] = json.loads(kept.read_text(encoding="utf-8"))
    return loaded


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of the long-tailed task."""

    step_s: float
    rows: Sequence[Row]
    fates: Fates
    slow_trained: float
    busy: float


def measure(arguments: argparse.Namespace, name: str, seed: int) -> Measured:
    """Runs a schedule with a seed's waits, or reads what was kept of it."""
    rollouts, *training = sorted(os.sched_getaffinity(0))
    if not training:
        raise RuntimeError(
            "one core each for rollouts and training: this machine has one alone"
        )
    run_dir = arguments.runs / f"{name.replace(', ', '-').replace(' ', '')}-{seed}"
    waits = {"seed": seed, "core": rollouts, **WAITS}
    rows = kept_rows(
        LONG_TAIL / "config.yaml",
        run_dir,
        *SCHEDULES[name],
        f"train.steps={arguments.steps}",
        f"run.seed={seed}",
        f"data.args.core={training[0]}",
        *(f"env.args.{key}={value}" for key, value in waits.items()),
    )
    bound = next(
        (int(text[-1]) for text in SCHEDULES[name] if "max_staleness" in text), None
    )
    found = fates(
        run_dir, arguments.steps - (int(name != SYNC) if bound is None else bound) - 1
    )
    slow = slowest_tenth(found.all, seed, 4)
    counted = rows[COLD_STEPS:]
    step_s = mean(row["time/step_s"] for row in counted)
    print(f"{name}, seed {seed}: {step_s:.2f} s a step", flush=True)
    return Measured(
        step_s,
        counted,
        found,
        len(found.trained.intersection(slow)) / len(slow),
        busy_share(run_dir),
    )


def speed(figures: Figures, arguments: argparse.Namespace) -> None:
    """Every schedule, seed by seed, so that noise of the machine meets all of them."""
    runs: dict[str, list[Measured]] = {name: [] for name in arguments.schedules}
    for number, seed in enumerate(arguments.seeds or SEEDS["speed"]):
        order = list(runs) if number % 2 == 0 else list(reversed(runs))
        for name in order:
            runs[name].append(measure(arguments, name, seed))
    for name, own in runs.items():
        tell_speed(figures, name, own, runs.get(SYNC, ()))
    for note in NOTES["speed"]:
        figures.note(note)


def tell_speed(
    figures: Figures, name: str, own: Sequence[Measured], sync: Sequence[Measured]
) -> None:
    """The figures of one schedule over its seeds."""
    figures.report(f"{name}: a step", mean(run.step_s for run in own), "s")
    for phase in ("update", "publish"):
        spent = mean(median_of(run.rows, f"time/{phase}_s") for run in own)
        figures.report(f"{name}: {phase}", spent, "s")
    waits = [sum(row["time/wait_rollout_s"] for row in run.rows) for run in own]
    steps = [sum(row["time/step_s"] for row in run.rows) for run in own]
    figures.report(
        f"{name}: share of a step that waits for rollouts", sum(waits) / sum(steps), ""
    )
    busy = mean(run.busy for run in own)
    if name == SYNC:
        figures.at_most(f"{name}: share of the rollouts' core that is busy", busy, "", 0.5)
        return
    figures.report(f"{name}: share of the rollouts' core that is busy", busy, "")
    if sync:
        ratios = [one.step_s / run.step_s for one, run in zip(sync, own, strict=True)]
        whole = sum(one.step_s for one in sync) / sum(run.step_s for run in own)
        if name == DECISIVE:
            figures.at_least(f"{name}: sync's step over its own", whole, "x", TARGET)
        else:
            figures.report(f"{name}: sync's step over its own", whole, "x")
        figures.report(f"{name}: lowest of the seeds", min(ratios), "x")
        figures.report(f"{name}: highest of the seeds", max(ratios), "x")
    bound = int(name[-1]) if name.startswith("async") else 1
    most = max(row["async/staleness/max"] for run in own for row in run.rows)
    figures.at_most(f"{name}: largest staleness", most, "versions", bound)
    issued = sum(len(run.fates.all) for run in own)
    kept = sum(len(run.fates.trained) + len(run.fates.named) for run in own) / issued
    trained = sum(len(run.fates.trained) for run in own) / issued
    slow = mean(run.slow_trained for run in own)
    figures.report(f"{name}: share of the groups that is trained", trained, "")
    told = f"{name}: share of the groups that is trained, filtered or failed"
    of_slow = f"{name}: share of the slowest tenth that is trained"
    if "wait" in name:
        figures.at_least(told, kept, "", 1.0)
    else:
        figures.report(told, kept, "")
    figures.report(of_slow, slow, "")


def accuracy(figures: Figures, arguments: argparse.Namespace) -> None:
    """The code example by both schedules, seed by seed."""
    accuracies: dict[str, dict[str, list[float]]] = {SYNC: {}, DECISIVE: {}}
    model = checkpoint(arguments.cache, "code", CODE, seed=0)
    for seed in arguments.seeds or SEEDS["accuracy"]:
        for name, own in accuracies.items():
            if name not in arguments.schedules:
                continue
            steps = arguments.code_steps
            run_dir = (
                arguments.runs / f"code-{'sync' if name == SYNC else 'wait'}-{steps}-{seed}"
            )
            settings = [f"stages.rl.{text}" for text in SCHEDULES[name]]
            settings += [f"stages.rl.steps={steps}", *arguments.set]
            start = (f"model.path={model}", f"run.seed={seed}")
            rows = kept_rows(CODE / "config.yaml", run_dir, *SLOW_CODE, *start, *settings)
            kept = run_dir.with_suffix(".fresh.json")
            if not kept.is_file():
                known = examine(run_dir / "models" / "rl", "code", seed)
                kept.write_text(json.dumps(known), encoding="utf-8")
            for decoding, value in json.loads(kept.read_text(encoding="utf-8")).items():
                own.setdefault(decoding, []).append(value)
                figures.report(f"{name}, seed {seed}: {decoding} after", value, "")
            most = max(row["async/staleness/max"] for row in rows)
            figures.report(f"{name}, seed {seed}: largest staleness", most, "versions")
            trained = sum(row["count/trajectories"] for row in rows)
            figures.report(f"{name}, seed {seed}: trained trajectories", trained, "")
            print(f"{name}, seed {seed}: done", flush=True)
    if all(accuracies.values()):
        tell_accuracy(figures, accuracies)
    for note in NOTES["accuracy"]:
        figures.note(note)


def tell_accuracy(
    figures: Figures, accuracies: Mapping[str, Mapping[str, Sequence[float]]]
) -> None:
    """The losses of points of accuracy, seed by seed."""
    for decoding, of_sync in accuracies[SYNC].items():
        pairs = zip(of_sync, accuracies[DECISIVE][decoding], strict=True)
        losses = [100 * (one - other) for one, other in pairs]
        told = f"{decoding}: sync less {DECISIVE}"
        figures.at_most(f"{told}, mean over the seeds", mean(losses), "points", MOST_LOSS)
        figures.report(f"{told}, lowest", min(losses), "points")
        figures.report(f"{told}, highest", max(losses), "points")


PARTS = {"speed": speed, "accuracy": accuracy}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.schedule", description=__doc__
    )
    add_arguments(parser, benchmark="schedule")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="parts (all)")
    parser.add_argument("--seeds", nargs="+", type=int, help=f"by default {SEEDS}")
    parser.add_argument(
        "--steps", type=int, default=STEPS, help=f"of speed's runs ({STEPS})"
    )
    parser.add_argument(
        "--code-steps", type=int, default=36, help="of accuracy's runs (36)"
    )
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="more settings of accuracy's runs",
    )
    parser.add_argument(
        "--schedules", nargs="+", choices=SCHEDULES, default=list(SCHEDULES), metavar="NAME"
    )
    parser.add_argument("--runs", type=Path, help="folder of the runs; finished ones stay")
    parser.add_argument(
        "--cache", type=Path, default=default_cache(), help="of the warm-ups"
    )
    arguments = parser.parse_args(argv)
    if arguments.runs is None:
        arguments.runs = Path(tempfile.mkdtemp(prefix="agentrl-schedule-"))
    arguments.runs.mkdir(parents=True, exist_ok=True)
    arguments.cache.mkdir(parents=True, exist_ok=True)
    seeds = {name: arguments.seeds or SEEDS[name] for name in PARTS}
    return measure_parts(PARTS, arguments, seeds)


if __name__ == "__main__":
    sys.exit(main())
