"""Search: 200,000 passages of real English, searched on disk and over HTTP.

``python -m benchmarks.search`` fetches text packages of Debian, cuts them into passages, indexes
them, and asks questions made of their words. What is found is compared with bm25s itself.
``--texts FOLDER`` keeps the unpacked packages for the next time.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.figures import NOT_HERE, ROOT, Figures, add_arguments
from benchmarks.passages.english import Passage, read_passages
from benchmarks.passages.packages import PACKAGES, NoPackagesError, unpack
from benchmarks.passages.reader import TOP_K, memory_mb

LIMIT_MS = 30.0
LIMIT_MB = 1000.0
CLIENTS = 8
WAIT_S = 600.0


def write_corpus(
    packages: Sequence[str], texts: Path, most: int, corpus: Path
) -> list[Passage]:
    """Writes the first ``most`` passages of the packages as a corpus; gives them.

    Args:
        packages: by name; none is fetched that is not needed.
        texts: where they lie unpacked.
        most: how many.
        corpus: the file.
    """
    kept: list[Passage] = []
    with corpus.open("w", encoding="utf-8") as file:
        for package in packages:
            for passage in read_passages(unpack(package, texts)):
                if len(kept) == most:
                    return kept
                row = {"id": str(len(kept)), "title": passage.title, "text": passage.text}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                kept.append(passage)
    return kept


def make_queries(passages: Sequence[Passage], number: int, seed: int) -> list[str]:
    """Different queries of 2 to 16 neighbouring words of a passage, as they stand there."""
    rng = random.Random(seed)
    made: dict[str, None] = {}
    while len(made) < number:
        own = rng.choice(passages).text.split()
        size = rng.randint(2, 16)
        start = rng.randrange(max(1, len(own) - size))
        made[" ".join(own[start : start + size])] = None
    return list(made)


def told(module: str, *arguments: Path) -> Any:
    """What a module of the benchmark prints as JSON, run in a process of its own."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=WAIT_S
    )
    if done.returncode:
        raise RuntimeError(f"{module} must end with 0, got {done.returncode}")
    return json.loads(done.stdout)


@contextmanager
def serving(corpus: Path, indices: Path) -> Iterator[tuple[str, int]]:
    """The URL and process of ``agentrl serve search``, ended with the block."""
    command = [
        sys.executable,
        "-m",
        "agentrl",
        "serve",
        "search",
        str(corpus),
        "--port",
        "0",
    ]
    command += ["--index-dir", str(indices)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        if found is None:
            raise RuntimeError(
                f"agentrl serve search must print its address first, got {line!r}"
            )
        yield found[0], process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(WAIT_S)


def asked(http: httpx.Client, query: str) -> tuple[float, list[tuple[str, float]]]:
    """Seconds until the answer, and its hits."""
    start = time.perf_counter()
    answer = http.post(
        "/retrieve", json={"queries": [query], "topk": TOP_K, "return_scores": True}
    ).raise_for_status()
    seconds = time.perf_counter() - start
    (hits,) = answer.json()["result"]
    return seconds, [(hit["document"]["id"], hit["score"]) for hit in hits]


def p95_ms(seconds: Sequence[float]) -> float:
    """The 95th percentile, in milliseconds."""
    return 1000 * float(np.percentile(seconds, 95))


def add_memory(figures: Figures, name: str, memory: dict[str, float]) -> None:
    """A process's memory: the most that was resident, and what was its own at the end."""
    figures.at_most(f"{name}, memory at most", memory["peak"], "MB", LIMIT_MB)
    figures.report(f"{name}, of it its own at the end", memory["anonymous"], "MB")


def measure(figures: Figures, arguments: argparse.Namespace, folder: Path) -> None:
    """Adds the figures; what is written lies in ``folder``."""
    names = arguments.packages or PACKAGES
    corpus, indices = folder / "corpus.jsonl", folder / "indices"
    passages = write_corpus(
        names, arguments.texts or folder / "texts", arguments.passages, corpus
    )
    figures.at_least("passages", len(passages), "", arguments.passages)
    figures.report("words", sum(len(one.text.split()) for one in passages), "")
    queries, found = folder / "queries.json", folder / "hits.json"
    queries.write_text(json.dumps([]))
    built = told("benchmarks.passages.reader", corpus, indices, queries)
    figures.report("built in", built["opened_s"], "s")
    figures.at_most("building, memory at most", built["memory_mb"]["peak"], "MB", LIMIT_MB)
    index = next(indices.glob("*/index.json")).parent
    figures.report(
        "index on disk", sum(f.stat().st_size for f in index.iterdir()) / 1e6, "MB"
    )

    texts = make_queries(passages, arguments.queries, arguments.seed)
    queries.write_text(json.dumps(texts))
    here = told("benchmarks.passages.reader", corpus, indices, queries)
    found.write_text(json.dumps(here["hits"]))
    equal = told("benchmarks.passages.peer", corpus, queries, found)
    figures.at_least(
        "queries whose top ten are bm25s's own", 100 * np.mean(equal), "%", 100
    )
    figures.report("in process: opened in", here["opened_s"], "s")
    figures.report("in process: median of a query", 1000 * np.median(here["seconds"]), "ms")
    figures.at_most("in process: p95 of a query", p95_ms(here["seconds"]), "ms", LIMIT_MS)
    add_memory(figures, "in process", here["memory_mb"])

    with (
        serving(corpus, indices) as (url, pid),
        httpx.Client(base_url=url, timeout=60.0) as http,
    ):
        alone = [asked(http, query) for query in texts]
        same = [[tuple(hit) for hit in own] for own in here["hits"]]
        equal = [served == own for (_, served), own in zip(alone, same, strict=True)]
        figures.at_least(
            "served: queries with the same answer", 100 * np.mean(equal), "%", 100
        )
        figures.at_most(
            "served: p95 of a query",
            p95_ms([seconds for seconds, _ in alone]),
            "ms",
            LIMIT_MS,
        )
        more = make_queries(passages, arguments.queries, arguments.seed + 1)
        with ThreadPoolExecutor(CLIENTS) as pool:
            start = time.perf_counter()
            together = [
                seconds for seconds, _ in pool.map(lambda query: asked(http, query), more)
            ]
            rate = len(more) / (time.perf_counter() - start)
        figures.report(f"served: p95 of a query, {CLIENTS} clients", p95_ms(together), "ms")
        figures.report(f"served: {CLIENTS} clients", rate, "queries/s")
        add_memory(figures, "served", memory_mb(pid))
    figures.note(
        f"Passages of about 100 words, of the Debian packages {', '.join(names)}. Queries are 2 to "
        "16 neighbouring words of a passage, common words included. bm25s gets the same words; its "
        "scores are compared to the last bit, and of equal scores at the tenth place any document "
        "counts. Memory at most is the resident set, the mapped pages of the index included."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """All of it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search", description=__doc__
    )
    add_arguments(parser, benchmark="search")
    parser.add_argument("--passages", type=int, default=200_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument(
        "--packages", nargs="+", metavar="NAME", help="of Debian, in this order"
    )
    parser.add_argument(
        "--texts", type=Path, metavar="FOLDER", help="where packages are kept"
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    figures = Figures()
    with tempfile.TemporaryDirectory() as folder:
        try:
            measure(figures, arguments, Path(folder))
        except NoPackagesError as error:
            print(f"not measured here: {error}")
            return NOT_HERE
    return figures.finish(arguments, seeds=[arguments.seed])


if __name__ == "__main__":
    sys.exit(main())
