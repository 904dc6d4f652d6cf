"""What follows the last attention is computed for chosen rows alone, and no number tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agentrl.training import shards
from agentrl.training.data.kernel_attention import attention_arguments
from agentrl.training.data.packing import Packed, PackedMicroBatches
from agentrl.training.data.partition import partition
from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.models.policy_model import PolicyModel
from agentrl.training.models.trunk import skip_mlp_rows
from tests.training.harness import layout, make_batch, write_model
from tests.whole_models import load_policy

ROWS = torch.tensor([3, 40, 40, 17, 3])


def whole_row() -> Packed:
    batch = make_batch()
    (plan,) = partition(
        batch.lengths, batch.group[batch.trajectory], seed=0, layout=layout(1, 1000)
    )
    (row,) = PackedMicroBatches(
        shards(batch, plan)[0], torch.device("cpu"), share_prefixes=True
    )
    return row


def whole_trunk(model: PolicyModel, row: Packed) -> Tensor:
    """The last hidden states of every position."""
    arguments = attention_arguments(model.attention, row.spans, row.token_ids.device)
    trunk: Any = model.hf.base_model
    hidden: Tensor = trunk(
        input_ids=row.token_ids[None],
        position_ids=row.positions,
        use_cache=False,
        **arguments,
    ).last_hidden_state[0]
    return hidden


def chosen_rows(model: PolicyModel, row: Packed) -> Tensor:
    return model.hidden(row.token_ids, row.positions, row.spans, ROWS)


def gradients(model: PolicyModel, hidden: Tensor) -> dict[str, Tensor]:
    weights = torch.arange(hidden.numel(), dtype=torch.float32).view_as(hidden).cos()
    model.zero_grad()
    (hidden * weights).sum().backward()
    return {
        name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize("recompute", [False, True])
def test_chosen_rows_and_their_gradients_are_those_of_the_whole(
    tmp_path: Path, recompute: bool
) -> None:
    model = load_policy(
        ModelSpec(str(write_model(tmp_path)), gradient_checkpointing=recompute)
    )
    row = whole_row()
    chosen, whole = chosen_rows(model, row), whole_trunk(model, row).index_select(0, ROWS)
    torch.testing.assert_close(chosen, whole, rtol=1e-5, atol=1e-6)
    expected = gradients(model, whole_trunk(model, row).index_select(0, ROWS))
    found = gradients(model, chosen_rows(model, row))
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5)


def test_only_the_last_mlp_skips_rows(tmp_path: Path) -> None:
    model, row = load_policy(ModelSpec(str(write_model(tmp_path)))), whole_row()
    seen: list[int] = []
    blocks: list[Any] = model.blocks()
    for block in blocks:
        block.mlp.gate_proj.register_forward_pre_hook(
            lambda _, args: seen.append(args[0].shape[1])
        )
    chosen_rows(model, row)
    assert seen == [*[row.token_ids.numel()] * (len(blocks) - 1), 3]


def test_a_mixture_of_experts_is_left_as_it_is() -> None:
    class SparseMoeBlock(nn.Linear):
        pass

    block = nn.Module()
    block.add_module("mlp", SparseMoeBlock(2, 2))
    skip_mlp_rows(block)
    assert not block._forward_pre_hooks


def test_a_model_for_a_gpu_computes_every_row(tmp_path: Path) -> None:
    """Loaded on the CPU, as every model is, for a device that is not one."""
    model = load_policy(
        ModelSpec(str(write_model(tmp_path))), device=torch.device("cuda", 0)
    )
    seen: list[int] = []
    blocks: list[Any] = model.blocks()
    blocks[-1].mlp.gate_proj.register_forward_pre_hook(
        lambda _, args: seen.append(args[0].shape[1])
    )
    row = whole_row()
    whole = whole_trunk(model, row).index_select(0, ROWS)
    assert torch.equal(chosen_rows(model, row), whole)
    assert seen == [row.token_ids.numel()] * 2
