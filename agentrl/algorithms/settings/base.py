"""Base settings: what built-in algorithms declare, corrections and supervision among it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from agentrl.algorithms.algorithm_spec import LearnsFrom, Needs
from agentrl.types.section import ActsWith, Count, Section, Weight

Reduction = Literal["token_mean", "trajectory_mean", "constant"]


class AlgorithmSettings(Section):
    """What the settings of every built-in algorithm declare about it (``Traits``)."""

    group_size_min: ClassVar[int] = 1
    learns_from: ClassVar[LearnsFrom]

    policy_loss: str | None = None
    """``file.py:function`` or ``module:function`` that stands in for the algorithm's own: from
    ``PolicyInputs`` to ``TokenLoss``. Terms for KL and entropy stay."""
    credit: str | None = None
    """The same, from ``Rewards`` and the algorithm's state to ``Credit``."""
    advantages: str | None = None
    """The same, from ``TokenCredit`` to ``Advantages``."""

    @property
    def replaced(self) -> dict[str, str]:
        """The functions that others stand in for."""
        given = {
            name: getattr(self, name) for name in ("policy_loss", "credit", "advantages")
        }
        return {
            name: reference for name, reference in given.items() if reference is not None
        }

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


class ReducedSettings(AlgorithmSettings):
    reduction: Reduction = "token_mean"
    """How the tokens of a mini-batch are weighted (``reductions.py``)."""
    constant_tokens: Annotated[Count | None, ActsWith("reduction", only=("constant",))] = (
        None
    )
    """The C of ``reduction='constant'``, tokens; needed there."""

    @model_validator(mode="after")
    def _check_reduction(self) -> Self:
        if self.reduction == "constant" and self.constant_tokens is None:
            raise self.broken(
                "constant_tokens",
                " is needed by reduction='constant' (the tokens that each trajectory is divided "
                "by), got none; set it, for instance to the most tokens of a response",
            )
        return self


Positive = Annotated[float, Field(gt=0)]
_WEIGHTED = ActsWith("level", but=("none",))
_CHOSEN = ActsWith("level", only=("auto",))
_REJECTED = ActsWith("reject", but=("none",))


class RolloutCorrection(Section):
    """Importance sampling and rejection: make up for a behaviour policy that differs from the one
    trained.
    """

    level: Literal["auto", "none", "token", "sequence", "geometric"] = "auto"
    """What is weighted: ``token`` by its own ratio π_old / π_rollout, ``sequence`` all tokens of a
    sample by the product of their ratios, ``geometric`` by the geometric mean of them. ``auto`` is
    ``none`` until a step's engine computed other logprobs than the trainer (``above``), and
    ``token`` from the next one on; it stays ``none`` where the loss compares with the sampler
    itself."""
    above: Annotated[float, Field(gt=0), _CHOSEN] = 0.002
    """Mean distance of the sampler's logprobs from the trainer's, nats, on the tokens of the very
    version that a step trains (``mismatch/engine/logp_abs``), above which ``auto`` begins to
    correct; above 0."""
    cap: Annotated[float, Field(ge=1), _WEIGHTED] = 2.0
    """Largest weight; at least 1."""
    floor: Annotated[float, Field(ge=0, le=1), _WEIGHTED] = 0.0
    """Smallest weight; from 0 to 1."""
    outside: Annotated[Literal["truncate", "mask"], _WEIGHTED] = "truncate"
    """``truncate`` moves a weight outside of [floor, cap] to that bound, ``mask`` to 0 (IcePop,
    arXiv:2510.18855)."""
    reject: Literal["none", "token", "sequence_sum", "sequence_mean", "sequence_max"] = (
        "none"
    )
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
        """Whether anything is corrected in every step."""
        return self.level not in ("auto", "none") or self.reject != "none"

    @property
    def is_asked(self) -> bool:
        """Whether it was given with anything that corrects, now or later."""
        return self.is_active or (bool(self.model_fields_set) and self.level != "none")

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


class SFTSettings(ReducedSettings):
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
