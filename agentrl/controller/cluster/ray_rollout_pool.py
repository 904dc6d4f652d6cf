"""Ray rollout pool: routes groups to episode hosts in Ray actors, and replaces the workers that
die.

``Places`` decides; what is here calls actors, watches the clock and does what was decided.

Invariants:
- Every call of an actor is under way beside all others, and has its own deadline. None is waited
for under the pool's lock.
- A worker gets its orders one after the other, so that none overtakes the one before.
- Workers may join and leave at any time; one that joins plays once it serves the weights that were
published last.
- An answer of a worker that was given up counts for nothing.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import ray

from agentrl.config.sections import PlacementConfig
from agentrl.controller.cluster.places import (
    Action,
    AskNode,
    Fail,
    Finish,
    Kill,
    Order,
    Place,
    Places,
    Send,
    Start,
    Tell,
    WorkerFault,
    with_ended,
)
from agentrl.controller.cluster.ray_cluster import NODE_ANSWER_S, Reservation, node_answers
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
)
from agentrl.engines import EngineLayout, PauseMode
from agentrl.errors import AgentRLError, EngineError, WeightMismatchError
from agentrl.rollouts import GroupOutcome, GroupRequest, GroupState
from agentrl.types import Trajectory
from agentrl.weight_sync import OwnWeights, ServedWeights, WeightsReport

logger = logging.getLogger(__name__)

_POLL_S = 0.2
"""Seconds that a worker waits for an outcome before it answers without one."""
_SLOW_START_S = 60.0
"""Seconds after which a person is told that a worker's process does not come up."""
_LOOK_S = 0.5
"""Between two looks at the clock, at most."""
_SAVE_S = 30.0
"""Seconds in which workers tell how their groups stand; of one that does not it is taken as it was
known, so that a checkpoint waits for nobody."""
_END_S = 60.0
_PUBLISHING = "publishing weights"


@dataclass(slots=True, eq=False)
class _Order:
    """A call of an episode host that costs it no work, beside what it trains or updates."""

    method: str
    args: tuple[Any, ...]
    take: Callable[[Any], object]


@dataclass(slots=True, eq=False)
class _Host:
    """The actor at a place.

    Attributes:
        info: where it runs, once it has told.
        orders: the first is under way.
    """

    place: Place
    actor: Any
    info: ProcessInfo | None = None
    orders: deque[_Order] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class _Call:
    """A call that is under way.

    Attributes:
        take: is given the answer.
        limit_s: seconds after which the worker is given up.
        due: when that is (``time.monotonic``).
        late: when its place is told that the answer is overdue.
    """

    host: _Host
    what: str
    take: Callable[[Any], object]
    limit_s: float
    due: float
    late: float


def rollout_workers(
    placement: PlacementConfig,
    *,
    gpus: float = 0,
    places: Reservation | None = None,
    log_folder: Path | None = None,
) -> RayRolloutPool:
    """A pool of workers apart from any rank.

    Args:
        placement: how many, each with an engine, what each asks of Ray, and when one is lost.
        gpus: that Ray shows each.
        places: of the workers, which outlive the pool; by default they are reserved with it.
        log_folder: where each worker keeps its log; None keeps none.

    Raises:
        MachineError: the cluster has no room for them.
    """
    pool, number = placement.worker_pool, placement.rollout_workers
    each = {"CPU": pool.cpus, "GPU": gpus, **placement.worker_resources}
    reserved = places or Reservation(pool, number, each, wait_s=placement.wait_s, spread=True)

    def start(number: int, without: frozenset[str] = frozenset()) -> Any:
        # a worker of a lost machine starts wherever there is room, and so does one that joins
        at_home = number < placement.rollout_workers and reserved.node(number) not in without
        # label_selector is asked of every node, and an empty "!in()" is no expression
        lost = {"ray.io/node-id": f"!in({','.join(sorted(without))})"} if without else {}
        actor = rollout_actor.options(
            num_cpus=pool.cpus,
            num_gpus=gpus,
            resources=dict(placement.worker_resources),
            scheduling_strategy=reserved.place(number) if at_home else "SPREAD",
            label_selector=None if at_home else {**pool.labels, **lost} or None,
            runtime_env={"env_vars": thread_env(pool.threads_per_rank)},
        )
        return actor.remote(number, log_folder)

    return RayRolloutPool(
        [start(number) for number in range(number)],
        ActorCalls(
            lambda number: f"rollout worker {number}", _engine_failure, placement.call_timeout_s
        ),
        start=start,
        max_restarts=placement.worker_restarts,
        answer_s=placement.worker_liveness_timeout_s,
        places=reserved,
        on_close=None if places else reserved.close,
    )


@dataclass(eq=False)
class RayRolloutPool:
    """``RolloutPool`` of episode hosts in Ray actors.

    Args:
        actors: of the first workers.
        calls: names actors and what they raise; holds the deadline of any call.
        start: a new actor by its number, on none of some nodes. None for ranks: they belong to
            their role group, and none joins or is replaced.
        max_restarts: losses between two updates after which the next one ends the run.
        answer_s: seconds in which a worker answers a call that costs it no work; by default those
            of any call. After half of them it is suspect.
        places: where the first workers were started; None for ranks.
        on_close: called once the workers have ended.
    """

    actors: Sequence[Any]
    calls: ActorCalls
    _: KW_ONLY
    start: Callable[[int, frozenset[str]], Any] | None = None
    max_restarts: int = 0
    answer_s: float | None = None
    places: Reservation | None = None
    on_close: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self._answer_s = self.answer_s or self.calls.timeout_s
        replaced = None if self.start is None else self.max_restarts
        self._places = Places(len(self.actors), max_losses=replaced)
        self._hosts = {
            number: _Host(place, self.actors[number])
            for number, place in self._places.by_number.items()
        }
        self._under_way: set[_Call] = set()
        self._asked_nodes: set[str] = set()
        self._next_look = self._next_ask = 0.0
        self._spec: Any = None  # a reference, for those that join
        self._plays = False
        self._in_setup = False
        self._layout: EngineLayout | None = None
        self._weights: tuple[ServedWeights | OwnWeights, int, PauseMode] | None = None
        self._reports: list[WeightsReport] = []
        self._arrived: list[GroupOutcome] = []  # for ``collect``
        self._ended: list[Trajectory] = []  # for ``take_ended``
        self._failures: list[Incident] = []
        self._error: BaseException | None = None
        self._mismatch: WeightMismatchError | None = None
        self._closed = False
        # Answers and nodes' answers, each as what takes it in: from Ray's threads and those that
        # ask nodes, to the keeper. They take no lock, which a caller of Ray might hold.
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        # Guards everything above: the service's thread submits and collects, the loop's thread
        # updates, and the keeper takes answers in. It is notified after each change. Nobody waits
        # for an actor while holding it.
        self._changed = threading.Condition()
        # Takes in answers and looks at the clock, until ``close``.
        self._keeper = threading.Thread(target=self._keep, name="rollout-pool", daemon=True)
        for host in self._hosts.values():
            self._begin(host)
        self._keeper.start()

    def join(self) -> int:
        """Starts one worker more.

        Returns:
            Its number.
        """
        with self._changed:
            place = self._places.join()
            self._act()
            return place.number

    def leave(self, number: int) -> None:
        """Ends a worker for good; what it plays is played again by others."""
        with self._changed:
            self._places.leave(number)
            self._act()

    def setup(self, spec: RolloutWorkerSpec | None) -> None:
        """See ``RolloutPool.setup``; a worker that died before is replaced.

        Raises:
            AgentRLError: a worker could not, or died of it.
        """
        self.calls.assert_sound()
        stored = shared(spec)
        with self._changed:
            self._spec, self._plays = stored, spec is not None
            self._layout, self._weights = None, None
            self._arrived.clear()
            self._ended.clear()
            # Answers that belong to the stage before are then passed over.
            self._under_way.clear()
            self._places.set_up()
            self._hosts = {
                number: _Host(place, self._hosts[number].actor, self._hosts[number].info)
                for number, place in self._places.by_number.items()
            }
            asked = list(self._hosts.values())
            for host in asked:
                self._begin(host)
            self._in_setup = True
            try:
                self._wait(
                    lambda: (
                        all(host.place.state in ("serving", "dead") for host in asked)
                        and bool(self._places.serving)
                    )
                )
            finally:
                self._in_setup = False

    def submit(self, requests: Sequence[GroupRequest]) -> None:
        """Each goes to a worker that plays; they wait where there is none."""
        with self._changed:
            self._check()
            self._places.given(requests)
            self._act()

    def collect(self, timeout_s: float) -> list[GroupOutcome]:
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._error is not None, timeout_s)
            self._check()
            outcomes = self._arrived
            self._arrived = []
            return outcomes

    def take_ended(self) -> list[Trajectory]:
        with self._changed:
            ended = self._ended
            self._ended = []
            return ended

    def cancel(self, keys: Sequence[GroupKey]) -> None:
        with self._changed:
            self._check()
            self._places.cancelled(keys)
            self._act()

    def in_flight(self) -> list[GroupState]:
        with self._changed:
            told: dict[_Host, list[GroupState]] = {}
            hosts = [host for host in self._hosts.values() if host.place.groups]
            asked = {host: _trained(host.place) for host in hosts}
            for host in asked:
                take = partial(told.__setitem__, host)
                self._order(host, _Order("in_flight", (), take))

            def is_known(host: _Host) -> bool:
                if host.place.state in ("suspect", "dead"):
                    return True
                # an outcome on its way here would be neither in a worker nor collected
                coming = asked[host].keys() - {("", one.group_index) for one in told.get(host, ())}
                return host in told and not coming & host.place.groups.keys()

            self._wait(lambda: all(map(is_known, asked)), _SAVE_S)
            # what a dead one played waits, or is another's by now
            untold = [h.place for h in asked if h not in told and h.place.state != "dead"]
            others = chain(self._places.waiting, *(_trained(place).values() for place in untold))
            saved = [request.saved for request in others if request.saved is not None]
            return saved + [state for states in told.values() for state in states]

    def take_failures(self) -> list[Incident]:
        with self._changed:
            failures = self._failures
            self._failures = []
            return failures

    def layout(self) -> EngineLayout | None:
        # It is replaced as a whole, so reading it needs no lock.
        return self._layout

    def update(
        self, weights: ServedWeights | OwnWeights, version: int, mode: PauseMode
    ) -> list[WeightsReport]:
        """See ``RolloutPool.update``; a worker that is silent, dies or fails at it is left behind.

        Returns:
            A report for each worker that serves them.
        """
        with self._changed:
            self._check()
            self._weights = (weights, version, mode)
            self._reports = []
            self._places.published(version)
            self._act()
            self._wait(lambda: self._mismatch is not None or not self._places.awaited)
            if self._mismatch is not None:
                raise self._mismatch
            return self._reports

    def describe(self) -> list[ProcessInfo]:
        with self._changed:
            hosts = self._hosts.values()
            self._wait(lambda: all(host.info for host in hosts), self._answer_s)
            return [host.info for host in hosts if host.info is not None]

    def close(self) -> None:
        """Ends every worker; ranks are ended by their group."""
        with self._changed:
            self._closed = True
            self._under_way.clear()
        # The keeper may wait for its next look at the clock, and this wakes it.
        self._inbox.put(lambda: None)
        self._keeper.join(_END_S)
        if self.start is None:
            return
        # A process that does not stand yet would answer nothing, and is only killed.
        actors = [host.actor for host in self._hosts.values() if host.info is not None]
        try:
            if self._error is None:
                closing = [actor.close.remote() for actor in actors]
                # one that does not answer is killed as it is
                ray.wait(closing, num_returns=len(closing), timeout=self._answer_s)
        finally:
            for host in self._hosts.values():
                ray.kill(host.actor)
            if self.on_close is not None:
                self.on_close()
            if self._keeper.is_alive():
                logger.warning("the pool's thread did not end within %.0f s", _END_S)

    def _wait(self, ready: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Until something is so, or so long; the calls under way have deadlines of their own.

        Raises:
            AgentRLError: the pool failed.
        """
        self._act()
        self._changed.wait_for(lambda: self._error is not None or ready(), timeout_s)
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _keep(self) -> None:
        """Takes in what actors answer, and notices what they do not."""
        try:
            while not self._closed:
                take: Callable[[], object] = _nothing
                with suppress(queue.Empty):
                    take = self._inbox.get(timeout=max(0.0, self._next_look - time.monotonic()))
                with self._changed:
                    take()
                    if time.monotonic() >= self._next_look:
                        self._look_at_clock()
                    self._act()
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - boundary: handed to the callers, who raise it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        for call in list(self._under_way):
            place = call.host.place
            if now >= call.due:
                self._under_way.discard(call)
                error = self.calls.silent(call.what, place.number, call.limit_s)
                self._places.failed(place, WorkerFault(error))
            elif now >= call.late:
                call.late = math.inf
                if call.host.info is None:
                    self._places.overdue_start(place)
                else:
                    self._places.late(place)
        if now >= self._next_ask:
            self._next_ask = now + NODE_ANSWER_S
            for node in self._places.lost_nodes:
                self._ask_node(node)
        self._next_look = now + min(_LOOK_S, self._answer_s / 8)

    def _call(
        self,
        host: _Host,
        what: str,
        ref: Any,
        take: Callable[[Any], object],
        *,
        limit_s: float = math.inf,
        late_s: float = math.inf,
    ) -> None:
        """A call is under way; the keeper gives its answer to ``take``."""
        now = time.monotonic()
        call = _Call(host, what, take, limit_s, now + limit_s, now + late_s)
        self._under_way.add(call)
        # called by a thread of Ray's
        answered = ref.future()
        answered.add_done_callback(lambda done: self._inbox.put(partial(self._take, call, done)))

    def _take(self, call: _Call, done: Future[Any]) -> None:
        """Takes in an answer, unless its worker was given up by now."""
        if call not in self._under_way:
            return
        self._under_way.discard(call)
        place = call.host.place
        if (raised := done.exception()) is None:
            call.take(done.result())
            return
        error = self.calls.told(raised, call.what, place.number)
        if self._in_setup and not isinstance(error, ActorLostError):
            # what a stage's own settings cause would befall every worker that is started again
            self._error = self.calls.error = error
            return
        by_groups = call.what != _PUBLISHING
        self._places.failed(place, WorkerFault(error, by_groups=by_groups))

    def _begin(self, host: _Host) -> None:
        """The worker tells where it runs, builds its engine, and answers polls from then on."""
        if host.info is None:
            told = partial(self._take_info, host)
            ref = host.actor.describe.remote()
            # This call has no limit: a worker may wait for a machine for as long as that takes.
            self._call(host, "starting", ref, told, late_s=max(_SLOW_START_S, self._answer_s))
        elif self._spec is not None:
            built = partial(self._take_built, host)
            ref = host.actor.setup_rollouts.remote(self._spec)
            what = "setting up the episodes"
            self._call(host, what, ref, built, limit_s=self.calls.timeout_s)

    def _take_info(self, host: _Host, info: ProcessInfo) -> None:
        host.info = replace(info, rollout_worker=host.place.number)
        host.place.node = info.node
        self._begin(host)

    def _take_built(self, host: _Host, layout: EngineLayout | None) -> None:
        self._layout = layout
        self._places.built(host.place)
        if self._plays:
            self._poll(host)

    def _poll(self, host: _Host) -> None:
        take = partial(self._take_collected, host)
        self._call(
            host,
            "collecting groups",
            host.actor.poll.remote(_POLL_S),
            take,
            limit_s=self._answer_s,
            late_s=self._answer_s / 2,
        )

    def _take_collected(self, host: _Host, collected: Collected) -> None:
        outcomes, failures, ended, fault = collected
        place = host.place
        # a rank's engine answers for itself at the next publish, which may keep the step
        fault = fault if self.start is not None else ""
        self._places.answered(place)
        self._failures += failures
        for outcome in outcomes:
            # what an engine failed that is of no use is played again by another
            if not (fault and _failed_by_engine(outcome)):
                self._places.returned(place, outcome)
        self._ended += [one for one in ended if self._places.ended(place, one)]
        if fault and not place.is_sent:
            # one that is being sent weights answers for itself
            error = EngineError(f"{self.calls.name(place.number)}: {fault}", retryable=False)
            self._places.failed(place, WorkerFault(error, by_groups=False))
        else:
            self._poll(host)

    def _order(self, host: _Host, order: _Order) -> None:
        host.orders.append(order)
        if len(host.orders) == 1:
            self._give_order(host)

    def _give_order(self, host: _Host) -> None:
        order = host.orders[0]
        self._call(
            host,
            f"the call {order.method!r}",
            host.actor.episodes.remote(order.method, *order.args),
            partial(self._take_obeyed, host),
            limit_s=self._answer_s,
            late_s=self._answer_s / 2,
        )

    def _take_obeyed(self, host: _Host, answer: Any) -> None:
        host.orders.popleft().take(answer)
        if host.orders:
            self._give_order(host)

    def _take_report(self, host: _Host, version: int, reports: list[WeightsReport]) -> None:
        if not reports:
            self._places.outrun(host.place, version)
            return
        if version == self._places.version:
            self._reports += reports
        self._places.verified(host.place, version)

    def _ask_node(self, node: str) -> None:
        """Asks in a thread of its own, which ends with the answer."""

        def ask() -> None:
            answers = node_answers(node)
            # Ray moves what was reserved on a machine that it has given up
            moved = self.places is not None and self.places.has_moved()
            self._inbox.put(partial(self._take_node, node, answers, moved))

        # A node out of reach takes seconds to ask, and a second question would learn no more.
        if node not in self._asked_nodes:
            self._asked_nodes.add(node)
            threading.Thread(target=ask, name="node", daemon=True).start()

    def _take_node(self, node: str, answers: bool, moved: bool) -> None:
        self._asked_nodes.discard(node)
        self._places.node_told(node, answers=answers)
        if moved:
            self._places.room_found()

    def _act(self) -> None:
        """Does what was decided; under the lock, since no call of Ray here waits."""
        for action in self._places.take():
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Start(place, without):
                assert self.start is not None, "ranks neither join nor are replaced"
                host = _Host(place, self.start(place.number, without))
                self._hosts[place.number] = host
                self._begin(host)
            case Kill(place):
                host = self._hosts.pop(place.number)
                self._under_way = {call for call in self._under_way if call.host is not host}
                ray.kill(host.actor)
            case Send(place):
                self._send(self._hosts[place.number])
            case Order(place, method, groups):
                self._order(self._hosts[place.number], _Order(method, (groups,), _nothing))
            case AskNode(node):
                self._ask_node(node)
            case Finish(outcome):
                self._arrived.append(outcome)
            case Tell(incident, worker, alerts):
                level = logging.WARNING if alerts else logging.INFO
                fields = {"event": incident.event, "worker": worker, "counts": incident.counts}
                logger.log(level, "%s", incident, extra=fields)
                if alerts:
                    self._failures.append(incident)
            case Fail(place, error, losses):
                self._fail(place, error, losses)

    def _send(self, host: _Host) -> None:
        """The worker is sent the weights published last."""
        assert self._weights is not None
        version = self._weights[1]
        take = partial(self._take_report, host, version)
        # no publish waits for one that does not serve, so that the ranks may go on meanwhile
        joins = host.place.state != "serving"
        ref = host.actor.update_rollouts.remote(*self._weights, joins=joins)
        self._call(host, _PUBLISHING, ref, take, limit_s=self.calls.timeout_s)

    def _fail(self, place: Place, error: BaseException, losses: int) -> None:
        if self.start is None:
            if isinstance(error, WeightMismatchError):
                self._mismatch = error
                return
            if isinstance(error, ActorLostError):
                error = self.calls.fail(error, place.number)
            self._error = error
        else:
            message = (
                f"rollout workers died {losses} times since weights were published last, and "
                f"PlacementConfig.worker_restarts={self.max_restarts} allows "
                f"{self.max_restarts}; the last was: {error}"
            )
            if isinstance(error, WeightMismatchError):
                # the publish alone raises it, so that the step can be kept
                self._mismatch = WeightMismatchError(message)
                return
            self._error = EngineError(message, retryable=False)
        self.calls.error = self._error


def _nothing(*_: Any) -> None:
    return None


def _trained(place: Place) -> dict[GroupKey, GroupRequest]:
    """The groups in training that a place plays, each from the rollouts that have finished."""
    return {
        key: with_ended(request, place.ended.get(key, ()))
        for key, request in place.groups.items()
        if request.purpose == "train"
    }


def _failed_by_engine(outcome: GroupOutcome) -> bool:
    return any(str(one.status) == "failed(engine)" for one in outcome.group.trajectories)


def _engine_failure(message: str, number: int, traceback_text: str) -> AgentRLError:
    return EngineError("\n".join(filter(None, (message, traceback_text))), retryable=False)
