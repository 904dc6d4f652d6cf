"""Token accounting under fire: thousands of fuzzed multi-turn trajectories over all template families.

``python -m benchmarks.fuzz_tokens`` plays them through the real loop with an engine whose script writes well-formed
turns, turns spelt in other tokens, cut, empty, broken, and any ids at all, against an environment whose every word may
hold the text of an added token (of both kinds, flagged special and not), odd Unicode or nothing. Each trajectory is
held against an account of what the engine was given and made that the loop has no part in.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.figures import Figures, add_arguments
from benchmarks.fuzz import VARIANTS, Outcome, fuzz

__all__ = ["main", "report"]

NOTE = (
    "Real chat templates (TRL 1.16's wheel) on byte-level tokenizers trained on a few lines, with the families' own "
    "added tokens. A golden violation is a turn whose stored sequence is not the ids that the engine was given and "
    "made; a mask error is a made token that is not trained exactly once, or any other that is; a forgery is an "
    "added token that the same conversation has no more once the texts of added tokens are taken out of what tools, "
    "users and tool descriptions say."
)


def one(name: str, episodes: int, seed: int) -> tuple[str, Outcome]:
    """The episodes of one variant, with a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="agentrl-fuzz-") as folder:
        return name, fuzz(VARIANTS[name], Path(folder), episodes=episodes, seed=seed)


def report(figures: Figures, outcomes: dict[str, Outcome], seconds: float) -> None:
    """The figures of all variants together, and what each rewrites."""
    whole = list(outcomes.values())
    figures.at_least("fuzzed trajectories", sum(o.trajectories for o in whole), "", 10_000)
    figures.report("template variants", len(outcomes), "")
    figures.report("turns", sum(o.turns for o in whole), "")
    figures.report("sampled tokens", sum(o.sampled_tokens for o in whole), "tokens")
    figures.report("contexts rendered twice and compared", sum(o.contexts for o in whole), "")
    figures.report("completions that a stop string ended", sum(o.stop_strings for o in whole), "")
    figures.report("calls read", sum(o.calls for o in whole), "")
    figures.at_most("golden-rule violations", sum(len(o.golden) for o in whole), "", 0)
    figures.at_most("mask errors", sum(len(o.masks) for o in whole), "", 0)
    figures.at_most("added tokens forged", sum(len(o.forged) for o in whole), "", 0)
    figures.at_most("episodes that failed", sum(len(o.failed) for o in whole), "", 0)
    for name, outcome in outcomes.items():
        figures.report(f"{name}: sequences begun anew a turn", outcome.restarts / max(1, outcome.turns), "")
    figures.report("retok_frac, mean", statistics.mean(value for o in whole for value in o.retok), "")
    figures.report("template_frac, mean", statistics.mean(value for o in whole for value in o.template), "")
    figures.report("seconds a trajectory, checks included", seconds / sum(o.trajectories for o in whole), "s")
    for outcome in whole:
        for fault in (*outcome.golden, *outcome.masks, *outcome.forged, *outcome.failed)[:3]:
            figures.note(fault)
    figures.note(NOTE)


def main() -> int:
    """Plays, counts and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, benchmark="fuzz_tokens")
    parser.add_argument("--episodes", type=int, default=625, help="of each template variant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    figures = Figures()
    start = time.perf_counter()
    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(one, name, arguments.episodes, arguments.seed) for name in VARIANTS]
        outcomes = dict(job.result() for job in jobs)
    report(figures, outcomes, arguments.processes * (time.perf_counter() - start))
    return figures.finish(arguments, seeds=[arguments.seed])


if __name__ == "__main__":
    sys.exit(main())
