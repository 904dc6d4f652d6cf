"""The run that the index is measured on is one that the index reads, and every figure comes out."""

from __future__ import annotations

import argparse
from pathlib import Path

from agentrl.store import RunDirectory
from agentrl.viewer.index import RunIndex
from benchmarks.figures import Figures
from benchmarks.viewers import index as index_part
from benchmarks.viewers.synthetic_run import GROUP_SIZE, RARE, make_run


def test_the_synthetic_run_is_a_run(tmp_path: Path) -> None:
    make_run(tmp_path / "run", trajectories=48, tokens=64, shards=3)
    with RunIndex(RunDirectory.open(tmp_path / "run"), tmp_path / "cache") as index:
        assert index.refresh() == 48
        assert index.damage() == []
        assert index.page(f'"{RARE}"').total == 1
        assert index.page("trained_step:0").total == 16 // GROUP_SIZE * GROUP_SIZE
        assert index.page("env:code,search,maths tokens:64").total == 48


def test_every_figure_of_the_index_comes_out() -> None:
    figures = Figures()
    index_part.measure(figures, argparse.Namespace(trajectories=250, seed=0))
    assert len(figures.rows) > 12
    assert all(row.value > 0 for row in figures.rows)
