"""Supervised settings: of imitation and of reward models."""

from __future__ import annotations

from typing import ClassVar

from agentrl.algorithms.settings.base import AlgorithmSettings, ReducedSettings
from agentrl.algorithms.traits import LearnsFrom, Needs
from agentrl.types.section import Weight


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
