"""Algorithms: frozen records of pure functions.

Importing this package imports no torch; building an algorithm does.
"""

from __future__ import annotations

from agentrl.algorithms.algorithm_spec import AlgorithmSpec, AuxiliaryLoss
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
from agentrl.algorithms.settings import (
    AlgorithmSettings,
    GRPOSettings,
    Reduction,
    RewardModelSettings,
    RolloutCorrection,
    SFTSettings,
)
from agentrl.algorithms.traits import LearnsFrom, Needs, OldLogprobs, Traits

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
    "LearnsFrom",
    "Needs",
    "OldLogprobs",
    "PairInputs",
    "PairLoss",
    "PolicyInputs",
    "Reduction",
    "RewardModelSettings",
    "Rewards",
    "RolloutCorrection",
    "SFTSettings",
    "Term",
    "TokenCredit",
    "TokenLoss",
    "TokenStat",
    "Traits",
    "ValueInputs",
    "make_algorithm",
]
