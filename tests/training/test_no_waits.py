"""No forward, loss or backward waits for the device, and a micro-batch comes in one copy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agentrl.algorithms import make_algorithm
from agentrl.training import (
    Actor,
    ActorSpec,
    Critic,
    CriticSpec,
    DistSpec,
    LearningRole,
    OptimSpec,
    Reference,
    ReferenceSpec,
    RewardLearner,
    RewardLearnerSpec,
    join,
    leave,
    sample_weights,
    shards,
)
from agentrl.training.data.partition import partition
from agentrl.training.models import policy_model
from agentrl.training.roles.actor import TokenColumns
from agentrl.training.roles.reward_model import _pair_columns
from agentrl.training.roles.role import Role
from agentrl.types import BatchShard
from tests.kit.waiting import DEADLINE_S
from tests.training.harness import (
    VOCAB,
    layout,
    make_batch,
    make_siblings,
    prefixes,
    write_model,
)
from tests.training.ranks import run_ranks
from tests.training.wait_guard import WaitError, no_waits

REPOSITORY = Path(__file__).parents[2]
CORRECTED = {
    "rollout_correction": {"level": "sequence", "reject": "sequence_max", "reject_above": 9}
}
ROLES = ("gspo", "ppo", "grpo", "critic", "reference", "reward model")


def build(name: str, path: str, place: DistSpec, **spec: Any) -> Role:
    """A role by its name, or an actor by its algorithm's."""
    optim = OptimSpec()
    if name == "critic":
        return Critic(CriticSpec(path, make_algorithm("ppo"), optim, **spec), place)
    if name == "reference":
        return Reference(ReferenceSpec(path, **spec), place)
    if name == "reward model":
        algorithm = make_algorithm("reward_model")
        return RewardLearner(RewardLearnerSpec(path, algorithm, optim, **spec), place)
    settings: dict[str, Any] = {"gspo": CORRECTED, "grpo": {"kl_coef": 0.1}}.get(name, {})
    algorithm = make_algorithm(name, settings)
    return Actor(ActorSpec(path, algorithm, optim, detail="full", **spec), place)


def shard_of(name: str, place: DistSpec) -> BatchShard:
    """Samples that share prefixes, and a filler for one of two ranks."""
    rng = np.random.default_rng(3)
    if name == "reward model":
        batch = make_batch([30, 16], rollouts=2)
    else:
        batch = make_siblings(16)
        names = ("old_logprobs", "ref_logprobs", "advantages", "values", "returns")
        noise = {one: rng.normal(size=batch.num_tokens).astype(np.float32) for one in names}
        batch = replace(batch, **noise)
    groups = batch.group[batch.trajectory]
    (plan,) = partition(
        batch.lengths,
        groups,
        seed=0,
        layout=layout(place.world_size, 90),
        unit="group",
        prefixes=prefixes(batch),
    )
    reduction = "reward_model" if name == "reward model" else "grpo"
    weights = sample_weights(batch, plan, make_algorithm(reduction).reduction)
    found = shards(batch, plan, weights)[place.rank]
    return replace(found, micro_batches=(*found.micro_batches, ()))  # every rank a filler


def passes(role: Role, shard: BatchShard, packed: Any) -> None:
    """Forward, loss and backward of a micro-batch."""
    if isinstance(role, Actor):
        columns = TokenColumns("full")
        role.backend.run(
            [packed],
            lambda row, answer, stats: role._loss(row, answer, shard, stats, columns),
        )
    elif isinstance(role, Critic | RewardLearner):
        role.backend.run([packed], role._loss)
    role.backend.infer([packed], lambda *_: None)


def guarded(role: Role, shard: BatchShard) -> None:
    """All micro-batches under the guard; what they look like was asked for."""
    made = list(role.packed(shard, _extras(role, shard)))
    assert any(not one.rows.size for one in made)
    if not isinstance(role, RewardLearner):
        assert any(span.first for one in made for span in one.spans)
    for packed in made:
        with no_waits():
            passes(role, shard, packed)


def _extras(role: Role, shard: BatchShard) -> Callable[..., Any] | None:
    return partial(_pair_columns, shard) if isinstance(role, RewardLearner) else None


@pytest.fixture
def three_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of a few rows at a time."""
    monkeypatch.setattr(policy_model, "_CHUNK_ELEMENTS", 12 * VOCAB)
    monkeypatch.setattr(policy_model, "_GPU_CHUNK_ELEMENTS", 12 * VOCAB)


@pytest.mark.wide
@pytest.mark.usefixtures("three_chunks")
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("backend", ["plain", "fsdp2"])
@pytest.mark.parametrize("name", ROLES)
def test_no_pass_waits(model_path: str, name: str, backend: Any, recompute: bool) -> None:
    place = DistSpec()
    join(place)
    role = build(name, model_path, place, backend=backend, gradient_checkpointing=recompute)
    guarded(role, shard_of(name, place))


@pytest.mark.usefixtures("three_chunks")
@pytest.mark.parametrize("name", ROLES)
def test_a_micro_batch_is_one_copy(model_path: str, name: str) -> None:
    """On ``meta`` nothing can be read, and mixing devices raises."""
    place = DistSpec()
    join(place)
    role = build(name, model_path, place, backend="plain", dtype="bfloat16")
    role.backend.model.skips_mlp_rows = False  # of a CPU alone
    role.backend.model.to("meta")
    role.device = torch.device("meta")
    role.backend._prepare(place)
    shard = shard_of(name, place)
    with no_waits() as told:
        for number, packed in enumerate(role.packed(shard, _extras(role, shard)), start=1):
            passes(role, shard, packed)
            assert told.copies == number


def wait_by_item(tensor: Tensor) -> object:
    return tensor.sum().item()


def wait_by_mask(tensor: Tensor) -> object:
    return tensor[tensor > 0]


def wait_by_condition(tensor: Tensor) -> object:
    return 1 if (tensor > 0).any() else 0


def wait_by_unique(tensor: Tensor) -> object:
    return torch.unique(tensor)


def wait_by_nonzero(tensor: Tensor) -> object:
    return torch.where(tensor > 0)


def wait_by_numpy(tensor: Tensor) -> object:
    return tensor.detach().numpy()


def wait_by_list(tensor: Tensor) -> object:
    return tensor.tolist()


def wait_by_repeats(tensor: Tensor) -> object:
    return tensor.repeat_interleave(torch.tensor([1, 2, 3]))


def wait_by_selection(tensor: Tensor) -> object:
    return tensor.masked_select(tensor > 0)


WAITS = [
    wait_by_item,
    wait_by_mask,
    wait_by_condition,
    wait_by_unique,
    wait_by_nonzero,
    wait_by_numpy,
    wait_by_list,
    wait_by_repeats,
    wait_by_selection,
]


@pytest.mark.parametrize("wait", WAITS)
def test_the_guard_sees_each_way_to_wait(wait: Callable[[Tensor], object]) -> None:
    tensor = torch.arange(3.0)
    wait(tensor)
    with no_waits(), pytest.raises(WaitError):
        wait(tensor)


def test_the_guard_sees_a_wait_in_the_backward_pass() -> None:
    class Waiting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: Tensor) -> Tensor:
            return tensor * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * gradient.sum().item()

    loss = Waiting.apply(torch.ones(2, requires_grad=True)).sum()  # type: ignore[no-untyped-call]
    with no_waits(), pytest.raises(WaitError):
        loss.backward()


@pytest.mark.slow
def test_no_pass_waits_on_two_ranks(model_path: str) -> None:
    run_ranks("tests.training.test_no_waits", 2, model_path)


@pytest.mark.gpu
@pytest.mark.usefixtures("three_chunks")
@pytest.mark.parametrize("recompute", [False, True, "selective"])
@pytest.mark.parametrize("backend", ["plain", "fsdp2"])
@pytest.mark.parametrize("name", ROLES)
def test_a_gpu_is_never_waited_for(
    tmp_path: Path, name: str, backend: Any, recompute: Any
) -> None:
    place = DistSpec(device="cuda:0")
    join(place)
    path = str(write_model(tmp_path, head_dim=32))  # as wide as kernels ask for
    options = {"dtype": "bfloat16", "backend": backend, "gradient_checkpointing": recompute}
    role = build(name, path, place, **options)
    shard = shard_of(name, place)
    made = list(role.packed(shard, _extras(role, shard)))
    passes(role, shard, made[0])  # kernels are chosen at their first use
    torch.cuda.set_sync_debug_mode("error")
    try:
        for packed in made:
            passes(role, shard, packed)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _main(rank: int, port: int, model_path: str) -> None:
    torch.set_num_threads(1)
    policy_model._CHUNK_ELEMENTS = 12 * VOCAB
    place = DistSpec(rank=rank, world_size=2, port=port, timeout_s=DEADLINE_S)
    join(place)
    for name in ROLES:
        role = build(name, model_path, place, gradient_checkpointing=True)
        assert isinstance(role, LearningRole | Reference)
        guarded(role, shard_of(name, place))
    leave()


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[3]), sys.argv[4])
