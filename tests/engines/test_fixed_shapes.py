"""Fixed shapes: operations are the usual ones up to rounding, and a row does not see the others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from agentrl.engines import EnginePlace
from agentrl.engines.torch import TorchEngineSpec
from agentrl.engines.torch.model import fixed_shapes
from agentrl.errors import ConfigError, EngineError
from tests.engines.tiny import TinyModel


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("count", [1, 2, 3, 15, 16, 17, 100])
def test_a_product_of_any_number_of_rows_has_their_bits(count: int) -> None:
    rows, weight, bias = drawn(120, 40), drawn(72, 40, seed=1), drawn(72, seed=2)
    whole = fixed_shapes.linear(rows, weight, bias)
    for first in (0, 7, 20):
        part = fixed_shapes.linear(rows[first : first + count], weight, bias)
        assert torch.equal(part, whole[first : first + count])
    assert torch.allclose(whole, functional.linear(rows, weight, bias), atol=1e-5)


def test_the_gradient_of_a_product_is_the_ordinary_one() -> None:
    tensors = [drawn(2, 5, 24), drawn(16, 24, seed=1), drawn(16, seed=2)]
    found = []
    for function in (fixed_shapes.linear, functional.linear):
        given = [one.clone().requires_grad_() for one in tensors]
        function(*given).square().sum().backward()
        found.append([one.grad for one in given])
    for own, expected in zip(*found, strict=True):
        assert own is not None
        assert torch.allclose(own, expected, atol=1e-4)


def causal(first: int, tokens: int, keys: int) -> Tensor:
    later = torch.arange(keys) > torch.arange(first, first + tokens)[:, None]
    return torch.zeros(1, 1, tokens, keys).masked_fill_(later, -torch.inf)


@pytest.mark.parametrize("heads", [2, 4, 6, 12])
def test_attention_is_the_usual_one_and_a_tokens_bits_are_its_own(heads: int) -> None:
    tokens = 150
    query = drawn(1, heads, tokens, 16)
    key, value = (
        fixed_shapes.whole_blocks(drawn(1, 2, tokens, 16, seed=s)) for s in (1, 2)
    )
    mask = causal(0, tokens, key.shape[2])
    whole = fixed_shapes.attend(query, key, value, mask, 0.25)
    usual = functional.scaled_dot_product_attention(
        query, key[:, :, :tokens], value[:, :, :tokens], is_causal=True, enable_gqa=True
    )
    assert torch.allclose(whole, usual.transpose(1, 2), atol=1e-5)
    for place in (0, 63, 64, 149):
        keys = place // fixed_shapes.KEYS * fixed_shapes.KEYS + fixed_shapes.KEYS
        # beside another sequence, with more keys than it needs or as few as it may have
        for longest in (keys, key.shape[2]):
            pair = [
                torch.cat([one[:, :, :longest], -one[:, :, :longest]])
                for one in (key, value)
            ]
            alone = query[:, :, place : place + 1].expand(2, -1, -1, -1)
            found = fixed_shapes.attend(alone, *pair, causal(place, 1, longest), 0.25)
            assert torch.equal(found[0, 0], whole[0, place])


@pytest.mark.parametrize("width", [40, 48, 64, 200])
def test_an_activations_bits_do_not_depend_on_its_place(width: int) -> None:
    layer = nn.Sequential(nn.SiLU())
    fixed_shapes.fix_shapes(layer)
    rows = drawn(700, width)
    whole = layer(rows)
    assert torch.allclose(whole, functional.silu(rows), atol=1e-6)
    for count in (1, 2, 3, 7, 31, 511):
        assert torch.equal(layer(rows[5 : 5 + count]), whole[5 : 5 + count])


def test_a_machine_whose_products_see_other_rows_is_refused(
    tiny: TinyModel, start, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as many rows as there are: a row alone is multiplied by another kernel
    monkeypatch.setattr(fixed_shapes, "TILE", 1)
    monkeypatch.setattr(fixed_shapes, "_product", lambda rows, weight: rows @ weight.t())
    with pytest.raises(EngineError, match="round a row alike wherever it stands"):
        start(tiny, deterministic=True)


def test_other_threads_than_the_trainers_are_refused() -> None:
    place = EnginePlace("folder", deterministic=True, num_threads=2)
    rule = "TorchEngineSpec.num_threads must be PlacementConfig.threads_per_rank=2"
    with pytest.raises(ConfigError, match=rule):
        TorchEngineSpec(num_threads=1).resolve(place)
    assert TorchEngineSpec(num_threads=2).resolve(place) == place
