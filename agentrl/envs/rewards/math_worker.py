"""Math worker: compares answers by math-verify, in a process of its own.

It is run as a script and imports nothing of agentrl. Each line of standard input is a request as
JSON, ``{"gold": [...], "said": ..., "cpu_s": ...}``. Two lines answer it: whether every gold answer
could be read, then whether one is said. A request that takes more than ``cpu_s`` seconds of
processor time ends the process, whatever it is doing (SIGXCPU).
"""

from __future__ import annotations

import json
import logging
import math
import resource
import sys
import time
import warnings
from typing import Any

_MEMORY_BYTES = 4 * 2**30


def main() -> None:
    """Answers requests until standard input ends."""
    from math_verify import parse, verify

    logging.disable()
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_CPU)

    def read(text: str) -> Any:
        return parse(text, parsing_timeout=None)

    for line in sys.stdin:
        request = json.loads(line)
        end = math.ceil(time.process_time() + request["cpu_s"])
        resource.setrlimit(resource.RLIMIT_CPU, (end, most))
        golds = [read(_boxed(gold)) for gold in request["gold"]]
        _tell({"readable": all(golds)})
        said = read(request["said"])
        correct = any(verify(gold, said, timeout_seconds=None) for gold in golds)
        _tell({"correct": bool(correct), "read": str(said[-1])[:500] if said else None})


def _boxed(gold: str) -> str:
    """An answer as its parser finds it: plain LaTeX has no mark of where it begins."""
    return gold if "$" in gold or "\\boxed" in gold else f"\\boxed{{{gold}}}"


def _tell(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
