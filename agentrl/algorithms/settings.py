"""Algorithm settings: each built-in algorithm's own section, free of torch, so that a file is
checked without it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from agentrl.algorithms.traits import LearnsFrom, Needs
from agentrl.types.section import Count, Decay, Section, Weight

Reduction = Literal["token_mean", "trajectory_mean", "constant"]


class AlgorithmSettings(Section):
    """What the settings of every built-in algorithm declare about it (``Traits``)."""

    group_size_min: ClassVar[int] = 1
    learns_from: ClassVar[LearnsFrom]

    @property
    def on_policy_only(self) -> bool:
        """See ``Traits``."""
        return False

    @property
    def corrects_staleness(self) -> bool:
        """See ``Traits``."""
        return True

    @property
    def needs(self) -> Needs:
        """See ``Traits``."""
        return Needs()


class _Reduced(AlgorithmSettings):
    reduction: Reduction = "token_mean"
    """How the tokens of a mini-batch are weighted (``reductions.py``)."""
    constant_tokens: Count | None = None
    """The C of ``reduction='constant'``, tokens; needed there and unused elsewhere."""

    @model_validator(mode="after")
    def _check_reduction(self) -> Self:
        if self.reduction == "constant" and self.constant_tokens is None:
            raise self.broken(
                "constant_tokens",
                " is needed by reduction='constant' (the tokens that each trajectory is divided "
                "by), got none; set it, for instance to the most tokens of a response",
            )
        return self


class RolloutCorrection(Section):
    """Truncated importance sampling: makes up for a behaviour policy that differs from the one
    trained.
    """

    level: Literal["none", "token"] = "none"
    """``token`` weights each sampled token by min(π_old / π_rollout, cap)."""
    cap: float = Field(default=2.0, ge=1)
    """Largest weight; at least 1."""


class GRPOSettings(_Reduced):
    """Group-relative policy optimisation (arXiv:2402.03300) with a token-level loss and clip-higher
    (arXiv:2503.14476)."""

    group_size_min: ClassVar[int] = 2  # a rollout is compared with the others of its group
    learns_from: ClassVar[LearnsFrom] = "rollouts"

    clip_low: Decay = 0.2
    """The ratio is clipped below at 1 - clip_low; in [0, 1)."""
    clip_high: Weight = 0.28
    """And above at 1 + clip_high; at least 0."""
    clip_dual: Annotated[float, Field(gt=1)] | None = None
    """Above 1, the ratio of a token with a negative advantage counts as at most this (dual clip,
    arXiv:1912.09729, eq. 5), which bounds its loss; null sets no such bound."""
    scale_rewards: Literal["none", "std"] = "std"
    """``std`` divides centred rewards by their group's standard deviation, ``none`` keeps reward
    units.
    """
    std_eps: Weight = 1e-4
    """Added to the standard deviation."""
    kl_coef: Weight = 0.0
    """Weight of the k3 estimate of KL(policy, reference); above 0 a reference is loaded. No
    correction multiplies this term."""
    kl_cap: Annotated[float, Field(gt=0)] | None = 10.0
    """An estimate above it counts as it and has no gradient; null leaves k3 as it is, whose
    gradient grows without bound. Above 0."""
    old_logprobs: Literal["auto", "recompute", "rollout"] = "auto"
    """Where π_old comes from: ``recompute`` asks the trainer for it in a forward of its own;
    ``rollout`` takes the sampler's, for one on-policy update a batch; ``auto`` takes the update's
    own where a batch gets one update, which are the same numbers, and else recomputes."""
    rollout_correction: RolloutCorrection = Field(default_factory=RolloutCorrection)
    filter_zero_variance: bool = True
    """Leave out groups whose rewards are all equal: they teach nothing and dilute the mean."""

    @model_validator(mode="after")
    def _check_correction(self) -> Self:
        if self.old_logprobs == "rollout" and self.rollout_correction.level != "none":
            raise self.broken(
                "old_logprobs",
                "='rollout' needs RolloutCorrection.level='none' (its ratio would be 1 by "
                "definition), got "
                f"{self.rollout_correction.level!r}; change it, or set old_logprobs='auto'",
            )
        return self

    @property
    def on_policy_only(self) -> bool:
        """See ``Traits``."""
        return self.old_logprobs == "rollout"

    @property
    def corrects_staleness(self) -> bool:
        """See ``Traits``."""
        return self.rollout_correction.level != "none"

    @property
    def needs(self) -> Needs:
        """See ``Traits``."""
        return Needs(reference=self.kl_coef > 0)


class SFTSettings(_Reduced):
    """Imitation: minus the logprob of TARGET tokens."""

    learns_from: ClassVar[LearnsFrom] = "demonstrations"

    @property
    def needs(self) -> Needs:
        """See ``Traits``."""
        return Needs(advantages=False)


class RewardModelSettings(AlgorithmSettings):
    """A reward model of preference pairs: -log sigmoid(r_chosen - r_rejected) (arXiv:1706.03741,
    arXiv:2203.02155).
    """

    learns_from: ClassVar[LearnsFrom] = "preferences"

    use_margin: bool = True
    """Ask a pair that has a ``margin`` to differ by that much (arXiv:2307.09288, eq. 2)."""
    centring: Weight = 0.0
    """Weight of (r_chosen + r_rejected)^2, which keeps scores around 0 (arXiv:2312.09244); 0.01 is
    usual.
    """

    @property
    def needs(self) -> Needs:
        """See ``Traits``."""
        return Needs(advantages=False)
