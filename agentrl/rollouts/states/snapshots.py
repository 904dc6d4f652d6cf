"""Snapshots: the states of episodes and groups in flight that a checkpoint keeps.

They hold ``Env.state_dict``, pickled, to go on from. ``Env.snapshot``, a state for people to look
at, is another thing: ``state_recorder``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agentrl.rollouts.builder import SequenceState
from agentrl.types import Blob, StepResult, ToolSpec, Trajectory, Turn


@dataclass(frozen=True, slots=True, eq=False)
class SeatState:
    """The state of one agent between two turns.

    Args:
        sequence: the sequence that its next turn extends.
        tools: the tools of its last turn.
        num_calls: its model calls so far, from which the next call's seed is derived.
    """

    sequence: SequenceState
    tools: tuple[ToolSpec, ...]
    num_calls: int


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeState:
    """The state of an episode between two turns.

    Args:
        turns: the turns so far.
        seats: the agents that have acted, by name, in the order of their first turns.
        result: the last turn's step. If it ended the episode, only the score is missing.
        env: the environment's state, pickled.
        restarts: sequences that began after an agent's first one, by cause.
        timings: seconds by stage.
        first_state: the environment's after ``reset``, for people to look at.
        unclaimed: step rewards of agents without a turn.
    """

    turns: tuple[Turn, ...]
    seats: Mapping[str, SeatState]
    result: StepResult
    env: bytes
    restarts: Mapping[str, int]
    timings: Mapping[str, float]
    first_state: Blob | None
    unclaimed: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NotResumable:
    """An episode that restarts from its beginning.

    Args:
        why: the reason why its state could not be saved; empty before the first finished turn.
    """

    why: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class GroupState:
    """The state of a group in flight.

    Args:
        group_index: the group's index in the data order.
        rollouts: each rollout's trajectory if it has ended, otherwise its state.
        retried: earlier attempts that failed by infrastructure.
        versions: of each policy that it trains, the one served when the group was issued.
        first_attempt: ``GroupRequest.first_attempt``, from which its attempts are counted.
    """

    group_index: int
    rollouts: tuple[Trajectory | EpisodeState | NotResumable, ...]
    retried: tuple[Trajectory, ...] = ()
    versions: Mapping[str, int] = field(default_factory=dict)
    first_attempt: int = 0

    @property
    def resumable(self) -> tuple[EpisodeState, ...]:
        """Rollouts that continue from a saved state."""
        return tuple(one for one in self.rollouts if isinstance(one, EpisodeState))

    @property
    def lost(self) -> tuple[NotResumable, ...]:
        """Rollouts that had finished turns and restart from their beginning."""
        return tuple(
            one for one in self.rollouts if isinstance(one, NotResumable) and one.why
        )


@dataclass(slots=True, eq=False)
class StateSlot:
    """Holder of a running episode's latest state; its driver writes it after each turn.

    The driver and the reader (``EpisodeRunner.in_flight``) use it in the episode's event loop only.
    """

    state: EpisodeState | NotResumable = NotResumable()
