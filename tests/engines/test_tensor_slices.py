"""Slices of tensors: what they share and leave, and which of them each rank of a server holds."""

from __future__ import annotations

import random

import numpy as np
import pytest

from agentrl.engines.tensor_parallel import ShardTensor, tensor_parallel_shards
from agentrl.engines.tensor_slice import TensorSlice


def random_slice(rng: random.Random, shape: tuple[int, ...]) -> TensorSlice:
    ends = [sorted(rng.sample(range(size + 1), 2)) for size in shape]
    return TensorSlice("t", shape, tuple(a for a, _ in ends), tuple(b - a for a, b in ends))


def numbers(*blocks: TensorSlice) -> list[int]:
    """The flat places of some blocks, with repetitions."""
    places = np.arange(np.prod(blocks[0].shape)).reshape(blocks[0].shape)
    return sorted(
        number for one in blocks for number in places[one.slices].reshape(-1).tolist()
    )


@pytest.mark.parametrize("shape", [(9,), (7, 5), (4, 3, 5)])
def test_two_slices_share_what_is_in_both_and_the_rest_is_disjoint(
    shape: tuple[int, ...],
) -> None:
    rng = random.Random(7)
    for _ in range(100):
        one, other = random_slice(rng, shape), random_slice(rng, shape)
        shared = one.overlap(other)
        in_both = sorted(set(numbers(one)) & set(numbers(other)))
        assert (numbers(shared) if shared else []) == in_both
        if shared is not None:
            assert numbers(shared, *one.without(shared)) == numbers(one)


def test_a_slice_is_an_index_of_a_larger_one() -> None:
    whole = np.arange(35).reshape(5, 7)
    outer = TensorSlice("t", (5, 7), (1, 2), (3, 4))
    inner = TensorSlice("t", (5, 7), (2, 3), (2, 2))
    assert whole[outer.slices][inner.slices_of(outer.first)].tolist() == [
        [17, 18],
        [24, 25],
    ]


SHAPES = {
    "model.embed_tokens.weight": (130, 8),
    "model.layers.0.self_attn.k_proj.weight": (8, 8),
    "model.layers.0.self_attn.o_proj.weight": (8, 16),
    "model.layers.0.self_attn.o_proj.bias": (8,),
    "model.layers.0.self_attn.q_norm.weight": (4,),
    "model.layers.0.self_attn.q_proj.weight": (16, 8),
    "model.layers.0.self_attn.q_proj.bias": (16,),
    "model.layers.0.self_attn.v_proj.weight": (8, 8),
}


def rows(name: str, first: int, stop: int) -> TensorSlice:
    return TensorSlice.whole(name, SHAPES[name]).part(0, first, stop)


def test_the_second_of_two_ranks_holds_its_heads_its_columns_and_its_part_of_the_vocabulary() -> (
    None
):
    _, second = tensor_parallel_shards(SHAPES, 2, kv_heads=2)
    layer = "model.layers.0.self_attn."
    output = TensorSlice(f"{layer}o_proj.weight", (8, 16), (0, 8), (8, 8))
    norm = TensorSlice.whole(f"{layer}q_norm.weight", (4,))
    qkv = tuple(
        rows(f"{layer}{name}_proj.weight", half, 2 * half)
        for name, half in (("q", 8), ("k", 4), ("v", 4))
    )
    bias = TensorSlice.whole(f"{layer}o_proj.bias", (8,))
    assert set(second) == {
        # 130 entries are filled up to 192, 96 a rank
        ShardTensor(
            "model.embed_tokens.weight",
            (96, 8),
            (rows("model.embed_tokens.weight", 96, 130),),
        ),
        ShardTensor(f"{layer}qkv_proj.weight", (16, 8), qkv),
        ShardTensor(f"{layer}qkv_proj.bias", (8,), (rows(f"{layer}q_proj.bias", 8, 16),)),
        ShardTensor(f"{layer}o_proj.weight", (8, 8), (output,)),
        ShardTensor(f"{layer}o_proj.bias", (8,), (bias,)),
        ShardTensor(f"{layer}q_norm.weight", (4,), (norm,)),
    }


def test_ranks_beyond_the_key_heads_share_them() -> None:
    shapes = {"model.layers.0.self_attn.k_proj.weight": (8, 8)}
    shards = tensor_parallel_shards(shapes, 4, kv_heads=2)
    assert [one.parts[0].first for (one,) in shards] == [(0, 0), (0, 0), (4, 0), (4, 0)]
    assert {one.shape for (one,) in shards} == {(4, 8)}


def test_a_matrix_of_an_unknown_place_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"'model\.mixer\.in\.weight' \(4, 4\) is no matrix"
    ):
        tensor_parallel_shards({"model.mixer.in.weight": (4, 4)}, 2, kv_heads=1)
