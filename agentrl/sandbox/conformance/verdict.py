"""Verdict: a named check of a sandbox, the steps that it is made of, and its result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.sandbox.interface import Sandbox

Factory = Callable[[], Sandbox]
Run = Callable[[Factory], Awaitable[None]]
Step = Callable[[Sandbox], Awaitable[None]]


class CheckFailed(AssertionError):  # noqa: N818
    """The sandbox broke the rule that a check is about; the message says what was seen."""


@dataclass(frozen=True, slots=True)
class Check:
    """One rule.

    Attributes:
        name: unique in the suite.
        guarantee: the word of ``GUARANTEES`` that it tries to break; None for semantics, which
            every backend must have.
        run: raises :class:`CheckFailed` where the rule is broken.
    """

    name: str
    guarantee: str | None
    run: Run


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check; ``detail`` says what was seen where it did not pass."""

    name: str
    guarantee: str | None
    passed: bool
    detail: str = ""


def step(
    rule: str, code: str | bytes | None, wanted: Mapping[str, Any], **options: Any
) -> Step:
    """One run in a sandbox, and the result that it must have.

    Args:
        rule: for the message.
        code: what runs; None for a program in ``options``.
        wanted: by the name of a field of ``ExecResult``, its value or a predicate of it.
        options: of ``Sandbox.run``.
    """

    async def play(sandbox: Sandbox) -> None:
        result = await sandbox.run(code, **options)
        for name, value in wanted.items():
            seen = getattr(result, name)
            expect(
                value(seen) if callable(value) else seen == value,
                f"{rule} ({name})",
                result,
            )

    return play


def steps(*sequence: Step) -> Run:
    """A check that plays these steps in one sandbox."""

    async def run(factory: Factory) -> None:
        async with factory() as sandbox:
            for play in sequence:
                await play(sandbox)

    return run


def checks(guarantee: str | None, runs: Mapping[str, Run]) -> tuple[Check, ...]:
    """The checks of a guarantee, by their names."""
    return tuple(Check(name, guarantee, run) for name, run in runs.items())


def has(*parts: bytes) -> Callable[[bytes], bool]:
    """Whether an output holds all of these."""
    return lambda output: all(part in output for part in parts)


def one_of(*words: str) -> Callable[[str], bool]:
    """Whether a status is one of these."""
    return lambda status: status in words


def held(output: bytes) -> bool:
    """Whether an attack printed no BREACH."""
    return b"BREACH" not in output


def expect(holds: bool, rule: str, seen: object) -> None:
    """Raise :class:`CheckFailed` unless the rule holds."""
    if not holds:
        raise CheckFailed(f"{rule}; seen: {seen!r}")
