"""Rehearsal: what `agentrl check` and `agentrl play` do with a stage before a model does."""

from __future__ import annotations

from agentrl.run.rehearsal.scripted_policy import ScriptedPolicy

__all__ = ["ScriptedPolicy"]
