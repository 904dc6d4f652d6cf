"""Policy-gradient settings: of the algorithms that learn from rewards of episodes.

Defaults are those of each algorithm's paper; ``tests/algorithms/test_paper_values.py`` names those
that differ, and why.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from agentrl.algorithms.algorithm_spec import LearnsFrom, Needs
from agentrl.algorithms.settings.base import ReducedSettings, Reduction, RolloutCorrection
from agentrl.types.section import ActsWith, Count, Decay, Fraction, Natural, Section, Weight

Positive = Annotated[float, Field(gt=0)]
Discount = Annotated[float, Field(gt=0, le=1)]
_OF_A_KL = ActsWith("kl_coef", but=(0.0,))
_OF_THE_LOSS = ActsWith("policy_loss", only=(None,))
KLEstimator = Literal["k1", "k2", "k3", "k1+", "k3+"]


class Overlong(Section):
    """Soft penalty for long trajectories (arXiv:2503.14476, eq. 13)."""

    max_tokens: Count | None = None
    """Sampled tokens from which on the penalty is whole; null penalises none."""
    buffer_tokens: Count | None = None
    """Tokens before that over which it grows from 0; needed with ``max_tokens``."""
    penalty: Annotated[Weight, ActsWith("max_tokens", but=(None,))] = 1.0
    """What a trajectory of ``max_tokens`` loses; at least 0."""

    @model_validator(mode="after")
    def _check_both(self) -> Self:
        if (self.max_tokens is None) != (self.buffer_tokens is None):
            missing = "max_tokens" if self.max_tokens is None else "buffer_tokens"
            raise self.broken(missing, " is needed beside the other, got nothing; set both")
        if self.max_tokens is not None and (self.buffer_tokens or 0) > self.max_tokens:
            raise self.broken(
                "buffer_tokens",
                f" must be at most max_tokens={self.max_tokens}, got {self.buffer_tokens}; lower "
                "it",
            )
        return self


class PolicyGradientSettings(ReducedSettings):
    """What all algorithms share that learn from rewards."""

    # A rollout is compared with the others of its group.
    group_size_min: ClassVar[int] = 2
    learns_from: ClassVar[LearnsFrom] = "rollouts"

    kl_coef: Weight = 0.0
    """Weight of the estimate of KL(policy, reference); above 0 a reference is loaded. No correction
    multiplies this term."""
    kl_estimator: Annotated[KLEstimator, _OF_A_KL] = "k3"
    """With d = log π_ref - log π: ``k1`` -d, ``k2`` d²/2, ``k3`` exp(d) - d - 1. A ``+`` keeps the
    value and takes the gradient of ``k2``, the one whose expectation is the gradient of the KL."""
    kl_cap: Annotated[
        Positive | None, _OF_A_KL, ActsWith("kl_estimator", only=("k3", "k3+"))
    ] = 10.0
    """A ``k3`` above it counts as it and has no gradient; null leaves k3 as it is, whose gradient
    grows without bound. Above 0."""
    kl_weighted: Annotated[bool, _OF_A_KL] = False
    """Multiply each estimate by the ratio π / π_old, which makes it unbiased for the current policy
    after the first update of a batch (arXiv:2512.02556, sec. 3.1)."""
    kl_target: Positive | None = None
    """Adapt ``kl_coef``, from its value on, so that the mean estimate comes to this many nats
    (arXiv:1909.08593, sec. 2.2); null keeps it fixed."""
    kl_horizon: Annotated[Count, ActsWith("kl_target", but=(None,))] = 10
    """Steps over which an adaptive ``kl_coef`` follows an error of the target."""
    entropy_coef: Weight = 0.0
    """Weight of the policy's entropy, which is added to what is maximised."""
    old_logprobs: Literal["auto", "recompute", "rollout"] = "auto"
    """Where π_old comes from: ``recompute`` asks the trainer for it in a forward of its own;
    ``rollout`` takes the sampler's, for one on-policy update a batch; ``auto`` takes the update's
    own where a batch gets one update, which are the same numbers, and else recomputes."""
    rollout_correction: RolloutCorrection = Field(default_factory=RolloutCorrection)
    filter_zero_variance: bool = True
    """Leave out groups whose rewards are all equal: they teach nothing and dilute the mean."""
    overlong: Overlong = Field(default_factory=Overlong)

    @model_validator(mode="after")
    def _check_correction(self) -> Self:
        if self.old_logprobs == "rollout" and self.rollout_correction.is_asked:
            found = self.rollout_correction
            raise self.broken(
                "old_logprobs",
                "='rollout' needs RolloutCorrection.level='none' and "
                "RolloutCorrection.reject='none' (its ratio would be 1 by definition), got "
                f"{found.level!r} and {found.reject!r}; change them, or set old_logprobs='auto'",
            )
        if self.kl_target is not None and self.kl_coef == 0:
            raise self.broken(
                "kl_coef",
                " must be more than 0 with kl_target, which adapts it, got 0; set it",
            )
        return self

    @property
    def on_policy_only(self) -> bool:
        """See ``Traits``."""
        return self.old_logprobs == "rollout"

    @property
    def corrects_staleness(self) -> bool:
        """See ``Traits``."""
        return self.rollout_correction.is_active

    @property
    def chooses_correction(self) -> bool:
        """Whether what a step measured tells if the next one corrects."""
        return self.rollout_correction.level == "auto" and not self.on_policy_only

    @property
    def needs(self) -> Needs:
        """See ``Traits``."""
        return Needs(reference=self.kl_coef > 0, entropy=self.entropy_coef > 0)


class ClippedSettings(PolicyGradientSettings):
    """PPO's clipped surrogate (arXiv:1707.06347)."""

    clip_low: Annotated[Decay, _OF_THE_LOSS] = 0.2
    """The ratio is clipped below at 1 - clip_low; in [0, 1)."""
    clip_high: Annotated[Weight, _OF_THE_LOSS] = 0.28
    """And above at 1 + clip_high; at least 0."""
    clip_dual: Annotated[Annotated[float, Field(gt=1)] | None, _OF_THE_LOSS] = None
    """Above 1, the ratio of a token with a negative advantage counts as at most this (dual clip,
    arXiv:1912.09729, eq. 5), which bounds its loss; null sets no such bound."""


class GroupScaled(PolicyGradientSettings):
    """Advantages against the mean of a group."""

    scale_rewards: Literal["none", "std"] = "std"
    """``std`` divides centred rewards by their group's standard deviation, ``none`` keeps reward
    units.
    """
    std_eps: Annotated[Weight, ActsWith("scale_rewards", only=("std",))] = 1e-4
    """Added to the standard deviation."""


class GRPOSettings(ClippedSettings, GroupScaled):
    """Group-relative policy optimisation (arXiv:2402.03300) with a token-level loss and clip-higher
    (arXiv:2503.14476)."""


class DrGRPOSettings(GRPOSettings):
    """GRPO done right: neither the length of a response nor the spread of its group weighs it
    (arXiv:2503.20783)."""

    clip_high: Weight = 0.2
    """See grpo."""
    scale_rewards: Literal["none", "std"] = "none"
    """See grpo."""
    reduction: Reduction = "constant"
    """See grpo."""
    constant_tokens: Count | None = 1024
    """See grpo. It scales the learning rate alone; the most tokens of a response are usual."""


class DAPOSettings(GRPOSettings):
    """Decoupled clip and dynamic sampling (arXiv:2503.14476): set ``overlong`` for its reward
    shaping."""

    overlong_filter: bool = False
    """Train no trajectory that a limit ended. Off, since it is a hole to hide in: what runs out the
    limit is never told that it failed."""


class RLOOSettings(ClippedSettings):
    """REINFORCE leave-one-out: the baseline is the mean of the others (arXiv:2402.14740)."""

    clip_high: Weight = 0.2
    """See grpo."""


class KLInReward(ClippedSettings):
    """The KL to the reference is taken off each token's reward. Credit multiplies the gradient of a
    logprob there, and no gradient of the estimate: k1 alone has that of the KL in expectation."""

    kl_estimator: KLEstimator = "k1"
    """Always ``k1``: as a reward, k2 and k3 have next to no gradient near the reference and another
    sign far from it, and a ``+`` changes a loss alone."""
    kl_cap: Positive | None = None
    """Always null: it bounds ``k3``."""

    @property
    def needs(self) -> Needs:
        """See ``Traits``."""
        return dataclasses.replace(super().needs, old_logprobs=self.kl_coef > 0)

    @model_validator(mode="after")
    def _check_estimator(self) -> Self:
        for name, only in (
            ("kl_estimator", "k1"),
            ("kl_cap", None),
            ("kl_weighted", False),
        ):
            if (found := getattr(self, name)) != only:
                raise self.broken(
                    name,
                    f" must be {only!r} for an algorithm whose KL is in the reward (credit "
                    "multiplies the gradient of a logprob there, and k1 alone, without a bound or "
                    f"a ratio, then has the gradient of the KL), got {found!r}; leave it out",
                )
        return self


class ReinforcePlusPlusSettings(KLInReward):
    """REINFORCE++: returns normalised over the whole batch, with the KL in the reward
    (arXiv:2501.03262)."""

    group_size_min: ClassVar[int] = 1

    clip_high: Weight = 0.2
    """See grpo."""
    baseline: Literal["none", "group"] = "none"
    """``group`` takes the mean of its group off each reward first (REINFORCE++-baseline)."""
    discount: Discount = 1.0
    """Of a token's return, by token; above 0, at most 1."""
    filter_zero_variance: bool = False
    """See grpo; without a baseline a group of equal rewards does teach something."""

    @model_validator(mode="after")
    def _check_group(self) -> Self:
        if self.filter_zero_variance and self.baseline == "none":
            raise self.broken(
                "filter_zero_variance",
                "=true needs baseline='group' (without one equal rewards differ from those of "
                "other groups), got 'none'; change either",
            )
        return self


class ReMaxSettings(KLInReward):
    """ReMax: the baseline is the reward of a greedy rollout of the same task, played beside the
    group and never trained; the KL is in the reward (arXiv:2310.10505)."""

    group_size_min: ClassVar[int] = 1

    clip_high: Weight = 0.2
    """See grpo."""
    filter_zero_variance: bool = False
    """Always off: a group of equal rewards teaches something where the greedy rollout's differs."""

    @property
    def needs(self) -> Needs:
        """See ``Traits``."""
        return dataclasses.replace(super().needs, baseline=True)

    @model_validator(mode="after")
    def _check_filter(self) -> Self:
        if self.filter_zero_variance:
            raise self.broken(
                "filter_zero_variance",
                " must be false for remax (a group of equal rewards teaches something where the "
                "greedy rollout's reward differs), got true; leave it out",
            )
        return self


class GAESettings(Section):
    """Generalised advantage estimation (arXiv:1506.02438), over the policy's tokens alone."""

    discount: Discount = 1.0
    """Of a later token's reward; above 0, at most 1."""
    lam: Annotated[Fraction, ActsWith("length_alpha", only=(None,))] = 0.95
    """λ, from 0 (one step) to 1 (the whole return)."""
    lam_value: Fraction | None = None
    """λ of the returns that the critic learns, where it is another (decoupled GAE,
    arXiv:2504.05118)."""
    length_alpha: Positive | None = None
    """α of a λ by trajectory in the place of ``lam``: max(0, 1 - 1 / (α · its trained tokens))
    (arXiv:2504.05118, eq. 9); null uses ``lam``."""
    bootstrap: Literal["none", "infrastructure", "all"] = "infrastructure"
    """Behind which ends of an episode the critic's value stands: ``none``; ``infrastructure``, ends
    that are none of the policy's doing; or ``all`` that a limit cut, where running out the limit
    pays what the critic hopes for."""


class PPOSettings(KLInReward):
    """Proximal policy optimisation with a critic (arXiv:1707.06347); the section ``critic`` says
    what it starts from."""

    group_size_min: ClassVar[int] = 1

    clip_high: Weight = 0.2
    """See grpo."""
    gae: GAESettings = Field(default_factory=GAESettings)
    value_clip: Positive | None = 0.2
    """How far a value may move from where it was before the batch's first update; null sets no
    bound. Above 0."""
    critic_warmup_steps: Natural = 0
    """Steps at the beginning in which the critic alone is trained."""
    filter_zero_variance: bool = False
    """See grpo; with a critic a group of equal rewards does teach something."""

    @property
    def needs(self) -> Needs:
        """See ``Traits``."""
        return dataclasses.replace(super().needs, critic=True)


class PFPPOSettings(PPOSettings):
    """PPO with policy filtration: of each group the trajectories whose rewards tell most are
    trained (arXiv:2409.06957)."""

    group_size_min: ClassVar[int] = 2

    keep: Literal["best_worst", "best_random"] = "best_worst"
    """Beside the best of a group the worst, or a random one of the others."""


class VAPOGAESettings(GAESettings):
    """VAPO's: λ by length, and whole returns for the critic (arXiv:2504.05118, sec. 4.1, 4.2)."""

    lam_value: Fraction | None = 1.0
    """See ppo."""
    length_alpha: Positive | None = 0.05
    """See ppo."""


class VAPOSettings(PPOSettings):
    """Value-augmented PPO for long chains of thought (arXiv:2504.05118)."""

    clip_high: Weight = 0.28
    """See grpo."""
    gae: VAPOGAESettings = Field(default_factory=VAPOGAESettings)
    """See ppo."""
    critic_warmup_steps: Natural = 50
    """See ppo."""
    positive_coef: Weight = 0.1
    """Weight of minus the mean logprob of the tokens of trajectories that were right."""
    positive_above: Annotated[float, ActsWith("positive_coef", but=(0.0,))] = 0.0
    """A reward above it was right."""


class DistillationSettings(ClippedSettings):
    """On-policy distillation: the policy's own tokens, judged by a teacher one by one
    (arXiv:2306.13649); ``reference`` names the teacher."""

    group_size_min: ClassVar[int] = 1

    filter_zero_variance: bool = False
    """See grpo; rewards are metrics alone here."""

    @property
    def needs(self) -> Needs:
        """See ``Traits``."""
        return Needs(
            old_logprobs=True, reference=True, entropy=self.entropy_coef > 0, rewards=False
        )

    @model_validator(mode="after")
    def _check_rewards(self) -> Self:
        for setting, given in (
            ("kl_coef", self.kl_coef > 0),
            ("filter_zero_variance", self.filter_zero_variance),
            ("overlong", self.overlong.max_tokens is not None),
        ):
            if given:
                raise self.broken(
                    setting,
                    " has no use here, since the teacher alone says what a token is worth, got "
                    f"{getattr(self, setting)}; leave it out",
                )
        return self


class GSPOSettings(GroupScaled):
    """Group sequence policy optimisation: the ratio and its bounds are a sequence's
    (arXiv:2507.18071). A sequence is a sample."""

    clip_low: Annotated[Decay, _OF_THE_LOSS] = 3e-4
    """The ratio of a sequence is clipped below at 1 - clip_low; in [0, 1)."""
    clip_high: Annotated[Weight, _OF_THE_LOSS] = 4e-4
    """And above at 1 + clip_high; at least 0."""
    reduction: Reduction = "trajectory_mean"
    """See grpo."""


class CISPOSettings(GroupScaled):
    """Clipped importance-sampling policy optimisation: no token loses its gradient
    (arXiv:2506.13585)."""

    ratio_cap: Annotated[float, Field(ge=1), _OF_THE_LOSS] = 5.0
    """Largest ratio that weighs a token, detached (arXiv:2510.13786 takes 5); at least 1."""
    ratio_floor: Annotated[float, Field(ge=0, le=1), _OF_THE_LOSS] = 0.0
    """Smallest one; from 0 to 1."""


class SAPOSettings(GroupScaled):
    """Soft adaptive policy optimisation: a smooth gate in place of bounds (arXiv:2511.20347)."""

    tau_positive: Annotated[Positive, _OF_THE_LOSS] = 1.0
    """Sharpness of the gate of tokens with a positive advantage."""
    tau_negative: Annotated[Positive, _OF_THE_LOSS] = 1.05
    """Sharpness of the gate of the others."""
    reduction: Reduction = "trajectory_mean"
    """See grpo."""


class DPPOSettings(GroupScaled):
    """Divergence PPO: a token loses its gradient where the policy is too far from the sampler
    already and would go further (arXiv:2602.04879)."""

    divergence: Annotated[Literal["tv", "kl"], _OF_THE_LOSS] = "tv"
    """Between the two policies as a choice of this token or any other: total variation, or KL."""
    clip_low: Annotated[Positive, _OF_THE_LOSS] = 0.15
    """Largest divergence of a token that becomes rarer; 0.05 is usual with ``kl``."""
    clip_high: Annotated[Positive, _OF_THE_LOSS] = 0.15
    """Largest divergence of a token that becomes more frequent."""
    ratio_cap: Annotated[float, Field(ge=1), _OF_THE_LOSS] = 20.0
    """Largest ratio π / π_rollout that weighs a token, detached; at least 1."""

    @model_validator(mode="after")
    def _check_anchor(self) -> Self:
        if self.rollout_correction.is_asked or self.old_logprobs != "auto":
            raise self.broken(
                "old_logprobs",
                "='auto' and no rollout_correction are needed, since the loss compares with the "
                f"sampler itself, got {self.old_logprobs!r}, "
                f"level={self.rollout_correction.level!r} and "
                f"reject={self.rollout_correction.reject!r}; leave them out",
            )
        return self

    @property
    def chooses_correction(self) -> bool:
        """Its ratio corrects already."""
        return False

    @property
    def corrects_staleness(self) -> bool:
        """See ``Traits``."""
        return True


class GiGPOSettings(GRPOSettings):
    """Group-in-group: credit of a trajectory, and of each step among all that were taken in the
    same state (arXiv:2505.10978)."""

    step_weight: Weight = 1.0
    """Weight of the step's credit beside the trajectory's."""
    discount: Annotated[Discount, ActsWith("step_weight", but=(0.0,))] = 0.95
    """Of a later turn's reward; above 0, at most 1."""
    scale_rewards: Literal["none", "std"] = "none"
    """See grpo."""
    filter_zero_variance: bool = False
    """See grpo; turns teach something where equal rewards came after other turns."""


class TurnGRPOSettings(GRPOSettings):
    """Turn-level credit: each turn's discounted return, against those of the same turn of its
    group."""

    discount: Discount = 1.0
    """Of a later turn's reward; above 0, at most 1."""
    scale_rewards: Literal["none", "std"] = "none"
    """See grpo."""
    filter_zero_variance: bool = False
    """See gigpo."""


class ECHOSettings(GRPOSettings):
    """GRPO that also learns to foretell what tools and environments answer."""

    observation_coef: Weight = 0.1
    """Weight of minus the mean logprob of OBSERVATION tokens."""
