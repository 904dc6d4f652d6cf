"""Tensor names: the Hugging Face tensors that a server's fused ones are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.engines.held_weights import plain_name
from agentrl.engines.tensor_parallel import FUSED
from agentrl.engines.weights import num_experts

_STACKS = {
    "mlp.experts.w13_weight": ("gate_proj", "up_proj"),
    "mlp.experts.w2_weight": ("down_proj",),
    # Mixtral's folders have other names
    "block_sparse_moe.experts.w13_weight": ("w1", "w3"),
    "block_sparse_moe.experts.w2_weight": ("w2",),
}
"""The folder's projections of each expert of a stack, by the end of its name."""


def part_names(served: str, config: Mapping[str, Any]) -> tuple[str, ...]:
    """The Hugging Face tensors that one of the server's is made of, in order and by plain names;
    none for a table of positions.

    Args:
        served: the server's name.
        config: of the model.
    """
    if ".rotary_emb." in served:
        return ()
    served = plain_name(served)
    if layers := _STACKS.get(".".join(served.split(".")[-3:])):
        prefix, count = served.rpartition(".")[0], num_experts(config)
        return tuple(
            f"{prefix}.{n}.{layer}.weight" for n in range(count) for layer in layers
        )
    if served.startswith("visual."):
        # Qwen's vision tower has queries, keys and values in one tensor of its own
        served = served.replace(".attn.qkv_proj.", ".attn.qkv.")
    for fused, names in FUSED.items():
        if f".{fused}." in served:
            return tuple(served.replace(fused, name) for name in names)
    return (served,)
