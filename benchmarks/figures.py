"""Figures: collects, prints and records the figures of one benchmark.

A benchmark is a script of this folder, run as ``python -m benchmarks.NAME``, that ends with::

    figures = Figures()
    figures.at_least("ratio to TRL", ratio, "x", 2.5)
    sys.exit(figures.finish(arguments, seeds=[0, 1, 2]))

where ``arguments`` come from a parser that went through ``add_arguments``.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

__all__ = [
    "NOT_HERE",
    "RESULTS",
    "ROOT",
    "Figure",
    "Figures",
    "add_arguments",
    "machine",
    "measure_parts",
]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
NOT_HERE = 4
"""The exit status of a benchmark that needs what this machine lacks, such as a GPU, and has said
so.
"""

# What decides a speed or an accuracy here; a package that is not installed is left out.
MEASURED_PACKAGES = ("torch", "transformers", "ray", "numpy", "trl", "sglang")


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Attributes:
        name: what was measured, as a reader would say it.
        value: the number, finite, in ``unit``.
        unit: ``"s"``, ``"tokens/s"``, ``"x"``; ``""`` for a pure number.
        target: what the number should be, with its direction (``">= 2.5"``), or None where it is
            only reported.
        met: whether the target was met, or None without one.
    """

    name: str
    value: float
    unit: str
    target: str | None = None
    met: bool | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(
                f"figure {self.name!r} must be a finite number, got {self.value}; measure it again"
            )


@dataclass
class Figures:
    """The figures of one run of one benchmark, in the order in which they were added."""

    rows: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a sentence that a reader needs to judge the figures; it stands under their table."""
        self.notes.append(text)

    def report(self, name: str, value: float, unit: str) -> None:
        """Add a number that has no target."""
        self.rows.append(Figure(name, float(value), unit))

    def at_least(self, name: str, value: float, unit: str, target: float) -> None:
        """Add a number that should be ``target`` or more."""
        self.rows.append(
            Figure(name, float(value), unit, f">= {target:g}", bool(value >= target))
        )

    def at_most(self, name: str, value: float, unit: str, target: float) -> None:
        """Add a number that should be ``target`` or less."""
        self.rows.append(
            Figure(name, float(value), unit, f"<= {target:g}", bool(value <= target))
        )

    def as_json(self) -> list[dict[str, object]]:
        """The rows as ``[{name, value, unit, target, met}]``."""
        return [asdict(row) for row in self.rows]

    def table(self) -> str:
        """The rows as lines of aligned columns, for a terminal."""
        cells = [("figure", "value", "target", "met")]
        for row in self.rows:
            met = "" if row.met is None else ("yes" if row.met else "NO")
            cells.append(
                (row.name, f"{row.value:.4g} {row.unit}".strip(), row.target or "", met)
            )
        widths = [max(len(line[column]) for line in cells) for column in range(4)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) for cell, width in zip(line, widths, strict=True)
            ).rstrip()
            for line in cells
        )

    def finish(self, arguments: argparse.Namespace, *, seeds: Sequence[int]) -> int:
        """Print the table and write what ``--json`` and ``--record`` ask for.

        Args:
            arguments: parsed by a parser that went through ``add_arguments``.
            seeds: every seed that the figures were measured with.

        Returns:
            The exit status: 0 when each target was met, else 1.
        """
        self.show()
        if arguments.json is not None:
            self.write_json(arguments.json)
        if arguments.record:
            self.record(
                RESULTS / f"{arguments.benchmark}.json",
                command=own_command(arguments.benchmark),
                seeds=seeds,
            )
        return int(any(row.met is False for row in self.rows))

    def show(self) -> None:
        """Print the table, and the notes under it."""
        print("\n".join([self.table(), *self.notes]), flush=True)

    def write_json(self, path: Path) -> None:
        """Write the rows as ``as_json`` gives them."""
        path.write_text(json.dumps(self.as_json(), indent=2) + "\n", encoding="utf-8")

    def record(self, path: Path, *, command: str, seeds: Sequence[int]) -> None:
        """Write the figures with what is needed to measure them again: one file for each
        benchmark.
        """
        result = {
            "command": command,
            "commit": commit(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": machine(),
            "seeds": list(seeds),
            "figures": self.as_json(),
            "notes": self.notes,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def measure_parts(
    parts: Mapping[str, Callable[[Figures, argparse.Namespace], None]],
    arguments: argparse.Namespace,
    seeds: Mapping[str, Sequence[int]] | None = None,
) -> int:
    """Measures the parts of a benchmark that ``--only`` names, or all; each is shown, and recorded
    in a file of its own, as soon as it is measured.

    Args:
        parts: by name.
        arguments: parsed, with ``only``, by a parser that went through ``add_arguments``.
        seeds: of each part; by default all have the one ``seed`` of the arguments.

    Returns:
        The exit status: 0 when each target was met, else 1.
    """
    whole = Figures()
    for name in arguments.only or parts:
        print(f"-- {name}", flush=True)
        figures = Figures()
        parts[name](figures, arguments)
        figures.show()
        if arguments.record:
            benchmark = arguments.benchmark
            figures.record(
                RESULTS / f"{benchmark}_{name}.json",
                command=own_command(benchmark, part=name),
                seeds=[arguments.seed] if seeds is None else seeds[name],
            )
        whole.rows += figures.rows
    if arguments.json is not None:
        whole.write_json(arguments.json)
    return int(any(row.met is False for row in whole.rows))


def add_arguments(parser: argparse.ArgumentParser, *, benchmark: str) -> None:
    """Give a benchmark's parser ``--json FILE`` and ``--record``.

    Args:
        parser: the benchmark's own parser.
        benchmark: the name of its module in this folder, which names its file of results.
    """
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures as a JSON list"
    )
    parser.add_argument(
        "--record", action="store_true", help=f"write benchmarks/results/{benchmark}.json"
    )
    parser.set_defaults(benchmark=benchmark)


def machine() -> dict[str, object]:
    """This machine as far as it bears on a figure; never its name, nor a path on it."""
    versions = {}
    for package in MEASURED_PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    facts: dict[str, object] = {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
    }
    # A benchmark that used a GPU has imported torch already; the others do not pay for it here.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def cpu_model() -> str:
    """The processor's name as its maker writes it, or its architecture where the system does not
    tell.
    """
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit() -> str:
    """The commit that was measured, with ``+changes`` where tracked files differ from it.

    The results and the page made of them are left out: recording one benchmark does not spoil the
    next.
    """
    head = git("rev-parse", "HEAD")
    changes = git(
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        ".",
        ":!benchmarks/results",
        ":!docs/benchmarks.md",
    )
    return f"{head}+changes" if changes else head


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def own_command(benchmark: str, part: str | None = None) -> str:
    """The command line that started this benchmark.

    Left out are the options that only say where results go; an absolute path keeps its last part
    alone, because the rest of it says something about one machine.

    Args:
        benchmark: the name of its module.
        part: the only one that the command names, in place of those of the command line.
    """
    kept: list[str] = [] if part is None else ["--only", part]
    left_out = ("--json",) if part is None else ("--json", "--only")
    arguments = iter(sys.argv[1:])
    for argument in arguments:
        if argument in left_out:
            next(arguments, None)
        elif argument != "--record" and argument.partition("=")[0] not in left_out:
            option, equals, value = argument.rpartition("=")
            kept.append(
                f"{option}{equals}{Path(value).name if Path(value).is_absolute() else value}"
            )
    return " ".join(["python -m", f"benchmarks.{benchmark}", *kept])
