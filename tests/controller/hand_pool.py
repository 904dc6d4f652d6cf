"""A rollout service over a pool that finishes groups when a test says so."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentrl.algorithms import FilterResult
from agentrl.config import StageConfig
from agentrl.controller.admission import RolloutState
from agentrl.controller.cluster.rollout_pool import Incident
from agentrl.controller.ledger import Ledger
from agentrl.controller.rollout_service import RolloutService
from agentrl.controller.schedule import GroupRecorder
from agentrl.controller.scored_pool import ScoredPool
from agentrl.controller.state import TrainState
from agentrl.engines import PauseMode
from agentrl.rollouts import GroupOutcome, GroupRequest, GroupState
from agentrl.rollouts.samplers.prompt_sampler import PromptSampler, SamplerState
from agentrl.rollouts.samplers.settings import UniformSettings
from agentrl.rollouts.samplers.task_sampler import TaskSampler
from agentrl.rollouts.samplers.uniform import Uniform
from agentrl.types import Status, Task, Trajectory, TrajectoryGroup
from tests.kit.waiting import DEADLINE_S

TASKS = [Task(str(n)) for n in range(100)]


def in_order(tasks: Sequence[Task]) -> TaskSampler:
    return Uniform(UniformSettings(), tasks, seed=0, shuffle=False)


def outcome(
    request: GroupRequest, statuses: Sequence[str] = (), reward: float = 1.0
) -> GroupOutcome:
    """A group that came to its end: siblings finished, or as ``statuses`` say."""
    kinds = [*statuses, *["terminated"] * (request.group_size - len(statuses))]
    siblings = tuple(
        Trajectory(
            task=request.task,
            group_index=request.group_index,
            rollout_index=n,
            attempt=0,
            purpose=request.purpose,
            turns=(),
            status=Status(
                kind, {"failed": "engine", "cancelled": "cancelled"}.get(kind, "")
            ),  # type: ignore[arg-type]
            reward=reward if kind in ("terminated", "truncated") else None,
            label=request.label,
        )
        for n, kind in enumerate(kinds)
    )
    return GroupOutcome(
        request, TrajectoryGroup(request.group_index, request.task, siblings)
    )


def bounds(
    batch_groups: int,
    group_size: int,
    *,
    last_step: int = 99,
    oversample: int = 0,
    in_draw_order: bool = False,
    **settings: Any,
) -> StageConfig:
    """A stage of so many groups a batch; ``oversample`` is in groups too."""
    return StageConfig(
        name="rl",
        run={"deterministic": in_draw_order},
        train={"batch_prompts": batch_groups, "steps": last_step},
        rollout={
            "group_size": group_size,
            "oversample": oversample / batch_groups,
            "schedule": "async" if settings.get("max_staleness") else "sync",
            **{"max_resample_ratio": 0.0} | settings,
        },
    )


class HandPool:
    """``RolloutPool`` whose groups come to their end when the test finishes them."""

    def __init__(self) -> None:
        self.open: dict[tuple[str, int], GroupRequest] = {}
        self.cancelled: list[int] = []
        self.saved: list[GroupState] = []
        self.does: dict[str, Any] = {}
        self.ended: deque[Trajectory] = deque()
        self._done: queue.Queue[GroupOutcome] = queue.Queue()
        self._changed = threading.Condition()

    def submit(self, requests: Sequence[GroupRequest]) -> None:
        with self._changed:
            self.open |= {
                (request.label, request.group_index): request for request in requests
            }
            self._changed.notify_all()

    def collect(self, timeout_s: float) -> list[GroupOutcome]:
        try:
            return [self._done.get(timeout=timeout_s)]
        except queue.Empty:
            return []

    def take_ended(self) -> list[Trajectory]:
        return [self.ended.popleft() for _ in range(len(self.ended))]

    def cancel(self, keys: Sequence[tuple[str, int]]) -> None:
        for label, group_index in keys:
            self.cancelled.append(group_index)
            self.finish(
                group_index,
                ["cancelled"] * self.open[label, group_index].group_size,
                label=label,
            )

    def take_failures(self) -> list[Incident]:
        return []

    def in_flight(self) -> list[GroupState]:
        return self.saved

    def now(self) -> dict[str, Any]:
        return self.does

    def group_indices(self, label: str = "") -> list[int]:
        with self._changed:
            return sorted(group_index for own, group_index in self.open if own == label)

    def wait_for(self, number: int, label: str = "") -> list[int]:
        """Until so many groups are open."""
        with self._changed:
            reached = self._changed.wait_for(
                lambda: sum(own == label for own, _ in self.open) >= number, DEADLINE_S
            )
        assert reached, f"{self.group_indices(label)} are open, waited for {number}"
        return self.group_indices(label)

    def finish(
        self,
        group_index: int,
        statuses: Sequence[str] = (),
        *,
        label: str = "",
        reward: float = 1.0,
    ) -> None:
        with self._changed:
            request = self.open.pop((label, group_index))
        self.give(outcome(request, statuses, reward))

    def give(self, finished: GroupOutcome) -> None:
        self._done.put(finished)


class Told(GroupRecorder):
    """Keeps what a service tells its recorder."""

    def __init__(self) -> None:
        self.outcomes: list[GroupOutcome] = []
        self.ended: list[Trajectory] = []
        self.dropped: list[tuple[list[str], str]] = []
        self.looks = 0

    def record_outcome(self, outcome: GroupOutcome) -> None:
        self.outcomes.append(outcome)

    def record_ended(self, trajectory: Trajectory) -> None:
        self.ended.append(trajectory)

    def record_dropped(self, group: TrajectoryGroup, reason: str) -> None:
        self.dropped.append(([one.id for one in group.finished], reason))

    def record_failures(self, incidents: Sequence[Incident]) -> None:
        self.looks += 1


MakeWorld = Callable[..., "World"]


class World:
    """A service with what a test looks at."""

    def __init__(self, path: Path, stage: StageConfig, **settings: Any) -> None:
        self.pool = HandPool()
        self.ledger = Ledger(path)
        self.told = Told()
        self.taken_in = self.told.outcomes
        self.published: list[tuple[str, int, PauseMode]] = []
        restored = settings.pop("restored", RolloutState(0, (), 0, 0))
        state = settings.pop("state", TrainState())
        if (
            restored.sampler == SamplerState() and restored.next_group_index
        ):  # of the order of the data
            waiting = (
                *restored.outstanding,
                *(group.group_index for group in restored.groups),
            )
            known = tuple((draw, draw) for draw in waiting)
            restored = replace(
                restored, sampler=SamplerState({"drawn": restored.next_group_index}, known)
            )
        score = settings.pop("score", None)
        self.scored = None
        if score is not None:
            retries = stage.rollout.max_retries
            self.scored = ScoredPool(self.pool, score, max_retries=retries)
            settings["on_close"] = self.scored.close
        self.service = RolloutService(
            stage,
            self.scored or self.pool,
            PromptSampler(TASKS, settings.pop("sampler", None) or in_order(TASKS)),
            self.ledger,
            restored,
            send_weights=self._publish,
            keep_group=settings.pop("keep", lambda group: FilterResult(True)),
            **{"wait_s": DEADLINE_S, "recorder": self.told} | settings,
        )
        self.service.start(state)

    def _publish(self, policy: str, version: int, mode: PauseMode) -> None:
        self.published.append((policy, version, mode))

    def next_groups(self, step: int = 1) -> Future:
        return Future(lambda: self.service.next_groups(step))


class Future:
    """A call in a thread of its own."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._answer: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self._answer = work()
        except BaseException as error:  # noqa: BLE001  raised by get
            self._error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def get(self) -> Any:
        self._thread.join(DEADLINE_S)
        assert self.done
        if self._error is not None:
            raise self._error
        return self._answer

    def group_indices(self) -> list[int]:
        return [group.group_index for group in self.get()]


def settled(pool: HandPool, expected: list[int]) -> bool:
    """Whether the open draws stay as they are while the service has every chance to issue more."""
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        if pool.group_indices() != expected:
            return False
        time.sleep(0.02)
    return True
