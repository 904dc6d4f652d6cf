"""Simulated cluster: rollout workers that are slow, hang, die and lie down with their nodes, and
nodes that join and are drained, behind the calls of Ray that ``RayRolloutPool`` makes.

A worker plays groups turn by turn, by the weights that it has. Each turn's token says which weights
made it (``truth``), so that the policy version beside it can be held to that.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
from ray.exceptions import ActorDiedError, RayTaskError

from agentrl.controller.cluster.rollout_pool import GroupKey, ProcessInfo, group_key
from agentrl.errors import StaleWeightsError, WeightMismatchError
from agentrl.rollouts import (
    GroupOutcome,
    GroupRequest,
    GroupState,
    NotResumable,
    cancelled_outcome,
)
from agentrl.rollouts.states.snapshots import EpisodeState
from agentrl.types import (
    Observation,
    SamplingParams,
    Segment,
    SegmentKind,
    Status,
    StepResult,
    Trajectory,
    TrajectoryGroup,
    Turn,
)
from agentrl.types.arrays import frozen_floats
from agentrl.types.seeds import seed_for
from agentrl.weight_sync import WeightsReport
from tests.simulation.virtual import Process, VirtualTime

LATENCY_S = 0.002
LOGPROBS = frozen_floats([-1.0, -1.0])
ROOM = 2
"""Workers of a node, as it is told; those that a run keeps find room all the same."""
MOST_NODES = 4


@dataclass(frozen=True, slots=True)
class Weights:
    """What stands for a version's weights.

    Args:
        version: as it is called.
        truth: which they are.
    """

    version: int
    truth: int


@dataclass
class Faults:
    """How often what goes wrong; each a mean number of seconds between two."""

    worker_dies_s: float
    worker_hangs_s: float
    node_lost_s: float
    ranks_die_s: float
    node_joins_s: float
    node_drains_s: float
    driver_dies_s: float
    clock_jumps_s: float
    engine_fails: float
    """Share of updates that an engine does not verify."""
    episode_fails: float
    """Share of episodes that end by infrastructure."""


class Cluster:
    """Nodes and the workers on them; it outlives drivers, and ends the workers of a dead one."""

    def __init__(
        self, time: VirtualTime, num_nodes: int, faults: Faults, num_kept: int = 1
    ) -> None:
        self.time = time
        self.num_kept = num_kept
        self.process = Process(time)
        self.faults = faults
        self._node_numbers = itertools.count(num_nodes)
        self.nodes = {f"node{n}": True for n in range(num_nodes)}
        self.drained: dict[str, None] = {}
        self.counts: Counter[str] = Counter()
        self.workers: list[Worker] = []
        self.is_calm = False
        """Nothing goes wrong any more."""
        self.has_ranks = True
        """Whether what is published can be had from the ranks."""
        self.num_faults = 0
        self.newest: Weights | None = None
        """Of the driver: what workers that join late may still be sent."""

    def start(self, number: int, without: frozenset[str] = frozenset()) -> Worker:
        """An actor on some node that answers."""
        worker = Worker(self, number, without)
        self.workers.append(worker)
        self.counts["joined_workers"] += number >= self.num_kept
        return worker

    @property
    def up(self) -> list[str]:
        """Nodes that take workers."""
        return [name for name, up in self.nodes.items() if up and name not in self.drained]

    def look(self) -> tuple[list[str], dict[str, int]]:
        """As ``drained_nodes_and_room``."""
        on = Counter(worker.node for worker in self.workers)
        return list(self.drained), {node: max(0, ROOM - on[node]) for node in self.up}

    def add_node(self) -> None:
        if len(self.nodes) < MOST_NODES:
            self.nodes[f"node{next(self._node_numbers)}"] = True

    def drain_node(self) -> None:
        """A node is about to end, and does so later."""
        if len(self.up) < 2:
            return
        node = self.time.random.choice(self.up)
        self.drained[node] = None
        self.counts["drained_nodes"] += 1

        def ends() -> None:
            del self.nodes[node], self.drained[node]
            for worker in list(self.workers):
                if worker.node == node:
                    worker.die()

        self.time.at(self.time.random.choice((30.0, 120.0)), ends, self.process)

    def end_all(self) -> None:
        """The driver is dead, and its workers end by their lifeline."""
        for worker in list(self.workers):
            worker.die()

    def node_answers(self, node: str) -> bool:
        return self.nodes.get(node, False)

    def happens(self, mean_s: float, do: Callable[[], None]) -> None:
        """Something happens again and again, until it is calm."""

        def once() -> None:
            if not self.is_calm:
                self.num_faults += 1
                do()
                self.happens(mean_s, do)

        if mean_s < float("inf"):
            self.time.at(self.time.random.expovariate(1 / mean_s), once, self.process)

    def begin_faults(self) -> None:
        def some() -> Worker | None:
            return self.time.random.choice(self.workers) if self.workers else None

        def dies() -> None:
            if (worker := some()) is not None:
                worker.die()

        def hangs() -> None:
            if (worker := some()) is not None:
                worker.hang(self.time.random.choice((5.0, 20.0, 40.0, float("inf"))))

        self.happens(self.faults.worker_dies_s, dies)
        self.happens(self.faults.worker_hangs_s, hangs)
        self.happens(self.faults.node_lost_s, self.lose_node)
        self.happens(self.faults.ranks_die_s, self.lose_ranks)
        self.happens(self.faults.node_joins_s, self.add_node)
        self.happens(self.faults.node_drains_s, self.drain_node)

    def lose_ranks(self) -> None:
        self.has_ranks = False

    def lose_node(self) -> None:
        if len(self.up) < 2:
            return
        node = self.time.random.choice(self.up)
        self.nodes[node] = False
        for worker in self.workers:
            if worker.node == node:
                worker.cut = True
        # Ray finds out much later, where it does at all
        gone = [worker for worker in self.workers if worker.node == node]
        lasts = self.time.random.choice((20.0, 120.0, 400.0))

        def back() -> None:
            if node not in self.nodes:
                return
            self.nodes[node] = True
            for worker in gone:
                if self.time.random.random() < 0.5:
                    worker.die()
                else:
                    worker.cut = False
                    worker.catch_up()

        self.time.at(lasts, back, self.process)

    def kill(self, worker: Worker) -> None:
        """As ``ray.kill``."""
        worker.die()


class Ref:
    """The reference to an answer."""

    def __init__(self) -> None:
        self._future: Future[Any] = Future()

    def future(self) -> Future[Any]:
        return self._future

    def give(self, value: Any) -> None:
        if not self._future.done():
            self._future.set_result(value)

    def fail(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(error)


class _Method:
    def __init__(self, worker: Worker, name: str) -> None:
        self._worker = worker
        self._name = name

    def remote(self, *args: Any, **named: Any) -> Ref:
        return self._worker.call(self._name, args, named)


@dataclass(eq=False)
class _Episode:
    """One rollout of a group."""

    request: GroupRequest
    index: int
    attempt: int
    num_turns: int
    turns: list[Turn] = field(default_factory=list)
    ended: Trajectory | None = None

    def trajectory(self, status: str, reason: str = "") -> Trajectory:
        key = self.request.key(self.index)
        return Trajectory(
            task=self.request.task,
            group_index=self.request.group_index,
            rollout_index=self.index,
            attempt=key.attempt + self.attempt,
            purpose=key.purpose,
            turns=tuple(self.turns),
            status=Status(status, reason),  # type: ignore[arg-type]
            reward=1.0 if status in ("terminated", "truncated") else None,
            label=self.request.label,
            stage=self.request.stage,
            group_size=self.request.group_size,
        )


@dataclass(eq=False)
class _Group:
    request: GroupRequest
    episodes: list[_Episode]
    retried: list[Trajectory] = field(default_factory=list)


@cache
def _prompt(number: int) -> Segment:
    return Segment(SegmentKind.PROMPT, np.asarray([number], np.int32))


def _seed(episode: _Episode) -> int:
    """Of a turn's first token, as ``TurnGenerator`` has it."""
    key = episode.request.key(episode.index)
    number = len(episode.turns)
    return (
        seed_for(0, "sample", key.label, key.group_index, key.rollout_index, "main", number)
        >> 33
    )


class Worker:
    """An actor that hosts episodes."""

    def __init__(self, cluster: Cluster, number: int, without: frozenset[str]) -> None:
        self.cluster = cluster
        self.time = cluster.time
        self.number = number
        self.process = Process(self.time)
        up = [node for node in cluster.up if node not in without]
        self.node = self.time.random.choice(up) if up else ""
        wait_s = 0.0
        if number >= cluster.num_kept and self.time.random.random() < 0.2:
            # the room that was seen is another's for a while
            self.node, wait_s = "", self.time.random.choice((10.0, 100.0))
        self.pace = self.time.random.choice((1.0, 1.0, 1.0, 4.0))
        self.cut = not self.node
        self._late: list[Callable[[], None]] = []
        self._refs: list[Ref] = []
        self.weights: Weights | None = None
        self.paused = False
        self.groups: dict[GroupKey, _Group] = {}
        self.outcomes: deque[GroupOutcome] = deque()
        self.news: list[Trajectory] = []
        self._polls: list[Callable[[], None]] = []
        self.fault = ""
        if not self.node:  # it waits for a machine
            self.time.at(wait_s, self._seek_node, self.process)

    def __getattr__(self, name: str) -> _Method:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Method(self, name)

    def _seek_node(self) -> None:
        if up := self.cluster.up:
            self.node = self.time.random.choice(up)
            self.cut = False
            self.catch_up()
        else:
            self.time.at(5.0, self._seek_node, self.process)

    def die(self) -> None:
        if not self.process.alive:
            return
        self.process.alive = False
        if self in self.cluster.workers:
            self.cluster.workers.remove(self)
        refs, self._refs = self._refs, []
        for ref in refs:
            self.time.at(
                LATENCY_S, partial(ref.fail, ActorDiedError()), self.cluster.process
            )

    def hang(self, seconds: float) -> None:
        self.cut = True

        def go_on() -> None:
            if self.cluster.nodes.get(self.node):
                self.cut = False
                self.catch_up()

        if seconds < float("inf"):
            self.time.at(seconds, go_on, self.process)

    def catch_up(self) -> None:
        late, self._late = self._late, []
        for do in late:
            self.time.at(self.time.random.random() * LATENCY_S, do, self.process)

    def call(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Ref:
        ref = Ref()
        if not self.process.alive:
            self.time.at(
                LATENCY_S, lambda: ref.fail(ActorDiedError()), self.cluster.process
            )
            return ref
        self._refs.append(ref)
        self._soon(lambda: getattr(self, f"do_{name}")(ref, *args, **named))
        return ref

    def _soon(self, do: Callable[[], None], after_s: float | None = None) -> None:
        """Does something here, unless it is cut off: then later."""
        latency = LATENCY_S * (0.5 + self.time.random.random())

        def arrive() -> None:
            if self.cut:
                self._late.append(do)
            else:
                do()

        self.time.at(latency if after_s is None else after_s, arrive, self.process)

    def _answer(self, ref: Ref, value: Any) -> None:
        def arrive() -> None:
            if ref in self._refs:
                self._refs.remove(ref)
            ref.give(value)

        self._soon(arrive)

    def _raise(self, ref: Ref, error: BaseException) -> None:
        raised = RayTaskError("update", "a traceback", error)  # type: ignore[no-untyped-call]

        def arrive() -> None:
            if ref in self._refs:
                self._refs.remove(ref)
            ref.fail(raised)

        self._soon(arrive)

    # --- what the pool calls -------------------------------------------------------------------

    def do_describe(self, ref: Ref) -> None:
        info = ProcessInfo("host", 1, rollout_worker=self.number, node=self.node)
        self._soon(lambda: self._answer(ref, info), 1.0 * self.pace)

    def do_setup_rollouts(self, ref: Ref, spec: Any) -> None:
        def built() -> None:
            # The folder's weights, which no version's are but the first's.
            self.weights = Weights(0, 0)
            self.groups.clear()
            self.outcomes.clear()
            self.news.clear()
            self._answer(ref, None)

        self._soon(built, 3.0 * self.pace)

    def do_update_rollouts(
        self, ref: Ref, weights: Weights, version: int, mode: str, *, joins: bool
    ) -> None:
        takes = self.pace * (0.5 + self.time.random.random())
        if not joins:
            self.paused = True

        def done() -> None:
            gone = not self.cluster.has_ranks or self.cluster.newest is not weights
            if joins and gone:
                self._answer(ref, [])
                return
            self.paused = False
            if gone:
                self.fault = "its engine is corrupt"
                self._raise(ref, StaleWeightsError("a rank died"))
                return
            fails = not self.cluster.is_calm and (
                self.time.random.random() < self.cluster.faults.engine_fails
            )
            if fails:
                self.fault = "its engine is corrupt"
                self._raise(ref, WeightMismatchError("a tensor differs", retryable=False))
            else:
                self.weights = Weights(version, weights.truth)
                self._answer(ref, [WeightsReport(version, 1, 1, takes)])

        self._soon(done, takes)

    def do_poll(self, ref: Ref, timeout_s: float) -> None:
        told = False

        def tell() -> None:
            nonlocal told
            if told:
                return
            told = True
            outcomes, news = list(self.outcomes), self.news
            self.outcomes.clear()
            self.news = []
            self._answer(ref, (outcomes, [], news, self.fault, {}))

        if self.outcomes:
            tell()
        else:
            self._polls.append(tell)
            # A busy worker answers later than it is asked to; and most events would be answers
            # without an outcome.
            self._soon(tell, 20 * timeout_s)

    def do_episodes(self, ref: Ref, method: str, *args: Any) -> None:
        self._answer(ref, getattr(self, f"play_{method}")(*args))

    def do_close(self, ref: Ref) -> None:
        self._answer(ref, None)

    # --- episodes ------------------------------------------------------------------------------

    def play_submit(self, requests: list[GroupRequest]) -> None:
        for request in requests:
            group = _Group(replace(request, saved=None), [])
            self.groups[group_key(request)] = group
            rollouts = () if request.saved is None else request.saved.rollouts
            group.retried += () if request.saved is None else request.saved.retried
            for index in range(request.num_rollouts):
                saved = rollouts[index] if rollouts else NotResumable()
                num_turns = self.time.random.choice((1, 2, 3))
                failed = sum(one.rollout_index == index for one in group.retried)
                episode = _Episode(group.request, index, failed, num_turns)
                group.episodes.append(episode)
                if isinstance(saved, Trajectory):
                    episode.ended = saved
                    continue
                if isinstance(saved, EpisodeState):
                    episode.turns = list(saved.turns)
                    episode.num_turns = max(num_turns, len(episode.turns) + 1)
                self._turn_comes(group, episode)
            self._look(group)

    def play_cancel(self, keys: list[GroupKey]) -> None:
        for key in keys:
            group = self.groups.pop(key, None)
            if group is not None:
                self._give(cancelled_outcome(group.request, self._state(group)))

    def play_in_flight(self) -> list[GroupState]:
        return [self._state(group) for key, group in self.groups.items() if not key[0]]

    def _state(self, group: _Group) -> GroupState:
        def of(episode: _Episode) -> Trajectory | EpisodeState | NotResumable:
            if episode.ended is not None:
                return episode.ended
            if not episode.turns:
                return NotResumable()
            return EpisodeState(
                tuple(episode.turns), {}, StepResult(Observation(())), b"", {}, {}, None
            )

        rollouts = tuple(of(episode) for episode in group.episodes)
        return GroupState(
            group.request.group_index,
            rollouts,
            tuple(group.retried),
            first_attempt=group.request.first_attempt,
        )

    def _turn_comes(self, group: _Group, episode: _Episode) -> None:
        seconds = self.time.random.lognormvariate(-0.5, 0.9) * self.pace
        self._soon(lambda: self._turn(group, episode), seconds)

    def _turn(self, group: _Group, episode: _Episode) -> None:
        if (
            self.groups.get(group_key(group.request)) is not group
            or episode.ended is not None
        ):
            return
        if self.paused:
            self._soon(lambda: self._turn(group, episode), 0.2)
            return
        assert self.weights is not None, "played without an engine"
        made = Segment(
            SegmentKind.POLICY,
            np.asarray([self.weights.truth, _seed(episode)], np.int32),
            LOGPROBS,
            self.weights.version,
        )
        episode.turns.append(
            Turn(
                len(episode.turns),
                None if not episode.turns else len(episode.turns) - 1,
                (_prompt(len(episode.turns)),),
                (made,),
                "",
                {"role": "assistant", "content": ""},
                sampling=SamplingParams(4),
            )
        )
        failing = not self.cluster.is_calm and episode.attempt < 2
        if failing and self.time.random.random() < self.cluster.faults.episode_fails:
            failed = episode.trajectory("failed", "sandbox")
            group.retried.append(failed)
            self.news.append(failed)
            episode.attempt += 1
            episode.turns = []
            self._turn_comes(group, episode)
        elif len(episode.turns) < episode.num_turns:
            self._turn_comes(group, episode)
        else:
            episode.ended = episode.trajectory("terminated")
            self.news.append(episode.ended)
            self._look(group)

    def _look(self, group: _Group) -> None:
        ended = [one.ended for one in group.episodes if one.ended is not None]
        if len(ended) < len(group.episodes):
            return
        del self.groups[group_key(group.request)]
        request = group.request
        whole = TrajectoryGroup(request.group_index, request.task, tuple(ended))
        self._give(GroupOutcome(request, whole, tuple(group.retried)))

    def _give(self, outcome: GroupOutcome) -> None:
        self.outcomes.append(outcome)
        polls, self._polls = self._polls, []
        for tell in polls:
            tell()
