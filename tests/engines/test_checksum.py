"""Checksums by hand, and their properties: exact about places, additive over shards, bound to name
and form.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, tensor

from agentrl.engines import checksum
from agentrl.engines.checksum import checksum_of, shard_sums, tensor_checksum

DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.float64)


def by_hand(data: bytes) -> list[int]:
    """The sums over 8-byte words in Python's own integers; upper halves with their sign."""
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    lower = sum(word * (2 * place + 1) for place, word in enumerate(words))
    signed = [word - (word >> 63 << 64) for word in words]
    upper = sum((word >> 32) * (2 * place + 1) for place, word in enumerate(signed))
    return [lower % 2**64, upper % 2**64]


def sums(*shards: Tensor) -> list[int]:
    return [value % 2**64 for value in sum(shards[1:], shards[0]).tolist()]


def random_bytes(size: int) -> Tensor:
    return torch.from_numpy(
        np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    )


def test_a_word_counts_by_its_place() -> None:
    # words 5, 7 and 2: 5·1 + 7·3 + 2·5; upper halves 0
    assert shard_sums(tensor([5, 7, 2])).tolist() == [36, 0]
    # float32 1.0 is 0x3f800000 and -2.0 is 0xc0000000, the upper half, as a signed number
    lower, upper = shard_sums(tensor([1.0, -2.0])).tolist()
    assert lower % 2**64 == 0xC0000000_3F800000
    assert upper == 0xC0000000 - 2**32


def test_name_shape_and_dtype_are_bound_in() -> None:
    form = hashlib.blake2b(b"w torch.float32 (2,)", digest_size=16).digest()
    own = int.from_bytes(form, "little") + 0xC0000000_3F800000 + (2**64 - 0x40000000 << 64)
    assert tensor_checksum("w", tensor([1.0, -2.0])) == own % 2**128
    zeros = torch.zeros(4)
    forms = (zeros, zeros.view(2, 2), zeros.view(4, 1), zeros.view(torch.int32))
    found = {tensor_checksum(name, one) for name in ("v", "w") for one in forms}
    assert len(found) == 8


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000, 4096, 4097])
def test_any_number_of_bytes_is_summed_in_blocks(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(checksum._BLOCK, "cpu", 64)
    data = random_bytes(size)
    assert sums(shard_sums(data)) == by_hand(data.numpy().tobytes())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [64, 2**19])
def test_shards_add_up_to_the_whole_wherever_it_is_cut(
    dtype: torch.dtype, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(checksum._BLOCK, "cpu", block)
    whole = random_bytes(8 * 61).view(dtype)
    expected = by_hand(whole.view(torch.uint8).numpy().tobytes())
    for cut in (0, 1, 2, 3, 8, whole.numel() // 2, whole.numel()):
        parts = shard_sums(whole[:cut]), shard_sums(whole[cut:], start=cut)
        assert sums(*parts) == expected
        # in memory of its own, as a rank has it
        assert sums(parts[0], shard_sums(whole[cut:].clone(), start=cut)) == expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [(0, 8, 16), (0, 8, 24), (0, 1, 4, 24), (0, 5, 16)])
def test_columns_add_up_to_the_whole(dtype: torch.dtype, columns: tuple[int, ...]) -> None:
    whole = (
        random_bytes(7 * 8 * columns[-1])
        .view(dtype)
        .view(7, -1)[:, : columns[-1]]
        .contiguous()
    )
    parts = [
        shard_sums(whole[:, a:b], start=a, row=columns[-1]) for a, b in pairwise(columns)
    ]
    assert sums(*parts) == by_hand(whole.reshape(-1).view(torch.uint8).numpy().tobytes())


def changed(data: Tensor, at: int, value: int) -> Tensor:
    data = data.clone()
    data[at] = value
    return data


def test_a_change_of_one_bit_two_swapped_words_and_a_shift_are_told() -> None:
    words = torch.from_numpy(np.random.default_rng(0).integers(0, 2**63, 40))
    own = tensor_checksum("w", words)
    for bit in range(63):
        assert tensor_checksum("w", changed(words, 17, int(words[17]) ^ 1 << bit)) != own
    # two words that differ in their sign alone, next to each other and a power of two apart
    for first, second in ((3, 4), (3, 7), (3, 35)):
        signed = changed(words, second, int(words[first]) - 2**63)
        swapped = signed.clone()
        swapped[[first, second]] = signed[[second, first]]
        assert tensor_checksum("w", swapped) != tensor_checksum("w", signed)
    assert tensor_checksum("w", words.roll(1)) != own
    assert (
        checksum_of("w", words.shape, words.dtype, shard_sums(words, start=1).tolist())
        != own
    )


def test_two_swapped_tensors_are_told() -> None:
    one, other = torch.zeros(3), torch.ones(3)
    there = {tensor_checksum("a", one), tensor_checksum("b", other)}
    assert there.isdisjoint({tensor_checksum("a", other), tensor_checksum("b", one)})


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_makes_the_same_sums(dtype: torch.dtype) -> None:
    whole = random_bytes(2**21 + 8 * 5).view(dtype)
    assert torch.equal(shard_sums(whole.cuda()).cpu(), shard_sums(whole))
    assert torch.equal(
        shard_sums(whole[3:].cuda(), start=3).cpu(), shard_sums(whole[3:], start=3)
    )
    columns = whole[: 2**16].view(64, -1)[:, 8:24]
    row = 2**16 // 64
    assert torch.equal(
        shard_sums(columns.cuda(), start=8, row=row).cpu(),
        shard_sums(columns, start=8, row=row),
    )
