"""Math worker: compares answers by math-verify, in a process of its own.

A script of ``guards.child_process``, which imports nothing of agentrl. A request is JSON,
``{"gold": [...], "said": ...}``, and so is its answer: whether one of the gold answers is
said. Without ``said`` it is whether every gold answer can be read.
"""

from __future__ import annotations

import functools
import json
import logging
import warnings
from collections.abc import Callable
from typing import Any


def answerer() -> Callable[[bytes], bytes]:
    """What answers, with math-verify imported."""
    from math_verify import parse, verify

    logging.disable()
    warnings.simplefilter("ignore")

    def read(text: str) -> Any:
        return parse(text, parsing_timeout=None)

    # of one question, since the second request about it follows the first
    read_gold = functools.lru_cache(maxsize=16)(lambda gold: read(_boxed(gold)))

    def answer(asked: bytes) -> bytes:
        request = json.loads(asked)
        golds = [read_gold(gold) for gold in request["gold"]]
        if "said" not in request:
            return json.dumps(all(golds)).encode()
        said = read(request["said"])
        correct = any(verify(gold, said, timeout_seconds=None) for gold in golds)
        found = {"correct": bool(correct), "read": str(said[-1])[:500] if said else None}
        return json.dumps(found).encode()

    return answer


def _boxed(gold: str) -> str:
    """An answer as its parser finds it: plain LaTeX has no mark of where it begins."""
    return gold if "$" in gold or "\\boxed" in gold else f"\\boxed{{{gold}}}"
