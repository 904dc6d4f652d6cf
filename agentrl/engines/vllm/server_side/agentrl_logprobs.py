"""Logits processors that a vLLM server loads, in its own environment: normalised logits.

None of vLLM's ``logprobs_mode`` is log-softmax(logits / temperature) before top-p and top-k:
``raw_logprobs`` leaves the temperature out, ``processed_logprobs`` counts the kept tokens alone. A
constant added to a row of logits changes no probability, so these processors subtract the row's
log-sum-exp, and ``processed_logits`` returns what a kept token then has.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor


class NormalisedLogits(LogitsProcessor):
    """Before the temperature: what greedy requests are told, whose logits are not processed
    further.
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        """vLLM's own arguments; nothing is kept of them."""

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """``[S, V]``, each row less its log-sum-exp."""
        return logits.log_softmax(-1)

    def is_argmax_invariant(self) -> bool:
        """True would leave greedy requests out."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """No request has a state."""


class NormalisedScaledLogits(NormalisedLogits):
    """After the temperature, before top-k and top-p."""

    def is_argmax_invariant(self) -> bool:
        """Such processors run after the temperature."""
        return True
