"""Algorithms: frozen records of pure functions.

Importing this package imports no torch; building an algorithm does.
"""

from __future__ import annotations

from agentrl.algorithms.algorithm_spec import (
    AlgorithmSpec,
    AuxiliaryLoss,
    LearnsFrom,
    Needs,
    OldLogprobs,
    Traits,
)
from agentrl.algorithms.catalog import ALGORITHMS, make_algorithm
from agentrl.algorithms.records import (
    Advantages,
    AlgorithmState,
    Correction,
    Counts,
    Credit,
    FilterResult,
    GroupSummary,
    PairInputs,
    PairLoss,
    PolicyInputs,
    Rewards,
    Term,
    TokenCredit,
    TokenLoss,
    TokenStat,
    ValueInputs,
)
from agentrl.algorithms.settings.base import (
    AlgorithmSettings,
)
from agentrl.algorithms.settings.policy_gradient import (
    GRPOSettings,
    KLInReward,
    PolicyGradientSettings,
    VAPOSettings,
)

__all__ = [
    "ALGORITHMS",
    "Advantages",
    "AlgorithmSettings",
    "AlgorithmSpec",
    "AlgorithmState",
    "AuxiliaryLoss",
    "Correction",
    "Counts",
    "Credit",
    "FilterResult",
    "GRPOSettings",
    "GroupSummary",
    "KLInReward",
    "LearnsFrom",
    "Needs",
    "OldLogprobs",
    "PairInputs",
    "PairLoss",
    "PolicyGradientSettings",
    "PolicyInputs",
    "Rewards",
    "Term",
    "TokenCredit",
    "TokenLoss",
    "TokenStat",
    "Traits",
    "VAPOSettings",
    "ValueInputs",
    "make_algorithm",
]
