"""Tests side: runs the tests of ``tests.json`` on the ``results`` of ``calls.json``, and adds the
operations that are missing there. ``verdicts.json`` has what passed, and how many were missing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .single_test import Results, verdict


def main() -> None:
    """A round of all tests."""
    given = _read("tests.json")
    calls = _read("calls.json")
    results = Results(calls, Path("results").read_bytes().splitlines(), given["lost"])
    fault = "" if results.known else _fault_of_setup(given["code_setup"])
    verdicts = [
        (False, fault) if fault else verdict(f"{given['setup']}\n{one}", results)
        for one in given["tests"]
    ]
    Path("calls.json").write_text(json.dumps(calls), encoding="utf-8")
    told = json.dumps([verdicts, len(calls) - results.known])
    Path("verdicts.json").write_text(told, encoding="utf-8")


def _read(name: str) -> Any:
    return json.loads(Path(name).read_text(encoding="utf-8"))


def _fault_of_setup(source: str) -> str:
    # Looked for here, since the code could feign it where it runs.
    try:
        exec(
            compile(source, "setup.py", "exec", dont_inherit=True), {"__name__": "solution"}
        )
    except BaseException as error:  # noqa: BLE001 - boundary: whatever it is, the task is faulty
        return f"code_setup: {type(error).__name__}: {error}"
    return ""
