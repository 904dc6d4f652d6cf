"""What a checkpoint keeps of groups in flight: where each episode stood after a turn, and how it goes on from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from agentrl.rollouts.builder import SequenceState
from agentrl.rollouts.rollout_spec import GroupRequest
from agentrl.types import StepResult, ToolSpec, Trajectory, Turn

__all__ = ["EpisodeState", "GroupInFlight", "GroupState", "NotResumable", "StateSlot"]


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeState:
    """Where an episode stood between two turns.

    Args:
        turns: that were made.
        head: where the next one goes on from.
        tools: on offer in the last one.
        result: what the last one caused; where that ended the episode, only its score is missing.
        env: the environment's state, pickled.
        num_calls: model calls made, of which the next one's seed is derived.
        restarts: sequences begun after the first one.
        timings: seconds by stage.
    """

    turns: tuple[Turn, ...]
    head: SequenceState
    tools: tuple[ToolSpec, ...]
    result: StepResult
    env: bytes
    num_calls: int
    restarts: int
    timings: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class NotResumable:
    """An episode that is begun anew.

    Args:
        why: what it had cannot be kept; empty where it had not finished a turn yet.
    """

    why: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class GroupState:
    """A draw in flight.

    Args:
        draw: which.
        siblings: what each came to, or where it stood.
        retried: earlier attempts that infrastructure failed.
        version: served when the draw was issued.
    """

    group_index: int
    siblings: tuple[Trajectory | EpisodeState | NotResumable, ...]
    retried: tuple[Trajectory, ...] = ()
    version: int = 0

    @property
    def resumable(self) -> tuple[EpisodeState, ...]:
        """Siblings that go on from where they stood."""
        return tuple(
            rollout_index
            for rollout_index in self.siblings
            if isinstance(rollout_index, EpisodeState)
        )

    @property
    def lost(self) -> tuple[NotResumable, ...]:
        """Siblings that had finished turns and are begun anew."""
        return tuple(
            rollout_index
            for rollout_index in self.siblings
            if isinstance(rollout_index, NotResumable) and rollout_index.why
        )

    def at_version(self, version: int) -> GroupState:
        """The same, issued while ``version`` was served."""
        return replace(self, version=version)


@dataclass(slots=True, eq=False)
class StateSlot:
    """Where an episode stands while it is played; its player writes it after each turn."""

    now: EpisodeState | NotResumable = NotResumable()


@dataclass(slots=True, eq=False)
class GroupInFlight:
    """A group while it is played.

    Attributes:
        siblings: what each came to, or where it stands.
        retried: attempts that infrastructure failed and that are made again.
    """

    request: GroupRequest
    siblings: list[Trajectory | StateSlot] = field(init=False)
    retried: list[Trajectory] = field(init=False)

    def __post_init__(self) -> None:
        saved = self.request.saved
        kept = (NotResumable(),) * self.request.num_rollouts if saved is None else saved.siblings
        self.siblings = [one if isinstance(one, Trajectory) else StateSlot(one) for one in kept]
        self.retried = [] if saved is None else list(saved.retried)

    def save(self) -> GroupState:
        """The group as it stands now."""
        return GroupState(
            self.request.group_index,
            tuple(one if isinstance(one, Trajectory) else one.now for one in self.siblings),
            tuple(self.retried),
        )
