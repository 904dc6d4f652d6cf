"""Report: writes docs/benchmarks.md from the recorded results (``python -m benchmarks.report``).

``--run`` first runs each benchmark of this folder with ``--record``; ``--check`` changes nothing
and fails where the page is not what the results give.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import NOT_HERE, RESULTS, ROOT

__all__ = ["page"]

PAGE = ROOT / "docs" / "benchmarks.md"
NOT_BENCHMARKS = ("figures", "report")
HEAD = """# Benchmarks

Made by `python -m benchmarks.report` of the files in `benchmarks/results/`; change those, never this page. `make bench`
measures all of it again. A figure without a target is reported only; a target that was missed says **no**.
"""  # noqa: E501
KEYS = {"command", "commit", "date", "machine", "seeds", "figures", "notes"}


def page(folder: Path) -> str:
    """The Markdown of every result in ``folder``, in the order of their names.

    Raises:
        ValueError: a file lacks one of the keys that make its figures repeatable.
    """
    sections = [section(path.stem, load(path)) for path in sorted(folder.glob("*.json"))]
    return "\n".join([HEAD, *(sections or ["Nothing was recorded yet.\n"])])


def load(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    missing = KEYS - result.keys()
    if missing:
        raise ValueError(
            f"{path.name} must have {', '.join(sorted(KEYS))}; it lacks "
            f"{', '.join(sorted(missing))}: record it again with --record"
        )
    return result


def section(name: str, result: Mapping[str, Any]) -> str:
    machine = result["machine"]
    hardware = [
        machine["cpu"],
        f"{machine['cores']} cores",
        *([machine["gpu"]] if "gpu" in machine else []),
    ]
    versions = ", ".join(
        f"{package} {version}" for package, version in machine["versions"].items()
    )
    lines = [
        f"## {name}",
        "",
        f"`{result['command']}`",
        "",
        f"Commit {result['commit']}, {result['date']}, seeds "
        f"{', '.join(map(str, result['seeds']))}, "
        f"{', '.join(hardware)}, {machine['system']}, Python {machine['python']}, {versions}.",
        "",
        "| figure | value | target | met |",
        "|---|---|---|---|",
        *(row(figure) for figure in result["figures"]),
        "",
        *(line for note in result["notes"] for line in (note, "")),
    ]
    return "\n".join(lines)


def row(figure: Mapping[str, Any]) -> str:
    met = {None: "", True: "yes", False: "**no**"}[figure["met"]]
    value = f"{figure['value']:.4g} {figure['unit']}".strip()
    return f"| {figure['name']} | {value} | {figure['target'] or ''} | {met} |"


def benchmarks() -> list[str]:
    """The modules of this folder that measure something."""
    return sorted(
        path.stem
        for path in Path(__file__).parent.glob("*.py")
        if path.stem not in NOT_BENCHMARKS
    )


def run_all() -> list[str]:
    """Run each benchmark with ``--record``; return those that failed or missed a target."""
    failed = []
    for name in benchmarks():
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", "--record"]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        if status not in (0, NOT_HERE):
            failed.append(name)
    return failed


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report", description=__doc__
    )
    parser.add_argument("--run", action="store_true", help="measure everything first")
    parser.add_argument(
        "--check", action="store_true", help="fail where the page is out of date"
    )
    arguments = parser.parse_args(argv)

    failed = run_all() if arguments.run else []
    text = page(RESULTS)
    if arguments.check:
        if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
            print(
                "docs/benchmarks.md is not what benchmarks/results gives: run python -m "
                "benchmarks.report"
            )
            return 1
        return 0
    PAGE.write_text(text, encoding="utf-8")
    if failed:
        print(f"failed or missed a target: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
