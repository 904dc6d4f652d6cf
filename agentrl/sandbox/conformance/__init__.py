"""Conformance suite: ``check_sandbox`` tries any backend, a user's own included."""

from __future__ import annotations

from collections.abc import Collection

from agentrl.errors import AgentRLError

from .attacks import ATTACKS
from .files import FILE_CHECKS
from .semantics import SEMANTICS
from .sessions import EXCUSES, SESSIONS
from .verdict import Check, CheckFailed, CheckResult, Factory

__all__ = ["CHECKS", "Check", "CheckFailed", "CheckResult", "Factory", "check_sandbox"]

CHECKS: tuple[Check, ...] = (*SEMANTICS, *SESSIONS, *EXCUSES, *FILE_CHECKS, *ATTACKS)


async def check_sandbox(
    factory: Factory, *, guarantees: Collection[str], only: Collection[str] | None = None
) -> list[CheckResult]:
    """Try a backend: its semantics always, and an attack on every guarantee that it claims.

    Args:
        factory: makes a fresh sandbox; called several times, each closed by the check that asked.
        guarantees: the words of ``GUARANTEES`` that the backend claims, as
            ``SandboxSpec.check().held``.
        only: names of checks; None runs all.

    Returns:
        One result a check, in the order of ``CHECKS``. Attacks are harmless where they succeed.
    """
    results = []
    for check in CHECKS:
        if (only is not None and check.name not in only) or not (
            check.guarantee is None or check.guarantee in guarantees
        ):
            continue
        detail = ""
        try:
            await check.run(factory)
        except CheckFailed as failure:
            detail = str(failure)
        except AgentRLError as error:
            detail = f"the sandbox failed: {type(error).__name__}: {error}"
        results.append(CheckResult(check.name, check.guarantee, not detail, detail))
    return results
