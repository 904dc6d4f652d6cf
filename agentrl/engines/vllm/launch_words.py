"""Launch words: arguments without which a server gives no ids, or logprobs of another meaning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

SERVER_SIDE = Path(__file__).parent / "server_side"
"""Modules of ours that a server loads."""
MEANING: Mapping[str, object] = {
    # the route that takes ids and gives ids
    "enable-scale-out": True,
    "logprobs-mode": "processed_logits",
    "logits-processors": (
        "agentrl_logprobs:NormalisedLogits",
        "agentrl_logprobs:NormalisedScaledLogits",
    ),
    "worker-extension-cls": "agentrl_weights.WeightLoader",
    # -1 is the whole vocabulary, which a probe asks for once
    "max-logprobs": -1,
}
REQUIRED = (
    "--enable-scale-out --logprobs-mode processed_logits --max-logprobs -1 --logits-processors "
    "agentrl_logprobs:NormalisedLogits agentrl_logprobs:NormalisedScaledLogits "
    "--worker-extension-cls agentrl_weights.WeightLoader, "
    f"PYTHONPATH={SERVER_SIDE} and VLLM_USE_V2_MODEL_RUNNER=0"
)
"""The same as a person gives them to a server of their own."""
