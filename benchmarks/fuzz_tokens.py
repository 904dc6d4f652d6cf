"""Token fuzzing: checks the tokens of fuzzed trajectories over all template families.

``python -m benchmarks.fuzz_tokens`` plays them through the real loop with an engine whose script
writes well-formed turns, turns spelt in other tokens, cut, empty, broken, and any ids at all,
against an environment whose every word may hold the text of an added token (of both kinds, flagged
special and not), odd Unicode or nothing. Each trajectory is held against an account of what the
engine was given and made that the loop has no part in.
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

__all__ = ["main", "measure", "report"]

EPISODES = 625
PROCESSES = 2

NOTE = (
    "Real chat templates (TRL 1.16's wheel) on byte-level tokenizers trained on a few lines, with "
    "the families' own added tokens. A token-consistency violation is a turn whose stored "
    "sequence is not the ids that the engine was given and made. A mask error is a sampled token "
    "that is not trained exactly once, or any other that is. For a forgery, the texts of added "
    "tokens are taken out of the words of tools, users and tool descriptions. An added token that "
    "the conversation then lacks was forged."
)


def one(name: str, episodes: int, seed: int) -> tuple[str, Outcome]:
    """The episodes of one variant, with a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="agentrl-fuzz-") as folder:
        return name, fuzz(VARIANTS[name], Path(folder), episodes=episodes, seed=seed)


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """As a part of ``benchmarks.rollout``, from its seed."""
    play(
        figures,
        episodes=EPISODES,
        seed=arguments.seed,
        processes=PROCESSES,
        prefix="tokens: ",
    )


def play(
    figures: Figures, *, episodes: int, seed: int, processes: int, prefix: str = ""
) -> None:
    """Plays, counts and reports.

    Args:
        figures: what is counted.
        episodes: of each template variant.
        seed: of all that is said.
        processes: that play.
        prefix: of the figures' names.
    """
    start = time.perf_counter()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(one, name, episodes, seed) for name in VARIANTS]
        outcomes = dict(job.result() for job in jobs)
    report(figures, outcomes, processes * (time.perf_counter() - start), prefix)


def report(
    figures: Figures, outcomes: dict[str, Outcome], seconds: float, prefix: str = ""
) -> None:
    """The figures of all variants together, and what each rewrites."""
    whole = list(outcomes.values())
    figures.at_least(
        f"{prefix}fuzzed trajectories", sum(o.trajectories for o in whole), "", 10_000
    )
    figures.report(f"{prefix}template variants", len(outcomes), "")
    figures.report(f"{prefix}turns", sum(o.turns for o in whole), "")
    figures.report(
        f"{prefix}sampled tokens", sum(o.sampled_tokens for o in whole), "tokens"
    )
    figures.report(
        f"{prefix}contexts rendered twice and compared", sum(o.contexts for o in whole), ""
    )
    figures.report(
        f"{prefix}completions that a stop string ended",
        sum(o.stop_strings for o in whole),
        "",
    )
    figures.report(f"{prefix}calls read", sum(o.calls for o in whole), "")
    figures.at_most(
        f"{prefix}token-consistency violations",
        sum(len(o.mismatches) for o in whole),
        "",
        0,
    )
    figures.at_most(f"{prefix}mask errors", sum(len(o.masks) for o in whole), "", 0)
    figures.at_most(
        f"{prefix}added tokens forged", sum(len(o.forged) for o in whole), "", 0
    )
    figures.at_most(
        f"{prefix}episodes that failed", sum(len(o.failed) for o in whole), "", 0
    )
    for name, outcome in outcomes.items():
        figures.report(
            f"{prefix}{name}: new sequences a turn",
            outcome.restarts / max(1, outcome.turns),
            "",
        )
    figures.report(
        f"{prefix}retok_frac, mean",
        statistics.mean(value for o in whole for value in o.retok),
        "",
    )
    figures.report(
        f"{prefix}template_frac, mean",
        statistics.mean(value for o in whole for value in o.template),
        "",
    )
    figures.report(
        f"{prefix}seconds a trajectory, checks included",
        seconds / sum(o.trajectories for o in whole),
        "s",
    )
    for outcome in whole:
        for fault in (
            *outcome.mismatches,
            *outcome.masks,
            *outcome.forged,
            *outcome.failed,
        )[:3]:
            figures.note(fault)
    figures.note(NOTE)


def main() -> int:
    """All of it, or less."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser, benchmark="fuzz_tokens")
    parser.add_argument(
        "--episodes", type=int, default=EPISODES, help="of each template variant"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    arguments = parser.parse_args()
    figures = Figures()
    play(
        figures,
        episodes=arguments.episodes,
        seed=arguments.seed,
        processes=arguments.processes,
    )
    return figures.finish(arguments, seeds=[arguments.seed])


if __name__ == "__main__":
    sys.exit(main())
