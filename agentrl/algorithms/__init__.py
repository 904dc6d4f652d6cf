"""Algorithms: frozen records of pure functions.

Importing this package imports no torch; building an algorithm does.
"""

from __future__ import annotations

from agentrl.algorithms.algorithm_spec import (
    Advantages,
    AlgorithmSpec,
    AlgorithmState,
    Counts,
    Credit,
    FilterResult,
    GroupSummary,
    Needs,
    PairInputs,
    PairLoss,
    PolicyInputs,
    Rewards,
    TokenCredit,
    TokenLoss,
    TokenStat,
)
from agentrl.algorithms.catalog import ALGORITHMS, make_algorithm
from agentrl.algorithms.settings import (
    AlgorithmSettings,
    GRPOSettings,
    LearnsFrom,
    Reduction,
    RewardModelSettings,
    RolloutCorrection,
    SFTSettings,
)

__all__ = [
    "ALGORITHMS",
    "Advantages",
    "AlgorithmSettings",
    "AlgorithmSpec",
    "AlgorithmState",
    "Counts",
    "Credit",
    "FilterResult",
    "GRPOSettings",
    "GroupSummary",
    "LearnsFrom",
    "Needs",
    "PairInputs",
    "PairLoss",
    "PolicyInputs",
    "Reduction",
    "RewardModelSettings",
    "Rewards",
    "RolloutCorrection",
    "SFTSettings",
    "TokenCredit",
    "TokenLoss",
    "TokenStat",
    "make_algorithm",
]
