"""The fixture of a configuration file."""

from __future__ import annotations

from tests.config.conftest import write

__all__ = ["write"]
