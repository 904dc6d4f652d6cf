"""Program: the search path of programs that a configuration names."""

from __future__ import annotations

import os
import sys

__all__ = ["program_path"]


def program_path() -> str:
    """``PATH`` with this interpreter's folder first, so that ``python`` is this one."""
    return os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
