"""Conformance suite: ``check_sandbox`` tries any backend, a user's own included."""

from __future__ import annotations

from .suite import CHECKS, check_sandbox
from .verdict import Check, CheckFailed, CheckResult, Factory

__all__ = ["CHECKS", "Check", "CheckFailed", "CheckResult", "Factory", "check_sandbox"]
