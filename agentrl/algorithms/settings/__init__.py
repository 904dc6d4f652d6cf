"""Algorithm settings: each built-in algorithm's own section, free of torch, so that a file is
checked without it.
"""

from __future__ import annotations

from agentrl.algorithms.settings.base import AlgorithmSettings, ReducedSettings, Reduction
from agentrl.algorithms.settings.correction import RolloutCorrection
from agentrl.algorithms.settings.policy_gradient import (
    CISPOSettings,
    ClippedSettings,
    DAPOSettings,
    DistillationSettings,
    DPPOSettings,
    DrGRPOSettings,
    ECHOSettings,
    GAESettings,
    GiGPOSettings,
    GroupScaled,
    GRPOSettings,
    GSPOSettings,
    KLInReward,
    Overlong,
    PFPPOSettings,
    PolicyGradientSettings,
    PPOSettings,
    ReinforcePlusPlusSettings,
    ReMaxSettings,
    RLOOSettings,
    SAPOSettings,
    TurnGRPOSettings,
    VAPOGAESettings,
    VAPOSettings,
)
from agentrl.algorithms.settings.supervised import RewardModelSettings, SFTSettings

__all__ = [
    "AlgorithmSettings",
    "CISPOSettings",
    "ClippedSettings",
    "DAPOSettings",
    "DPPOSettings",
    "DistillationSettings",
    "DrGRPOSettings",
    "ECHOSettings",
    "GAESettings",
    "GRPOSettings",
    "GSPOSettings",
    "GiGPOSettings",
    "GroupScaled",
    "KLInReward",
    "Overlong",
    "PFPPOSettings",
    "PPOSettings",
    "PolicyGradientSettings",
    "RLOOSettings",
    "ReMaxSettings",
    "ReducedSettings",
    "Reduction",
    "ReinforcePlusPlusSettings",
    "RewardModelSettings",
    "RolloutCorrection",
    "SAPOSettings",
    "SFTSettings",
    "TurnGRPOSettings",
    "VAPOGAESettings",
    "VAPOSettings",
]
