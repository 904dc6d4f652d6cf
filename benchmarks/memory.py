"""Memory: the bytes of a training step on paper, and how near the count is to live storages.

``python -m benchmarks.memory`` counts Qwen3-8B, a 32B shape and Qwen3-30B-A3B on 8 and 64 ranks,
the dense ones trained whole and by an adapter, compares the same count at 125M with two real ranks
over gloo, and writes the table of docs/scale.md.
``--only live`` or ``--only paper`` does one of the two.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from agentrl.training.parallel.process_group import Sharding
from benchmarks.figures import ROOT, Figures, add_arguments
from benchmarks.trainer.memory_count import GIB, Count, on_paper
from benchmarks.trainer.ranks import RANKS, run_ranks

__all__ = ["table"]

PAGE = ROOT / "docs" / "scale.md"
MARK = "<!-- python -m benchmarks.memory writes what follows -->\n\n"
ROW = (2048,) * 8  # 16,384 tokens
CASES = (
    ("8B", 8, 1),
    ("8B", 64, 1),
    ("32B", 8, 1),
    ("32B", 64, 1),
    ("30B-A3B", 8, 1),
    ("30B-A3B", 8, 8),
    ("30B-A3B", 64, 1),
    ("30B-A3B", 64, 8),
)
"""Shape, ranks, and those that share the experts of a layer."""
ADAPTED = ("8B", "32B")
RANK = 8
LIVE = (256, 256)
MOST_GIB = 48
NEAR = 0.05


def table(counts: Sequence[tuple[str, int, Count]]) -> str:
    """The Markdown of counts by shape and ranks."""
    head = (
        "shape",
        "ranks",
        "parameters",
        "gradients",
        "optimizer",
        "gathered",
        "activations",
    )
    lines = [f"| {' | '.join(head)} | peak |", "|---" * (len(head) + 1) + "|"]
    for shape, ranks, count in counts:
        parts = (
            count.parameters,
            count.gradients,
            count.optimizer,
            count.gathered,
            count.activations,
            count.total,
        )
        cells = [f"{part / GIB:.2f}" for part in parts]
        lines.append(f"| {shape} | {ranks} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def paper(figures: Figures) -> None:
    """The counts, and the page."""
    counts = []
    for shape, ranks, ep in CASES:
        count = on_paper(shape, ranks, ROW, sharding=Sharding(ep=ep))
        named = f"{shape}, `ep_size: {ep}`" if ep > 1 else shape
        counts.append((named, ranks, count))
        label = f"{named} on {ranks} ranks, rows of {sum(ROW)} tokens: peak a rank"
        most = (shape, ranks) == ("8B", 8)
        if most:
            figures.at_most(label, count.total / GIB, "GiB", MOST_GIB)
        else:
            figures.report(label, count.total / GIB, "GiB")
        if shape not in ADAPTED:
            continue
        adapter = on_paper(shape, ranks, ROW, rank=RANK)
        counts.append((f"{shape}, adapter of rank {RANK}", ranks, adapter))
        told = f"{shape} on {ranks} ranks, adapter of rank {RANK}, share of full training's"
        figures.at_most(f"{told} shards", adapter.shards / count.shards, "", 0.5)
        share = adapter.checkpoint / count.checkpoint
        figures.at_most(f"{told} checkpoint", share, "", 0.05)
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.partition(MARK)[0] + MARK + table(counts), encoding="utf-8")


def compared(figures: Figures) -> None:
    """The count beside two real ranks."""
    found = run_ranks("benchmarks.trainer.memory_rank", "125M", *map(str, LIVE))
    count = on_paper("125M", RANKS, LIVE, dtype=torch.float32, attention="segments")
    peak = max(rank[0] for rank in found)
    after = found[0][1]
    shards = count.shards
    figures.report("125M on 2 ranks: live peak of forward and backward", peak / GIB, "GiB")
    off = abs(count.step_peak / peak - 1)
    figures.at_most("125M on 2 ranks: the count of the peak, off by", off, "", NEAR)
    figures.report("125M on 2 ranks: live after a step", after / GIB, "GiB")
    off = abs(shards / after - 1)
    figures.at_most("125M on 2 ranks: the count of shards, off by", off, "", NEAR)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory", description=__doc__
    )
    parser.add_argument("--only", choices=("paper", "live"))
    add_arguments(parser, benchmark="memory")
    arguments = parser.parse_args(argv)
    figures = Figures()
    if arguments.only != "live":
        paper(figures)
    if arguments.only != "paper":
        compared(figures)
    figures.note(
        "On paper: FakeTensorMode and torch's fake process group, layers recomputed, bfloat16, "
        "varlen attention; parameters, gradients and AdamW's moments in float32. Live: float32, "
        f"rows of {sum(LIVE)} tokens, all storages of the process."
    )
    return figures.finish(arguments, seeds=[0])


if __name__ == "__main__":
    sys.exit(main())
