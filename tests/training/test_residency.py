"""Offloaded parts wait in the host's memory, come for the methods that need them, and change no
number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from agentrl.training import Actor, DistSpec, OptimSpec, Reference, ReferenceSpec, join
from agentrl.training.backends.residency import Residency
from agentrl.types import SegmentKind, registration
from tests.training.harness import make_actor, make_batch, update, update_shards

BATCH = make_batch(kind=SegmentKind.TARGET)
OPTIM = OptimSpec(lr=1e-3)


def held(tensors: Any) -> int:
    """Bytes on the device."""
    local = [one.to_local() if isinstance(one, DTensor) else one for one in tensors]
    return sum(one.untyped_storage().nbytes() for one in local)


def bytes_of(actor: Actor) -> tuple[int, int]:
    """Of weights, and of the optimizer's state."""
    backend = actor.backend
    return held(backend._parameters()), held(backend._moments())


@pytest.mark.parametrize("backend", ["fsdp2", "plain"])
@pytest.mark.parametrize(("offload", "stays"), [("optimizer", True), ("all", False)])
def test_offloaded_parts_change_no_number(
    model_path: str, tmp_path: Any, backend: Any, offload: Any, stays: bool
) -> None:
    actor, other = (
        make_actor(
            model_path, "sft", optim=OPTIM, backend=backend, offload=one, dtype="float64"
        )
        for one in (offload, "none")
    )
    for _ in range(2):
        assert dict(update(actor, BATCH, 30)) == dict(update(other, BATCH, 30))
        params, moments = bytes_of(actor)
        assert (params > 0, moments) == (stays, 0)
    assert actor.checksum() == other.checksum()
    assert bytes_of(other)[1] > 0
    actor.save(tmp_path / "saved")
    resumed = make_actor(model_path, "sft", optim=OPTIM, backend=backend, offload=offload)
    resumed.load(tmp_path / "saved")
    assert bytes_of(resumed)[1] == 0
    assert resumed.checksum() == other.checksum("float32")
    weights = {name: one.clone() for name, one in actor.weights("float64")}
    for name, weight in other.weights("float64"):
        assert torch.equal(weights[name], weight)
    assert (bytes_of(actor)[0] > 0) == stays


def test_a_frozen_model_is_copied_to_the_host_once(model_path: str) -> None:
    join(DistSpec())
    reference = Reference(ReferenceSpec(model_path, offload="all"), DistSpec())
    actor = make_actor(model_path, "sft")
    shard = update_shards(actor, BATCH, 64, 1)[0]
    first = reference.logprobs(shard)["ref_logprobs"]
    kept = reference.backend.residency._kept["params"]
    second = reference.logprobs(shard)["ref_logprobs"]
    assert reference.backend.residency._kept["params"] is kept
    assert (
        first.tobytes()
        == second.tobytes()
        == actor.logprobs(shard)["old_logprobs"].tobytes()
    )


def test_what_is_held_is_not_evicted_by_a_context_within() -> None:
    tensor = torch.arange(4.0)
    table = Residency({"params": lambda: [tensor]}, is_frozen=False)
    table.offloaded = frozenset({"params"})
    with table.holding("params"):
        with table.holding("params"):
            pass
        assert held([tensor]) == 16
        tensor += 1
    assert held([tensor]) == 0
    table.load("params")
    assert tensor.tolist() == [1, 2, 3, 4]


def test_what_fails_leaves_its_parts_where_they_are() -> None:
    tensor = torch.arange(4.0)
    table = Residency({"params": lambda: [tensor]}, is_frozen=False)
    table.offloaded = frozenset({"params"})

    def fail() -> Tensor:
        with table.holding("params"):
            raise ValueError("the role's own")

    with pytest.raises(ValueError, match="the role's own"):
        fail()
    assert held([tensor]) == 16


def test_methods_say_what_they_need() -> None:
    needs = {
        name: registration(getattr(Actor, name)).needs
        for name in ("facts", "advantages", "logprobs", "update", "save", "load")
    }
    both = ("params", "optimizer")
    assert needs == {
        **{"facts": (), "advantages": (), "logprobs": ("params",)},
        **{"update": ("params",), "save": both, "load": both},
    }
