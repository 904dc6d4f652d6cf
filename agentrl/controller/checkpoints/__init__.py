"""Checkpoints of a stage, with their own copies of the groups that wait and of those that run."""

from __future__ import annotations

from agentrl.controller.checkpoints.stage_checkpoints import Checkpoints, Manifest

__all__ = ["Checkpoints", "Manifest"]
