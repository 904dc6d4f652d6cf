"""Ray rollout pool: routes groups to episode hosts in Ray actors, and replaces the workers that
die.

``Places`` decides; what is here does what was decided, and tells it what came of that.

Invariants:
- Every call of an actor is under way beside all others (``HostCalls``). None is waited for under
the pool's lock.
- Workers join where the cluster has room, up to a number, and leave nodes that Ray drains, while
the others play; one that joins plays once it serves the weights that were published last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

from agentrl.config.sections import PlacementConfig
from agentrl.controller.cluster.host_calls import Host, HostCalls, LookAtCluster
from agentrl.controller.cluster.places import (
    Action,
    AskGroups,
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
from agentrl.controller.cluster.ray_cluster import Reservation, drained_nodes_and_room
from agentrl.controller.cluster.ray_runtime import (
    ActorCalls,
    ActorLostError,
    Collected,
    rollout_actor,
    thread_env,
)
from agentrl.controller.cluster.rollout_pool import (
    GroupKey,
    Incident,
    ProcessInfo,
    RolloutWorkerSpec,
)
from agentrl.controller.threads import THREADS, Threads
from agentrl.engines import EngineLayout, PauseMode
from agentrl.errors import AgentRLError, EngineError, StaleWeightsError, WeightMismatchError
from agentrl.rollouts import GroupOutcome, GroupRequest, GroupState
from agentrl.types import Trajectory
from agentrl.weight_sync import OwnWeights, ServedWeights, WeightsReport

logger = logging.getLogger(__name__)

_POLL_S = 0.2
"""Seconds that a worker waits for an outcome before it answers without one."""
_SLOW_START_S = 60.0
"""Seconds after which a person is told that a worker's process does not come up."""
_SAVE_S = 30.0
"""Seconds in which workers tell how their groups stand; of one that does not it is taken as it was
known, so that a checkpoint waits for nobody."""
_END_S = 60.0
_PUBLISHING = "publishing weights"


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
    pool, (least, most) = placement.worker_pool, placement.worker_range
    each = {"CPU": pool.cpus, "GPU": gpus, **placement.worker_resources}
    reserved = places or Reservation(
        pool, least, each, wait_s=placement.wait_s, spread=True
    )

    def start(number: int, without: frozenset[str] = frozenset()) -> Any:
        # a worker of a lost machine starts wherever there is room, and so does one that joins
        at_home = number < least and reserved.node(number) not in without
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
        [start(number) for number in range(least)],
        ActorCalls(
            lambda number: f"rollout worker {number}",
            _engine_failure,
            placement.call_timeout_s,
            stacks=lambda number: log_folder and log_folder / f"rollout-{number}.stacks",
        ),
        start=start,
        max_restarts=placement.worker_restarts,
        answer_s=placement.worker_liveness_timeout_s,
        most=most,
        look=partial(drained_nodes_and_room, each, pool.labels),
        reserved=reserved,
        on_close=None if places else reserved.close,
    )


@dataclass(eq=False)
class RayRolloutPool:
    """``RolloutPool`` of episode hosts in Ray actors.

    Args:
        actors: of the first workers, which are kept.
        calls: names actors and what they raise; holds the deadline of any call.
        start: a new actor by its number, on none of some nodes. None for ranks: they belong to
            their role group, and none joins or is replaced.
        max_restarts: losses between two updates after which the next one ends the run.
        answer_s: seconds in which a worker answers a call that costs it no work; by default those
            of any call. After half of them it is suspect.
        most: workers that there may be where the cluster has room.
        look: at the cluster; None where nobody leaves or joins.
        reserved: where the first workers were started; None for ranks.
        on_close: called once the workers have ended.
        threads: what its keeper and its callers wait by.
    """

    actors: Sequence[Any]
    calls: ActorCalls
    _: KW_ONLY
    start: Callable[[int, frozenset[str]], Any] | None = None
    max_restarts: int = 0
    answer_s: float | None = None
    most: int = 0
    look: LookAtCluster | None = None
    reserved: Reservation | None = None
    on_close: Callable[[], None] | None = None
    threads: Threads = THREADS

    def __post_init__(self) -> None:
        replaced = None if self.start is None else self.max_restarts
        self._places = Places(len(self.actors), max_losses=replaced, most=self.most)
        self._under_way = HostCalls(
            self.calls,
            self._places,
            self._take_raised,
            answer_s=self.answer_s or self.calls.timeout_s,
            reserved=self.reserved,
            look=self.look,
            threads=self.threads,
        )
        self._hosts = {
            number: Host(place, self.actors[number])
            for number, place in self._places.by_number.items()
        }
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
        # Guards everything above: the service's thread submits and collects, the loop's thread
        # updates, and the keeper takes answers in. It is notified after each change. Nobody waits
        # for an actor while holding it.
        self._changed = self.threads.condition()
        # Takes in answers and looks at the clock, until ``close``.
        for host in self._hosts.values():
            self._begin(host)
        self._keeper = self.threads.begin(self._keep, "rollout-pool")

    def setup(self, spec: RolloutWorkerSpec | None) -> None:
        """See ``RolloutPool.setup``; a worker that died before is replaced.

        Raises:
            AgentRLError: a worker could not, or died of it.
        """
        self.calls.assert_sound()
        stored = self.calls.put(spec)
        with self._changed:
            self._spec, self._plays = stored, spec is not None
            self._layout, self._weights = None, None
            self._arrived.clear()
            self._ended.clear()
            # Answers that belong to the stage before are then passed over.
            self._under_way.forget_all()
            self._places.set_up()
            self._hosts = {
                number: Host(place, self._hosts[number].actor, self._hosts[number].info)
                for number, place in self._places.by_number.items()
            }
            for host in self._hosts.values():
                self._begin(host)
            kept = self._kept()
            self._in_setup = True
            try:
                self._wait(
                    lambda: (
                        all(
                            host.place.state in ("serving", "dead") or host.place.waits
                            for host in kept
                        )
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
            self._changed.wait_for(
                lambda: self._arrived or self._error is not None, timeout_s
            )
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
            told: dict[Host, list[GroupState]] = {}
            hosts = self._hosts.values()
            asked = {host: _trained(host.place) for host in hosts if host.place.groups}
            for host in asked:
                self._under_way.order(host, "in_flight", take=told.__setitem__)

            def is_known(host: Host) -> bool:
                if host.place.state in ("suspect", "dead"):
                    return True
                # an outcome on its way here would be neither in a worker nor collected
                known = {("", one.group_index) for one in told.get(host, ())}
                coming = asked[host].keys() - known
                return host in told and not coming & host.place.groups.keys()

            self._wait(lambda: all(map(is_known, asked)), _SAVE_S)
            # what a dead one played waits, or is another's by now
            untold = [h.place for h in asked if h not in told and h.place.state != "dead"]
            others = chain(
                self._places.waiting, *(_trained(place).values() for place in untold)
            )
            saved = [
                replace(request.saved, first_attempt=request.first_attempt)
                for request in others
                if request.saved is not None
            ]
            return saved + [state for states in told.values() for state in states]

    def take_failures(self) -> list[Incident]:
        with self._changed:
            failures = self._failures
            self._failures = []
            return failures

    def now(self) -> dict[str, Any]:
        workers: list[dict[str, Any]] = []
        episodes: list[dict[str, Any]] = []
        with self._changed:
            for number, host in self._hosts.items():
                place, told = host.place, host.told
                told_s = self.threads.now() - host.told_at
                workers.append(
                    {
                        "worker": number,
                        "state": place.state,
                        "version": place.version,
                        "groups": len(place.groups),
                        "gib": told.get("gib"),
                        "told_s": told_s,
                    }
                )
                for one in told.get("episodes", ()):
                    episodes.append({**one, "s": one["s"] + told_s, "worker": number})
            waiting = len(self._places.waiting)
        episodes.sort(key=itemgetter("s"), reverse=True)
        return {"no_worker": waiting, "workers": workers, "episodes": episodes}

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
            self._wait(
                lambda: all(host.info or host.place.waits for host in self._kept()),
                self._under_way.answer_s,
            )
            return [host.info for host in self._hosts.values() if host.info is not None]

    def close(self) -> None:
        """Ends every worker; ranks are ended by their group."""
        with self._changed:
            self._closed = True
            self._under_way.forget_all()
        self._keeper.join(_END_S)
        self._under_way.end(_END_S)
        if self.start is None:
            return
        # A process that does not stand yet would answer nothing, and is only killed.
        actors = [host.actor for host in self._hosts.values() if host.info is not None]
        try:
            if self._error is None:
                closing = [actor.close.remote() for actor in actors]
                # one that does not answer is killed as it is
                self.calls.wait(
                    closing, num_returns=len(closing), timeout=self._under_way.answer_s
                )
        finally:
            for host in self._hosts.values():
                self.calls.kill(host.actor)
            if self.on_close is not None:
                self.on_close()
            if self._keeper.is_alive():
                logger.warning("the pool's thread did not end within %.0f s", _END_S)

    def _kept(self) -> list[Host]:
        return [host for host in self._hosts.values() if self._places.is_kept(host.place)]

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
                take = self._under_way.next()
                with self._changed:
                    if take is not None:
                        take()
                    self._under_way.look_at_clock()
                    self._act()
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - boundary: handed to the callers, who raise it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _take_raised(self, host: Host, what: str, error: BaseException) -> None:
        """A worker died, or a call of it raised."""
        if self._in_setup and not isinstance(error, ActorLostError):
            # what a stage's own settings cause would befall every worker that is started again
            self._error = self.calls.error = error
            return
        # Weights that broke off with a rank leave the engine torn, and no worker is to blame.
        counts = not isinstance(error, StaleWeightsError)
        fault = WorkerFault(error, by_groups=what != _PUBLISHING, counts=counts)
        self._places.failed(host.place, fault)

    def _begin(self, host: Host) -> None:
        """The worker tells where it runs, builds its engine, and answers polls from then on."""
        begin, actor = self._under_way.begin, host.actor
        if host.info is None:
            late_s = max(_SLOW_START_S, self._under_way.answer_s)
            # This call has no limit: a worker may wait for a machine for as long as that takes.
            begin(host, "starting", actor.describe.remote(), self._take_info, late_s=late_s)
        elif self._spec is not None:
            ref, limit_s = actor.setup_rollouts.remote(self._spec), self.calls.timeout_s
            begin(host, "setting up the episodes", ref, self._take_built, limit_s=limit_s)

    def _take_info(self, host: Host, info: ProcessInfo) -> None:
        host.info = replace(info, rollout_worker=host.place.number)
        host.place.node = info.node
        self._begin(host)

    def _take_built(self, host: Host, layout: EngineLayout | None) -> None:
        self._layout = layout
        self._places.built(host.place)
        if self._plays:
            self._poll(host)

    def _poll(self, host: Host) -> None:
        ref = host.actor.poll.remote(_POLL_S)
        self._under_way.ask(host, "collecting groups", ref, self._take_collected)

    def _take_collected(self, host: Host, collected: Collected) -> None:
        outcomes, failures, ended, fault, told = collected
        place = host.place
        host.told, host.told_at = told, self.threads.now()
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
            error = EngineError(
                f"{self.calls.name(place.number)}: {fault}", retryable=False
            )
            self._places.failed(place, WorkerFault(error, by_groups=False))
        else:
            self._poll(host)

    def _take_states(self, host: Host, states: list[GroupState]) -> None:
        self._places.left(host.place, states)

    def _take_report(self, version: int, host: Host, reports: list[WeightsReport]) -> None:
        if not reports:
            self._places.outrun(host.place, version)
            return
        if version == self._places.version:
            self._reports += reports
        self._places.verified(host.place, version)

    def _act(self) -> None:
        """Does what was decided; under the lock, since no call of Ray here waits."""
        for action in self._places.take():
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Start(place, without):
                assert self.start is not None, "ranks neither join nor are replaced"
                host = Host(place, self.start(place.number, without))
                self._hosts[place.number] = host
                self._begin(host)
            case Kill(place):
                host = self._hosts.pop(place.number)
                self._under_way.forget(host)
                self.calls.kill(host.actor)
            case Send(place):
                self._send(self._hosts[place.number])
            case Order(place, method, groups):
                self._under_way.order(self._hosts[place.number], method, groups)
            case AskGroups(place):
                host = self._hosts[place.number]
                self._under_way.order(host, "in_flight", take=self._take_states)
            case AskNode(node):
                self._under_way.ask_node(node)
            case Finish(outcome):
                self._arrived.append(outcome)
            case Tell():
                self._tell(action)
            case Fail(place, error, losses):
                self._fail(place, error, losses)

    def _tell(self, told: Tell) -> None:
        incident = told.incident
        fields = {"event": incident.event, "worker": told.worker, "counts": incident.counts}
        logger.log(
            logging.WARNING if told.alerts else logging.INFO, "%s", incident, extra=fields
        )
        if told.alerts:
            self._failures.append(incident)

    def _send(self, host: Host) -> None:
        """The worker is sent the weights published last."""
        assert self._weights is not None
        version = self._weights[1]
        take = partial(self._take_report, version)
        # no publish waits for one that does not serve, so that the ranks may go on meanwhile
        joins = host.place.state != "serving"
        ref = host.actor.update_rollouts.remote(*self._weights, joins=joins)
        self._under_way.begin(host, _PUBLISHING, ref, take, limit_s=self.calls.timeout_s)

    def _fail(self, place: Place, error: BaseException, losses: int) -> None:
        if self.start is not None:
            message = (
                f"rollout workers died {losses} times since weights were published last, and "
                f"PlacementConfig.worker_restarts={self.max_restarts} allows "
                f"{self.max_restarts}; the last was: {error}"
            )
            kind = (
                WeightMismatchError
                if isinstance(error, WeightMismatchError)
                else EngineError
            )
            error = kind(message, retryable=False)
        elif isinstance(error, ActorLostError):
            error = self.calls.fail(error, place.number)
        if isinstance(error, WeightMismatchError):
            # the publish alone raises it, so that the step can be kept
            self._mismatch = error
        else:
            self._error = self.calls.error = error


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
