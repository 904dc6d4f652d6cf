"""Rollout workers as a fleet that outlives its members: what a dead or silent one played is played again, and it is
replaced."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import ray

from agentrl.controller.cluster.ray_runtime import ActorCalls, ActorLostError, Collected
from agentrl.controller.cluster.rollout_pool import Incident, WorkerFailure
from agentrl.errors import EngineError
from agentrl.rollouts import GroupOutcome, GroupRequest, GroupState, cancelled_outcome

__all__ = ["WorkerFleet"]


@dataclass(slots=True, eq=False)
class _Place:
    """Where a worker is, and another one after it died.

    Attributes:
        starting: answers to come before it plays: of its setup, and of the weights that it was given since.
        poll: the call of ``collect`` that is under way.
        due: when the poll should have come back (``time.monotonic``).
        groups: what it plays.
    """

    number: int
    actor: Any
    starting: list[Any] = field(default_factory=list)
    poll: Any = None
    due: float = 0.0
    groups: dict[tuple[str, int], GroupRequest] = field(default_factory=dict)


class WorkerFleet:
    """A ``Fleet`` of Ray actors, and who brings weights to them; used by the loop's thread and the service's.

    A draw's group goes to worker ``draw mod workers`` while that one plays, otherwise to another. New workers take part
    once they serve the weights that were published last.

    Args:
        start: a new actor with the methods of ``EpisodeHost`` for a place.
        num_workers: places.
        calls: waits for them.
        max_restarts: deaths between two publishes after which the next one ends the run.
        answer_s: seconds in which a worker answers what costs it no work; one that does not counts as dead.
    """

    def __init__(
        self,
        start: Callable[[int], Any],
        num_workers: int,
        calls: ActorCalls,
        *,
        max_restarts: int,
        answer_s: float,
    ) -> None:
        self._start, self._calls, self._max_restarts, self._answer_s = (
            start,
            calls,
            max_restarts,
            answer_s,
        )
        self._places = [_Place(number, start(number)) for number in range(num_workers)]
        self._parts: Any = None
        self._weights: tuple[Any, ...] | None = None
        self._waiting: list[GroupRequest] = []
        self._arrived: list[GroupOutcome] = []
        self._cancelled: set[tuple[str, int]] = set()
        self._incidents: list[Incident] = []
        self._num_deaths = 0
        self._lock = threading.RLock()

    @property
    def actors(self) -> list[Any]:
        """One a place, also those that are starting."""
        return [place.actor for place in self._places]

    def setup(self, parts: Any) -> list[Any]:
        """Every worker hosts ``parts``, a reference to what a stage's episodes are made of; what each answers.

        One that died before is replaced.

        Raises:
            AgentRLError: a worker could not, or died of it.
        """
        self._calls.assert_sound()
        with self._lock:
            self._parts, self._weights, self._num_deaths = parts, None, 0
            self._waiting.clear()
            self._arrived.clear()
            self._cancelled.clear()
            for place in self._places:
                place.starting, place.poll = [], None
                place.groups.clear()
        what, answers = "setting up the episodes", []
        asked = [(place, place.actor, place.actor.setup.remote(parts)) for place in self._places]
        for place, actor, ref in asked:
            with self._losing(place, actor):
                answers.append(self._calls.ask(ref, what, place.number))
        for place in self._places:
            if place.starting:
                answers.append(self._calls.get(place.starting.pop(0), what, place.number))
        return answers

    def update(self, *weights: Any) -> list[Any]:
        """Every worker that plays serves the weights when this returns; what each answered.

        Args:
            weights: arguments of the worker's ``update``; kept for workers that start later.

        Raises:
            AgentRLError: a worker could not, or too many died.
        """
        self._calls.assert_sound()
        with self._lock:
            self._weights, self._num_deaths = weights, 0
            asked = []
            for place in self._places:
                ref = place.actor.update.remote(*weights)
                if place.starting:
                    place.starting.append(ref)
                else:
                    asked.append((place, place.actor, ref))
        reports = []
        for place, actor, ref in asked:
            with self._losing(place, actor):
                reports.append(self._calls.ask(ref, "publishing weights", place.number))
        return reports

    def submit(self, requests: Sequence[GroupRequest]) -> None:
        with self._lock:
            self._hand_out(requests)

    def collect(self, timeout_s: float) -> list[GroupOutcome]:
        with self._lock:
            watched = [] if self._arrived else self._watched(timeout_s)
        ready = ray.wait(watched, num_returns=1, timeout=timeout_s)[0] if watched else []
        with self._lock:
            self._take(set(ready))
            self._lose_silent()
            outcomes, self._arrived = self._arrived, []
            return outcomes

    def cancel(self, group_indices: Sequence[int], *, label: str = "") -> None:
        keys = {(label, group_index) for group_index in group_indices}
        with self._lock:
            self._cancelled |= keys & {key for place in self._places for key in place.groups}
            self._arrived += [
                cancelled_outcome(request) for request in self._waiting if _key(request) in keys
            ]
            self._waiting = [request for request in self._waiting if _key(request) not in keys]
            for place in self._playing():
                with self._losing(place, place.actor):
                    ref = place.actor.cancel.remote(list(group_indices), label)
                    self._calls.ask(ref, "cancelling groups", place.number, self._answer_s)

    def in_flight(self) -> list[GroupState]:
        with self._lock:
            self._take({place.poll for place in self._places if place.poll is not None})
            saved = [request.saved for request in self._waiting if request.saved is not None]
            for place in self._playing():
                with self._losing(place, place.actor):
                    ref = place.actor.in_flight.remote()
                    saved += self._calls.ask(
                        ref, "saving the groups that run", place.number, self._answer_s
                    )
            return saved

    def take_incidents(self) -> list[Incident]:
        """Workers that died since the last call, and what the engines of the others overcame."""
        with self._lock:
            incidents, self._incidents = self._incidents, []
            return incidents

    def close(self) -> None:
        """Ends every worker."""
        try:
            if self._calls.error is None:
                closing = [(place, place.actor.close.remote()) for place in self._playing()]
                for place, ref in closing:
                    with suppress(ActorLostError):  # then there is nothing to close
                        self._calls.ask(ref, "closing the rollout workers", place.number)
        finally:
            for actor in self.actors:
                ray.kill(actor)

    def _playing(self) -> list[_Place]:
        return [place for place in self._places if not place.starting]

    def _watched(self, timeout_s: float) -> list[Any]:
        """What says that something happened: each worker's next outcomes, or the next step of its start."""
        for place in self._playing():
            if place.poll is None:
                place.poll = place.actor.collect.remote(timeout_s)
                place.due = time.monotonic() + timeout_s + self._answer_s
        return [place.starting[0] if place.starting else place.poll for place in self._places]

    def _take(self, ready: set[Any]) -> None:
        """Outcomes come in; a worker that is up begins to play."""
        for place in self._places:
            if place.starting and place.starting[0] in ready:
                self._come_up(place)
            elif place.poll is not None and place.poll in ready:
                with self._losing(place, place.actor):
                    collected: Collected = self._calls.ask(
                        place.poll, "collecting groups", place.number
                    )
                    outcomes, notices = collected
                    self._incidents += notices
                    place.poll = None
                    self._come_in(place, outcomes)

    def _lose_silent(self) -> None:
        """A worker whose poll does not come back hangs, or its machine cannot be reached."""
        for place in self._playing():
            if (
                place.poll is None
                or time.monotonic() <= place.due
                or ray.wait([place.poll], timeout=0)[0]
            ):
                continue
            with self._losing(place, place.actor):
                raise self._calls.silent("collecting groups", place.number, self._answer_s)

    def _come_in(self, place: _Place, outcomes: Sequence[GroupOutcome]) -> None:
        for outcome in outcomes:
            key = _key(outcome.request)
            if place.groups.pop(key, None) is not None:
                self._cancelled.discard(key)
                self._arrived.append(outcome)

    def _come_up(self, place: _Place) -> None:
        with self._losing(place, place.actor):
            self._calls.ask(place.starting[0], "starting again", place.number)
            del place.starting[0]
        if not place.starting:
            waiting, self._waiting = self._waiting, []
            self._hand_out(waiting)

    def _hand_out(self, requests: Sequence[GroupRequest]) -> None:
        """Each to a worker that plays; they wait where there is none."""
        left = list(requests)
        while left and (playing := self._playing()):
            place = self._place_of(left[0].group_index, playing)
            own = [
                request for request in left if self._place_of(request.group_index, playing) is place
            ]
            left = [
                request
                for request in left
                if self._place_of(request.group_index, playing) is not place
            ]
            place.groups |= {_key(request): request for request in own}
            with self._losing(place, place.actor):
                self._calls.ask(
                    place.actor.submit.remote(own),
                    "submitting groups",
                    place.number,
                    self._answer_s,
                )
        self._waiting += left

    def _place_of(self, group_index: int, playing: Sequence[_Place]) -> _Place:
        own = self._places[group_index % len(self._places)]
        return playing[group_index % len(playing)] if own.starting else own

    @contextmanager
    def _losing(self, place: _Place, actor: Any) -> Iterator[None]:
        """Where the worker of ``place`` turns out to be dead, it is replaced, and the caller goes on."""
        try:
            yield
        except ActorLostError as lost:
            self._lose(place, actor, lost)

    def _lose(self, place: _Place, actor: Any, lost: ActorLostError) -> None:
        """A worker died: what it played is played by others, and another one takes its place.

        Raises:
            EngineError: too many have died since the last publish.
        """
        with self._lock:
            if place.actor is not actor:  # the other thread noticed it too
                return
            groups, place.groups = list(place.groups.values()), {}
            self._incidents.append(WorkerFailure(str(lost), len(groups)))
            self._num_deaths += 1
            ray.kill(actor)
            if self._num_deaths > self._max_restarts:
                self._calls.error = EngineError(
                    f"rollout workers died {self._num_deaths} times since weights were published last, and "
                    f"rollout.worker_restarts={self._max_restarts} allows {self._max_restarts}; the last was: {lost}",
                    retryable=False,
                )
                raise self._calls.error
            self._replace(place)
            given_up = {_key(request) for request in groups} & self._cancelled
            self._cancelled -= given_up
            self._arrived += [
                cancelled_outcome(request) for request in groups if _key(request) in given_up
            ]
            again = [request for request in groups if _key(request) not in given_up]
            self._hand_out(
                [replace(request, first_attempt=request.first_attempt + 1) for request in again]
            )

    def _replace(self, place: _Place) -> None:
        place.actor, place.poll = self._start(place.number), None
        place.starting = [place.actor.setup.remote(self._parts)]
        if self._weights is not None:
            place.starting.append(place.actor.update.remote(*self._weights))


def _key(request: GroupRequest) -> tuple[str, int]:
    return request.label, request.group_index
