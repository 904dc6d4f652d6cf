"""Weights from layout to layout over a process group: every rank gets the very numbers that it
wants, receives none that it has, and a rank without an engine receives nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.ranks import run_ranks


def ranks_of(size: int, model: Path, folder: Path) -> list[dict[str, Any]]:
    run_ranks("tests.weight_sync.reshard_rank", size, str(model), str(folder))
    return [
        torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(size)
    ]


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_each_rank_gets_what_it_wants_and_no_more(
    size: int, model: Path, tmp_path: Path
) -> None:
    ranks = ranks_of(size, model, tmp_path)
    for rank, found in enumerate(ranks):
        for name, own in found.items():
            if name.startswith("random"):
                assert all(own), (rank, name, own)
                continue
            assert own["whole"], (rank, name)
            assert own["shard"], (rank, name)
            # rows that ranks do not divide evenly are filled up where all of them gather
            assert own["least"] <= own["whole received"] <= 1.25 * own["least"], (
                rank,
                name,
            )
            assert own["shard received"] < own["least"] / 1.5
            assert own.get("engine", rank > 0)
            assert own["published"] == (0 if rank else own["least"]), (rank, name)
