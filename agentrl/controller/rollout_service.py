"""Rollout service: issues groups within the admission bound, and buffers the finished ones
(docs/controller.md).

It is the one thread beside the loop.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from agentrl.algorithms import FilterResult
from agentrl.config import StageConfig
from agentrl.controller.admission import Backlog, RolloutState
from agentrl.controller.cluster.rollout_pool import GroupKey, GroupPool, Incident, group_key
from agentrl.controller.ledger import Ledger
from agentrl.controller.schedule import GroupRecorder, Schedule
from agentrl.controller.state import TrainState
from agentrl.controller.stop_request import StopRequest
from agentrl.controller.threads import THREADS, AwakeClock, Threads
from agentrl.engines import PauseMode
from agentrl.errors import AgentRLError, EngineError, RankLostError, WeightMismatchError
from agentrl.metrics import RolloutRates
from agentrl.rollouts import GroupOutcome, GroupRequest
from agentrl.rollouts.samplers.prompt_sampler import PromptSampler
from agentrl.types import TrajectoryGroup
from agentrl.types.env import MAIN_POLICY

logger = logging.getLogger(__name__)

_POLL_S = 0.2
_CLOSE_S = 30.0
_SNAPSHOT_S = 600.0
_SLOW_S = 60.0
"""A wait that takes longer is logged, once."""
_SHOWN = 32
"""Groups that are shown by themselves."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """What a rollout service leaves to the next one of its pool, which goes on from a checkpoint.

    Args:
        step: of the checkpoint; 0 without one.
        state: in place of the checkpoint's; None where weights were published since, and nothing is
            played on.
        playing: the draws that the pool plays on, each with the versions served at its issue.
        uncounted: draws that had come to their end and are in no step's metrics.
    """

    step: int
    state: RolloutState | None = None
    playing: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    uncounted: tuple[int, ...] = ()


@dataclass(eq=False)
class RolloutService(Schedule):
    """Keeps the pool busy within the admission's bounds, and buffers what may be trained.

    Args:
        stage: whole: its sections bound what is in flight, and say what becomes of requests at a
            publish (``rollout.pause_mode``).
        pool: where episodes run.
        sampler: which task a group is.
        ledger: where every trajectory is.
        restored: the groups to go on from, and those that wait already.
        send_weights: gives the engines a policy's weights as a version, paused in a mode meanwhile.
        keep_group: whether a finished group may be trained on.
        recorder: is told of groups, and after each look for outcomes of what the pool survived.
        wait_s: deadline of one wait for a batch or an evaluation.
        stop: ends the waits for a batch and for an evaluation.
        on_batch: called by the loop's thread once a batch is complete.
        numbers: further metrics since its last call.
        on_wait: called again and again by the loop's thread while it waits; what it raises ends the
            wait.
        on_close: ends what the pool has of this stage alone, once the thread has ended.
        playing: draws that the pool plays already, see ``HandOver``.
        threads: what its thread and the loop's wait by.
    """

    stage: StageConfig
    pool: GroupPool
    sampler: PromptSampler
    ledger: Ledger
    restored: RolloutState
    _: KW_ONLY
    send_weights: Callable[[str, int, PauseMode], object]
    keep_group: Callable[[TrajectoryGroup], FilterResult]
    recorder: GroupRecorder
    wait_s: float
    stop: StopRequest = field(default_factory=StopRequest)
    on_batch: Callable[[], None] = lambda: None
    numbers: Callable[[], Mapping[str, float]] = dict
    on_wait: Callable[[], None] = lambda: None
    on_close: Callable[[], None] = lambda: None
    playing: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    threads: Threads = THREADS

    def __post_init__(self) -> None:
        self.max_staleness = self.stage.rollout.max_staleness
        self.on_stale = self.stage.rollout.on_stale
        self._backlog = Backlog(self.stage, self.restored)
        self._in_draw_order = self.stage.run.deterministic
        # in draw order alone, where what was observed must not depend on what ends first
        self._unobserved: list[GroupOutcome] = [
            GroupOutcome(GroupRequest(g.group_index, g.task, len(g.trajectories)), g)
            for g in self.restored.unobserved
        ]
        # groups that have ended, and may still be played again
        ended = (*self.restored.groups, *self.restored.unobserved)
        self._ended = {group.group_index for group in ended}
        self._to_release: set[int] = set()
        going_on = {*self.restored.outstanding, *self.playing, *self._ended}
        self.sampler.restore(self.restored.sampler, going_on=going_on)
        self._counts: Counter[str] = Counter()
        self._rates = RolloutRates(self.threads.now)
        self._awake = AwakeClock(self.threads.now)
        self._publishing = False
        self._waiting = False
        self._evaluating: dict[str, list[GroupOutcome]] = {}
        # of evaluations that were given up, until they have ended
        self._given_up: set[GroupKey] = set()
        self._in_training: Sequence[TrajectoryGroup] = ()
        # whose weights every engine serves; None while one may have newer ones
        self._served_step: int | None = None
        self._error: BaseException | None = None
        self._closing = False
        self._asked: Future[RolloutState] | None = None  # for a snapshot
        # guards everything above but the collaborators: the loop's thread takes batches and asks
        # for evaluations and snapshots, the service's thread issues and collects; it is notified
        # after each change. The pool is collected from outside of it, by the service's thread
        # alone, and by ``close`` once that thread has ended.
        self._changed = self.threads.condition()
        self._thread: threading.Thread | None = None

    def start(self, state: TrainState) -> None:
        """The engines serve the weights of ``state``, then groups are issued."""
        for policy, version in state.versions.items():
            self.send_weights(policy, version, "retract")
        self._served_step = state.step
        self._backlog.start(state.step, state.versions)
        for draw, versions in self.playing.items():
            self._issue(MAIN_POLICY, draw, self.stage.rollouts_per_group, resumed=True)
            self._backlog.run(draw, MAIN_POLICY, versions)
        for (
            group
        ) in self.restored.groups:  # those that wait come into this attempt's ledger
            self._issue(
                group.policy, group.group_index, len(group.trajectories), resumed=True
            )
            self.ledger.enter_ends(group)
            self._keep_or_drop(group)
        self._rates.take()  # the first step begins here
        # The thread starts last, so that nothing above needs the lock.
        self._thread = self.threads.begin(self._serve, "rollout-service")

    def next_groups(self, step: int) -> list[TrajectoryGroup]:
        """Blocks until the batch of ``step`` may be trained.

        Returns:
            B groups, or fewer (even none) where the draws of this batch are spent.

        Raises:
            EngineError: nothing came within ``wait_s``, or the service broke.
            RunInterruptedError: the run was asked to end; nothing was taken.
        """
        taken = self._take_batch(step)
        # Engines and ranks may move their memory in this call, so the lock is not held.
        self.on_batch()
        return taken

    def _take_batch(self, step: int) -> list[TrajectoryGroup]:
        with self._changed:
            self._waiting = True
            try:
                self._wait(self._backlog.may_close, self.wait_s, "finished groups")
            finally:
                self._waiting = False
            # Cancelled before the batch is taken, these draws do not count for the next one.
            self._cancel(self._backlog.surplus(step), "surplus")
            self._in_training = taken = self._backlog.take(step)
            for group in taken:
                self.ledger.move_group(group, "taken", step=step)
            self._observe_batch()
            # what ended by now is in this batch's statistics or an earlier one's
            self._to_release, self._ended = self._ended, set()
            return taken

    def waiting(self) -> Collection[int]:
        """Groups that have finished and wait for a later batch."""
        with self._changed:
            return {group.group_index for group in self._backlog.groups}

    def mark_trained(self, groups: Sequence[TrajectoryGroup], step: int) -> None:
        """The given groups were trained in ``step``; durable when this returns."""
        self.ledger.trained_groups(groups, step)
        with self._changed:
            waiting = {group.group_index for group in self._backlog.groups}
            self._ended |= self._to_release & waiting
            # Until here a checkpoint may play these draws again, and it asks for their tasks.
            self.sampler.release(self._to_release - waiting)
            self._to_release = set()

    def _observe_batch(self) -> None:
        """In draw order the sampler learns of a batch's groups when it closes: all have ended."""
        for outcome in sorted(self._unobserved, key=lambda one: one.request.group_index):
            self.sampler.observe(outcome)
        self._unobserved = []

    def publish(self, state: TrainState, *, changed: Collection[str]) -> TrainState:
        """Version + 1 everywhere of the policies that ``changed``; the batch in training makes room
        for the next. An engine that slept lost its weights, and is sent them in any case."""
        state = state.published(changed)
        # What can no longer be trained is cancelled first, so that no engine continues it under the
        # new weights.
        self.before_publish(state.versions)
        sent = state.versions if self.stage.sleeps else changed
        self._pause(True)
        self._served_step = None
        try:
            for policy in sent:
                self.send_weights(
                    policy, state.versions[policy], self.stage.rollout.pause_mode
                )
        except WeightMismatchError:  # the step is kept: its groups are not played again
            self.make_room(state.versions)
            raise
        finally:
            self._pause(False)
        self._served_step = state.step
        self.make_room(state.versions)
        return state

    def _pause(self, publishing: bool) -> None:
        with self._changed:
            self._publishing = publishing
            self._note_idle()

    def _note_idle(self) -> None:
        """The rollouts wait for the trainer where nothing is in flight, since the admission has no
        room, and where the engines are paused for new weights."""
        self._rates.set_idle(
            self._publishing or not (self._backlog.running or self._evaluating)
        )

    def before_publish(self, versions: Mapping[str, int]) -> None:
        """``versions`` are served next: what runs and could not be trained by them any more is
        cancelled."""
        with self._changed:
            self._cancel(self._backlog.begin_publish(versions), "stale")

    def make_room(self, versions: Mapping[str, int]) -> None:
        """The batch in training is published, and ``versions`` are served: its place is free."""
        with self._changed:
            self._in_training = ()
            for group in self._backlog.publish(versions):
                self._drop_stale(group)
            self._changed.notify_all()

    def take_counts(self) -> Mapping[str, float]:
        """What happened since the last call, by the metric's name."""
        numbers = self.numbers()
        with self._changed:
            counts = self._counts
            self._counts = Counter()
        if self.max_staleness:  # a share is made of both, also where nothing was lost
            return {"async/issued": 0, "async/dropped": 0, **numbers, **counts}
        return {**numbers, **counts}

    def take_rates(self) -> Mapping[str, float]:
        """Sampled tokens a second, and how long the rollouts waited for the trainer."""
        with self._changed:
            rates = self._rates.take_metrics()
        own = self.stage.placement
        if own.rollout in own.pools and not own.workers_share:
            rates[f"time/idle_frac/{own.rollout}"] = rates["time/idle_frac"]
        return rates

    def take_failures(self) -> Sequence[Incident]:
        """Workers and servers that died since the last call, and that the run survived."""
        return self.pool.take_failures()

    def now(self) -> dict[str, Any]:
        """Queues, what the pool does, and the oldest groups, as JSON."""
        pool = self.pool.now()
        with self._changed:
            groups = self._backlog.phases()
            training = self._backlog.in_training
        queues = Counter(one["phase"] for one in groups)
        queues |= {"training": training, "batch": self.stage.train.batch_prompts}
        return {"queues": queues, **pool, "groups": groups[:_SHOWN]}

    def _longest(self) -> str:
        """The episode that waits longest for one thing, for the end of a message; empty where none
        is known."""
        told = "; {episode} waits for {waits_for} since {s:.0f} s"
        return "".join(
            told.format(**one) for one in self.pool.now().get("episodes", [])[:1]
        )

    def evaluate(self, requests: Sequence[GroupRequest]) -> list[GroupOutcome]:
        """Rolls out groups that are not trained; no new training episodes are issued meanwhile."""
        label = requests[0].label
        with self._changed:
            outcomes: list[GroupOutcome] = []
            self._evaluating[label] = outcomes
            self._note_idle()
            self.pool.submit(requests)
            try:
                self._wait(
                    lambda: len(outcomes) == len(requests),
                    self.wait_s,
                    f"evaluation {label}",
                )
            except RankLostError:
                ended = {group_key(outcome.request) for outcome in outcomes}
                self._given_up = set(map(group_key, requests)) - ended
                self.pool.cancel(sorted(self._given_up))
                raise
            finally:
                del self._evaluating[label]
                self._note_idle()
                self._changed.notify_all()
        return sorted(outcomes, key=lambda outcome: outcome.request.group_index)

    def snapshot(self, again: Collection[int] = ()) -> RolloutState:
        """What a checkpoint must know, at one moment; the ledger's rows up to there are durable.

        Args:
            again: draws that came to their end and are to be played again all the same, unless they
                wait to be trained.
        """
        with self._changed:
            asked: Future[RolloutState] = Future()
            self._asked = asked
            what = "the state of the groups that run"
            # A run that was asked to end makes its last checkpoint by this call, so the request
            # must not break it off.
            self._wait(asked.done, _SNAPSHOT_S, what, stoppable=False)
        snapshot = asked.result()
        waiting = {group.group_index for group in snapshot.groups}
        return replace(
            snapshot, outstanding=tuple(sorted({*snapshot.outstanding, *again} - waiting))
        )

    def close(self) -> None:
        """Ends admission and the thread; what runs is cancelled and recorded so. A second call
        does nothing."""
        try:
            self._end()
        finally:
            self.on_close()

    def hand_over(self, step: int, *, plays_on: bool = True) -> HandOver | None:
        """As ``close``, before another service of this pool goes on from the checkpoint of
        ``step``. Where no weights were published since, the pool plays on, and what has finished is
        kept.

        Args:
            step: 0 where there is no checkpoint.
            plays_on: otherwise all is cancelled.

        Returns:
            None where the service broke: the pool may play anything.
        """
        if self._thread is None:
            return HandOver(step, self.restored, self.playing)
        if self._error is not None or self._served_step != step or not plays_on:
            self.close()
            return None if self._error else HandOver(step)
        self._join()
        backlog = self._backlog
        self._collect_until(lambda: not (backlog.cancelling or self._given_up))
        state = RolloutState(
            next_group_index=backlog.next_group_index,
            outstanding=tuple(sorted(backlog.again)),
            spent=backlog.spent,
            ledger_offset=self.ledger.offset,
            groups=(*self._in_training, *backlog.groups),
            running=tuple(backlog.saved.values()),
            sampler=self.sampler.state(),
            unobserved=tuple(outcome.group for outcome in self._unobserved),
        )
        return HandOver(step, state, dict(backlog.running))

    def _join(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is None:
            return
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            raise EngineError(
                f"the rollout service did not end within {_CLOSE_S:.0f} s", retryable=False
            )

    def _end(self) -> None:
        self._join()
        if self._thread is None:
            return
        if self._error is None:  # so that the next user of the pool meets nothing of it
            self._cancel(self._backlog.running, "cancelled")
            self._collect_until(lambda: not (self._backlog.running or self._given_up))
        for group in self._backlog.clear():
            self.ledger.move_group(group, "dropped", reason="closed")

    def _collect_until(self, ended: Callable[[], bool]) -> None:
        """Takes in what was cancelled, once the thread has ended."""
        # A silent worker is given up first, and its groups end then.
        limit_s = self.stage.placement.worker_liveness_timeout_s + _CLOSE_S
        end = self._awake() + limit_s
        while not ended():
            self._collect(_POLL_S)
            if self._awake() > end:
                raise EngineError(
                    f"cancelled groups did not end within {limit_s:.0f} s", retryable=False
                )

    def _wait(
        self,
        ready: Callable[[], bool],
        deadline_s: float,
        what: str,
        *,
        stoppable: bool = True,
    ) -> None:
        """Waits under the condition; a broken service raises at once, and so does a run that is
        asked to end."""
        end = self._awake() + deadline_s
        slow = self._awake() + _SLOW_S
        # The service's thread may sleep for want of work, and what is waited for is work for it.
        self._changed.notify_all()
        while True:
            if isinstance(self._error, AgentRLError):
                # It keeps its class and its exit code, by which the command line ends.
                raise self._error
            if self._error is not None:
                raise EngineError(
                    f"the rollout service broke: {self._error!r}", retryable=False
                ) from self._error
            if ready():
                return
            if stoppable:
                self.stop.check()
                self.on_wait()
            running = len(self._backlog.running)
            state = (
                f"{running} groups are running, {len(self._backlog.groups)} are buffered"
            )
            if self._awake() >= slow:
                fields = {"event": "slow_wait", "what": what, "running": running}
                told = state + self._longest()
                logger.warning("still waiting for %s: %s", what, told, extra=fields)
                slow = math.inf
            # A request to end notifies nobody, so the wait looks for it again and again.
            changed = self._changed.wait(min(_POLL_S, max(0.0, end - self._awake())))
            if not changed and self._awake() >= end:
                raise EngineError(
                    f"waited {deadline_s:.0f} s for {what}: {state}{self._longest()}; look for a "
                    "tool that hangs, or raise RolloutConfig.episode_timeout_s",
                    retryable=False,
                )

    def _serve(self) -> None:
        try:
            while True:
                # No lock is needed to read it, since this thread alone takes it away.
                if self._asked is not None:
                    self._take_snapshot(self._asked)
                with self._changed:
                    if self._closing:
                        return
                    requests = self._admit()
                    self._note_idle()
                    idle = not self._backlog.running and not self._evaluating
                    if requests:
                        # Under the lock: the loop's thread may cancel a group as soon as it counts
                        # as running, and the pool must know it by then.
                        self.pool.submit(requests)
                    elif idle:
                        if self._asked is None:
                            self._changed.wait(_POLL_S)
                        continue
                self._collect(_POLL_S)
                self.recorder.record_failures(self.take_failures())
        except BaseException as error:  # noqa: BLE001 - boundary: handed to the loop, which raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _take_snapshot(self, asked: Future[RolloutState]) -> None:
        """Taken by the thread that collects, so that a group is either in flight or in the
        buffer."""
        # The states come first: a group that ends later is collected below, and its state left out.
        saved = self.pool.in_flight()
        self._collect(0.0)
        with self._changed:
            # The loop's thread waits for this, so no row comes between the sync and the offset.
            self.ledger.sync()
            backlog = self._backlog
            going_on = set(backlog.going_on)
            states = [
                backlog.saved[draw] for draw in backlog.again if draw in backlog.saved
            ]
            states += [
                replace(group, versions=backlog.running[group.group_index])
                for group in saved
                if group.group_index in going_on
            ]
            snapshot = RolloutState(
                next_group_index=backlog.next_group_index,
                outstanding=tuple(sorted({*going_on, *backlog.again})),
                spent=backlog.spent,
                ledger_offset=self.ledger.offset,
                groups=tuple(backlog.groups),
                running=tuple(sorted(states, key=lambda group: group.group_index)),
                sampler=self.sampler.state(),
                unobserved=tuple(outcome.group for outcome in self._unobserved),
            )
            asked.set_result(snapshot)
            self._asked = None
            self._changed.notify_all()

    def _admit(self) -> list[GroupRequest]:
        requests: list[GroupRequest] = []
        closed = self._evaluating or (self._in_draw_order and not self._waiting)
        if closed or not self._backlog.has_room():
            return requests
        rollout = self.stage.rollout
        num_rollouts = self.stage.rollouts_per_group
        played = rollout.group_size + rollout.oversample_per_group
        while self._backlog.has_room():
            draw, again = self._backlog.next_draw()
            task = self.sampler.task(draw)
            saved = self._backlog.saved.pop(draw, None)
            if saved is not None and len(saved.rollouts) != num_rollouts:
                saved = None  # a resumed run may have other numbers of rollouts
            if again:
                resumed = len(saved.resumable) if saved else 0
                restarted = len(saved.lost) if saved else num_rollouts
                self._counts += Counter(
                    {
                        "count/resumed_episodes": resumed,
                        "count/restarted_episodes": restarted,
                    }
                )
            self._issue(MAIN_POLICY, draw, num_rollouts, resumed=saved is not None)
            self._backlog.run(draw, MAIN_POLICY, saved.versions if saved else None)
            if self.max_staleness:
                self._counts["async/issued"] += 1
            requests.append(
                GroupRequest(
                    draw,
                    task,
                    rollout.group_size,
                    oversample=rollout.oversample_per_group,
                    greedy_baseline=num_rollouts > played,
                    # an id names one attempt, also where some were made before the resume
                    first_attempt=saved.first_attempt if saved else 0,
                    saved=saved,
                    stage=self.stage.name,
                )
            )
        return requests

    def _issue(
        self, policy: str, group_index: int, num_rollouts: int, *, resumed: bool
    ) -> None:
        """Enters a group in the ledger, with what its later rows need not repeat."""
        detail = {"resumed": True} if resumed else {}
        self.ledger.issue(
            policy, group_index, num_rollouts, stage=self.stage.name, **detail
        )

    def _collect(self, timeout_s: float) -> None:
        outcomes = self.pool.collect(timeout_s)
        for trajectory in self.pool.take_ended():
            self.recorder.record_ended(trajectory)
        for outcome in outcomes:
            reason = self._backlog.cancelling.get(outcome.request.group_index)
            if reason and not outcome.request.label:
                outcome = replace(outcome, group=_with_reason(outcome.group, reason))
            # The store may make this wait for room, so it holds no lock. It comes before the group
            # is entered: a batch may take the group then, and the recorder must know it.
            self.recorder.record_outcome(outcome)
            with self._changed:
                self._enter(outcome)
                self._changed.notify_all()

    def _enter(self, outcome: GroupOutcome) -> None:
        request = outcome.request
        group = outcome.group
        if request.label:
            self._given_up.discard(group_key(request))
            if request.label in self._evaluating:  # else its evaluation was given up
                self._evaluating[request.label].append(outcome)
            return
        given_up = {
            t.status.reason for t in group.trajectories if t.status.kind == "cancelled"
        }
        reason = self._backlog.end(request.group_index) or next(iter(given_up), "cancelled")
        self._note_idle()
        self._rates.add(sum(one.num_policy_tokens for one in group.trajectories))
        self._ended.add(request.group_index)
        if self._in_draw_order:
            self._unobserved.append(outcome)
        elif not self._closing:  # what is cancelled then is nobody's to learn from
            self.sampler.observe(outcome)
        self.ledger.enter_ends(outcome.played)
        if outcome.ended:  # the group was cancelled after these had ended
            self._drop(outcome.played, reason)
        if not group.finished:
            if reason == "stale":
                self._counts["async/dropped"] += 1
            return
        decision = self.keep_group(group)
        if decision.keep:
            self._keep_or_drop(group)
        else:
            self._drop(group, decision.reason)

    def _keep_or_drop(self, group: TrajectoryGroup) -> None:
        """Keeps a group for a batch, unless it is too old for any that is still to come."""
        self.ledger.move_group(group, "buffered")
        if not self._backlog.keep(group):
            self._drop_stale(group)

    def _drop_stale(self, group: TrajectoryGroup) -> None:
        self._counts["async/dropped"] += 1
        self._drop(group, "stale")

    def _drop(self, group: TrajectoryGroup, reason: str) -> None:
        """A finished group that will be in no batch."""
        self.ledger.move_group(group, "dropped", reason=reason)
        self.recorder.record_dropped(group, reason)

    def _cancel(self, group_indices: Iterable[int], reason: str) -> None:
        if new := self._backlog.cancel(group_indices, reason):
            self.pool.cancel([("", group_index) for group_index in new])


def _with_reason(group: TrajectoryGroup, reason: str) -> TrajectoryGroup:
    """A group that was cancelled here, with the reason; what came to its end all the same stays as
    it is."""
    return replace(
        group,
        trajectories=tuple(
            replace(t, status=replace(t.status, reason=reason))
            if str(t.status) == "cancelled(cancelled)"
            else t
            for t in group.trajectories
        ),
    )
