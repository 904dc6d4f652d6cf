"""The output layer's gradient in bfloat16: as exact over many chunks of logits as over one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from agentrl.errors import ConfigError
from agentrl.training import shards
from agentrl.training.data.packing import Packed, PackedMicroBatches
from agentrl.training.data.partition import partition
from agentrl.training.models import policy_model
from agentrl.training.models.chunked_head import ChunkedHead
from agentrl.training.models.packed_model import ModelSpec
from agentrl.training.models.policy_model import PolicyModel
from benchmarks.trainer.memory_count import LiveStorages
from tests.training.harness import VOCAB, layout, make_batch, write_model
from tests.whole_models import load_policy


@pytest.fixture
def model(tmp_path: Path) -> PolicyModel:
    write_model(tmp_path, tie_word_embeddings=False)
    return load_policy(ModelSpec(str(tmp_path))).to(torch.bfloat16)


@pytest.fixture
def row() -> Packed:
    batch = make_batch([40, 60, 80])
    (plan,) = partition(batch.lengths, np.zeros(3, int), seed=0, layout=layout(1, 1000))
    (packed,) = PackedMicroBatches(
        shards(batch, plan)[0], torch.device("cpu"), share_prefixes=False
    )
    return packed


def head_gradient(model: PolicyModel, row: Packed) -> Tensor:
    model.zero_grad()
    logprobs, _ = model(row)
    logprobs.mean().backward()
    gradient = model.head.weight.grad
    assert isinstance(gradient, Tensor)
    return gradient.float()


def exact_gradient(model: PolicyModel, row: Packed) -> Tensor:
    """Of the same hidden states and weights, in float32."""
    weight = model.head.weight
    assert isinstance(weight, Tensor)
    exact = weight.detach().float().requires_grad_()
    hidden = (
        model.hidden(row.token_ids, row.positions, row.spans, row.logit_rows)
        .detach()
        .float()
    )
    logprobs = torch.log_softmax(hidden @ exact.T / row.temperature[:, None], -1)
    logprobs[row.logit_of, row.targets].mean().backward()
    assert exact.grad is not None
    return exact.grad


def test_eighty_chunks_are_as_exact_as_one(
    model: PolicyModel, row: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = exact_gradient(model, row)

    def error(gradient: Tensor) -> float:
        return float((gradient - exact).norm() / exact.norm())

    one = error(head_gradient(model, row))
    monkeypatch.setattr(policy_model, "_CHUNK_ELEMENTS", VOCAB)
    assert row.logit_rows.numel() >= 80
    many = error(head_gradient(model, row))
    # the layer's own sum over chunks is rounded at each of them
    monkeypatch.setattr(policy_model, "ChunkedHead", lambda head, *_: head)
    rounded = error(head_gradient(model, row))
    assert 0 < many <= 1.01 * one
    assert rounded > 2 * one


def test_gradients_are_those_of_the_layer() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(8, 5)
    hidden = torch.randn(6, 8, requires_grad=True)
    found = []
    for head in (layer, ChunkedHead(layer)):
        logits = torch.cat([head(part) for part in hidden.split(2)])
        inputs = (hidden, layer.weight, layer.bias)
        found.append((logits, *torch.autograd.grad(logits.square().sum(), inputs)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunks_add_to_one_sum(dtype: torch.dtype) -> None:
    # one float32 sum, and its rounded copy in bfloat16; autograd's own sum would hold three
    width, vocab, rows, chunks = 512, 1000, 4, 6
    with FakeTensorMode():
        layer = nn.Linear(width, vocab, bias=False, dtype=dtype)
        hidden = torch.randn(rows * chunks, width, dtype=dtype)
        live = LiveStorages([layer.weight, hidden])
        before = live.now
        head = ChunkedHead(layer)
        with live:
            torch.cat([head(part) for part in hidden.split(rows)]).sum().backward()
    # on a CPU a product's factors are made float32
    small = 4 * (rows * width + 3 * rows * chunks * vocab + vocab * rows)
    assert live.peak - before <= width * vocab * (4 + dtype.itemsize % 4) + small


def test_each_backward_pass_sums_anew() -> None:
    layer = nn.Linear(8, 5)
    head = ChunkedHead(layer)
    loss = sum(head(part).square().sum() for part in torch.ones(6, 8).split(2))
    assert isinstance(loss, Tensor)
    inputs = (layer.weight, layer.bias)
    one = torch.autograd.grad(loss, inputs, retain_graph=True)
    other = torch.autograd.grad(loss, inputs)
    for first, second in zip(one, other, strict=True):
        assert torch.equal(first, second)


def test_an_output_layer_that_is_not_linear_is_refused_in_bfloat16(
    model: PolicyModel, row: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_model, "_CHUNK_ELEMENTS", VOCAB)
    model.hf.set_output_embeddings(nn.Sequential(model.head))  # type: ignore[operator]
    with pytest.raises(
        ConfigError, match=r"ActorSpec\.dtype must be 'float32' for Qwen3.*'bfloat"
    ):
        model(row)
