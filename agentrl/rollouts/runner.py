"""Episode runner: plays many groups concurrently in one event loop (docs/rollouts.md, Episodes).

- The loop runs in one thread, which the runner starts and ends.
- All rollouts of a group run in the same loop, so that they share a prompt's KV and a task's data.
- Every submitted group comes back by ``collect`` once: finished, failed or cancelled.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import queue
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

from agentrl.engines.base import RolloutEngine
from agentrl.envs import ENV_THREADS
from agentrl.errors import EngineError
from agentrl.rollouts.builder import TrajectoryBuilder
from agentrl.rollouts.context import EpisodeContext, PhaseSemaphores
from agentrl.rollouts.deadlines import Deadline, Deadlines, LimitSpentError, StragglerCancel
from agentrl.rollouts.episode import run_episode
from agentrl.rollouts.group_scores import with_group_scores
from agentrl.rollouts.groups import (
    GroupInFlight,
    GroupOutcome,
    GroupRequest,
    cancelled_outcome,
)
from agentrl.rollouts.rollout_spec import RolloutSpec
from agentrl.rollouts.states.snapshots import EpisodeState, GroupState, StateSlot
from agentrl.tools import TOOL_THREADS
from agentrl.types import Status, Trajectory, TrajectoryGroup
from agentrl.types.loop_thread import LoopThread, LoopWatch
from agentrl.types.user_code.place import described

logger = logging.getLogger(__name__)

_CLOSE_DEADLINE_S = 30.0
_SAVE_DEADLINE_S = 60.0
_LONGEST = 8
_ALIKE = 4
"""Attempts of a host, its first ones, after which one fault of user code counts as everybody's."""
_CANCELLED_ITSELF = (
    "code of the episode cancelled the task that it ran in; let it cancel only what it started "
    "itself"
)
_OF_USER_CODE = ("env", "env_exception", "reward")


class EpisodeRunner:
    """Plays groups in an event loop of its own thread; its methods may be called from any thread.

    Args:
        spec: the specification that the episodes share.
        engine: generates completions.
        name: the name of the thread.
        on_close: awaited in the loop before it ends.
    """

    def __init__(
        self,
        spec: RolloutSpec,
        engine: RolloutEngine,
        *,
        name: str = "episodes",
        on_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        permits = spec.permits
        self._context = EpisodeContext.of(spec, engine, sandboxes=permits.sandboxes)
        self._on_close = on_close
        # How attempts ended: kinds of faults of user code, and "" for any other end. Used in the
        # event loop alone.
        self._ends: Counter[str] = Counter()
        self._permits = PhaseSemaphores(permits.preparing, permits.running, permits.scoring)
        self.deadlines = Deadlines()
        """The deadlines of all episodes here."""
        # From the loop's thread to the callers of ``collect``; an exception means a broken loop.
        self._finished: queue.Queue[GroupOutcome | BaseException] = queue.Queue()
        # By label and group index. The loop's thread adds to and reads it; ``collect`` removes a
        # group in its caller's thread: single dict operations, and ``in_flight`` is only called by
        # the thread that collects.
        self._in_flight: dict[tuple[str, int], GroupInFlight] = {}
        TOOL_THREADS.resize(spec.episode.tool_threads)
        ENV_THREADS.resize(spec.episode.env_threads)
        # Runs the episodes from here to ``close``.
        self._thread = LoopThread(name, self._finished.put)
        self._loop = self._thread.loop
        self._watch = LoopWatch(self._thread)

    def submit(self, requests: Sequence[GroupRequest]) -> None:
        """Starts groups; each comes back by ``collect``."""
        for request in requests:
            self._thread.call(partial(self._start, request))

    def collect(self, timeout_s: float) -> list[GroupOutcome]:
        """The groups that have ended: waits for the first one, then takes all that are there.

        Args:
            timeout_s: seconds to wait for the first one.

        Raises:
            EngineError: the runner itself broke and returns no more groups.
        """
        outcomes: list[GroupOutcome] = []
        try:
            item = self._finished.get(timeout=timeout_s)
            while True:
                if isinstance(item, BaseException):
                    # The next caller gets the error too.
                    self._finished.put(item)
                    raise EngineError(
                        f"the episode runner broke: {described(item)}", retryable=False
                    ) from item
                outcomes.append(item)
                self._in_flight.pop((item.request.label, item.request.group_index), None)
                # The first one was worth a wait; the others come along where they are there
                # already.
                item = self._finished.get_nowait()
        except queue.Empty:
            return outcomes

    def take_ended(self) -> list[Trajectory]:
        """The attempts that have ended since the last call, of groups that ``collect`` did not
        return yet; they come again with their group. Called by the thread that collects."""
        ended = []
        for group in list(self._in_flight.values()):
            while group.news:
                ended.append(group.news.popleft())
        return ended

    def longest(self) -> list[dict[str, Any]]:
        """The episodes that wait longest for one thing, as JSON: which, its turns so far, for what,
        and seconds. From any thread."""
        groups = list(self._in_flight.values())
        builders = [
            own for group in groups for own in list(group.builders.values()) if own.doing
        ]
        now = time.monotonic()
        return [
            {
                "episode": own.key.trajectory_id,
                "turns": len(own.turns),
                "waits_for": own.doing,
                "s": now - own.doing_since,
            }
            for own in heapq.nsmallest(_LONGEST, builders, key=attrgetter("doing_since"))
        ]

    def cancel(self, group_indices: Sequence[int], *, label: str = "") -> None:
        """Cancels groups in flight; each comes back as cancelled after its rollouts are closed."""

        def end() -> None:
            for group_index in group_indices:
                if (group := self._in_flight.get((label, group_index))) is not None:
                    group.cancel()

        self._thread.call(end)

    def in_flight(self) -> list[GroupState]:
        """The present states of the training groups that were submitted and not collected.

        With ``RolloutSpec.save_episode_state`` they can continue by ``GroupRequest.saved``. Called
        by the thread that collects.
        """

        async def save() -> list[GroupState]:
            groups = self._in_flight.values()
            return [group.save() for group in groups if group.request.purpose == "train"]

        return self._thread.submit(save()).result(_SAVE_DEADLINE_S)

    async def run_group(self, request: GroupRequest) -> GroupOutcome:
        """Plays all rollouts of a group in the caller's event loop, for notebooks and tests."""
        return await self._play(GroupInFlight(request))

    def close(self) -> None:
        """Cancels the running groups and ends the thread.

        Raises:
            EngineError: the thread did not end within its deadline.
        """
        if not self._thread.thread.is_alive():
            return
        self._thread.submit(self._cancel_all()).result(_CLOSE_DEADLINE_S)
        self._watch.close()
        self._thread.stop(_CLOSE_DEADLINE_S)
        if self._thread.thread.is_alive():
            raise EngineError(
                f"the episode runner did not end within {_CLOSE_DEADLINE_S} s",
                retryable=False,
            )

    def _start(self, request: GroupRequest) -> None:
        group = GroupInFlight(request)
        self._in_flight[request.label, request.group_index] = group
        group.task = self._loop.create_task(self._host(group))

    async def _host(self, group: GroupInFlight) -> None:
        try:
            self._finished.put(await self._play(group))
        except asyncio.CancelledError:
            self._finished.put(cancelled_outcome(group.request, group.save()))
        except BaseException as error:
            self._finished.put(error)
            raise

    async def _play(self, group: GroupInFlight) -> GroupOutcome:
        request = group.request
        straggler = StragglerCancel()
        num_finished = 0

        async def play(rollout_index: int) -> Trajectory:
            nonlocal num_finished
            was_ended = isinstance(group.rollouts[rollout_index], Trajectory)
            is_baseline = request.is_baseline(rollout_index)
            trajectory = await self._bounded(
                group, rollout_index, None if is_baseline else straggler
            )
            group.rollouts[rollout_index] = trajectory
            group.builders.pop(rollout_index, None)
            # one that was ended was told of before its state was saved, and one that its group
            # scores is not whole yet
            if not was_ended and not self._context.rubric.group_parts:
                group.news.append(trajectory)
            num_finished += trajectory.status.finished and not is_baseline
            if num_finished == request.group_size:
                straggler.request()
            return trajectory

        with self.deadlines.of_this_task():
            # a task group: a cancelled group ends only after its last rollout is closed
            async with asyncio.TaskGroup() as rollouts:
                tasks = [rollouts.create_task(play(n)) for n in range(request.num_rollouts)]
        sandboxes = self._context.sandboxes
        played = tuple(
            self._failed(group, number, _CANCELLED_ITSELF)
            if task.cancelled()
            else task.result()
            for number, task in enumerate(tasks)
        )
        scored = await with_group_scores(self._context.rubric, played)
        return GroupOutcome(
            replace(request, saved=None),
            TrajectoryGroup(request.group_index, request.task, scored),
            tuple(group.retried),
            None if sandboxes is None else sandboxes.counts(),
            lag=self._watch.take(),
            abandoned=TOOL_THREADS.num_abandoned + ENV_THREADS.num_abandoned,
        )

    def _failed(self, group: GroupInFlight, rollout_index: int, why: str) -> Trajectory:
        """A rollout whose attempt left no trajectory."""
        request = group.request
        attempt = sum(one.rollout_index == rollout_index for one in group.retried)
        builder = TrajectoryBuilder(request.key(rollout_index, attempt), request.task)
        return builder.finish(Status("failed", "env", why))

    async def _bounded(
        self, group: GroupInFlight, rollout_index: int, straggler: StragglerCancel | None
    ) -> Trajectory:
        """Plays an episode within the bound of all that it does: no other deadline holds the sum
        of its attempts, or what hangs between its phases."""
        seconds = self._context.spec.episode.total_s
        try:
            async with Deadline(seconds, "total_timeout"):
                return await self._rollout(group, rollout_index, straggler)
        except LimitSpentError as spent:
            why = (
                f"the episode took more than {spent}_s={seconds:g}, its attempts, its reward "
                "and its close together; look for what hangs, or raise it"
            )
            return self._failed(group, rollout_index, why)

    async def _rollout(
        self, group: GroupInFlight, rollout_index: int, straggler: StragglerCancel | None
    ) -> Trajectory:
        """Plays an episode from its present state, and again after an infrastructure failure."""
        request = group.request
        spec = self._context.spec
        slot = group.rollouts[rollout_index]
        if isinstance(slot, Trajectory):
            return slot
        keeps_state = spec.save_episode_state and request.purpose == "train"
        saved = slot.state if isinstance(slot.state, EpisodeState) else None
        sampling = request.sampling
        if request.is_baseline(rollout_index):
            sampling = (sampling or spec.episode.sampling).greedy()
        failed = [one for one in group.retried if one.rollout_index == rollout_index]
        previous = failed[-1] if failed else None
        retries = spec.episode.max_retries
        # A resumed run may allow fewer retries than were made; the rollout is played all the same.
        for attempt in range(min(len(failed), retries), retries + 1):
            trajectory = await run_episode(
                self._context,
                request.task,
                request.key(rollout_index, attempt),
                sampling=sampling,
                env=request.env,
                permits=self._permits,
                previous=previous,
                straggler=straggler,
                saved=saved,
                slot=slot if keeps_state else None,
                started=partial(group.builders.__setitem__, rollout_index),
            )
            of_user = trajectory.status.reason in _OF_USER_CODE
            # With two kinds of ends no fault is common to all, and the count is of no more use.
            if len(self._ends) < 2:
                self._ends[trajectory.failure_kind if of_user else ""] += 1
            if trajectory.status.kind != "failed" or not trajectory.info.get("retryable"):
                return trajectory
            if of_user and len(self._ends) == 1 and self._ends.total() >= _ALIKE:
                # Every attempt so far failed of this fault, and another one would too.
                return trajectory
            if attempt < retries:
                logger.warning(
                    "episode %s failed (%s) and is retried: %s",
                    trajectory.id,
                    trajectory.status.reason,
                    trajectory.failure,
                    extra={
                        "event": "episode_retried",
                        "trajectory_id": trajectory.id,
                        "boundary": trajectory.status.reason,
                        "retries_left": retries - attempt,
                    },
                )
                group.retried.append(trajectory)
                group.news.append(trajectory)
                # The next attempt starts over: a checkpoint must not hold the failed one's states.
                slot = group.rollouts[rollout_index] = StateSlot()
            previous = trajectory
            saved = None
        return trajectory

    async def _cancel_all(self) -> None:
        groups = list(self._in_flight.values())
        for group in groups:
            group.cancel()
        tasks = [group.task for group in groups if group.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        # No episode runs any more, so that nothing asks for what ends here.
        await self._context.close()
        if self._on_close is not None:
            await self._on_close()
