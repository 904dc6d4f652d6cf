"""What servers say of their weights is held against what they were sent, under whichever names."""

from __future__ import annotations

import pytest

from agentrl.engines.held_weights import HeldTensor, HeldWeights
from agentrl.engines.servers.program.tensor_names import part_names

QKV = ("q", "k", "v")


@pytest.mark.parametrize(
    ("served", "prefix"),
    [
        ("model.layers.0.self_attn.qkv_proj.weight", "model."),
        # vLLM, of models that see; and folders of newer families
        ("language_model.model.layers.0.self_attn.qkv_proj.weight", "model."),
        (
            "language_model.model.layers.0.self_attn.qkv_proj.weight",
            "model.language_model.",
        ),
        ("model.layers.0.self_attn.qkv_proj.weight", "model.language_model."),
    ],
)
def test_a_change_is_missed_under_no_name(served: str, prefix: str) -> None:
    names = [f"{prefix}layers.0.self_attn.{own}_proj.weight" for own in QKV]
    held = HeldTensor("a server's", part_names(served, {}))
    first = HeldWeights(dict.fromkeys(names, 1), {held: "x"})
    changed = dict.fromkeys(names, 1) | {names[1]: 2}
    assert not HeldWeights(changed, {held: "y"}).fault_since(first)
    assert "the bits of before" in HeldWeights(changed, {held: "x"}).fault_since(first)
    assert "other bits than before" in HeldWeights(first.sent, {held: "y"}).fault_since(
        first
    )


@pytest.mark.parametrize(
    ("served", "parts"),
    [
        ("language_model.lm_head.weight", ("lm_head.weight",)),
        ("visual.blocks.0.attn.qkv_proj.bias", ("visual.blocks.0.attn.qkv.bias",)),
        ("visual.blocks.0.attn.qkv.bias", ("visual.blocks.0.attn.qkv.bias",)),
        (
            "model.visual.blocks.0.mlp.gate_up_proj.bias",
            ("visual.blocks.0.mlp.gate_proj.bias", "visual.blocks.0.mlp.up_proj.bias"),
        ),
        ("model.layers.0.self_attn.rotary_emb.cos_sin_cache", ()),
    ],
)
def test_parts_have_plain_names(served: str, parts: tuple[str, ...]) -> None:
    assert part_names(served, {}) == parts
