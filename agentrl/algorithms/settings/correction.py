"""Correction settings: what is made of tokens that another policy sampled than the one trained."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from agentrl.types.section import ActsWith, Section

Positive = Annotated[float, Field(gt=0)]
_WEIGHTED = ActsWith("level", but=("none",))
_REJECTED = ActsWith("reject", but=("none",))


class RolloutCorrection(Section):
    """Importance sampling and rejection: make up for a behaviour policy that differs from the one
    trained.
    """

    level: Literal["none", "token", "sequence", "geometric"] = "none"
    """What is weighted: ``token`` by its own ratio π_old / π_rollout, ``sequence`` all tokens of a
    sample by the product of their ratios, ``geometric`` by the geometric mean of them."""
    cap: Annotated[float, Field(ge=1), _WEIGHTED] = 2.0
    """Largest weight; at least 1."""
    floor: Annotated[float, Field(ge=0, le=1), _WEIGHTED] = 0.0
    """Smallest weight; from 0 to 1."""
    outside: Annotated[Literal["truncate", "mask"], _WEIGHTED] = "truncate"
    """``truncate`` moves a weight outside of [floor, cap] to that bound, ``mask`` to 0 (IcePop,
    arXiv:2510.18855)."""
    reject: Literal["none", "token", "sequence_sum", "sequence_mean", "sequence_max"] = "none"
    """What is left out for its distance: a ``token`` by its own, or all tokens of a sample by the
    sum, the mean or the largest of its tokens' distances. It combines with weights."""
    reject_by: Annotated[Literal["k1", "k2", "k3"], _REJECTED] = "k3"
    """The distance of the policy from the sampler, with d = log π_old - log π_rollout: ``k1`` -d,
    ``k2`` d²/2, ``k3`` exp(d) - d - 1."""
    reject_above: Positive | None = None
    """Largest distance that is trained, nats; above 0. Needed where ``reject`` is not ``none``."""
    reject_below: Annotated[Annotated[float, Field(lt=0)] | None, _REJECTED] = None
    """Smallest ``k1`` that is trained, nats; below 0; null sets no such bound."""

    @property
    def is_active(self) -> bool:
        """Whether anything is corrected."""
        return self.level != "none" or self.reject != "none"

    @model_validator(mode="after")
    def _check_rejection(self) -> Self:
        if (self.reject == "none") != (self.reject_above is None):
            needed = "is needed by" if self.reject_above is None else "needs"
            raise self.broken(
                "reject_above",
                f" {needed} reject other than 'none', got reject={self.reject!r} and "
                f"reject_above={self.reject_above}; set both or neither",
            )
        if self.reject_below is not None and self.reject_by != "k1":
            raise self.broken(
                "reject_below",
                f" needs reject_by='k1', the one distance that may be negative, got "
                f"{self.reject_by!r}; leave it out, or change that",
            )
        return self
