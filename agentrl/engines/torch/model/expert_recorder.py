"""Expert recorder: what the routers of a mixture chose in a forward pass of transformers.

transformers' layers of experts all take hidden states, chosen experts and their weights, in this
order; how a family chooses is its own.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.types import RoutingShape

_CHOSEN = ("top_k_index", "router_indices")
"""What families call the argument with the chosen experts."""


def expert_layers(module: nn.Module) -> list[nn.Module]:
    """The modules that compute experts, in the order of layers."""
    return [one for one in module.modules() if _argument(one) is not None]


def routing_of(module: Any) -> RoutingShape | None:
    """How a causal language model routes its tokens; None for a dense one."""
    layers = expert_layers(module)
    if not layers:
        return None
    config = module.config.get_text_config(decoder=True)
    return RoutingShape(len(layers), int(layers[0].num_experts), int(config.num_experts_per_tok))  # type: ignore[arg-type]


class ExpertRecorder:
    """Takes the experts of the forward passes of a module, one after the other."""

    def __init__(self, module: nn.Module) -> None:
        self._chosen: list[Tensor] = []
        for layer in expert_layers(module):
            layer.register_forward_pre_hook(self._take, with_kwargs=True)

    def begin(self) -> None:
        """A pass begins; one that failed may have left something."""
        self._chosen.clear()

    def taken(self) -> Tensor:
        """``[tokens, L, k]`` of the pass that has ended."""
        return torch.stack(self._chosen, 1)

    def _take(self, layer: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._chosen.append(args[1] if len(args) > 1 else keywords[_argument(layer) or ""])


def _argument(module: nn.Module) -> str | None:
    """What a layer of experts calls the chosen ones; None for any other module."""
    parameters = inspect.signature(module.forward).parameters
    return next((name for name in _CHOSEN if name in parameters), None)
