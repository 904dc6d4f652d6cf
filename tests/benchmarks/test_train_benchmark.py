"""What benchmarks/train.py compares: the same samples, losses and gradients; its parts on a small
scale.
"""

from __future__ import annotations

import argparse

import numpy as np
import pytest

from benchmarks.figures import Figures
from benchmarks.train import PARTS, TINY, main
from benchmarks.trainer import backend_cost, logprob_memory, padding, prefix_cost
from benchmarks.trainer.interleaved import in_turn, median_ratio
from benchmarks.trainer.shapes import rows_of

pytestmark = pytest.mark.tooling

ARGUMENTS = argparse.Namespace(sizes=TINY, rounds=1, seed=0)


def measured(part: str) -> dict[str, float]:
    figures = Figures()
    PARTS[part](figures, ARGUMENTS)
    return {row.name: row.value for row in figures.rows}


@pytest.mark.parametrize("seed", [0, 1])
def test_the_longest_sample_makes_the_padding_efficiency(seed: int) -> None:
    lengths = padding.lengths_at(32, 140, 0.43, seed)
    assert len(lengths) == 32
    assert sum(lengths) / (32 * max(lengths)) == pytest.approx(0.43, abs=0.003)


def test_rows_hold_at_most_so_many_tokens_in_order() -> None:
    assert rows_of([5, 3, 4, 9, 1], 8) == [[0, 1], [2], [3], [4]]


def test_a_longer_sample_than_the_row_has_one_of_its_own() -> None:
    assert rows_of([9], 8) == [[0]]


def test_sides_take_turns_and_a_first_round_is_not_counted() -> None:
    calls: list[str] = []
    sides = {name: lambda name=name: calls.append(name) for name in "ab"}
    seconds = in_turn(sides, 2)
    assert calls == ["b", "a", "a", "b", "b", "a"]
    assert {name: len(spent) for name, spent in seconds.items()} == {"a": 2, "b": 2}
    assert median_ratio([2.0, 9.0, 4.0], [1.0, 3.0, 4.0]) == 2.0


def test_packed_and_padded_sides_are_the_same_computation() -> None:
    found = measured("padding")
    assert found["padding efficiency of the samples"] == pytest.approx(0.43, abs=0.02)
    assert all(value > 0 for value in found.values())


def test_sides_that_differ_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = padding.Sides.by_name
    monkeypatch.setattr(
        padding.Sides,
        "by_name",
        lambda self: {
            name: (lambda: 7.0) if name == "packed" else run
            for name, run in by_name(self).items()
        },
    )
    with pytest.raises(RuntimeError, match="loss or gradients of 'packed' are off"):
        measured("padding")


def test_a_group_repeats_its_prompt_alone() -> None:
    batch = prefix_cost.group_of(3, 4, 2, 100, seed=0)
    ids, trained = batch.token_ids.reshape(3, 6), batch.loss_mask.reshape(3, 6)
    assert (ids[:, :4] == ids[0, :4]).all()
    assert not np.array_equal(ids[0, 4:], ids[1, 4:])
    assert trained.sum(0).tolist() == [0, 0, 0, 0, 3, 3]
    # three prompts of 24 and 3 x 6 tokens, against one prompt
    assert measured("prefixes")["tokens of a row, shared over repeated"] == (24 + 18) / 90


def test_both_backends_take_the_same_steps() -> None:
    seconds = backend_cost.compared("tiny", (20, 12), 1)
    assert {name: len(spent) for name, spent in seconds.items()} == {"plain": 1, "fsdp2": 1}


def test_logprobs_on_paper_are_those_of_whole_logits_or_of_a_chunk() -> None:
    # 4 rows of 2^23 entries are a chunk; a weight of width 1 and its gradient are 32 MiB
    sizes = {
        way: logprob_memory.live_bytes(way, 1, 2**23, 16) for way in ("chunks", "whole")
    }
    whole = 16 * 2**23 * 4
    assert 3 * whole <= sizes["whole"] <= 3 * whole + 3 * 2**25
    assert 3 * whole / 4 <= sizes["chunks"] <= 3 * whole / 4 + 3 * 2**25


@pytest.mark.slow
def test_the_count_on_paper_is_a_childs_memory() -> None:
    real = logprob_memory.measured_bytes("chunks", 16, 500_000, 200)
    assert logprob_memory.live_bytes("chunks", 16, 500_000, 200) == pytest.approx(
        real, rel=0.1
    )


def test_a_part_that_does_not_exist_is_refused() -> None:
    assert list(PARTS) == ["padding", "logprobs", "backends", "prefixes"]
    with pytest.raises(SystemExit):
        main(["--only", "nothing"])
