"""Checkpoints: how long one holds up training, how much slower the step beside it is, and the
memory of an export.

``python -m benchmarks.checkpoints`` trains a random model of 125 million parameters on two ranks
over gloo, a thread a rank, and exports a checkpoint of one of 500 million.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from agentrl.store import RunDirectory
from benchmarks.figures import ROOT, Figures, add_arguments
from benchmarks.start import write_random_model
from benchmarks.trainer.ranks import MemoryPeak, run_ranks
from benchmarks.trainer.shapes import SHAPES

__all__ = ["export", "report_export", "report_training"]

RANK = "benchmarks.trainer.checkpoint_rank"

MIB = 2**20
MOST_BLOCKED_S = 0.5
MOST_SLOWDOWN = 1.5
MOST_OVER_SHARD = 512
"""MiB of an export beside one file of weights."""

NOTES = (
    "A checkpoint holds up training for as long as begin_save lasts on the slower rank. The step "
    "beside it is the first one after that; steps without one are taken just before, so that "
    "whatever else the machine does meets both.",
    "An export's memory is the line Anonymous of /proc/PID/smaps_rollup of the whole command, "
    "interpreter and libraries included, sampled every 5 ms.",
)


def report_training(figures: Figures, found: Mapping[str, Any]) -> None:
    """What ``train`` measured."""
    alone, beside = median(found["alone"]), median(found["beside"][1:])
    figures.report("size of a checkpoint", found["bytes"] / MIB, "MiB")
    figures.report("first checkpoint: training held up", found["blocked"][0], "s")
    later = max(found["blocked"][1:])
    figures.at_most(
        "later checkpoints: training held up at most", later, "s", MOST_BLOCKED_S
    )
    figures.report(
        "later checkpoints: seconds to write one", median(found["written"][1:]), "s"
    )
    figures.report("a step without a checkpoint, median", alone, "s")
    figures.report("a step beside one, median", beside, "s")
    figures.at_most(
        "a step beside one over one without", beside / alone, "x", MOST_SLOWDOWN
    )


def export(run: Path, to: Path, shard_bytes: int) -> int:
    """Runs ``agentrl export model``; its peak of anonymous memory, bytes."""
    command = [
        sys.executable,
        "-m",
        "agentrl",
        "export",
        "model",
        str(run),
        "--to",
        str(to),
    ]
    process = subprocess.Popen([*command, "--shard-gb", str(shard_bytes / 1e9)], cwd=ROOT)
    peak = MemoryPeak(process.pid, interval_s=0.005)
    try:
        status = process.wait(timeout=600)
    finally:
        process.kill()
        process.wait()
    if status:
        raise RuntimeError(
            f"agentrl export model ended with {status}; its message is above"
        )
    return peak.close()


def report_export(figures: Figures, peak: int, folder: Path) -> None:
    """The peak against the largest file of weights in ``folder``."""
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    figures.report("export: all weights", sum(sizes) / MIB, "MiB")
    figures.report("export: largest file of weights", max(sizes) / MIB, "MiB")
    over = (peak - max(sizes)) / MIB
    figures.at_most("export: anonymous memory over that file", over, "MiB", MOST_OVER_SHARD)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.checkpoints", description=__doc__
    )
    parser.add_argument(
        "--shape", choices=tuple(SHAPES), default="125M", help="that is trained"
    )
    parser.add_argument("--checkpoints", type=int, default=5, help="taken while it trains")
    parser.add_argument(
        "--steps", type=int, default=3, help="without one, before each checkpoint"
    )
    parser.add_argument(
        "--export", choices=tuple(SHAPES), default="500M", help="shape exported"
    )
    parser.add_argument(
        "--shard-mb", type=int, default=256, help="megabytes a file of the export"
    )
    add_arguments(parser, benchmark="checkpoints")
    arguments = parser.parse_args(argv)
    figures = Figures()
    with tempfile.TemporaryDirectory() as scratch:
        trained, exported = Path(scratch, "trained"), Path(scratch, "exported")
        parameters = write_random_model(trained, arguments.shape)
        figures.report("parameters in training", parameters / 1e6, "M")
        numbers = (
            "--checkpoints",
            str(arguments.checkpoints),
            "--steps",
            str(arguments.steps),
        )
        out = str(Path(scratch, "checkpoints"))
        report_training(figures, run_ranks(RANK, "train", str(trained), out, *numbers)[0])
        run = RunDirectory.create(Path(scratch, "run"))
        checkpoint = run.checkpoints_folder / "sft" / "step=000000"
        write_random_model(exported, arguments.export)
        run_ranks(RANK, "save", str(exported), str(checkpoint / "actor"))
        (checkpoint / "manifest.json").write_text("{}", encoding="utf-8")
        to = Path(scratch, "to")
        report_export(figures, export(run.root, to, arguments.shard_mb * 10**6), to)
    for note in NOTES:
        figures.note(note)
    return figures.finish(arguments, seeds=[0])


if __name__ == "__main__":
    sys.exit(main())
