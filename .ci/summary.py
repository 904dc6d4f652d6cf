"""Summary: what the phases of ``.ci/run`` came to, from their reports.

Run as ``python .ci/summary.py REPORTS SECONDS``. Exits with 1 where a phase failed, or where no
invariant was tried.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

# Of what a test said, for those who see the end of a log alone.
LAST_LINES = 60
SLOWEST = 10


def main(folder: Path, seconds: str) -> int:
    total = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    tried: dict[str, int] = {}
    durations: list[tuple[float, str]] = []
    for report in sorted(folder.glob("*.xml")):
        root = ElementTree.parse(report).getroot()
        for suite in root.iter("testsuite"):
            for key in total:
                total[key] += int(suite.get(key, 0))
        for case in root.iter("testcase"):
            name = f"{case.get('classname')}::{case.get('name')}"
            durations.append((float(case.get("time", 0)), f"{name} ({report.stem})"))
            tried[report.stem] = tried.get(report.stem, 0) + (case.find("skipped") is None)
            for problem in (*case.findall("failure"), *case.findall("error")):
                print(f"=== {problem.tag} in {report.stem}: {name}")
                said = problem.text or problem.get("message") or ""
                print("\n".join(said.splitlines()[-LAST_LINES:]))
    lines = (folder / "phases").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    phases = [(int(took), int(status), name) for took, status, name in rows]
    failed = [name for _, status, name in phases if status]
    if not tried.get("invariants"):
        failed.append("no invariant was tried")
    print("=== seconds by phase")
    for took, status, name in phases:
        print(f"{took:6d}  {name}{f' (exit {status})' if status else ''}")
    print(f"=== the {SLOWEST} slowest tests, in seconds")
    for took_s, name in sorted(durations, reverse=True)[:SLOWEST]:
        print(f"{took_s:6.0f}  {name}")
    passed = total["tests"] - total["failures"] - total["errors"] - total["skipped"]
    line = (
        f"{passed} passed, {total['failures']} failed, {total['errors']} errors, "
        f"{total['skipped']} skipped in {seconds} s"
    )
    print(f"{line}; failed: {', '.join(failed)}" if failed else line)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
