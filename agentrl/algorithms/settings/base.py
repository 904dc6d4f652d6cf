"""Base settings: what every built-in algorithm declares, and how its tokens are weighted."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import model_validator

from agentrl.algorithms.traits import LearnsFrom, Needs
from agentrl.types.section import ActsWith, Count, Section

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
        given = {name: getattr(self, name) for name in ("policy_loss", "credit", "advantages")}
        return {name: reference for name, reference in given.items() if reference is not None}

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
    constant_tokens: Annotated[Count | None, ActsWith("reduction", only=("constant",))] = None
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
