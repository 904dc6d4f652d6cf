"""The trainer on a CUDA device: attentions, recomputation, compilation, offload, checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from agentrl.training import Actor, DistSpec, OptimSpec, join
from agentrl.training.backends.plain import PlainBackend
from agentrl.training.data.kernel_attention import choose_attention
from agentrl.training.models.chunked_head import ChunkedHead
from agentrl.training.models.trunk import Recompute
from agentrl.types import SegmentKind
from benchmarks import gpu_train
from benchmarks.trainer.gpu_device import Bench
from benchmarks.trainer.gpu_model import device_policy
from benchmarks.trainer.gpu_throughput import held_tensors, step_on
from benchmarks.trainer.shapes import SHAPES, packed_row
from tests.training.harness import (
    make_actor,
    make_batch,
    make_siblings,
    prepared,
    update,
    write_model,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

DEVICE = "cuda:0"
NEAR = 2e-2
BATCH = make_batch(kind=SegmentKind.TARGET)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its heads are as wide as kernels ask for."""
    return str(write_model(tmp_path_factory.mktemp("wide"), head_dim=32))


def actor_on(model_path: str, algorithm: str = "sft", **spec: Any) -> Actor:
    return make_actor(model_path, algorithm, place=DistSpec(device=DEVICE), **spec)


def gradients_of(actor: Actor) -> dict[str, Tensor]:
    """Of the last step, whole, as AdamW with beta_1 = 0 remembers them."""
    (optimizer,) = actor.backend.optimizers
    found = {
        name: optimizer.state[one]["exp_avg"]
        for name, one in actor.backend.model.named_parameters()
    }
    return {
        name: one.full_tensor() if isinstance(one, DTensor) else one
        for name, one in found.items()
    }


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def off_by(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The norm of a gradient's difference over that of the whole."""
    difference = sum(
        float((found[name] - one).square().sum()) for name, one in expected.items()
    )
    return float(
        (difference / sum(float(one.square().sum()) for one in expected.values())) ** 0.5
    )


@pytest.mark.parametrize("part", ["attention", "throughput"])
def test_attentions_agree_and_steps_run_at_a_tiny_size(part: str) -> None:
    """Targets of the benchmark are those of ``segments``, 2e-2."""
    assert gpu_train.main(["--tiny", "--only", part, "--steps", "1"]) == 0


@pytest.mark.parametrize("attention", ["auto", "flex", "segments"])
def test_shared_prefixes_change_no_gradient(model_path: str, attention: Any) -> None:
    """In one row that holds them once, against one sample a row in float32."""
    expected = actor_on(model_path, "grpo", dtype="float32", attention="segments")
    batch = prepared(expected, make_siblings(16))
    update(expected, batch, int(batch.lengths.max()))
    actor = actor_on(model_path, "grpo", dtype="bfloat16", attention=attention)
    update(actor, batch, 1000)
    assert off_by(gradients_of(actor), gradients_of(expected)) <= 2 * NEAR


@pytest.mark.parametrize(
    "spec",
    [
        {"gradient_checkpointing": True},
        {"gradient_checkpointing": "selective"},
        {"compile": True},
        {"compile": True, "gradient_checkpointing": "selective"},
        {"backend": "plain"},
        {"head_dtype": "float32"},
    ],
    ids=str,
)
def test_a_setting_changes_no_number(model_path: str, spec: dict[str, Any]) -> None:
    expected = actor_on(model_path, dtype="bfloat16")
    loss = update(expected, BATCH)["policy/loss"].mean
    actor = actor_on(model_path, dtype="bfloat16", **spec)
    assert update(actor, BATCH)["policy/loss"].mean == pytest.approx(loss, rel=5e-3)
    assert off_by(gradients_of(actor), gradients_of(expected)) <= NEAR


def peak_of(recompute: Recompute) -> int:
    """Of the second step of a small model."""
    bench = Bench(torch.device(DEVICE))
    attention = choose_attention("auto", bench.device, torch.bfloat16)
    model = device_policy("50M", attention, bench.device, recompute=recompute)
    rows = [packed_row((256,) * 8, int(SHAPES["50M"]["vocab_size"]), bench.device)]
    backend = PlainBackend(model, DistSpec(device=DEVICE), torch.bfloat16)
    backend.optimize_by(OptimSpec())
    step = step_on(backend, rows)
    step()
    return bench.peak_bytes(step, list(held_tensors(backend, rows)))


def test_recomputation_saves_memory() -> None:
    peaks = {one: peak_of(one) for one in (False, "selective", True)}
    assert peaks[True] < 0.9 * peaks["selective"]
    assert peaks["selective"] < 0.9 * peaks[False]


@pytest.mark.parametrize("offload", ["optimizer", "all"])
def test_offloaded_parts_leave_the_device(model_path: str, offload: Any) -> None:
    actor, other = (
        actor_on(model_path, dtype="float32", attention="segments", offload=one)
        for one in (offload, "none")
    )
    parts: dict[str, Callable[[], Any]] = {
        "optimizer": actor.backend._moments,
        "all": actor.backend._parameters,
    }
    for _ in range(2):
        ours, theirs = (update(one, BATCH)["policy/loss"].mean for one in (actor, other))
        assert ours == pytest.approx(theirs, rel=1e-5)
        for name in ("optimizer", "all") if offload == "all" else ("optimizer",):
            held = [local(one).untyped_storage().nbytes() for one in parts[name]()]
            assert held
            assert sum(held) == 0
    expected = dict(other.weights("float32"))
    for name, one in actor.weights("float32"):
        torch.testing.assert_close(one, expected[name], rtol=1e-4, atol=1e-6)


def test_a_checkpoint_comes_back_from_the_device(model_path: str, tmp_path: Path) -> None:
    actor = actor_on(model_path, dtype="bfloat16", optim=OptimSpec(lr=1e-3))
    update(actor, BATCH)
    expected = actor.checksum("float32")
    actor.begin_save(tmp_path / "saved")
    update(actor, BATCH)  # beside the writing
    assert actor.save_result(wait=True) is not None
    assert actor.checksum("float32") != expected
    resumed = actor_on(model_path, dtype="bfloat16", optim=OptimSpec(lr=1e-3))
    resumed.load(tmp_path / "saved")
    assert resumed.steps == 1
    assert resumed.checksum("float32") == expected


def test_the_output_layers_gradient_is_not_rounded_between_chunks() -> None:
    """Products of bfloat16 in float32, a part of the vocabulary at a time."""
    join(DistSpec(device=DEVICE))
    torch.manual_seed(0)
    layer = nn.Linear(64, 3000, bias=True).to(DEVICE, torch.bfloat16)
    hidden = torch.randn(640, 64, device=DEVICE, dtype=torch.bfloat16)
    weights = torch.randn(640, 3000, device=DEVICE)
    head = ChunkedHead(layer)
    logits = torch.cat([head(part) for part in hidden.split(8)])
    (logits.float() * weights).sum().backward()
    exact = weights.bfloat16().double().T @ hidden.double()
    found = layer.weight.grad
    assert found is not None
    assert float((found.double() - exact).norm() / exact.norm()) < 3e-3
