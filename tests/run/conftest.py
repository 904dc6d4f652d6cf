"""The fixtures of configuration files, for tests of whole runs."""

from __future__ import annotations

from tests.config.conftest import problems, write

__all__ = ["problems", "write"]
