"""Phases: what of a rank's GPU the engine beside it has, and what the trainer, in each phase of a
step; and when each was.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist

from agentrl.controller.cluster.episode_host import EpisodeHost
from agentrl.engines import Tag
from agentrl.errors import ConfigError
from agentrl.types import Part
from agentrl.types.clock import EpochClock

PhaseName: TypeAlias = Literal["rollout", "update", "publish"]

RankTime: TypeAlias = tuple[str, float, float]
"""What lasted on a rank: name, begin and end in seconds since the epoch."""

_GIB = 2**30
_TAGS: tuple[Tag, ...] = ("weights", "kv_cache", "graphs")
"""Of an engine, as it wakes; it sleeps in the other order."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Who has what.

    Args:
        awake: of the engine.
        away: of the role whose weights are published, what waits in the host's memory unless a
            method needs it.
        others_away: of all other roles.
    """

    awake: frozenset[Tag]
    away: frozenset[Part]
    others_away: frozenset[Part]


_ALL: frozenset[Part] = frozenset({"params", "optimizer"})
_NOTHING: frozenset[Part] = frozenset()

PHASES: Mapping[PhaseName, Phase] = {
    "rollout": Phase(frozenset(_TAGS), _ALL, _ALL),
    "update": Phase(frozenset(), _NOTHING, _NOTHING),
    "publish": Phase(frozenset({"weights"}), frozenset({"optimizer"}), _ALL),
}
"""A step goes through them in this order, and back to the first. Weights that slept hold anything,
so the way to ``rollout`` leads through ``publish`` alone."""


class RankPhases:
    """One rank's part in the phases; nothing moves before ``begin``.

    Args:
        roles: the rank's, as they are at the time.
        host: of its episodes, with the engine.
    """

    def __init__(self, roles: Mapping[str, Any], host: EpisodeHost) -> None:
        self._roles = roles
        self._host = host
        self._phase: PhaseName | None = None
        self._numbers: defaultdict[str, float] = defaultdict(float)
        # by ``time.monotonic``
        self._times: list[RankTime] = []

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Notes when the block began and ended."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._times.append((name, start, time.monotonic()))

    def take_times(self) -> list[RankTime]:
        """What lasted here since the last call."""
        times, self._times = self._times, []
        at = EpochClock().at
        return [(name, at(began), at(ended)) for name, began, ended in times]

    def begin(self, sleeps: bool) -> None:
        """A stage starts, before its engines do: with ``sleeps`` they and the trainer take turns,
        and the engines come first."""
        self._phase = None
        self._numbers.clear()
        if sleeps:
            self._keep_away("rollout", None)
            self._phase = "rollout"

    def enter(self, name: PhaseName, published: str | None = None) -> None:
        """Gives back what the phase has no room for, on all ranks, and then takes what it needs.

        Args:
            name: of the phase.
            published: the role whose weights are published.

        Raises:
            EngineError: the engine cannot.
        """
        if self._phase is None:
            return
        self._note_memory(self._phase)
        before, after = PHASES[self._phase].awake, PHASES[name].awake
        engine = self._host.engine
        asleep = [tag for tag in reversed(_TAGS) if tag in before - after]
        with self._moving("engine_sleep"):
            if engine is not None and asleep:
                # in a synchronous schedule only cancelled requests run by now
                engine.pause("drain")
                engine.sleep(asleep)
        with self._moving("trainer_away"):
            self._keep_away(name, published)
            if dist.get_world_size() > 1:
                # a server's GPUs belong to several ranks
                dist.barrier()
        woken = [tag for tag in _TAGS if tag in after - before]
        with self._moving("engine_wake"):
            if engine is not None and woken:
                engine.wake(woken)
        self._phase = name

    def take_numbers(self) -> dict[str, float]:
        """Seconds of the moves, and memory by phase, since the last call."""
        if self._phase is not None:
            self._note_memory(self._phase)
        numbers = dict(self._numbers)
        self._numbers.clear()
        return numbers

    @contextmanager
    def _moving(self, name: str) -> Iterator[None]:
        """Times the block, and counts its seconds."""
        with self.timed(name):
            yield
        _, began, ended = self._times[-1]
        self._numbers[f"time/{name}_s"] += ended - began

    def _keep_away(self, name: PhaseName, published: str | None) -> None:
        phase = PHASES[name]
        for role, own in self._roles.items():
            backend = getattr(own, "backend", None)
            if backend is not None:
                backend.keep_away(phase.away if role == published else phase.others_away)

    def _note_memory(self, name: PhaseName) -> None:
        """What the GPU holds at the end of a phase: of other processes, and of all with this one at
        its peak."""
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return
        free, total = torch.cuda.mem_get_info()
        others = total - free - torch.cuda.memory_reserved()
        peak = others + torch.cuda.max_memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        for kind, held in (("others", others), ("peak", peak)):
            metric = f"gpu/{name}/{kind}_gib"
            self._numbers[metric] = max(self._numbers[metric], held / _GIB)


def largest(by_rank: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Numbers of several ranks as one: the largest of each."""
    found: dict[str, float] = {}
    for numbers in by_rank:
        for name, number in numbers.items():
            found[name] = max(number, found.get(name, number))
    return found


def ranks_of_servers(
    nodes: Sequence[str], ranks_a_server: int, setting: str = "tp_size", tp: int = 1
) -> list[list[int]]:
    """Which ranks have each server together, in the order of its tensor-parallel ranks; the first
    of them owns it.

    The part of the weights that a rank trains lies in the part of the server's rank on its GPU: of
    n ranks of a node that divide tensors by rows, a server of t has the ranks r, r + n/t, ....
    Where the node has not all of the rows, some ranks hold nothing of their server's part.

    Args:
        nodes: of each rank.
        ranks_a_server: of one node.
        setting: that says so.
        tp: neighbouring ranks that hold a layer together in training.

    Raises:
        ConfigError: it does not divide the ranks of a node.
    """
    by_node: defaultdict[str, list[int]] = defaultdict(list)
    for rank, node in enumerate(nodes):
        by_node[node].append(rank)
    servers = []
    for node, own in by_node.items():
        # first by what tensor parallelism divides, then by FSDP's rows
        ranks = sorted(own, key=lambda rank: (rank % tp, rank))
        if len(ranks) % ranks_a_server:
            raise ConfigError(
                f"{setting}={ranks_a_server} must divide the ranks of each node (so many "
                f"of them have a server together), got {len(ranks)} "
                f"{f'on node {node}' if node else 'in this process'}; change it, or "
                "placement.world_size"
            )
        apart = len(ranks) // ranks_a_server
        servers += [ranks[first::apart] for first in range(apart)]
    return sorted(servers)
