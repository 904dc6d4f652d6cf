"""Muon over two ranks: each matrix is made on one of them, and weights are those of one process,
rows that do not divide and experts' stacks included."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from agentrl.training.models.mixture import use_mixtures
from agentrl.training.optim import muon
from agentrl.training.optim.muon import Muon
from agentrl.training.optim.optim_spec import OptimSpec
from agentrl.training.optim.optimizer import build_optimizers
from tests.training.ranks import run_ranks

REPOSITORY = Path(__file__).parents[2]
SHAPES = ((5, 7), (8, 2), (1, 6), (3, 4, 6), (6, 6))
STEPS = 3


class Matrices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.own = nn.ParameterList([nn.Parameter(torch.randn(shape)) for shape in SHAPES])


def take_steps(model: Matrices) -> None:
    """Three steps by gradients that depend on the step alone."""
    optimizer = Muon(model.own, lr=0.05, momentum=0.9, weight_decay=0.1)
    for step in range(STEPS):
        torch.manual_seed(step + 1)
        for parameter in model.own:
            whole = torch.randn(parameter.shape)
            if isinstance(parameter, DTensor):
                first = parameter.device_mesh.get_local_rank()
                parts = torch.chunk(whole, parameter.device_mesh.size())
                own = parts[first] if first < len(parts) else whole[:0]
                parameter.grad = DTensor.from_local(
                    own,
                    parameter.device_mesh,
                    parameter.placements,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                )
            else:
                parameter.grad = whole
        optimizer.step()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Mapping[str, list[Tensor]]]:
    folder = tmp_path_factory.mktemp("two")
    run_ranks("tests.training.test_muon", 2, str(folder))
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


def test_weights_are_those_of_one_process(two: list[Mapping[str, list[Tensor]]]) -> None:
    alone = Matrices()
    take_steps(alone)
    for rank in two:
        for found, expected in zip(rank["weights"], alone.own, strict=True):
            torch.testing.assert_close(found, expected.data, rtol=0, atol=1e-6)


def test_each_matrix_is_made_on_one_rank(two: list[Mapping[str, list[Tensor]]]) -> None:
    made = [[tuple(shape) for shape in rank["made"]] for rank in two]
    # (5, 7) and (1, 6) by the first rank, (8, 2) and (6, 6) by the second; two experts and one
    assert sorted(made[0]) == sorted([(5, 7), (1, 6), (4, 6), (4, 6)] * STEPS)
    assert sorted(made[1]) == sorted([(8, 2), (6, 6), (4, 6)] * STEPS)


def test_experts_are_muons_and_the_router_is_not() -> None:
    config = Qwen3MoeConfig(
        vocab_size=96,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        moe_intermediate_size=8,
        num_experts=4,
        num_experts_per_tok=2,
    )
    model = AutoModelForCausalLM.from_config(config)
    use_mixtures(model)
    rest, hidden = build_optimizers(OptimSpec(name="muon"), model, model.lm_head)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    held = {names[id(one)] for group in hidden.param_groups for one in group["params"]}
    experts = {
        f"model.layers.0.mlp.experts.{name}" for name in ("gate_up_proj", "down_proj")
    }
    assert experts <= held
    others = {names[id(one)] for group in rest.param_groups for one in group["params"]}
    assert "model.layers.0.mlp.gate.weight" in others


def test_each_expert_is_a_matrix_by_itself() -> None:
    torch.manual_seed(0)
    stack = torch.randn(3, 4, 6)
    together = nn.Parameter(stack.clone())
    apart = [nn.Parameter(one.clone()) for one in stack]
    for parameters in ([together], apart):
        optimizer = Muon(parameters, lr=0.05, momentum=0.9, weight_decay=0.0)
        for parameter in parameters:
            parameter.grad = parameter.detach().sin()
        optimizer.step()
    torch.testing.assert_close(together.data, torch.stack([one.data for one in apart]))


def _main(rank: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    model = Matrices()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    made: list[tuple[int, ...]] = []
    original = muon.orthogonalize

    def counted(matrix: Tensor) -> Tensor:
        made.append(tuple(matrix.shape))
        return original(matrix)

    muon.orthogonalize = counted
    take_steps(model)
    weights = [parameter.full_tensor().detach() for parameter in model.own]  # type: ignore[attr-defined]
    torch.save({"weights": weights, "made": made}, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[3]), Path(sys.argv[4]))
