"""Attacks: the conformance suite's attacks on every backend that claims to resist them."""

from __future__ import annotations

import argparse
import asyncio

from agentrl.sandbox.conformance import CHECKS, CheckResult, check_sandbox
from benchmarks.figures import Figures
from benchmarks.sandboxes.machine import spec_of, usable_backends

__all__ = ["measure"]


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """A table of attack by backend, and how many succeeded against what is claimed."""
    tried: dict[str, dict[str, CheckResult]] = {}
    for backend in usable_backends(figures, arguments.image):
        spec = spec_of(backend, arguments.image)
        results = asyncio.run(check_sandbox(spec.build, guarantees=spec.check().held))
        tried[backend] = {result.name: result for result in results}
        attacks = [result for result in results if result.guarantee is not None]
        figures.report(f"{backend}: attacks tried", len(attacks), "")
        figures.at_most(
            f"{backend}: attacks that succeeded",
            sum(not one.passed for one in attacks),
            "",
            0,
        )
        failed = sum(not result.passed for result in results if result.guarantee is None)
        figures.at_most(f"{backend}: checks of what a run means that failed", failed, "", 0)
        for result in results:
            if not result.passed:
                figures.note(f"{backend}, {result.name}: {result.detail[:300]}")
    if tried:
        figures.note(_table(tried))


def _table(tried: dict[str, dict[str, CheckResult]]) -> str:
    lines = [
        f"| attack | guarantee | {' | '.join(tried)} |",
        f"|---|---|{'---|' * len(tried)}",
    ]
    for check in CHECKS:
        if check.guarantee is not None:
            cells = [_cell(results.get(check.name)) for results in tried.values()]
            lines.append(f"| {check.name} | {check.guarantee} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(result: CheckResult | None) -> str:
    if result is None:
        return "not claimed"
    return "held" if result.passed else "**succeeded**"
