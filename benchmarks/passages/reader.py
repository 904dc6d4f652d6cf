"""Reader: a process that opens the index of a corpus, or builds it, and answers queries one by one.

``python -m benchmarks.passages.reader CORPUS INDICES QUERIES`` prints one JSON object: how long it
took to open, the hits and seconds of each query, and the process's memory.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from agentrl.tools import DiskIndex

__all__ = ["TOP_K", "memory_mb"]

TOP_K = 10


def memory_mb(pid: int | str = "self") -> dict[str, float]:
    """Megabytes of a process: the most it was resident with (``peak``), and now by kind, its own
    (``anonymous``) and the mapped pages of files (``files``).
    """
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    names = {"peak": "VmHWM", "anonymous": "RssAnon", "files": "RssFile"}
    found = {name: re.search(rf"{key}:\s*(\d+) kB", status) for name, key in names.items()}
    return {
        name: int(match[1]) * 1024 / 1e6
        for name, match in found.items()
        if match is not None
    }


def main(arguments: Sequence[str]) -> int:
    """Answers the queries of a JSON list."""
    corpus, indices, asked = map(Path, arguments)
    start = time.perf_counter()
    index = DiskIndex(corpus, indices)
    opened_s = time.perf_counter() - start
    opened_mb = memory_mb()
    hits, seconds = [], []
    for query in json.loads(asked.read_text(encoding="utf-8")):
        start = time.perf_counter()
        (found,) = index.search_many([query], TOP_K)
        seconds.append(time.perf_counter() - start)
        hits.append([(hit.document.id, hit.score) for hit in found])
    told = {"opened_s": opened_s, "opened_mb": opened_mb, "memory_mb": memory_mb()}
    print(json.dumps({**told, "documents": len(index), "seconds": seconds, "hits": hits}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
