"""The tiny model of the controller's tests."""

from __future__ import annotations

from tests.controller.conftest import model

__all__ = ["model"]
