"""Math worker: compares answers by math-verify, in a process of its own.

A script of ``guards.child_process``, which imports nothing of agentrl. A request is JSON,
``{"gold": [...], "said": ...}``, and so is its answer: whether one of the gold answers is
said. Without ``said`` it is whether every gold answer can be read.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import warnings
from collections.abc import Callable
from typing import Any

_BOX = "\\boxed{"
# Of currency, which would be taken for a delimiter, and thin spaces between groups of digits.
_SIGNS = re.compile(r"(?<!\\)\\\$|(?<=\d)\\,(?=\d{3}(?!\d))")
# Markdown's, which would be read as a product or a power. What stands between numbers, names or
# brackets is one: 2**3.
_STRONG = re.compile(r"(?<![\w\\*)\]}])(\*{2,3})(?=\S)([^*\n]*[^*\s])\1(?![\w*(])")
_EMPHASIS = re.compile(r"(?<![\w\\*)\]}])(\*|__?)([^\s*_$\\{}]+)\1(?![\w*(])")


def answerer() -> Callable[[bytes], bytes]:
    """What answers, with math-verify imported."""
    from math_verify import parse, verify

    logging.disable()
    warnings.simplefilter("ignore")

    def read(text: str) -> Any:
        return parse(_prepared(text), parsing_timeout=None)

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
    return gold if "$" in gold.replace("\\$", "") or _BOX in gold else f"{_BOX}{gold}}}"


def _prepared(text: str) -> str:
    """The text without such signs and emphasis, and with its last closed box alone: math-verify
    joins boxes that stand close together.
    """
    text = _EMPHASIS.sub(r"\2", _STRONG.sub(r"\2", _SIGNS.sub("", text)))
    start = max(text.rfind(_BOX, 0, text.rfind("}") + 1), 0)
    return text[:start].replace(_BOX, "{") + text[start:]
