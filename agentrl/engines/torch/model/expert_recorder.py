"""Expert recorder: what the routers of a mixture chose in a forward pass of transformers.

transformers' layers of experts all take hidden states, chosen experts and their weights, in this
order; how a family chooses is its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.types import RoutingShape

_CHOSEN = ("top_k_index", "router_indices")
"""What families call the argument with the chosen experts."""


class ExpertRecorder:
    """Takes the experts of the forward passes of a module, one after the other.

    Attributes:
        routing: how the module, a causal language model, routes its tokens; None for a dense one,
            or a family that tells the numbers of its experts in another way.
    """

    def __init__(self, module: Any) -> None:
        self._chosen: list[Tensor] = []
        layers = list(_expert_layers(module))
        config = module.config.get_text_config(decoder=True)
        experts = getattr(layers[0][0], "num_experts", None) if layers else None
        top_k = getattr(config, "num_experts_per_tok", None)
        self.routing: RoutingShape | None = None
        if not experts or not top_k:
            return
        self.routing = RoutingShape(len(layers), int(experts), int(top_k))
        for layer, argument in layers:
            layer.register_forward_pre_hook(partial(self._take, argument), with_kwargs=True)

    def begin(self) -> None:
        """A pass begins; one that failed may have left something."""
        self._chosen.clear()

    def taken(self) -> Tensor:
        """``[tokens, L, k]`` of the pass that has ended."""
        return torch.stack(self._chosen, 1)

    def _take(
        self, argument: str, _: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        self._chosen.append(args[1] if len(args) > 1 else keywords[argument])


def _expert_layers(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """The modules that compute experts, in the order of layers, each with its argument's name."""
    for one in module.modules():
        parameters = inspect.signature(one.forward).parameters
        yield from ((one, name) for name in _CHOSEN if name in parameters)
