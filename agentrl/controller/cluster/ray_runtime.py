"""Calls of Ray actors: deadlines, deaths and errors by name, and the runners among them as one fleet."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayTaskError

from agentrl.engines import EngineNotice
from agentrl.errors import AgentRLError, TrainingError
from agentrl.rollouts import GroupOutcome, GroupRequest, GroupState
from agentrl.types import file_modules

__all__ = ["ActorCalls", "ActorLostError", "Collected", "RayRunners", "shared"]

Collected: TypeAlias = tuple[list[GroupOutcome], list[EngineNotice]]
"""What an actor that hosts episodes gives: groups that came to their end, and what its engine overcame."""

_POLL_S = 1.0


def shared(value: object) -> Any:
    """A reference to ``value`` for several actors; what a user's file defines travels by value."""
    for module in file_modules():
        ray.cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return ray.put(value)


class ActorLostError(Exception):
    """An actor died, or does not answer; says which, and during what."""


class ActorCalls:
    """Waits for actors of one group; the first failure poisons it, and every later call raises.

    Args:
        timeout_s: deadline of one call.
        name: what an actor is called, by its place.
        failure: an error about an actor, from a message, its place, and a traceback where there is one.
    """

    def __init__(
        self,
        timeout_s: float,
        name: Callable[[int], str],
        failure: Callable[[str, int, str], AgentRLError],
    ) -> None:
        self.error: BaseException | None = None
        self._timeout_s, self._name, self._failure = timeout_s, name, failure

    def gather(self, refs: Sequence[Any], what: str) -> list[Any]:
        """All answers in order; the first failure is raised as soon as it is known."""
        self.assert_sound()
        end = time.monotonic() + self._timeout_s
        places = {ref: place for place, ref in enumerate(refs)}
        waiting = list(refs)
        answers: dict[int, Any] = {}
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=1, timeout=_POLL_S)
            for ref in ready:
                answers[places[ref]] = self.get(ref, what, places[ref])
            if not ready and time.monotonic() > end:
                late = ", ".join(self._name(places[ref]) for ref in waiting)
                self.error = TrainingError(
                    f"{what}: {late} did not answer within {self._timeout_s:.0f} s"
                )
                raise self.error
        return [answers[place] for place in range(len(refs))]

    def assert_sound(self) -> None:
        """Raises where an earlier call failed.

        Raises:
            TrainingError: the group is poisoned.
        """
        if self.error is not None:
            raise TrainingError(f"the group is poisoned by an earlier error: {self.error}")

    def get(self, ref: Any, what: str, place: int) -> Any:
        """One answer.

        Raises:
            AgentRLError: what the actor raised, or that it died or did not answer.
        """
        try:
            return self.ask(ref, what, place)
        except ActorLostError as lost:
            self.error = self._failure(str(lost), place, "")
            raise self.error from None

    def ask(self, ref: Any, what: str, place: int, timeout_s: float | None = None) -> Any:
        """One answer of an actor that others may stand in for; within ``timeout_s``, by default the group's own.

        Raises:
            AgentRLError: what the actor raised; the group is poisoned.
            ActorLostError: it died or did not answer; the group is as it was.
        """
        patience_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            return ray.get(ref, timeout=patience_s)
        except RayTaskError as error:
            self.error = (
                error.cause
                if isinstance(error.cause, AgentRLError)
                else self._failure(f"{what} failed: {error.cause!r}", place, str(error))
            )
            raise self.error from None
        except (RayActorError, ObjectLostError) as error:
            raise ActorLostError(f"{what}: {self._name(place)} died: {error}") from None
        except GetTimeoutError:
            raise self.silent(what, place, patience_s) from None

    def silent(self, what: str, place: int, seconds: float) -> ActorLostError:
        """An actor that lives, as far as Ray knows, and does not answer."""
        return ActorLostError(f"{what}: {self._name(place)} did not answer within {seconds:.0f} s")


class RayRunners:
    """A ``Fleet`` of actors that host episodes; a draw's group goes to actor ``draw mod actors``.

    Args:
        actors: with the methods of ``EpisodeHost``, in a concurrency group of their own.
        calls: waits for them.
    """

    def __init__(self, actors: Sequence[Any], calls: ActorCalls) -> None:
        self._actors, self._calls = actors, calls
        self._polls: dict[Any, int] = {}
        self._arrived: list[GroupOutcome] = []
        self._notices: deque[EngineNotice] = deque()

    def forget(self) -> None:
        """The actors host something new: what was asked of them before is nobody's."""
        self._polls.clear()
        self._arrived.clear()

    def submit(self, requests: Sequence[GroupRequest]) -> None:
        for place, actor in enumerate(self._actors):
            own = [
                request for request in requests if request.group_index % len(self._actors) == place
            ]
            if own:
                self._calls.get(actor.submit.remote(own), "submitting groups", place)

    def collect(self, timeout_s: float) -> list[GroupOutcome]:
        if self._arrived:
            outcomes, self._arrived = self._arrived, []
            return outcomes
        for place, actor in enumerate(self._actors):
            if place not in self._polls.values():
                self._polls[actor.collect.remote(timeout_s)] = place
        ready, _ = ray.wait(list(self._polls), num_returns=1, timeout=timeout_s)
        return [outcome for ref in ready for outcome in self._fetch(ref)]

    def cancel(self, group_indices: Sequence[int], *, label: str = "") -> None:
        for place, actor in enumerate(self._actors):
            self._calls.get(
                actor.cancel.remote(list(group_indices), label), "cancelling groups", place
            )

    def in_flight(self) -> list[GroupState]:
        for ref in list(self._polls):  # what is on its way is neither here nor there
            self._arrived += self._fetch(ref)
        refs = [actor.in_flight.remote() for actor in self._actors]
        return [
            group for own in self._calls.gather(refs, "saving the groups that run") for group in own
        ]

    def _fetch(self, ref: Any) -> list[GroupOutcome]:
        collected: Collected = self._calls.get(ref, "collecting groups", self._polls.pop(ref))
        outcomes, notices = collected
        self._notices += notices
        return outcomes

    def take_notices(self) -> list[EngineNotice]:
        """What engines overcame, as far as it came with ``collect``; from any thread."""
        return [self._notices.popleft() for _ in range(len(self._notices))]
