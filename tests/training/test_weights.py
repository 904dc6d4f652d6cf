"""Checksums by hand, and additive over shards."""

from __future__ import annotations

import torch
from torch import tensor

from agentrl.training.weights import tensor_checksum
from tests.training.harness import make_actor


def test_a_checksum_weighs_bits_by_their_place() -> None:
    # float32 1.0 is 0x3f800000, -2.0 is 0xc0000000: 1·bits_0 + 3·bits_1
    assert int(tensor_checksum(tensor([1.0, -2.0]))) == 0x3F800000 + 3 * 0xC0000000


def test_a_checksum_of_bfloat16_is_of_its_own_bits() -> None:
    assert int(tensor_checksum(tensor([1.0, -2.0], dtype=torch.bfloat16))) == 0x3F80 + 3 * 0xC000


def test_checksums_add_up_over_shards() -> None:
    whole = torch.arange(40, dtype=torch.float32)
    parts = [tensor_checksum(whole[:13]), tensor_checksum(whole[13:], start=13)]
    assert int(sum(parts)) == int(tensor_checksum(whole))


def test_swapped_weights_have_another_checksum() -> None:
    assert int(tensor_checksum(tensor([1.0, 2.0]))) != int(tensor_checksum(tensor([2.0, 1.0])))


def test_the_actors_checksums_are_those_of_what_it_publishes(model_path: str) -> None:
    actor = make_actor(model_path, "sft")
    published = {name: int(tensor_checksum(weight)) % 2**64 for name, weight in actor.weights("bfloat16")}
    assert actor.checksum("bfloat16") == published
