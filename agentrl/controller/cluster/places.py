"""Places: decides what becomes of a pool's workers, and of the groups that they play.

It is told events and leaves actions; it has no clock, thread or process of its own.

- A place is starting until its engine stands, stale until that serves the weights published last,
serving, suspect while a call is overdue, and dead at its end. Another worker then takes its number.
- Only a verified update leads back to serving; an engine that was sent no weights serves its own.
- A group goes to the serving place that plays the fewest episodes, of equals to the first.
- What a dead worker played is played again by others, as the next attempt, but for the rollouts
that had finished. A group that was in flight at two deaths is played alone; a third one drops it.
- The workers of a node that does not answer are one loss, and none is started there meanwhile.
- The first workers are kept: each is started again under its number. Others join where nodes have
room, and are gone when they end.
- A worker leaves a node that is drained. Its groups go on in others from their saved turns.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from agentrl.controller.cluster.rollout_pool import GroupKey, Incident, group_key
from agentrl.errors import EngineError
from agentrl.rollouts import (
    KILLS_WORKER,
    GroupOutcome,
    GroupRequest,
    GroupState,
    NotResumable,
    cancelled_outcome,
)
from agentrl.types import Trajectory

_DEATHS_ALONE = 2
"""Deaths of workers after which a group that each of them played is played alone."""


@dataclass(slots=True, eq=False)
class Place:
    """A worker's place; the worker that comes after it gets a place of its own.

    Attributes:
        number: of the worker.
        is_told: whether a person is told of its states: it came after another, or was late.
        state: one that leaves gets no groups, and tells how its own stand; dead ones are in no
            mapping any more.
        node: where it runs; empty until it has told.
        version: of the weights that it was verified to serve; None before any.
        is_sent: whether it is being sent the weights published last.
        waits: whether no machine has taken it, so that nobody waits for it.
        fault: why it is to be given up, once its node has been asked.
        groups: what it plays.
        ended: of its groups, the attempts that ended.
    """

    number: int
    is_told: bool = False
    state: Literal["starting", "stale", "serving", "suspect", "leaving", "dead"] = (
        "starting"
    )
    node: str = ""
    version: int | None = None
    is_sent: bool = False
    waits: bool = False
    fault: WorkerFault | None = None
    groups: dict[GroupKey, GroupRequest] = field(default_factory=dict)
    ended: dict[GroupKey, list[Trajectory]] = field(default_factory=dict)

    @property
    def num_episodes(self) -> int:
        """Episodes of the groups that it plays."""
        return sum(request.num_rollouts for request in self.groups.values())


@dataclass(frozen=True, slots=True)
class WorkerFault:
    """Why a worker is given up.

    Args:
        error: what was raised, or that it died or is silent.
        by_groups: whether a group that it played may have caused it.
        counts: whether it is one of the losses that a run bears so many of.
    """

    error: BaseException
    by_groups: bool = True
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Start:
    """A worker is to be started, on none of these nodes."""

    place: Place
    without: frozenset[str]


@dataclass(frozen=True, slots=True)
class Send:
    """A worker is to be sent the weights published last."""

    place: Place


@dataclass(frozen=True, slots=True)
class Order:
    """A worker is to play groups (``submit``), or to end some by their keys (``cancel``)."""

    place: Place
    method: Literal["submit", "cancel"]
    groups: Sequence[GroupRequest] | Sequence[GroupKey]


@dataclass(frozen=True, slots=True)
class AskGroups:
    """A worker that leaves is to tell how its groups stand."""

    place: Place


@dataclass(frozen=True, slots=True)
class Kill:
    """A worker is to be ended; what it still answers counts for nothing."""

    place: Place


@dataclass(frozen=True, slots=True)
class AskNode:
    """A node is to be asked whether it answers."""

    node: str


@dataclass(frozen=True, slots=True)
class Finish:
    """A group has come to its end."""

    outcome: GroupOutcome


@dataclass(frozen=True, slots=True)
class Tell:
    """Something happened; a person is told of it where ``alerts``."""

    incident: Incident
    worker: int | None
    alerts: bool


@dataclass(frozen=True, slots=True)
class Fail:
    """The run ends: too many workers were lost, or one that none stands in for."""

    place: Place
    error: BaseException
    losses: int


Action: TypeAlias = Start | Send | Order | AskGroups | Kill | AskNode | Finish | Tell | Fail


class Places:
    """State of a pool's workers and groups. Each method is an event.

    Args:
        least: of the first workers, which are started already and kept.
        most: workers that there may be.
        max_losses: losses between two publishes after which one more ends the run; None for workers
            that nothing stands in for.
    """

    def __init__(self, least: int, *, max_losses: int | None, most: int = 0) -> None:
        self._max_losses = max_losses
        self._least = least
        self._most = most
        self._todo: list[Action] = []
        self.by_number = {number: Place(number) for number in range(least)}
        self.lost_nodes: set[str] = set()
        self.drained_nodes: Collection[str] = ()
        self.set_up()

    def take(self) -> list[Action]:
        """What is to be done since the last call, in order."""
        todo = self._todo
        self._todo = []
        return todo

    def set_up(self) -> None:
        """A new stage: every worker builds its engine again, and nothing is played."""
        self.by_number = {
            number: Place(number, node=place.node)
            for number, place in self.by_number.items()
        }
        self.version: int | None = None
        self.losses = 0
        self.waiting: list[GroupRequest] = []
        self._deaths: Counter[GroupKey] = Counter()
        self._cancelled: set[GroupKey] = set()
        # What was decided for the stage before concerns nobody any more.
        self._todo.clear()

    def is_kept(self, place: Place) -> bool:
        """Whether another worker is started where this one ends, room or not."""
        return place.number < self._least

    def cluster_seen(self, drained: Collection[str], room: Mapping[str, int]) -> None:
        """The cluster was looked at: workers leave nodes that are drained, and join where there is
        room.

        Args:
            drained: nodes that are about to end.
            room: of nodes, for so many workers more.
        """
        self.drained_nodes = drained
        for place in list(self.by_number.values()):
            if place.node in drained and place.fault is None:
                self._drain(place)
        free = sum(own for node, own in room.items() if node not in self._without)
        # those without a machine may take what was seen
        free -= sum(not place.node for place in self.by_number.values())
        numbers = (
            own for own in range(self._least, self._most) if own not in self.by_number
        )
        for number in itertools.islice(numbers, max(0, free)):
            self._start(Place(number))

    def left(self, place: Place, states: Iterable[GroupState] = ()) -> None:
        """A worker that leaves has told how its groups stand, or cannot."""
        if place.state != "leaving":
            return
        for state in states:
            key = ("", state.group_index)
            if key in place.groups:
                place.groups[key] = replace(place.groups[key], saved=state)
        self._leave(place)

    def built(self, place: Place) -> None:
        """A worker's engine stands, with the weights of its folder."""
        place.state = "stale"
        if self.version is None:
            self._serve(place)
        else:
            self._tell(place, "worker_stale", "has its engine, and is sent the weights")
            self._send(place)

    def published(self, version: int) -> None:
        """Weights are published: whoever has an engine is sent them, and losses count from none."""
        self.version = version
        self.losses = 0
        for place in self.by_number.values():
            if place.state not in ("starting", "leaving") and place.fault is None:
                self._send(place)

    @property
    def awaited(self) -> list[Place]:
        """Serving places that were not verified yet to serve the weights published last."""
        return [place for place in self.serving if place.version != self.version]

    @property
    def serving(self) -> list[Place]:
        """The places that groups are given to."""
        return [place for place in self.by_number.values() if place.state == "serving"]

    def verified(self, place: Place, version: int) -> None:
        """A worker's engine was compared with the trainer, and serves a version."""
        place.version = version
        # The report of an earlier publish may come after the next one, and makes no worker serve.
        if version == self.version:
            place.is_sent = False
            if place.state in ("stale", "suspect") and place.fault is None:
                self._serve(place)

    def outrun(self, place: Place, version: int) -> None:
        """The trainer went on before a worker that does not serve had all of a version: it is as it
        was, and the next publish brings another."""
        if version == self.version:
            place.is_sent = False

    def answered(self, place: Place) -> None:
        """A sign of life: a suspect worker is sent the weights before it is given groups again."""
        if place.state != "suspect" or place.fault is not None:
            return
        place.state = "stale"
        if self.version is None:
            self._serve(place)
            return
        self._tell(place, "worker_stale", "answers again, and is sent the weights")
        if not place.is_sent:
            self._send(place)

    def late(self, place: Place) -> None:
        """An answer is overdue: the worker is given no groups, and no publish waits for it."""
        if place.state in ("serving", "stale"):
            place.state = "suspect"
            place.is_told = True
            self._tell(place, "worker_suspect", "is late to answer, and is given no groups")

    def failed(self, place: Place, fault: WorkerFault) -> None:
        """A worker died, does not answer, or has an engine that is of no use."""
        if place.fault is not None:
            return
        if place.state == "leaving":
            self.left(place)
            return
        place.fault = fault
        place.state = "suspect"
        if self._max_losses is None:
            self._todo.append(Fail(place, fault.error, 1))
        elif place.node:
            # whether its node died with it decides what is lost, and where others start
            self._todo.append(AskNode(place.node))
        else:
            self._lose([place], fault)

    def node_told(self, node: str, *, answers: bool) -> None:
        """A node was asked, and answers or does not."""
        own = [place for place in self.by_number.values() if place.node == node]
        if answers:
            if node in self.lost_nodes:
                self._node_back(node)
            for place in own:
                if place.fault is not None:
                    self._lose([place], place.fault)
        elif own:
            self.lost_nodes.add(node)
            silent = EngineError(f"node {node} does not answer")
            self._lose(own, WorkerFault(silent, by_groups=False), node)

    def given(self, requests: Iterable[GroupRequest]) -> None:
        """Groups are to be played."""
        self.waiting += requests
        self._give()

    def ended(self, place: Place, trajectory: Trajectory) -> bool:
        """An attempt ended while its group goes on; whether the group is the worker's."""
        key = (trajectory.label, trajectory.group_index)
        if key in place.groups:
            place.ended.setdefault(key, []).append(trajectory)
        return key in place.groups

    def returned(self, place: Place, outcome: GroupOutcome) -> None:
        """A group came to its end in a worker."""
        key = group_key(outcome.request)
        if place.groups.pop(key, None) is not None:
            place.ended.pop(key, None)
            self._cancelled.discard(key)
            self._finish(outcome)
            # who waits to be played alone may have its place now
            self._give()

    def cancelled(self, keys: Collection[GroupKey]) -> None:
        """Groups are given up, wherever they are."""
        chosen = set(keys)
        waiting = self.waiting
        self.waiting = [request for request in waiting if group_key(request) not in chosen]
        for request in waiting:
            if group_key(request) in chosen:
                self._finish(cancelled_outcome(request))
        for place in self.by_number.values():
            if own := [key for key in place.groups if key in chosen]:
                self._cancelled.update(own)
                self._todo.append(Order(place, "cancel", own))

    def overdue_start(self, place: Place) -> None:
        """No machine has taken a worker yet; the others play on. One that joined is given up: the
        room that was seen is another's."""
        if not self.is_kept(place):
            self._end(place, by_groups=False)
            self._replace(place)
            return
        lost = ", ".join(sorted(self.lost_nodes))
        elsewhere = f" but on the nodes that do not answer ({lost})" if lost else ""
        place.is_told = place.waits = True
        what = f"waits for a machine with room for it{elsewhere}; the others play on"
        self._tell(place, "worker_waits", what, {"count/waiting_workers": 1})

    def room_found(self) -> None:
        """Workers that wait for a machine are started again, where they may find one now."""
        for place in list(self.by_number.values()):
            if place.state == "starting" and not place.node:
                # whoever waits for this one learns that it waits for nothing
                self._end(place, by_groups=False)
                self._start(Place(place.number, is_told=True))

    @property
    def _without(self) -> frozenset[str]:
        """Nodes on which no worker is started."""
        return frozenset((*self.lost_nodes, *self.drained_nodes))

    def _replace(self, place: Place) -> None:
        """A worker has ended: one that is kept is started again; the others join where there is
        room."""
        if self.is_kept(place):
            self._start(Place(place.number, is_told=True))
        else:
            del self.by_number[place.number]

    def _drain(self, place: Place) -> None:
        if place.state == "serving" and place.groups:
            place.state = "leaving"
            self._todo.append(AskGroups(place))
        elif place.state != "leaving":
            self._leave(place)

    def _leave(self, place: Place) -> None:
        counts = {"count/drained_workers": 1, "count/replayed_groups": len(place.groups)}
        told = f"rollout worker {place.number} leaves node {place.node}, which Ray drains"
        on = f"its {len(place.groups)} groups go on in others"
        self._say("worker_left", f"{told}; {on}", counts, place.number)
        self._end(place, by_groups=False)
        self._replace(place)
        self._give()

    def _start(self, place: Place) -> None:
        self.by_number[place.number] = place
        self._todo.append(Start(place, self._without))
        if place.is_told:
            self._tell(place, "worker_replaced", "is started again")

    def _send(self, place: Place) -> None:
        place.is_sent = True
        self._todo.append(Send(place))

    def _serve(self, place: Place) -> None:
        place.state = "serving"
        self._tell(place, "worker_joined", "hosts episodes")
        self._give()

    def _lose(self, places: Sequence[Place], fault: WorkerFault, node: str = "") -> None:
        """Workers that died by one cause are one loss."""
        self.losses += fault.counts
        groups = sum(len(place.groups) for place in places)
        counts = {"count/lost_workers": len(places), "count/replayed_groups": groups}
        again = f"its {groups} groups are played again"
        if node:
            numbers = ", ".join(str(place.number) for place in places)
            told = f"node {node} does not answer, and rollout workers {numbers} are lost with it"
            self._say("node_lost", f"{told}; {again}", {**counts, "count/lost_nodes": 1})
        else:
            self._say("worker_lost", f"{fault.error}; {again}", counts, places[0].number)
        assert self._max_losses is not None, (
            "workers that nothing stands in for end the run"
        )
        for place in places:
            self._end(place, by_groups=fault.by_groups)
        if self.losses > self._max_losses:
            self._todo.append(Fail(places[0], fault.error, self.losses))
            return
        for place in places:
            self._replace(place)
        self._give()

    def _end(self, place: Place, *, by_groups: bool) -> None:
        """A worker is gone; what it played waits for others, but for what was cancelled, and for a
        group that has killed a third one."""
        place.state = "dead"
        self._todo.append(Kill(place))
        for key, request in place.groups.items():
            request = with_ended(request, place.ended.get(key, ()))
            self._deaths[key] += by_groups
            if key in self._cancelled:
                self._cancelled.remove(key)
                self._finish(cancelled_outcome(request))
            elif self._deaths[key] > _DEATHS_ALONE:
                self._drop(request)
            else:
                # after every attempt that was told of: an id names one attempt
                last = max((one.attempt for one in place.ended.get(key, ())), default=0)
                first = max(last, request.first_attempt) + 1
                self.waiting.append(replace(request, first_attempt=first))

    def _drop(self, request: GroupRequest) -> None:
        deaths = self._deaths[group_key(request)]
        # of the deaths that the group explains one counts, so that it ends no run by itself
        self.losses -= min(deaths, self.losses) - 1
        message = (
            f"group {request.group_index} is dropped: each of the {deaths} workers that played it "
            f"died, the last while it played nothing else; look at task {request.task.id!r}"
        )
        self._say(KILLS_WORKER, message, {"count/worker_killers": 1})
        self._finish(cancelled_outcome(request, reason=KILLS_WORKER))

    def _finish(self, outcome: GroupOutcome) -> None:
        self._deaths.pop(group_key(outcome.request), None)
        self._todo.append(Finish(outcome))

    def _node_back(self, node: str) -> None:
        """Workers that found no other machine may take this one."""
        self.lost_nodes.remove(node)
        self._say("node_back", f"node {node} answers again", {"count/returned_nodes": 1})
        self.room_found()

    def _give(self) -> None:
        """Gives out what waits. Where a group is to be played alone, one place is kept free for it,
        or becomes free by getting no others."""
        given: dict[int, list[GroupRequest]] = {}
        waiting = []
        shared = [
            place for place in self.serving if not any(map(self._is_alone, place.groups))
        ]
        # Groups to be played alone choose first: others would fill the place that falls free.
        for request in sorted(
            self.waiting, key=lambda one: not self._is_alone(group_key(one))
        ):
            place = min(shared, key=lambda one: one.num_episodes, default=None)
            if place is not None and self._is_alone(group_key(request)):
                shared.remove(place)
                place = None if place.groups else place
            if place is None:
                waiting.append(request)
                continue
            place.groups[group_key(request)] = request
            given.setdefault(place.number, []).append(request)
        self.waiting = waiting
        self._todo += [
            Order(self.by_number[number], "submit", own) for number, own in given.items()
        ]

    def _is_alone(self, key: GroupKey) -> bool:
        return self._deaths[key] >= _DEATHS_ALONE

    def _tell(
        self,
        place: Place,
        event: str,
        what: str,
        counts: Mapping[str, float] | None = None,
    ) -> None:
        counts = counts or {f"count/{place.state}_workers": 1.0}
        incident = Incident(event, f"rollout worker {place.number} {what}", counts)
        self._todo.append(Tell(incident, place.number, place.is_told))

    def _say(
        self,
        event: str,
        message: str,
        counts: Mapping[str, float],
        worker: int | None = None,
    ) -> None:
        self._todo.append(Tell(Incident(event, message, counts), worker, alerts=True))


def with_ended(request: GroupRequest, ended: Sequence[Trajectory]) -> GroupRequest:
    """The request, which goes on from the rollouts that have finished."""
    finished = {one.rollout_index: one for one in ended if one.status.finished}
    if not finished:
        return request
    saved = request.saved
    before = (NotResumable(),) * request.num_rollouts if saved is None else saved.rollouts
    rollouts = tuple(finished.get(number, one) for number, one in enumerate(before))
    state = GroupState(request.group_index, rollouts) if saved is None else saved
    return replace(request, saved=replace(state, rollouts=rollouts))
