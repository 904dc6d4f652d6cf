"""Admission, intake and the buffer: the one thread beside the loop (docs/controller.md)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl.algorithms import Keep
from agentrl.controller.draws import DrawOrder
from agentrl.controller.fleet import Fleet
from agentrl.controller.ledger import Ledger, LedgerState
from agentrl.errors import AgentRLError, EngineError
from agentrl.rollouts import GroupOutcome, GroupRequest
from agentrl.types import TrajectoryGroup

__all__ = ["Admission", "Intake", "KeepGroup", "RolloutService", "Snapshot"]

_POLL_S = 0.2
_CLOSE_S = 30.0


KeepGroup = Callable[[TrajectoryGroup], Keep]
Intake = Callable[[GroupOutcome], None]


@dataclass(frozen=True, slots=True)
class Admission:
    """Bounds on what is in flight, in groups.

    Args:
        batch_groups: B, groups a batch.
        group_size: siblings of a group.
        max_staleness: η; a draw is issued while in_training + buffered + running < (η + 1)·B.
        last_step: nothing is issued once its batch is taken.
        max_refill: at most ``max_refill·B`` draws beyond B are issued for one batch.
        in_draw_order: batches are closed in draw order, and draws are issued only while the loop waits for them,
            so that nothing is in flight at a checkpoint (``run.deterministic``).
    """

    batch_groups: int
    group_size: int
    last_step: int
    max_staleness: int = 0
    max_refill: float = 0.0
    in_draw_order: bool = False

    @property
    def draws_per_batch(self) -> int:
        return self.batch_groups + int(self.max_refill * self.batch_groups)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a checkpoint must know: draws to issue again, the next new one, and how much of the refill is spent."""

    next_draw: int
    outstanding: tuple[int, ...]
    spent: int
    ledger_offset: int


class RolloutService:
    """Keeps the fleet busy within the admission's bounds, and buffers what may be trained.

    Args:
        fleet: where episodes run.
        order: which task a draw is.
        ledger: where every trajectory is.
        admission: bounds.
        keep_group: whether a finished group may be trained on.
        intake: called with every outcome as it comes in (store, metrics), evaluation's included.
        start: the draws to go on from.
        step: steps done before.
    """

    def __init__(
        self,
        fleet: Fleet,
        order: DrawOrder,
        ledger: Ledger,
        admission: Admission,
        keep_group: KeepGroup,
        intake: Intake,
        start: Snapshot,
        step: int = 0,
    ) -> None:
        self._fleet, self._order, self._ledger, self._admission = fleet, order, ledger, admission
        self._keep_group, self._intake = keep_group, intake
        self._next_draw, self._again = start.next_draw, list(start.outstanding)
        self._issued = start.spent
        self._running: set[int] = set()
        self._buffer: list[TrajectoryGroup] = []
        self._in_training, self._step = 0, step
        self._waiting = False
        self._held = 0
        self._evaluating: dict[str, tuple[int, list[GroupOutcome]]] = {}
        self._error: BaseException | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._serve, name="rollout-service", daemon=True)
        self._thread.start()

    def next_groups(self, step: int, deadline_s: float) -> list[TrajectoryGroup]:
        """Blocks until the batch of ``step`` may be trained.

        Returns:
            B groups, or fewer (even none) where the draws of this batch are spent.

        Raises:
            EngineError: nothing came within ``deadline_s``, or the service broke.
        """
        with self._changed:
            self._waiting = True
            try:
                self._wait(self._ready, deadline_s, "finished groups")
            finally:
                self._waiting = False
            size = self._admission.batch_groups
            if self._admission.in_draw_order:
                self._buffer.sort(key=lambda group: group.draw)
            taken, self._buffer = self._buffer[:size], self._buffer[size:]
            self._in_training, self._step = size, step  # a short batch makes no room before it is published
            self._issued = len(self._buffer) + len(self._running)
            for group in taken:
                self._ledger.move(group.draw, _finished(group), "taken", step=step)
            return taken

    def mark_trained(self, groups: Sequence[TrajectoryGroup], step: int) -> None:
        """The given groups were trained in ``step``; durable when this returns."""
        self._ledger.trained({group.draw: _finished(group) for group in groups}, step)

    def make_room(self) -> None:
        """The batch in training is published: its place is free."""
        with self._changed:
            self._in_training = 0
            self._changed.notify_all()

    def evaluate(self, requests: Sequence[GroupRequest], deadline_s: float) -> list[GroupOutcome]:
        """Rolls out groups that are not trained; no new training episodes are issued meanwhile."""
        label = requests[0].label
        with self._changed:
            self._evaluating[label] = (len(requests), [])
            self._held += 1
            self._fleet.submit(requests)
            try:
                self._wait(lambda: self._arrived(label) == len(requests), deadline_s, f"evaluation {label}")
            finally:
                self._held -= 1
                _, outcomes = self._evaluating.pop(label)
                self._changed.notify_all()
        return sorted(outcomes, key=lambda outcome: outcome.request.draw)

    def snapshot(self) -> Snapshot:
        """What a checkpoint must know, at one moment; the ledger's rows up to there are durable."""
        with self._changed:
            self._ledger.sync()
            outstanding = sorted({*self._running, *(group.draw for group in self._buffer), *self._again})
            spent = max(0, self._issued - len(self._running) - len(self._buffer))
            return Snapshot(self._next_draw, tuple(outstanding), spent, self._ledger.offset)

    def close(self) -> None:
        """Ends admission and the thread; what runs is cancelled and recorded as such. A second call does nothing."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            raise EngineError(f"the rollout service did not end within {_CLOSE_S:.0f} s", retryable=False)
        if self._error is None:
            self._cancel_running()
        for group in self._buffer:
            self._ledger.move(group.draw, _finished(group), "dropped", reason="closed")
        self._buffer.clear()

    def _cancel_running(self) -> None:
        """Ends what runs and waits until it came back, so that nothing of it meets whoever uses the fleet next."""
        self._fleet.cancel(sorted(self._running))
        end = time.monotonic() + _CLOSE_S
        while self._running:
            for outcome in self._fleet.collect(_POLL_S):
                self._intake(outcome)
                self._take_in(outcome)
            if time.monotonic() > end:
                raise EngineError(f"cancelled groups did not end within {_CLOSE_S:.0f} s", retryable=False)

    def _arrived(self, label: str) -> int:
        return len(self._evaluating[label][1])

    def _wait(self, ready: Callable[[], bool], deadline_s: float, what: str) -> None:
        """Waits under the condition; a broken service raises at once."""
        end = time.monotonic() + deadline_s
        self._changed.notify_all()
        while True:
            if self._error is not None:
                if isinstance(self._error, AgentRLError):
                    raise self._error
                raise EngineError(f"the rollout service broke: {self._error!r}", retryable=False) from self._error
            if ready():
                return
            if not self._changed.wait(min(_POLL_S, max(0.0, end - time.monotonic()))) and time.monotonic() >= end:
                raise EngineError(
                    f"waited {deadline_s:.0f} s for {what}: {len(self._running)} groups are running, "
                    f"{len(self._buffer)} are buffered; look for a tool that hangs, or raise rollout.episode_timeout_s",
                    retryable=False,
                )

    def _ready(self) -> bool:
        size, finished = self._admission.batch_groups, len(self._buffer)
        if finished < size:
            return not self._running and not self._may_issue()
        if not self._admission.in_draw_order or not self._running:
            return True
        return sorted(group.draw for group in self._buffer)[size - 1] < min(self._running)

    def _may_issue(self) -> bool:
        bounds = self._admission
        if self._step >= bounds.last_step:
            return False
        in_flight = self._in_training + len(self._buffer) + len(self._running)
        return in_flight < (bounds.max_staleness + 1) * bounds.batch_groups and self._issued < bounds.draws_per_batch

    def _serve(self) -> None:
        try:
            while True:
                with self._changed:
                    if self._closing:
                        return
                    requests = self._admit()
                    idle = not self._running and not self._evaluating
                    if requests:
                        self._fleet.submit(requests)
                    elif idle:
                        self._changed.wait(_POLL_S)
                        continue
                for outcome in self._fleet.collect(_POLL_S):
                    self._intake(outcome)
                    with self._changed:
                        self._take_in(outcome)
                        self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - boundary: handed to the loop, which raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _admit(self) -> list[GroupRequest]:
        requests = []
        while not self._held and (self._waiting or not self._admission.in_draw_order) and self._may_issue():
            draw = self._again.pop(0) if self._again else self._next_draw
            self._next_draw = max(self._next_draw, draw + 1)
            self._ledger.issue(draw, self._admission.group_size)
            self._running.add(draw)
            self._issued += 1
            requests.append(GroupRequest(draw, self._order.task(draw), self._admission.group_size))
        return requests

    def _take_in(self, outcome: GroupOutcome) -> None:
        request, group = outcome.request, outcome.group
        if request.label:
            if request.label in self._evaluating:  # else its evaluation was given up
                self._evaluating[request.label][1].append(outcome)
            return
        self._running.discard(request.draw)
        finished = _finished(group)
        for trajectory in group.trajectories:
            if trajectory.sibling not in finished:
                ended: LedgerState = "cancelled" if trajectory.status.kind == "cancelled" else "failed"
                self._ledger.move(group.draw, [trajectory.sibling], ended, reason=trajectory.status.reason)
        self._ledger.move(group.draw, finished, "finished")
        decision = self._keep_group(group)
        if decision.keep:
            self._ledger.move(group.draw, finished, "buffered")
            self._buffer.append(group)
        else:
            self._ledger.move(group.draw, finished, "dropped", reason=decision.reason)


def _finished(group: TrajectoryGroup) -> list[int]:
    return [trajectory.sibling for trajectory in group.finished]
