"""Each algorithm's own settings: frozen, validated, and free of torch, so that they can be checked without it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from agentrl.errors import ConfigError

__all__ = ["GRPOSettings", "LearnsFrom", "Reduction", "RewardModelSettings", "SFTSettings"]

LearnsFrom: TypeAlias = Literal["rollouts", "demonstrations", "preferences"]
"""Where an algorithm's tokens come from: episodes of the policy, conversations to imitate, or pairs to compare."""

Reduction = Literal["token_mean", "trajectory_mean", "constant"]
_REDUCTIONS = ("token_mean", "trajectory_mean", "constant")


@dataclass(frozen=True, slots=True)
class GRPOSettings:
    """Group-relative policy optimisation (arXiv:2402.03300) with a token-level loss and clip-higher (arXiv:2503.14476).

    Args:
        clip_low: the ratio is clipped below at 1 - clip_low; in [0, 1).
        clip_high: and above at 1 + clip_high; at least 0.
        clip_dual: above 1, the ratio of a token with a negative advantage counts as at most this (dual clip,
            arXiv:1912.09729, eq. 5), which bounds its loss; null sets no such bound.
        scale: ``std`` divides centred rewards by their group's standard deviation, ``none`` keeps reward units.
        std_eps: added to the standard deviation.
        reduction: how the tokens of a mini-batch are weighted (``reductions.py``).
        constant_tokens: the C of ``reduction='constant'``, tokens; needed there and unused elsewhere.
        kl_coef: weight of the k3 estimate of KL(policy, reference); above 0 a reference is loaded. No correction
            multiplies this term.
        kl_cap: an estimate above it counts as it and has no gradient; null leaves k3 as it is, whose gradient grows
            without bound. Above 0.
        old_logprobs: ``recompute`` asks the trainer for π_old; ``rollout`` takes the sampler's and saves a forward,
            for one on-policy update a batch.
        correction: ``token`` weights each sampled token by min(π_old / π_rollout, correction_cap).
        correction_cap: at least 1.
        drop_zero_spread: leave out groups whose rewards are all equal: they teach nothing and dilute the mean.
    """

    group_size_min: ClassVar[int] = 2
    """Siblings that a group needs at least: a trajectory is compared with the others."""
    learns_from: ClassVar[LearnsFrom] = "rollouts"

    clip_low: float = 0.2
    clip_high: float = 0.28
    clip_dual: float | None = None
    scale: Literal["none", "std"] = "std"
    std_eps: float = 1e-4
    reduction: Reduction = "token_mean"
    constant_tokens: int | None = None
    kl_coef: float = 0.0
    kl_cap: float | None = 10.0
    old_logprobs: Literal["recompute", "rollout"] = "recompute"
    correction: Literal["none", "token"] = "none"
    correction_cap: float = 2.0
    drop_zero_spread: bool = True

    def __post_init__(self) -> None:
        _check_number("clip_low", self.clip_low, low=0.0, high=1.0)
        _check_number("clip_high", self.clip_high, low=0.0)
        _check_number("std_eps", self.std_eps, low=0.0)
        _check_number("kl_coef", self.kl_coef, low=0.0)
        _check_above("clip_dual", self.clip_dual, 1.0)
        _check_above("kl_cap", self.kl_cap, 0.0)
        _check_number("correction_cap", self.correction_cap, low=1.0)
        _check_choice("scale", self.scale, ("none", "std"))
        _check_choice("old_logprobs", self.old_logprobs, ("recompute", "rollout"))
        _check_choice("correction", self.correction, ("none", "token"))
        _check_reduction(self.reduction, self.constant_tokens)
        if self.old_logprobs == "rollout" and self.correction != "none":
            raise ConfigError(
                "algorithm.old_logprobs='rollout' needs algorithm.correction='none' (its ratio would be 1 by "
                f"definition), got {self.correction!r}; change it, or set algorithm.old_logprobs='recompute'"
            )

    @property
    def on_policy_only(self) -> bool:
        """Whether a batch may get one update only, by the very weights that sampled it."""
        return self.old_logprobs == "rollout"


@dataclass(frozen=True, slots=True)
class SFTSettings:
    """Imitation: minus the logprob of TARGET tokens.

    Args:
        reduction: how the tokens of a mini-batch are weighted (``reductions.py``).
        constant_tokens: the C of ``reduction='constant'``, tokens.
    """

    group_size_min: ClassVar[int] = 1
    """Demonstrations need no siblings."""
    learns_from: ClassVar[LearnsFrom] = "demonstrations"

    reduction: Reduction = "token_mean"
    constant_tokens: int | None = None

    @property
    def on_policy_only(self) -> bool:
        """Never: no policy sampled the demonstrations."""
        return False

    def __post_init__(self) -> None:
        _check_reduction(self.reduction, self.constant_tokens)


@dataclass(frozen=True, slots=True)
class RewardModelSettings:
    """A reward model of preference pairs: -log sigmoid(r_chosen - r_rejected) (arXiv:1706.03741, arXiv:2203.02155).

    Args:
        use_margin: ask a pair that has a ``margin`` to differ by that much (arXiv:2307.09288, eq. 2).
        centring: weight of (r_chosen + r_rejected)^2, which keeps scores around 0 (arXiv:2312.09244); 0.01 is usual.
    """

    group_size_min: ClassVar[int] = 1
    """A pair comes with its two siblings."""
    learns_from: ClassVar[LearnsFrom] = "preferences"

    use_margin: bool = True
    centring: float = 0.0

    @property
    def on_policy_only(self) -> bool:
        """Never: no policy is trained."""
        return False

    def __post_init__(self) -> None:
        _check_number("centring", self.centring, low=0.0)


def _check_number(field: str, value: float, *, low: float, high: float = math.inf) -> None:
    """``value`` in [low, high); a bool, NaN or infinity is refused."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value < high:
        bound = f"in [{low:g}, {high:g})" if math.isfinite(high) else f"finite and at least {low:g}"
        raise ConfigError(f"algorithm.{field} must be {bound}, got {value!r}; change it")


def _check_above(field: str, value: float | None, bound: float) -> None:
    """None, or a finite number above ``bound``."""
    number = (
        isinstance(value, (int, float)) and not isinstance(value, bool) and bound < value < math.inf
    )
    if value is not None and not number:
        raise ConfigError(
            f"algorithm.{field} must be finite and above {bound:g}, or null, got {value!r}; change it"
        )


def _check_choice(field: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(
            f"algorithm.{field} must be one of {', '.join(choices)}, got {value!r}; choose one"
        )


def _check_reduction(reduction: str, constant_tokens: int | None) -> None:
    _check_choice("reduction", reduction, _REDUCTIONS)
    if reduction == "constant":
        if constant_tokens is None:
            raise ConfigError(
                "algorithm.reduction='constant' needs algorithm.constant_tokens (the tokens that each trajectory is "
                "divided by), got none; set it, for instance to rollout.max_response_tokens"
            )
        _check_number("constant_tokens", constant_tokens, low=1)
