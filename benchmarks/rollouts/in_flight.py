"""In flight: the driver's time a turn and memory a trajectory at thousands of episodes."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import tempfile
import time
from pathlib import Path

from agentrl.engines.scripted import ScriptedEngine
from agentrl.envs import EnvSpec, ToolEnv
from agentrl.render import RendererSpec
from agentrl.rollouts import (
    EpisodeRunner,
    EpisodeSettings,
    GroupOutcome,
    GroupRequest,
    RolloutSpec,
    StagePermits,
    paced_collector,
)
from agentrl.tools import tool
from agentrl.types import GenerateRequest
from benchmarks.figures import Figures
from benchmarks.rollouts.episodes import always_one, failures, tasks, tiny_model

__all__ = ["measure"]

EPISODES = 4096
TURNS = 4
CONTEXT = 1024
TARGET_MS = 0.5
CALL = '<tool_call>\n{{"name": "look", "arguments": {{"place": "{place}"}}}}\n</tool_call>'
NOTE = (
    f"In flight: {EPISODES} episodes at once, {TURNS} turns each, on a ScriptedEngine; all but the "
    "last turn call a tool that answers at once. The first answers come when every episode waits "
    "for its own, the later ones after 1 to 2 s. The driver is therefore always at work: its time "
    "a turn bounds the turns a second of one process. It is the processor time of the whole "
    "process over the turns: rendering, parsing, tools, accounting, rewards, re-tokenisation, the "
    "engine's own account. Memory is the growth of the process over the episodes, all of which "
    "are kept. In the row named so, each call and each answer of a tool is another text, so no "
    "cache helps. Otherwise all episodes say the same, as rollouts of a group often do."
)


@tool
async def look(place: str) -> str:
    """Looks at a place.

    Args:
        place: where.
    """
    return f"nothing is {place}"


class _Answers:
    """The script and its latency; counts the requests that wait.

    Args:
        calls: what the turns but the last ones say, each in its turn and then from the beginning
            again.
        answer: what the last turns say.
        number: of episodes; the first answers are held back until so many requests wait.
    """

    def __init__(self, calls: list[list[int]], answer: list[int], number: int) -> None:
        self.most = self._waiting = 0
        self._calls = itertools.cycle(calls)
        self._answer = answer
        self._number, self._all_wait = number, asyncio.Event()
        self._random = random.Random(0)

    def script(self, request: GenerateRequest) -> list[int]:
        last = int(request.request_id.rpartition("/")[2]) == TURNS - 1
        return self._answer if last else next(self._calls)

    async def latency(self, request: GenerateRequest) -> None:
        self._waiting += 1
        self.most = max(self.most, self._waiting)
        if self.most == self._number:
            self._all_wait.set()
        await self._all_wait.wait()
        await asyncio.sleep(self._random.uniform(1.0, 2.0))
        self._waiting -= 1


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Plays all at once, after a few for the caches.

    Raises:
        RuntimeError: an episode did not finish.
    """
    with tempfile.TemporaryDirectory(prefix="agentrl-rollout-") as folder:
        model = tiny_model(Path(folder) / "model", arguments.seed)
        play(model, 64)
        with paced_collector():  # as in every process in which a run hosts episodes
            resident = _resident_bytes()
            most, cpu_s, outcomes = play(model, EPISODES)
            grown = _resident_bytes() - resident
            _, apart_s, _ = play(model, EPISODES, alike=False)
    trajectories = [t for outcome in outcomes for t in outcome.group.trajectories]
    turns = sum(len(t.turns) for t in trajectories)
    figures.at_least("in flight: requests that waited at once", most, "", EPISODES)
    figures.report("in flight: turns", turns, "")
    figures.at_most(
        "in flight: driver's time a turn", 1000 * cpu_s / turns, "ms", TARGET_MS
    )
    figures.report(
        "in flight: driver's time a turn, every text another", 1000 * apart_s / turns, "ms"
    )
    figures.report(
        "in flight: memory a trajectory", grown / len(trajectories) / 1024, "KiB"
    )
    tokens = sum(
        len(segment) for t in trajectories for turn in t.turns for segment in turn.segments
    )
    figures.report("in flight: tokens a trajectory", tokens / len(trajectories), "tokens")
    figures.note(NOTE)


def play(
    model: Path, number: int, *, alike: bool = True
) -> tuple[int, float, list[GroupOutcome]]:
    """Requests that waited at once at most, processor seconds, and what came of the episodes, which
    all say the same where they are ``alike``."""
    renderer = RendererSpec(str(model)).build()
    ends = list(renderer.stop_token_ids)[:1]
    places = ["here"] if alike else [f"here {n}" for n in range(number * (TURNS - 1))]
    calls = [
        [*renderer.tokenize(CALL.format(place=place)).tolist(), *ends] for place in places
    ]
    answers = _Answers(calls, [*renderer.tokenize("nothing").tolist(), *ends], number)
    engine = ScriptedEngine(
        answers.script,
        vocab_size=renderer.vocab_size,
        context_tokens=CONTEXT,
        latency=answers.latency,
    )
    spec = RolloutSpec(
        env=EnvSpec(ToolEnv, kwargs={"tools": [look]}),
        renderer=RendererSpec(str(model)),
        parser="auto",
        rubric=always_one,
        episode=EpisodeSettings(
            max_turns=TURNS,
            max_turn_tokens=64,
            max_response_tokens=CONTEXT,
            context_tokens=CONTEXT,
        ),
        max_prompt_tokens=CONTEXT,
        root_seed=0,
        permits=StagePermits(preparing=number, running=number, scoring=number),
    )
    runner = EpisodeRunner(spec, engine)
    try:
        cpu_s = time.process_time()
        runner.submit(
            [
                GroupRequest(group_index, task, 1)
                for group_index, task in enumerate(tasks(number))
            ]
        )
        outcomes: list[GroupOutcome] = []
        while len(outcomes) < number:
            outcomes += runner.collect(1.0)
        cpu_s = time.process_time() - cpu_s
    finally:
        runner.close()
    if lost := failures(outcomes):
        raise RuntimeError(f"{lost} of {number} episodes did not finish")
    return answers.most, cpu_s, outcomes


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
