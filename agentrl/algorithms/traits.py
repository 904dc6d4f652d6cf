"""Traits: what must be known of an algorithm before it is made, free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

LearnsFrom: TypeAlias = Literal["rollouts", "demonstrations", "preferences"]
"""Where an algorithm's tokens come from: episodes of the policy, conversations to imitate, or pairs
to compare.
"""

OldLogprobs: TypeAlias = Literal["auto", "current", "recompute", "rollout"]
"""Where π_old comes from. ``recompute``: a forward of the trainer before the batch's first update.
``current``: the update's own logprobs, detached, the same numbers where a batch gets one update.
``rollout``: the sampler's. ``auto``: ``current`` where that is right, else ``recompute``.
"""


@dataclass(frozen=True, slots=True)
class Needs:
    """What an algorithm needs beside the tokens of its batch.

    Args:
        old_logprobs: ``old_logprobs`` before credit is spread over tokens, as a KL in the reward
            reads them.
        reference: ``ref_logprobs`` of a frozen reference.
        critic: ``values`` of a critic, which is trained beside the policy.
        advantages: credit spread over tokens; imitation needs none.
        baseline: the reward of a greedy rollout of each group.
        entropy: the gradient of the entropy.
    """

    old_logprobs: bool = False
    reference: bool = False
    critic: bool = False
    advantages: bool = True
    baseline: bool = False
    entropy: bool = False


class Traits(Protocol):
    """What the settings of a built-in algorithm and the record of a user's own both tell."""

    @property
    def learns_from(self) -> LearnsFrom:
        """Where its tokens come from."""

    @property
    def group_size_min(self) -> int:
        """Rollouts that a group needs at least."""

    @property
    def on_policy_only(self) -> bool:
        """Whether a batch may get one update only, by the very weights that sampled it."""

    @property
    def corrects_staleness(self) -> bool:
        """Whether tokens that older weights sampled are weighted for the difference."""

    @property
    def needs(self) -> Needs:
        """What it needs beside the tokens."""
