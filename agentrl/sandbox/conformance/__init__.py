"""The conformance suite of sandboxes: any backend, also one of your own, is tried by ``check_sandbox``."""

from __future__ import annotations

from .suite import CHECKS, check_sandbox
from .verdict import Check, CheckFailed, CheckResult, Factory

__all__ = ["CHECKS", "Check", "CheckFailed", "CheckResult", "Factory", "check_sandbox"]
