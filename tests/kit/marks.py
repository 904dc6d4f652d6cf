"""Marks: cases of a kind of which few are tried at each commit, and the others in parts."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def wide_but(kept: Container[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases for ``parametrize``: all but those ``kept`` are wide."""
    return [
        one if one in kept else pytest.param(one, marks=pytest.mark.wide) for one in cases
    ]
