"""Writer: trajectories a second into a run, annotations and sealing included, and single reads."""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from agentrl.store import RunDirectory, TrajectoryReader, TrajectoryWriter
from agentrl.types import Trajectory
from benchmarks.figures import RESULTS, Figures
from benchmarks.viewers.trajectories import Episodes

__all__ = ["measure"]

NUMBER = 4096
STEP = 512
DISTINCT = 256
READS = 300
TARGET_A_S = 1500.0
DEMO_TOKENS = 96
DEMO_TURNS = 2
DEMO_STEPS = 20
LENGTHS = {2_000: 30.0, 32_000: 60.0}
"""Target of a single read in milliseconds, by the trajectory's tokens."""
NOTE = (
    f"Writer: {NUMBER} trajectories of 2,000 tokens in 4 turns with tool calls, {STEP} a step, "
    f"{DISTINCT} distinct ones of them. Each is written live, annotated with the columns of the "
    "default detail (7 arrays) and sealed with its step; the time runs from the first call until "
    "the writer is closed, so that all of it is on disk; one was written elsewhere before, so that "
    "all modules are loaded. A single read gives one trajectory whole "
    f"with its annotations, chosen at random, {READS} times, by a reader that has listed the run. "
    f"The code example: as many episodes a step as it plays, of {DEMO_TOKENS} tokens in "
    f"{DEMO_TURNS} turns, over {DEMO_STEPS} steps; its step is that of `python -m benchmarks.step`."
)


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Adds the figures of the writer and of single reads."""
    with tempfile.TemporaryDirectory() as folder:
        # what is loaded at the first write counts once a run, not a trajectory
        _write(
            RunDirectory.create(Path(folder) / "first"), Episodes(2_000, arguments.seed), 1
        )
        for num_tokens, target_ms in LENGTHS.items():
            number = NUMBER * 2_000 // num_tokens
            run = RunDirectory.create(Path(folder) / str(num_tokens))
            seconds, cpu_s = _write(run, Episodes(num_tokens, arguments.seed), number)
            name = f"{num_tokens:,} tokens"
            if num_tokens == 2_000:
                figures.at_least(
                    f"trajectories of {name} written and annotated",
                    number / seconds,
                    "1/s",
                    TARGET_A_S,
                )
                figures.report("processor time of one of them", 1e3 * cpu_s / number, "ms")
            else:
                figures.report(f"trajectories of {name}", number / seconds, "1/s")
            size = sum(
                path.stat().st_size for path in run.root.rglob("*") if path.is_file()
            )
            figures.report(
                f"bytes a token on disk, {name}", size / number / num_tokens, "B"
            )
            reader = TrajectoryReader(run)
            ids = [one.id for one in reader.summaries()]
            chosen = random.Random(arguments.seed).choices(ids, k=READS)
            p95 = _p95_ms(lambda one, reader=reader: reader.get(one), chosen)  # type: ignore[misc]
            figures.at_most(f"single read, {name}, p95", p95, "ms", target_ms)
        _demo(figures, RunDirectory.create(Path(folder) / "demo"), arguments.seed)
    figures.note(NOTE)


def _demo(figures: Figures, run: RunDirectory, seed: int) -> None:
    """Adds what the writer takes of a step of the code example."""
    rows = json.loads((RESULTS / "step.json").read_text(encoding="utf-8"))["figures"]
    known = {row["name"]: row["value"] for row in rows}
    a_step = round(known["code: episodes played a step"])
    made = Episodes(DEMO_TOKENS, seed, turns=DEMO_TURNS)
    _, cpu_s = _write(run, made, a_step * DEMO_STEPS, a_step)
    share = cpu_s / DEMO_STEPS / known["code: step"]
    figures.at_most(
        "of a step of the code example, the writer's processor time", 100 * share, "%", 2.0
    )


def _write(
    run: RunDirectory, episodes: Episodes, number: int, a_step: int = STEP
) -> tuple[float, float]:
    """Seconds of writing all, and of the processor."""
    made = [episodes.trajectory(0, index) for index in range(min(DISTINCT, number))]
    annotations = [episodes.annotation(one, 1) for one in made]
    start = time.monotonic()
    cpu_start = time.process_time()
    with TrajectoryWriter(run) as writer:
        for first in range(0, number, a_step):
            step = first // a_step + 1
            part = range(first, min(first + a_step, number))
            played: list[Trajectory] = [
                replace(made[n % len(made)], group_index=n, rollout_index=0) for n in part
            ]
            for one in played:
                writer.write(one, step)
            for n, one in zip(part, played, strict=True):
                learned = replace(
                    annotations[n % len(made)], trajectory_id=one.id, step=step
                )
                writer.annotate(learned)
            writer.seal(step)
        writer.flush()
        counts = writer.counts
    seconds = time.monotonic() - start
    cpu_s = time.process_time() - cpu_start
    if counts.written != number or counts.annotations != number:
        raise AssertionError(f"{number} were given and {counts} arrived")
    return seconds, cpu_s


def _p95_ms(read: Callable[[str], object], ids: list[str]) -> float:
    seconds = []
    for one in ids:
        start = time.perf_counter()
        read(one)
        seconds.append(time.perf_counter() - start)
    return 1e3 * float(np.percentile(seconds, 95))
