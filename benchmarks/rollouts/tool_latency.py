"""Tool latency: tokens a second with slow tools, in a steady stream and in one finite step."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from agentrl.engines import EnginePlace
from agentrl.engines.torch import TorchEngineSpec
from agentrl.envs import EnvSpec
from agentrl.render import RendererSpec
from agentrl.rollouts import (
    EpisodeRunner,
    EpisodeSettings,
    GroupOutcome,
    GroupRequest,
    RolloutSpec,
    StagePermits,
)
from benchmarks.figures import Figures
from benchmarks.rollouts.episodes import (
    Beginnings,
    Counted,
    TimedEnv,
    always_one,
    failures,
    tasks,
    tiny_model,
)

__all__ = ["measure"]

MEDIAN_S = 0.05
P99_S = 2.0
SLOTS = 64
IN_FLIGHT = 512
STEP = 128
TURNS = 4
TURN_TOKENS = 16
CONTEXT = 256
WARM_SHARE = 0.25
TARGET = 0.9
NOTE = (
    f"Tool latency: episodes of {TURNS} turns of at most {TURN_TOKENS} tokens by a tiny model with "
    f"random weights, in TorchEngine with {SLOTS} slots and one thread. At most {IN_FLIGHT} "
    f"episodes are in flight; a tool takes a lognormal time, median {MEDIAN_S * 1000:.0f} ms, p99 "
    f"{P99_S:.0f} s. Tokens/s of a stream are those of the time between the starts of a quarter of "
    "the episodes and of the last one; the drain follows. A turn-synchronous loop waits for every "
    "episode's completion, then for every tool."
)


@dataclass(frozen=True, slots=True)
class Played:
    """What came of playing episodes: tokens a second over all the time, in the steady part, and the
    drain.
    """

    per_s: float
    steady_per_s: float
    drain_s: float
    most_in_flight: int


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """All of it, instant and slow tools in turn."""
    with tempfile.TemporaryDirectory(prefix="agentrl-rollout-") as folder:
        model = tiny_model(Path(folder) / "model", arguments.seed)
        # the first of a process is slower than all others
        play(model, number=SLOTS, slow=False)
        rounds = [
            (play(model, number=arguments.episodes, slow=slow), slow)
            for slow in (False, True, True, False)
        ]
        instant = _mean([played.steady_per_s for played, slow in rounds if not slow])
        slow = [played for played, slow in rounds if slow]
        steady = _mean([played.steady_per_s for played in slow])
        figures.report("tool latency: episodes of a stream", arguments.episodes, "")
        figures.report(
            "tool latency: episodes in flight at most",
            max(p.most_in_flight for p in slow),
            "",
        )
        figures.report("tool latency: instant tools", instant, "tokens/s")
        figures.report("tool latency: long-tailed tools", steady, "tokens/s")
        figures.at_least(
            "tool latency: long-tailed over instant", steady / instant, "", TARGET
        )
        figures.report(
            "tool latency: drain", _mean([played.drain_s for played in slow]), "s"
        )
        step = play(model, number=STEP, slow=True).per_s
        by_turns = play(model, number=STEP, slow=True, by_turns=True).per_s
        figures.report(f"tool latency: one step of {STEP} episodes", step, "tokens/s")
        figures.report(
            f"tool latency: the same, turn by turn, {STEP} at once", by_turns, "tokens/s"
        )
        figures.report("tool latency: one step over turn by turn", step / by_turns, "x")
    figures.note(NOTE)


def play(model: Path, *, number: int, slow: bool, by_turns: bool = False) -> Played:
    """Plays episodes to their end.

    Raises:
        RuntimeError: one did not finish.
    """
    beginnings = Beginnings()
    times = {"median_s": MEDIAN_S, "p99_s": P99_S} if slow else {}
    barrier = {"barrier": asyncio.Barrier(number)} if by_turns else {}
    spec = RolloutSpec(
        env=EnvSpec(
            TimedEnv, kwargs={"beginnings": beginnings, "turns": TURNS, **times, **barrier}
        ),
        renderer=RendererSpec(str(model)),
        parser="auto",
        rubric=always_one,
        episode=EpisodeSettings(
            max_turns=TURNS,
            max_turn_tokens=TURN_TOKENS,
            max_response_tokens=CONTEXT,
            context_tokens=CONTEXT,
        ),
        max_prompt_tokens=CONTEXT,
        root_seed=0,
        permits=StagePermits(preparing=IN_FLIGHT, running=IN_FLIGHT, scoring=IN_FLIGHT),
    )
    place = EnginePlace(
        str(model),
        context_tokens=CONTEXT,
        max_running=SLOTS,
        kv_tokens=(SLOTS + IN_FLIGHT) * CONTEXT,
        num_threads=1,
    )
    engine = TorchEngineSpec().build(place)
    counted = Counted(engine)
    runner = EpisodeRunner(spec, counted)
    try:
        start = time.perf_counter()
        runner.submit(
            [
                GroupRequest(group_index, task, 1)
                for group_index, task in enumerate(tasks(number))
            ]
        )
        outcomes: list[GroupOutcome] = []
        while len(outcomes) < number:
            outcomes += runner.collect(1.0)
        end = time.perf_counter()
    finally:
        runner.close()
        engine.close()
    if lost := failures(outcomes):
        raise RuntimeError(f"{lost} of {number} episodes did not finish")
    begun = sorted(beginnings.times)
    return Played(
        per_s=counted.per_second(start, end),
        steady_per_s=counted.per_second(begun[int(WARM_SHARE * number)], begun[-1]),
        drain_s=end - begun[-1],
        most_in_flight=beginnings.most,
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
