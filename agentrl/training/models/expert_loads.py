"""Expert loads: how the tokens of an update lie over experts, and the loss that evens them out.

- Every token counts as often as samples hold it, whether a packed row holds it once for several of
  them or not. Fillers do not count. So neither packing nor ranks change a number.
- The loss is transformers' (arXiv:2101.03961, eq. 4 to 6; over all mixtures together):
  E · Σ_e f_e · P_e, of the share f_e of tokens that chose expert e and the mean P_e of its
  probability, over all tokens of the mini-batch. f_e has no gradient, so that given f_e the loss is
  a sum over tokens.

Shapes: T tokens, L mixtures, E experts, K of a token.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from agentrl.training.models.mixture import Routing

_MAX_GROUPS = 4
"""Of layers, each of which has metrics of its own."""


class ExpertLoads:
    """What the mixtures of a model did in the forward passes of a mini-batch.

    Args:
        routing: of the model.
        device: of its forward passes.
    """

    def __init__(self, routing: Routing, device: torch.device) -> None:
        self._routing = routing
        # of each mixture the tokens of each expert, the sum of entropies, and the tokens
        shape = (routing.num_layers, routing.num_experts + 2)
        self._sums = torch.zeros(shape, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, copies: Tensor) -> None:
        """Takes the last forward pass.

        Args:
            copies: ``[T]`` how many samples hold each token of its row.
        """
        for layer, routed in self._routing.last.items():
            tokens, top_k = routed.experts.shape
            weights = copies[routed.first : routed.first + tokens].double()
            sums = self._sums[layer]
            sums[:-2].index_add_(
                0, routed.experts.flatten(), weights.repeat_interleave(top_k)
            )
            sums[-2] += (routed.entropy.double() * weights).sum()
            sums[-1] += weights.sum()

    def sum_over_ranks(self) -> None:
        """Adds those of all ranks, of which each computed other tokens; collective."""
        dist.all_reduce(self._sums)

    def balance(self, coefficient: float) -> Tensor:
        """``[E]`` float64: what a token's probability of each expert adds to the loss,
        ``coefficient`` · E · f_e over all tokens."""
        sums = self._sums.sum(0)
        tokens = sums[-1].clamp(min=1.0)
        return sums[:-2] * (coefficient * self._routing.num_experts / tokens**2)

    def metrics(self) -> dict[str, float]:
        """``moe/...`` by groups of neighbouring mixtures (``agentrl.metrics.names``)."""
        found: dict[str, float] = {}
        numbers = torch.arange(self._routing.num_layers)
        sums = self._sums.cpu()
        for group in numbers.tensor_split(min(_MAX_GROUPS, len(numbers))):
            first, last = int(group[0]), int(group[-1])
            counts, tokens = sums[first : last + 1, :-2], sums[first : last + 1, -1]
            even = tokens * self._routing.top_k / self._routing.num_experts
            layers = f"{first}-{last}" if last > first else str(first)
            found[f"moe/load_max/{layers}"] = float((counts.max(1).values / even).max())
            found[f"moe/dead_experts/{layers}"] = float((counts == 0).sum())
            entropy = sums[first : last + 1, -2].sum() / tokens.sum()
            found[f"moe/router_entropy/{layers}"] = float(entropy)
        return found
