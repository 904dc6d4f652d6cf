"""A named check of a sandbox, and what became of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agentrl.sandbox.interface import ExecResult, Sandbox

Factory = Callable[[], Sandbox]


class CheckFailed(AssertionError):  # noqa: N818
    """The sandbox broke the rule that a check is about; the message says what was seen."""


@dataclass(frozen=True, slots=True)
class Check:
    """One rule.

    Attributes:
        name: unique in the suite.
        guarantee: the word of ``GUARANTEES`` that it tries to break; None for semantics, which every
            backend must have.
        run: raises :class:`CheckFailed` where the rule is broken.
    """

    name: str
    guarantee: str | None
    run: Callable[[Factory], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What became of one check: ``detail`` says what was seen where it did not pass."""

    name: str
    guarantee: str | None
    passed: bool
    detail: str = ""


def expect(holds: bool, rule: str, seen: object) -> None:
    """Raise :class:`CheckFailed` unless the rule holds."""
    if not holds:
        raise CheckFailed(f"{rule}; seen: {seen!r}")


def expect_status(result: ExecResult, status: str) -> None:
    """Raise :class:`CheckFailed` unless the run ended so."""
    expect(result.status == status, f"the status must be {status!r}", result)
