"""The plain backend gives FSDP2's numbers for every role; weights sleep and wake, and move between
backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from agentrl.algorithms import make_algorithm
from agentrl.errors import ConfigError, TrainingError
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
    sample_weights,
    shards,
)
from agentrl.training.data.partition import partition
from agentrl.training.parallel.shards import whole_checksums
from agentrl.training.roles.role import Role
from agentrl.types import BatchShard
from tests.training.harness import layout, make_actor, make_batch, make_siblings, prefixes

OPTIM = OptimSpec(lr=1e-3)


@dataclass(frozen=True)
class Case:
    """How a role is built, and what it is given."""

    build: Callable[[str, dict[str, Any]], Role]
    shard: Callable[[], BatchShard]


def shard_of(algorithm: str) -> BatchShard:
    """Siblings in micro-batches that share prefixes, with every column, at a temperature that
    bfloat16 has not.
    """
    batch = make_siblings(16)
    batch = replace(batch, temperature=np.full_like(batch.temperature, 0.9))
    rng = np.random.default_rng(3)
    names = ("old_logprobs", "ref_logprobs", "advantages", "values", "returns")
    own = {
        name: (rng.normal(size=batch.num_tokens) * batch.loss_mask).astype(np.float32)
        for name in names
    }
    own["old_logprobs"] -= (4 * batch.loss_mask).astype(np.float32)
    own["ref_logprobs"] -= (4 * batch.loss_mask).astype(np.float32)
    batch = replace(batch, **own)
    groups = batch.group[batch.trajectory]
    (plan,) = partition(
        batch.lengths, groups, seed=0, layout=layout(1, 90), prefixes=prefixes(batch)
    )
    weights = sample_weights(batch, plan, make_algorithm(algorithm).reduction)
    return shards(batch, plan, weights)[0]


def pairs() -> BatchShard:
    batch = make_batch(rollouts=2)
    groups = batch.group[batch.trajectory]
    (plan,) = partition(batch.lengths, groups, seed=0, layout=layout(1, 64), unit="group")
    weights = sample_weights(batch, plan, make_algorithm("reward_model").reduction)
    return shards(batch, plan, weights)[0]


CASES = {
    "actor": Case(
        lambda path, spec: Actor(
            ActorSpec(path, make_algorithm("gspo", {"kl_coef": 0.1}), OPTIM, **spec),
            DistSpec(),
        ),
        lambda: shard_of("gspo"),
    ),
    "critic": Case(
        lambda path, spec: Critic(
            CriticSpec(path, make_algorithm("ppo"), OPTIM, **spec), DistSpec()
        ),
        lambda: shard_of("ppo"),
    ),
    "reference": Case(
        lambda path, spec: Reference(ReferenceSpec(path, **spec), DistSpec()),
        lambda: shard_of("grpo"),
    ),
    "reward model": Case(
        lambda path, spec: RewardLearner(
            RewardLearnerSpec(path, make_algorithm("reward_model"), OPTIM, **spec),
            DistSpec(),
        ),
        pairs,
    ),
}


def outputs(role: Role, shard: BatchShard) -> list[Tensor]:
    """What the model answers for every micro-batch, in its own precision."""
    found: list[Tensor] = []
    role.backend.infer(
        role.packed(shard),
        lambda _, answer: found.extend(answer if isinstance(answer, tuple) else (answer,)),
    )
    return found


def numbers(case: Case, model_path: str, **spec: Any) -> dict[str, Any]:
    """Answers, losses, gradients and weights of three steps."""
    join(DistSpec())
    role = case.build(model_path, spec)
    shard = case.shard()
    found: dict[str, Any] = {"before": outputs(role, shard)}
    if isinstance(role, LearningRole):
        found["stats"] = [dict(role.update(shard).means()) for _ in range(3)]
        (optimizer,) = role.backend.optimizers
        state = role.backend.state()
        found["gradients"] = [
            whole(optimizer.state[one]["exp_avg"]) for one in state.values()
        ]
        found["after"] = outputs(role, shard)
    dtype = torch.float64 if spec.get("dtype") == "float64" else torch.float32
    found["weights"] = [tensor.clone() for _, tensor in role.backend.weights(dtype)]
    found["checksums"] = whole_checksums(role.backend.parts(dtype))
    return found


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def assert_equal(
    found: Mapping[str, Any], expected: Mapping[str, Any], most: float
) -> None:
    for name in ("before", "after", "gradients", "weights"):
        for one, other in zip(found.get(name, ()), expected.get(name, ()), strict=True):
            assert one.dtype == other.dtype
            assert (one - other).abs().max() <= most, name
    for one, other in zip(found.get("stats", ()), expected.get("stats", ()), strict=True):
        assert one == pytest.approx(other, rel=most, abs=most)


@pytest.mark.wide
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("name", CASES)
def test_plain_gives_the_numbers_of_fsdp2_in_float64(
    model_path: str, name: str, recompute: bool
) -> None:
    spec = {"dtype": "float64", "gradient_checkpointing": recompute}
    plain, fsdp2 = (
        numbers(CASES[name], model_path, backend=backend, **spec)
        for backend in ("plain", "fsdp2")
    )
    assert {tensor.dtype for tensor in fsdp2["before"]} == {torch.float64}
    assert_equal(plain, fsdp2, 1e-10)
    # float64 is no name for float32: that differs by more
    single = numbers(CASES[name], model_path, backend="plain")
    difference = single["before"][0].double() - fsdp2["before"][0]
    assert 1e-10 < difference.abs().max() < 1e-4


@pytest.mark.wide
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("name", CASES)
def test_plain_rounds_as_fsdp2_does_in_bfloat16(
    model_path: str, name: str, recompute: bool
) -> None:
    spec = {"dtype": "bfloat16", "gradient_checkpointing": recompute}
    plain, fsdp2 = (
        numbers(CASES[name], model_path, backend=backend, **spec)
        for backend in ("plain", "fsdp2")
    )
    assert_equal(plain, fsdp2, 0.0)
    assert plain["checksums"] == fsdp2["checksums"]
    assert {tensor.dtype for tensor in plain["weights"]} == {torch.float32}


@pytest.mark.parametrize("backend", ["fsdp2", "plain"])
def test_what_wakes_goes_on_exactly(model_path: str, backend: str) -> None:
    slept, other = (
        make_actor(model_path, "sft", optim=OPTIM, backend=backend) for _ in range(2)
    )
    shard = shard_of("sft")
    for actor in (slept, other):
        actor.update(shard)
    parameters = list(slept.backend.state().values())
    optimizer = slept.backend.optimizers[0]
    moments = [optimizer.state[one]["exp_avg"] for one in parameters]
    slept.backend.residency.evict("params", "optimizer")
    for tensor in (*parameters, *moments):
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        assert local.untyped_storage().nbytes() == 0
    slept.backend.residency.load("params")
    slept.backend.residency.load("optimizer")
    assert dict(slept.update(shard)) == dict(other.update(shard))
    assert slept.checksum() == other.checksum()


@pytest.mark.parametrize(("first", "second"), [("fsdp2", "plain"), ("plain", "fsdp2")])
def test_a_checkpoint_goes_on_in_another_backend(
    model_path: str, tmp_path: Path, first: str, second: str
) -> None:
    shard = shard_of("sft")
    actor = make_actor(model_path, "sft", optim=OPTIM, backend=first)
    actor.update(shard)
    actor.save(tmp_path / "actor")
    resumed = make_actor(model_path, "sft", optim=OPTIM, backend=second)
    resumed.load(tmp_path / "actor")
    assert resumed.steps == 1
    assert dict(resumed.update(shard)) == dict(actor.update(shard))
    assert resumed.checksum() == actor.checksum()


def test_weights_of_a_plain_model_are_refused_while_they_are_rounded(
    model_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = make_actor(model_path, "sft", backend="plain", dtype="bfloat16")
    monkeypatch.setattr(type(actor.backend.model), "_logprobs", lambda *_: [][0])
    with pytest.raises(IndexError):
        actor.logprobs(shard_of("sft"))
    with pytest.raises(TrainingError, match=r"model\.embed_tokens\.weight is gathered"):
        actor.checksum()


def test_plain_is_refused_for_several_ranks(model_path: str) -> None:
    join(DistSpec())
    spec = ReferenceSpec(model_path, backend="plain")
    with pytest.raises(ConfigError, match=r"needs PlacementConfig\.world_size=1, got 2"):
        Reference(spec, DistSpec(world_size=2))
