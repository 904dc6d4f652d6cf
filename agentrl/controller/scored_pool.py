"""Scored pool: plays groups in another pool, and gives them a reward model's scores in a thread of
its own.

- A group that waits for its score is still in flight: admission bounds how many there are, and a
  checkpoint holds its rollouts as ended.
- The thread lives from the first group that it scores to ``close``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentrl.controller.cluster.rollout_pool import GroupKey, GroupPool, Incident, group_key
from agentrl.controller.scoring import Score, failed_score
from agentrl.errors import AgentRLError, Closing, EngineError
from agentrl.rollouts import GroupOutcome, GroupRequest, GroupState, cancelled_outcome
from agentrl.types import Trajectory

logger = logging.getLogger(__name__)

_CLOSE_S = 30.0
_POLL_S = 0.05
"""How long the pool is waited for while a score may come: only one of the two can wake a thread."""


class ScoredPool(Closing):
    """``GroupPool`` over another one. ``close`` ends the thread, and not the other pool.

    Args:
        pool: where groups are played.
        score: gives outcomes their scores; called by the thread alone.
        max_retries: further calls for a group that got no score of infrastructure.
    """

    closing = "ending the thread that scores"

    def __init__(self, pool: GroupPool, score: Score, *, max_retries: int) -> None:
        self._pool = pool
        self._score = score
        self._max_retries = max_retries
        self._playing: set[GroupKey] = set()
        # without their scores, in the order of their ends; those that are being scored too
        self._waiting: dict[GroupKey, GroupOutcome] = {}
        self._ready: list[GroupOutcome] = []  # for ``collect``
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._closing = False
        # guards everything above: the collector's thread brings groups and takes them, the loop's
        # thread submits and cancels, the scoring thread scores; it is notified after each change,
        # and never held during a call of the pool or of ``score``
        self._changed = threading.Condition()

    def submit(self, requests: Sequence[GroupRequest]) -> None:
        with self._changed:
            # A group that came back before it is entered would count as playing for ever.
            self._playing.update(map(group_key, requests))
        self._pool.submit(requests)

    def collect(self, timeout_s: float) -> list[GroupOutcome]:
        """See ``RolloutPool.collect``; a group comes once it has its score.

        Raises:
            AgentRLError: a runner, its host or the reward model died.
        """
        end = time.monotonic() + timeout_s
        left_s = timeout_s
        while True:
            self._take_in(self._pool.collect(self._patience_s(left_s)))
            left_s = max(0.0, end - time.monotonic())
            with self._changed:
                # The pool has nothing to give then, so the score alone is waited for.
                if self._waiting and not self._playing:
                    self._changed.wait_for(lambda: self._ready or self._error, left_s)
                if self._error is not None:
                    raise self._error
                ready = self._ready
                self._ready = []
            if ready or time.monotonic() >= end:
                return ready

    def take_ended(self) -> list[Trajectory]:
        """See ``RolloutPool.take_ended``; without its score one that finished is not whole, and
        comes with its group alone."""
        return [one for one in self._pool.take_ended() if one.reward is None]

    def cancel(self, keys: Sequence[GroupKey]) -> None:
        """Ends groups in flight; one that waits for its score comes back at once."""
        with self._changed:
            for outcome in filter(None, (self._waiting.pop(key, None) for key in keys)):
                self._ready.append(cancelled_outcome(outcome.request, _ended(outcome)))
            playing = [key for key in keys if key in self._playing]
            self._changed.notify_all()
        self._pool.cancel(playing)

    def in_flight(self) -> list[GroupState]:
        # This thread moves groups from the pool to here, so none is missed between the two.
        states = self._pool.in_flight()
        with self._changed:
            waiting = [
                one for one in self._waiting.values() if one.request.purpose == "train"
            ]
        return [*states, *map(_ended, waiting)]

    def take_failures(self) -> list[Incident]:
        return self._pool.take_failures()

    def now(self) -> dict[str, Any]:
        return {"unscored": len(self._waiting), **self._pool.now()}

    def close(self) -> None:
        """Ends the thread; a call of the reward model that runs is waited for, its scores are not.

        Raises:
            EngineError: it did not end within its deadline.
        """
        with self._changed:
            self._closing = True
            self._waiting.clear()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
            if self._thread.is_alive():
                raise EngineError(
                    f"the reward model did not answer within {_CLOSE_S:.0f} s",
                    retryable=False,
                )

    def _patience_s(self, left_s: float) -> float:
        """How long the pool may be waited for."""
        with self._changed:
            if self._ready or (self._waiting and not self._playing):
                return 0.0
            return min(left_s, _POLL_S) if self._waiting else left_s

    def _take_in(self, outcomes: Sequence[GroupOutcome]) -> None:
        with self._changed:
            for outcome in outcomes:
                key = group_key(outcome.request)
                self._playing.discard(key)
                if outcome.group.rewarded:
                    self._waiting[key] = outcome
                else:
                    self._ready.append(outcome)
            if self._waiting and self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="scoring", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def _serve(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or self._closing)
                    if self._closing:
                        return
                    # They stay in `_waiting`, where a checkpoint and a cancellation find them.
                    taken = dict(self._waiting)
                scored = self._scored([*taken.values()])
                with self._changed:
                    number = len(self._waiting)
                    for (key, was), now in zip(taken.items(), scored, strict=True):
                        # one that was cancelled meanwhile is gone
                        if self._waiting.get(key) is was:
                            del self._waiting[key]
                            self._ready.append(replace(now, unscored=number))
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - boundary: handed to the collector
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _scored(self, outcomes: Sequence[GroupOutcome]) -> Sequence[GroupOutcome]:
        """The outcomes with their scores. Where one call for all fails, each group has its own.

        Raises:
            AgentRLError: the reward model failed so that another call is of no use.
        """
        try:
            return self._score(outcomes)
        except AgentRLError as error:
            if not error.retryable:
                raise
            return [self._scored_again(outcome, error) for outcome in outcomes]

    def _scored_again(self, outcome: GroupOutcome, error: AgentRLError) -> GroupOutcome:
        """One of them; after its last call its rollouts have failed at the boundary ``reward``."""
        for left in reversed(range(self._max_retries)):
            fields = {"event": "scoring_retried", "group": outcome.request.group_index}
            fields |= {"retries_left": left}
            logger.warning(
                "group %d got no score and is scored again: %s",
                outcome.request.group_index,
                error,
                extra=fields,
            )
            try:
                return self._score([outcome])[0]
            except AgentRLError as again:
                if not again.retryable:
                    raise
                error = again
        why = f"got no score: {error}"
        return replace(
            outcome, group=outcome.group.with_rewarded(lambda t: failed_score(t, why))
        )


def _ended(outcome: GroupOutcome) -> GroupState:
    """The state of a group all of whose rollouts have ended."""
    request = outcome.request
    return GroupState(request.group_index, outcome.group.trajectories, outcome.retried)
