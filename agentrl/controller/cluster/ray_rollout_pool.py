"""Ray rollout pool: routes groups to episode hosts in Ray actors, and replaces the workers that
die.

Invariants:
- A group goes to the worker that plays the fewest episodes, of equals to the first.
- Workers may join and leave at any time; one that joins plays once it serves the weights that were
published last.
- What a dead or silent worker played is played again by others, as the next attempt, but for the
rollouts that had finished. A cancelled group is not.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

import ray

from agentrl.config.sections import PlacementConfig
from agentrl.controller.cluster.ray_runtime import (
    ActorCalls,
    ActorLostError,
    Collected,
    rollout_actor,
    shared,
    thread_env,
)
from agentrl.controller.cluster.rollout_pool import (
    GroupKey,
    Incident,
    ProcessInfo,
    RolloutWorkerSpec,
    group_key,
    worker_lost,
)
from agentrl.engines import EngineLayout, PauseMode
from agentrl.errors import AgentRLError, EngineError
from agentrl.rollouts import (
    GroupOutcome,
    GroupRequest,
    GroupState,
    NotResumable,
    cancelled_outcome,
)
from agentrl.training.device import DeviceType
from agentrl.types import Trajectory
from agentrl.weight_sync import ServedWeights, WeightsReport

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Place:
    """A worker; after a death another takes its number.

    Attributes:
        starting: answers to come before it plays: of its setup, and of the weights that it was
            given since.
        poll: the call of ``poll`` that is under way.
        due: when the poll should have come back (``time.monotonic``).
        groups: what it plays.
        ended: of its groups, the attempts that ended.
    """

    number: int
    actor: Any
    starting: list[Any] = field(default_factory=list)
    poll: Any = None
    due: float = 0.0
    groups: dict[GroupKey, GroupRequest] = field(default_factory=dict)
    ended: dict[GroupKey, list[Trajectory]] = field(default_factory=dict)

    @property
    def num_episodes(self) -> int:
        """Episodes of the groups that it plays."""
        return sum(request.num_rollouts for request in self.groups.values())


def rollout_workers(
    placement: PlacementConfig, *, device: DeviceType = "cpu", log_folder: Path | None = None
) -> RayRolloutPool:
    """A pool of workers apart from any rank, on any machine of the cluster.

    Args:
        placement: how many, each with an engine, what each asks of Ray, and when one is lost.
        device: with ``cuda`` Ray shows each a GPU of its own.
        log_folder: where each worker keeps its log; None keeps none.
    """
    actor = rollout_actor.options(
        num_cpus=1,
        num_gpus=1 if device == "cuda" else 0,
        resources=dict(placement.worker_resources),
        scheduling_strategy="SPREAD",
        runtime_env={"env_vars": thread_env(placement.threads_per_rank)},
    )

    def start(number: int) -> Any:
        return actor.remote(number, log_folder)

    return RayRolloutPool(
        [start(number) for number in range(placement.rollout_workers)],
        ActorCalls(
            lambda number: f"rollout worker {number}", _engine_failure, placement.call_timeout_s
        ),
        start=start,
        max_restarts=placement.worker_restarts,
        answer_s=placement.worker_liveness_timeout_s,
    )


@dataclass(eq=False)
class RayRolloutPool:
    """``RolloutPool`` of episode hosts in Ray actors.

    Args:
        actors: of the first workers.
        calls: waits for them.
        start: a new actor by its number. None for ranks: they belong to their role group, and none
            joins or is replaced.
        max_restarts: deaths between two updates after which the next one ends the run.
        answer_s: seconds in which a worker answers a call that costs it no work; by default those
            of any call.
    """

    actors: Sequence[Any]
    calls: ActorCalls
    _: KW_ONLY
    start: Callable[[int], Any] | None = None
    max_restarts: int = 0
    answer_s: float | None = None

    def __post_init__(self) -> None:
        self._answer_s = self.answer_s or self.calls.timeout_s
        self._places = {number: _Place(number, actor) for number, actor in enumerate(self.actors)}
        self._numbers = itertools.count(len(self._places))
        self._spec: Any = None  # a reference, for those that join
        self._layout: EngineLayout | None = None
        self._weights: tuple[ServedWeights, int, PauseMode] | None = None
        self._waiting: list[GroupRequest] = []  # for a worker that plays
        self._arrived: list[GroupOutcome] = []  # for ``collect``
        self._ended: list[Trajectory] = []  # for ``take_ended``
        self._cancelled: set[GroupKey] = set()
        self._failures: list[Incident] = []
        self._num_deaths = 0
        # guards everything above and the places: the service's thread submits and collects, the
        # loop's thread updates. It is held over short calls of actors, never while ``collect`` or
        # ``update`` waits.
        self._lock = threading.RLock()

    def join(self) -> int:
        """Starts one worker more.

        Returns:
            Its number.
        """
        with self._lock:
            number = next(self._numbers)
            self._enter(number)
            return number

    def leave(self, number: int) -> None:
        """Ends a worker for good; what it plays is played again by others."""
        with self._lock:
            place = self._places.pop(number)
            ray.kill(place.actor)
            self._play_again(place)

    def setup(self, spec: RolloutWorkerSpec | None) -> None:
        """See ``RolloutPool.setup``; a worker that died before is replaced.

        Raises:
            AgentRLError: a worker could not, or died of it.
        """
        self.calls.assert_sound()
        what = "setting up the episodes"
        with self._lock:
            self._spec = shared(spec)
            self._layout = None
            self._weights = None
            self._num_deaths = 0
            self._waiting.clear()
            self._arrived.clear()
            self._ended.clear()
            self._cancelled.clear()
            self._places = {number: _Place(number, p.actor) for number, p in self._places.items()}
            asked = [
                (place, place.actor.setup_rollouts.remote(self._spec))
                for place in self._places.values()
            ]
        for place, ref in asked:
            with self._losing(place):
                self._layout = self.calls.ask(ref, what, place.number)
        for place in self._places.values():
            if place.starting:
                self._layout = self.calls.get(place.starting.pop(0), what, place.number)
            self._log_joined(place)

    def submit(self, requests: Sequence[GroupRequest]) -> None:
        """Each goes to a worker that plays; they wait where there is none."""
        with self._lock:
            sent: dict[int, list[GroupRequest]] = {}
            playing = self._playing()
            for request in requests:
                if not playing:
                    self._waiting.append(request)
                    continue
                place = min(playing, key=lambda one: one.num_episodes)
                place.groups[group_key(request)] = request
                sent.setdefault(place.number, []).append(request)
            for place in playing:
                # one that was lost by now has had its groups played again
                if place.number in sent and self._places.get(place.number) is place:
                    with self._losing(place):
                        self._ask(place, "submitting groups", "submit", sent[place.number])

    def collect(self, timeout_s: float) -> list[GroupOutcome]:
        with self._lock:
            watched = [] if self._arrived else self._watched(timeout_s)
        ready = ray.wait(watched, num_returns=1, timeout=timeout_s)[0] if watched else []
        with self._lock:
            self._take(set(ready))
            for place in self._playing():
                late = place.poll is not None and time.monotonic() > place.due
                if late and not ray.wait([place.poll], timeout=0)[0]:
                    # it hangs, or its machine cannot be reached
                    with self._losing(place):
                        raise self.calls.silent("collecting groups", place.number, self._answer_s)
            outcomes = self._arrived
            self._arrived = []
            return outcomes

    def take_ended(self) -> list[Trajectory]:
        with self._lock:
            ended = self._ended
            self._ended = []
            return ended

    def cancel(self, keys: Sequence[GroupKey]) -> None:
        chosen = set(keys)
        with self._lock:
            self._cancelled |= chosen & {
                key for place in self._places.values() for key in place.groups
            }
            waiting = self._waiting
            self._arrived += [cancelled_outcome(r) for r in waiting if group_key(r) in chosen]
            self._waiting = [r for r in waiting if group_key(r) not in chosen]
            for place in self._playing():
                with self._losing(place):
                    self._ask(place, "cancelling groups", "cancel", list(keys))

    def in_flight(self) -> list[GroupState]:
        with self._lock:
            # an outcome on its way here would be neither in a worker nor collected
            self._take({place.poll for place in self._places.values()} - {None})
            saved = [request.saved for request in self._waiting if request.saved is not None]
            for place in self._playing():
                with self._losing(place):
                    saved += self._ask(place, "saving the groups that run", "in_flight")
            return saved

    def take_failures(self) -> list[Incident]:
        with self._lock:
            failures = self._failures
            self._failures = []
            return failures

    def layout(self) -> EngineLayout | None:
        return self._layout

    def update(self, weights: ServedWeights, version: int, mode: PauseMode) -> list[WeightsReport]:
        """See ``RolloutPool.update``.

        Raises:
            AgentRLError: a worker could not, or too many died.
        """
        self.calls.assert_sound()
        with self._lock:
            self._weights = (weights, version, mode)
            self._num_deaths = 0
            asked = []
            for place in self._places.values():
                if place.starting:
                    place.starting.append(self._update(place, joins=True))
                else:
                    asked.append((place, self._update(place, joins=False)))
        reports: list[WeightsReport] = []
        for place, ref in asked:
            with self._losing(place):
                reports += self.calls.ask(ref, "publishing weights", place.number)
        return reports

    def describe(self) -> list[ProcessInfo]:
        refs = [place.actor.describe.remote() for place in self._places.values()]
        found = self.calls.gather(refs, "describing the rollout workers")
        numbered = zip(self._places, found, strict=True)
        return [replace(info, rollout_worker=number) for number, info in numbered]

    def close(self) -> None:
        """Ends every worker; ranks are ended by their group."""
        if self.start is None:
            return
        try:
            if self.calls.error is None:
                closing = [(place, place.actor.close.remote()) for place in self._playing()]
                for place, ref in closing:
                    with suppress(ActorLostError):  # then there is nothing to close
                        self.calls.ask(ref, "closing the rollout workers", place.number)
        finally:
            for place in self._places.values():
                ray.kill(place.actor)

    def _ask(self, place: _Place, what: str, method: str, *args: Any) -> Any:
        """A call of an episode host that costs it no work, beside what it trains or updates."""
        ref = place.actor.episodes.remote(method, *args)
        return self.calls.ask(ref, what, place.number, self._answer_s)

    def _playing(self) -> list[_Place]:
        return [place for place in self._places.values() if not place.starting]

    def _watched(self, timeout_s: float) -> list[Any]:
        """References to wait for: each worker's next outcomes, or the next step of its start."""
        for place in self._playing():
            if place.poll is None:
                place.poll = place.actor.poll.remote(timeout_s)
                place.due = time.monotonic() + timeout_s + self._answer_s
        places = self._places.values()
        return [place.starting[0] if place.starting else place.poll for place in places]

    def _take(self, ready: set[Any]) -> None:
        """Takes outcomes in; a worker whose start is done begins to play."""
        for place in list(self._places.values()):
            with self._losing(place):
                if place.starting and place.starting[0] in ready:
                    answer = self.calls.ask(place.starting[0], "starting again", place.number)
                    del place.starting[0]
                    if answer == [] and not place.starting:
                        # the ranks went on to a version that ``update`` will bring
                        place.starting.append(self._update(place, joins=True))
                    if not place.starting:
                        self._log_joined(place)
                        waiting = self._waiting
                        self._waiting = []
                        self.submit(waiting)
                elif place.poll in ready:
                    collected: Collected = self.calls.ask(
                        place.poll, "collecting groups", place.number
                    )
                    place.poll = None
                    self._take_collected(place, collected)

    def _take_collected(self, place: _Place, collected: Collected) -> None:
        outcomes, failures, ended = collected
        self._failures += failures
        for outcome in outcomes:
            key = group_key(outcome.request)
            place.ended.pop(key, None)
            if place.groups.pop(key, None) is not None:
                self._cancelled.discard(key)
                self._arrived.append(outcome)
        for trajectory in ended:
            key = (trajectory.label, trajectory.group_index)
            if key in place.groups:
                place.ended.setdefault(key, []).append(trajectory)
                self._ended.append(trajectory)

    @contextmanager
    def _losing(self, place: _Place) -> Iterator[None]:
        """Where the worker of ``place`` turns out to be dead, it is replaced, and the caller goes
        on."""
        try:
            yield
        except ActorLostError as lost:
            self._lose(place, lost)

    def _lose(self, place: _Place, lost: ActorLostError) -> None:
        """Replaces a dead worker; what it played is played by others.

        Raises:
            AgentRLError: the worker is a rank, or too many have died since the last update.
        """
        if self.start is None:
            raise self.calls.fail(lost, place.number)
        with self._lock:
            if self._places.get(place.number) is not place:
                return  # the other thread noticed it too, or it has left
            failure = worker_lost(str(lost), len(place.groups))
            self._failures.append(failure)
            self._num_deaths += 1
            fields = {"event": failure.event, "worker": place.number, "groups": len(place.groups)}
            logger.warning("%s", failure, extra=fields)
            ray.kill(place.actor)
            if self._num_deaths > self.max_restarts:
                self.calls.error = EngineError(
                    f"rollout workers died {self._num_deaths} times since weights were published "
                    f"last, and PlacementConfig.worker_restarts={self.max_restarts} allows "
                    f"{self.max_restarts}; the last was: {lost}",
                    retryable=False,
                )
                raise self.calls.error
            self._enter(place.number)
            fields = {
                "event": "worker_replaced",
                "worker": place.number,
                "deaths": self._num_deaths,
            }
            logger.warning("rollout worker %d is started again", place.number, extra=fields)
            self._play_again(place)

    def _enter(self, number: int) -> None:
        """Starts a worker of this number, which plays once it serves the weights published last."""
        assert self.start is not None, "ranks neither join nor are replaced"
        place = _Place(number, self.start(number))
        place.starting = [place.actor.setup_rollouts.remote(self._spec)]
        if self._weights is not None:
            place.starting.append(self._update(place, joins=True))
        self._places[number] = place

    def _play_again(self, place: _Place) -> None:
        """What a worker that is gone played is played by others; a cancelled group is not."""
        again = []
        for key, request in place.groups.items():
            request = _with_ended(request, place.ended.get(key, ()))
            if key in self._cancelled:
                self._cancelled.remove(key)
                self._arrived.append(cancelled_outcome(request))
            else:
                again.append(replace(request, first_attempt=request.first_attempt + 1))
        self.submit(again)

    def _update(self, place: _Place, *, joins: bool) -> Any:
        """A reference to the worker's report on the weights published last; see
        ``EpisodeHost.update``."""
        assert self._weights is not None
        return place.actor.update_rollouts.remote(*self._weights, joins=joins)

    def _log_joined(self, place: _Place) -> None:
        fields = {"event": "worker_joined", "worker": place.number}
        logger.info("worker %d hosts episodes", place.number, extra=fields)


def _with_ended(request: GroupRequest, ended: Sequence[Trajectory]) -> GroupRequest:
    """The request, which goes on from the rollouts that have finished."""
    finished = {one.rollout_index: one for one in ended if one.status.finished}
    if not finished:
        return request
    saved = request.saved
    before = (NotResumable(),) * request.num_rollouts if saved is None else saved.rollouts
    rollouts = tuple(finished.get(number, one) for number, one in enumerate(before))
    state = GroupState(request.group_index, rollouts) if saved is None else saved
    return replace(request, saved=replace(state, rollouts=rollouts))


def _engine_failure(message: str, number: int, traceback_text: str) -> AgentRLError:
    return EngineError("\n".join(filter(None, (message, traceback_text))), retryable=False)
