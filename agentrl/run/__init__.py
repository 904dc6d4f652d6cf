"""A run: its configuration, and what is made of it."""

from __future__ import annotations

from agentrl.run.config import RunConfig, StageConfig, load_config

__all__ = ["RunConfig", "StageConfig", "load_config"]
