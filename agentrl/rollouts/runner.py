"""Many episodes at once: one event loop in a thread of its own (docs/rollouts.md, Episodes)."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from agentrl.engines.base import RolloutEngine
from agentrl.envs import ENV_THREADS, EnvSpec
from agentrl.errors import EngineError
from agentrl.rollouts.context import EpisodeContext, PhaseSemaphores
from agentrl.rollouts.deadlines import Deadlines, StragglerCancel
from agentrl.rollouts.episode import run_episode
from agentrl.rollouts.rollout_spec import EpisodeKey, GroupRequest, RolloutSpec
from agentrl.rollouts.snapshots import EpisodeState, GroupInFlight, GroupState, StateSlot
from agentrl.sandbox import PoolCounts, SandboxPool
from agentrl.tools import TOOL_THREADS
from agentrl.tools.parsers import parser_for
from agentrl.types import Status, Trajectory, TrajectoryGroup

__all__ = ["EpisodeRunner", "GroupOutcome", "cancelled_outcome"]

_CLOSE_DEADLINE_S = 30.0
_SAVE_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True, eq=False)
class GroupOutcome:
    """A draw that came to its end: every sibling finished, failed or was cancelled.

    Args:
        request: what was asked.
        group: the siblings' last attempts.
        retried: attempts that infrastructure failed and that were made again.
        sandboxes: how the runner's pool of sandboxes stood then; None without one.
    """

    request: GroupRequest
    group: TrajectoryGroup
    retried: tuple[Trajectory, ...] = ()
    sandboxes: PoolCounts | None = None


class EpisodeRunner:
    """Hosts episodes in one asyncio loop; its methods may be called from any thread.

    All siblings of a group run here, so that what they share (a prompt's KV, a task's data) is made once.

    Args:
        spec: what the episodes share.
        engine: what generates.
        name: of the thread.
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
        self._on_close = on_close
        sandbox = spec.env.sandbox if isinstance(spec.env, EnvSpec) else None
        self._sandboxes = (
            None if sandbox is None else SandboxPool(sandbox, max_running=spec.permits.sandboxes)
        )
        renderer = None if spec.renderer is None else spec.renderer.build()
        self._parts = EpisodeContext(
            spec,
            engine,
            renderer,
            parser_for(renderer, spec.parser),
            spec.rubric.build(),
            self._sandboxes,
        )
        self.deadlines = Deadlines()
        """Of all episodes here."""
        self._finished: queue.Queue[GroupOutcome | BaseException] = queue.Queue()
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._in_flight: dict[tuple[str, int], GroupInFlight] = {}  # until it was collected
        self._loop = asyncio.new_event_loop()
        permits = spec.permits
        TOOL_THREADS.resize(permits.tool_threads)
        ENV_THREADS.resize(permits.env_threads)
        self._permits = PhaseSemaphores(
            *(asyncio.Semaphore(n) for n in (permits.preparing, permits.running, permits.scoring))
        )
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[GroupRequest]) -> None:
        """Starts groups; each comes back by ``collect``."""
        for request in requests:
            self._loop.call_soon_threadsafe(self._start, request)

    def collect(self, timeout_s: float) -> list[GroupOutcome]:
        """Groups that came to their end: waits for the first, then takes what is there.

        Raises:
            EngineError: the runner itself broke; nothing more comes from it.
        """
        outcomes: list[GroupOutcome] = []
        try:
            item = self._finished.get(timeout=timeout_s)
            while True:
                if isinstance(item, BaseException):
                    raise EngineError(
                        f"the episode runner broke: {item!r}", retryable=False
                    ) from item
                outcomes.append(item)
                self._in_flight.pop((item.request.label, item.request.group_index), None)
                item = self._finished.get_nowait()
        except queue.Empty:
            return outcomes

    def cancel(self, group_indices: Sequence[int], *, label: str = "") -> None:
        """Ends groups in flight; all siblings of one come back as cancelled once they are cleaned up."""

        def end() -> None:
            for group_index in group_indices:
                if (task := self._running.get((label, group_index))) is not None:
                    _cancel(task)

        self._loop.call_soon_threadsafe(end)

    def in_flight(self) -> list[GroupState]:
        """The groups in training that were submitted and not collected, as they stand now; with
        ``RolloutSpec.save_episode_state`` they go on from there by ``GroupRequest.saved``."""

        async def save() -> list[GroupState]:
            return [
                group.save()
                for group in self._in_flight.values()
                if group.request.purpose == "train"
            ]

        return asyncio.run_coroutine_threadsafe(save(), self._loop).result(_SAVE_DEADLINE_S)

    async def run_group(self, request: GroupRequest) -> GroupOutcome:
        """Plays all siblings of one draw and waits for them (for notebooks and tests, in the caller's loop)."""
        return await self._play(GroupInFlight(request))

    async def _play(self, group: GroupInFlight) -> GroupOutcome:
        request = group.request
        cuts = [StragglerCancel() for _ in range(request.num_rollouts)]
        num_finished = 0

        async def play(rollout_index: int) -> Trajectory:
            nonlocal num_finished
            trajectory = await self._sibling(group, rollout_index, cuts[rollout_index])
            group.siblings[rollout_index] = trajectory
            num_finished += trajectory.status.finished
            if num_finished == request.group_size:
                for cut in cuts:
                    cut.ask()
            return trajectory

        with self.deadlines.of_this_task():
            async with (
                asyncio.TaskGroup() as siblings
            ):  # a cancelled group has ended when its last one is cleaned up
                tasks = [siblings.create_task(play(n)) for n in range(request.num_rollouts)]
        trajectories = tuple(task.result() for task in tasks)
        played = TrajectoryGroup(request.group_index, request.task, trajectories)
        counts = None if self._sandboxes is None else self._sandboxes.counts()
        return GroupOutcome(replace(request, saved=None), played, tuple(group.retried), counts)

    def close(self) -> None:
        """Cancels what runs and ends the thread.

        Raises:
            EngineError: it did not end within its deadline.
        """
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result(_CLOSE_DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_DEADLINE_S)
        if self._thread.is_alive():
            raise EngineError(
                f"the episode runner did not end within {_CLOSE_DEADLINE_S} s", retryable=False
            )

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _start(self, request: GroupRequest) -> None:
        group = GroupInFlight(request)
        self._in_flight[request.label, request.group_index] = group
        self._running[request.label, request.group_index] = self._loop.create_task(
            self._host(group)
        )

    async def _host(self, group: GroupInFlight) -> None:
        request = group.request
        try:
            self._finished.put(await self._play(group))
        except asyncio.CancelledError:
            self._finished.put(cancelled_outcome(request))
        except BaseException as error:
            self._finished.put(error)
            raise
        finally:
            self._running.pop((request.label, request.group_index), None)

    async def _sibling(
        self, group: GroupInFlight, rollout_index: int, cut: StragglerCancel
    ) -> Trajectory:
        """Plays an episode from where it stands, and again where infrastructure failed it."""
        request, spec, standing = group.request, self._parts.spec, group.siblings[rollout_index]
        if isinstance(standing, Trajectory):
            return standing
        saved = standing.now if isinstance(standing.now, EpisodeState) else None
        failed = [
            trajectory for trajectory in group.retried if trajectory.rollout_index == rollout_index
        ]
        previous = failed[-1] if failed else None
        for attempt in range(min(len(failed), spec.max_retries), spec.max_retries + 1):
            key = EpisodeKey(
                request.group_index,
                rollout_index,
                request.first_attempt + attempt,
                request.purpose,
                request.label,
            )
            trajectory = await run_episode(
                self._parts,
                request.task,
                key,
                sampling=request.sampling,
                env=request.env,
                permits=self._permits,
                previous=previous,
                cut=cut,
                saved=saved,
                standing=standing
                if spec.save_episode_state and request.purpose == "train"
                else None,
            )
            if trajectory.status.kind != "failed" or not trajectory.info.get("retryable"):
                return trajectory
            if attempt < spec.max_retries:
                group.retried.append(trajectory)
                standing = group.siblings[rollout_index] = StateSlot()
            previous, saved = trajectory, None
        return trajectory

    async def _cancel_all(self) -> None:
        tasks = list(self._running.values())
        for task in tasks:
            _cancel(task)
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._parts.close()
        if self._on_close is not None:
            await self._on_close()
        if self._sandboxes is not None:
            await self._sandboxes.close()


def _cancel(task: asyncio.Task[None]) -> None:
    """Cancels once: a second time would cut the cleaning up short."""
    if not task.cancelling():
        task.cancel()


def cancelled_outcome(request: GroupRequest) -> GroupOutcome:
    """A group that its owner gave up: no sibling of it counts."""
    siblings = tuple(
        Trajectory(
            task=request.task,
            group_index=request.group_index,
            rollout_index=rollout_index,
            attempt=request.first_attempt,
            purpose=request.purpose,
            turns=(),
            status=Status("cancelled", "cancelled"),
            label=request.label,
            info={"cancelled_at": time.time()},
        )
        for rollout_index in range(request.num_rollouts)
    )
    return GroupOutcome(
        replace(request, saved=None), TrajectoryGroup(request.group_index, request.task, siblings)
    )
