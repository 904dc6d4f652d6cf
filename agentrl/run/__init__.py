"""A run: its configuration, and what is made of it."""

from __future__ import annotations

__all__ = ["RunConfig", "StageConfig", "load_config"]
