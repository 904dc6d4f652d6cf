"""The runners of a run, wherever they live: groups go out, outcomes come back."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

from agentrl.engines import EngineNotice
from agentrl.errors import EngineError
from agentrl.rollouts import GroupOutcome, GroupRequest, GroupState

__all__ = ["Fleet", "Incident", "WorkerFailure", "collect_groups", "stream_groups"]


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """A host of episodes that died.

    Args:
        why: which, and how it was noticed.
        num_groups: that it played, and that are played again.
    """

    why: str
    num_groups: int
    event: ClassVar[str] = "worker_lost"

    @property
    def counts(self) -> dict[str, float]:
        """By the metric's name."""
        return {"count/lost_workers": 1.0, "count/replayed_groups": float(self.num_groups)}

    def __str__(self) -> str:
        return f"{self.why}; its {self.num_groups} groups are played again"


Incident: TypeAlias = WorkerFailure | EngineNotice
"""What the run goes on after, and a person should know: each has ``event``, ``counts`` and a text."""


class Fleet(Protocol):
    """All siblings of a group go to one runner; the fleet chooses which."""

    def submit(self, requests: Sequence[GroupRequest]) -> None:
        """Starts groups."""
        ...

    def collect(self, timeout_s: float) -> list[GroupOutcome]:
        """Groups that came to their end, in order of finishing; empty after ``timeout_s`` without one.

        Raises:
            AgentRLError: a runner or its host died.
        """
        ...

    def cancel(self, group_indices: Sequence[int], *, label: str = "") -> None:
        """Ends groups in flight."""
        ...

    def in_flight(self) -> list[GroupState]:
        """The groups in training that did not come by ``collect`` yet, as they stand now.

        Called by whoever collects, in the same thread. What it lacks cannot be gone on with.
        """
        ...


def collect_groups(
    fleet: Fleet, requests: Sequence[GroupRequest], deadline_s: float
) -> list[GroupOutcome]:
    """Submits groups and waits for all of them, where no rollout service runs; in order of their draws.

    Raises:
        EngineError: not all came within ``deadline_s``.
    """
    asked = {(request.label, request.group_index) for request in requests}
    fleet.submit(requests)
    end = time.monotonic() + deadline_s
    outcomes: list[GroupOutcome] = []
    while len(outcomes) < len(requests):
        # what an earlier owner of the fleet gave up may still come in
        found = fleet.collect(1.0)
        outcomes += [
            outcome
            for outcome in found
            if (outcome.request.label, outcome.request.group_index) in asked
        ]
        if time.monotonic() > end:
            raise EngineError(
                f"{len(outcomes)} of {len(requests)} groups came within {deadline_s:.0f} s; look for a tool that hangs",
                retryable=False,
            )
    return sorted(outcomes, key=lambda outcome: outcome.request.group_index)


def stream_groups(
    fleet: Fleet, requests: Iterable[GroupRequest], *, in_flight: int, deadline_s: float
) -> Iterator[GroupOutcome]:
    """Plays any number of groups, a bounded number at a time; each comes as it ends, where no rollout service runs.

    Args:
        fleet: where they are played.
        requests: taken as there is room.
        in_flight: groups at a time.
        deadline_s: of the wait for one more group.

    Raises:
        EngineError: none came within ``deadline_s``.
    """
    waiting, running = iter(requests), set[tuple[str, int]]()
    while True:
        new = list(itertools.islice(waiting, in_flight - len(running)))
        running |= {(request.label, request.group_index) for request in new}
        if new:
            fleet.submit(new)
        if not running:
            return
        end, found = time.monotonic() + deadline_s, list[GroupOutcome]()
        while not found:
            if time.monotonic() > end:
                raise EngineError(
                    f"none of {len(running)} groups came within {deadline_s:.0f} s; look for a tool that hangs",
                    retryable=False,
                )
            own = fleet.collect(1.0)
            found = [
                outcome
                for outcome in own
                if (outcome.request.label, outcome.request.group_index) in running
            ]
        for outcome in found:
            running.discard((outcome.request.label, outcome.request.group_index))
            yield outcome
