"""Checkpoints of a stage, with their own copies of the groups that wait and of those that run, and
their copies at a URL."""

from __future__ import annotations

from agentrl.controller.checkpoints.checkpoint_copies import CheckpointCopies
from agentrl.controller.checkpoints.stage_checkpoints import (
    Checkpoints,
    Manifest,
    newest_step,
    set_aside,
    set_unreadable_aside,
    whole_checkpoints,
)

__all__ = [
    "CheckpointCopies",
    "Checkpoints",
    "Manifest",
    "newest_step",
    "set_aside",
    "set_unreadable_aside",
    "whole_checkpoints",
]
