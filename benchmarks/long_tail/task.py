"""Long-tailed task: turns whose answers take lognormally long, as sandboxes and web pages do."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from agentrl.envs import Env, ToolEnv
from agentrl.types import Action, Message, Observation, StepResult, Task, load_object

__all__ = ["LongTail", "SlowTools", "build_model", "tasks", "wait_s"]

TURNS = 2

build_model = load_object(
    "warmup.py:build_model", Path(__file__).resolve().parents[2] / "examples" / "code"
)


def wait_s(seed: int, episode: str, turn: int, *, median_s: float, sigma: float) -> float:
    """The seconds that a turn's answer takes: lognormal, and known without playing it.

    Args:
        seed: of all waits.
        episode: ``GROUP-ROLLOUT``.
        turn: of it, from 0.
        median_s, sigma: of the distribution.
    """
    return median_s * random.Random(f"{seed}/{episode}/{turn}").lognormvariate(0.0, sigma)


class LongTail(Env):
    """Answers each of two turns late; the reward is whether the last one has an even length.

    Args:
        task: says nothing.
        seed, median_s, sigma: of the waits.
        core: that the process of the rollouts is bound to; None leaves it as it is.
    """

    def __init__(
        self, task: Task, seed: int, median_s: float, sigma: float, core: int | None = None
    ) -> None:
        self.task = task
        self.turn = 0
        self._seed, self._median_s, self._sigma = seed, median_s, sigma
        self._core = core

    def reset(self, *, seed: int) -> Observation:
        return Observation(messages=({"role": "user", "content": "Say something."},))

    async def step(self, action: Action) -> StepResult:
        # The driver tries the first step of an episode itself; only workers come further.
        if self._core is not None and self.turn > 0:
            bind(os.getpid(), self._core)
        # as the process stands, for the share of its core that is busy
        info = {"cpu_s": time.process_time(), "at_s": time.monotonic()}
        await asyncio.sleep(
            wait_s(
                self._seed,
                self.episode_id.rpartition("-")[0],
                self.turn,
                median_s=self._median_s,
                sigma=self._sigma,
            )
        )
        self.turn += 1
        ends = self.turn == TURNS
        more: tuple[Message, ...] = () if ends else ({"role": "user", "content": "Go on."},)
        reward = float(len(action.text) % 2 == 0) if ends else 0.0
        return StepResult(Observation(messages=more), reward, terminated=ends, info=info)


class SlowTools(ToolEnv):
    """A ``ToolEnv`` whose every answer takes lognormally long, with a median of 0.3 s."""

    num_answers = 0

    async def step(self, action: Action) -> StepResult:
        result = await super().step(action)
        episode = self.episode_id.rpartition("-")[0]
        await asyncio.sleep(wait_s(0, episode, self.num_answers, median_s=0.3, sigma=1.0))
        self.num_answers += 1
        return result


def tasks(seed: int, core: int | None = None) -> Iterator[Task]:
    """The data set: all alike, since an episode's wait is drawn from its name.

    Args:
        seed: changes nothing.
        core: that the driver and what it started are bound to. The process of the rollouts binds
            itself elsewhere, by its first episode.
    """
    if core is not None:
        for pid in family(os.getpid()):
            bind(pid, core)
    for index in range(1000):
        yield Task(f"wait-{index}", data_source="wait")


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parents[int(stat.parent.name)] = int(
                stat.read_text().rpartition(")")[2].split()[1]
            )
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


@cache
def bind(pid: int, core: int) -> None:
    """Binds each thread of a process to a core, once; those that they start stay there too."""
    with suppress(OSError):  # it, or one of its threads, has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {core})
