"""Parser child: reads a long completion, in a process of its own (``parsers.base``).

A script of ``guards.child_process``. The request brings the import path of the process that asks.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable


def answerer() -> Callable[[bytes], bytes]:
    """What answers."""
    return answer


def answer(request: bytes) -> bytes:
    """The pickled message of a pickled parser class, text and tools."""
    sys.path[:], asked = pickle.loads(request)
    make, text, tools = pickle.loads(asked)
    return pickle.dumps(make().parse(text, tools))
