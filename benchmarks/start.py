"""Start: memory and reads of a rank that builds a role from a Hugging Face folder.

``python -m benchmarks.start`` writes a random model of 500 million parameters, a file at a
time, and starts an actor on two ranks over gloo.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import Qwen3ForCausalLM

from agentrl.algorithms import make_algorithm
from agentrl.training import ActorSpec, DistSpec, join, leave
from agentrl.training.models.folder_weights import FolderWeights
from benchmarks.figures import Figures, add_arguments
from benchmarks.trainer.ranks import RANKS, MemoryPeak, run_ranks
from benchmarks.trainer.shapes import config_of

__all__ = ["write_random_model"]

MIB = 2**20
SMALL = 64 * 2**10
"""Bytes of a tensor that both ranks may read."""

NOTES = (
    "A rank's memory is the line Anonymous of /proc/self/smaps_rollup, sampled every 10 ms from "
    "before the role is built until it is; the folder's mapped pages are not in it.",
    "Bytes of the folder are those of the slices asked for by safetensors' get_slice, by tensor "
    "and range; a range that both ranks asked for counts as read twice.",
)


def write_random_model(folder: Path, shape: str) -> int:
    """A model of bfloat16 weights, a file for each layer; its number of parameters."""
    config = config_of(shape)
    config.dtype = torch.bfloat16
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config)
    folder.mkdir(parents=True)
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    files: dict[str, list[str]] = {}
    sizes = dict(model.named_parameters())
    for name in sizes:
        part = ".".join(name.split(".")[:3]) if ".layers." in name else "rest"
        files.setdefault(part, []).append(name)
    generator = torch.Generator().manual_seed(0)
    where: dict[str, str] = {}
    for number, names in enumerate(files.values(), start=1):
        file = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        tensors = {
            name: torch.randn(sizes[name].shape, generator=generator).mul_(0.02).bfloat16()
            for name in names
        }
        save_file(tensors, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(names, file)
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps(index), encoding="utf-8"
    )
    return sum(parameter.numel() for parameter in sizes.values())


@contextmanager
def kept_reads() -> Iterator[list[FolderWeights]]:
    """Collects what is filled within."""
    opened: list[FolderWeights] = []
    fill = FolderWeights.fill

    def keep(weights: FolderWeights, device: torch.device) -> None:
        opened.append(weights)
        fill(weights, device)

    FolderWeights.fill = keep  # type: ignore[assignment, method-assign]
    try:
        yield opened
    finally:
        FolderWeights.fill = fill  # type: ignore[method-assign]


def start(folder: str, place: DistSpec) -> dict[str, Any]:
    """Builds an actor on one rank."""
    torch.set_num_threads(1)
    join(place)
    peak = MemoryPeak()
    begin = time.monotonic()
    with kept_reads() as opened:
        actor = ActorSpec(folder, make_algorithm("sft")).build(place)
    seconds, growth = time.monotonic() - begin, peak.close()
    shard = sum(one.to_local().nbytes for one in actor.backend.state().values())  # type: ignore[attr-defined]
    leave()
    return {"seconds": seconds, "growth": growth, "shard": shard, "read": opened[0].read}


def read_twice(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of bfloat16 that both read, by tensor."""
    return {
        key: 2
        * sum(
            math.prod(
                max(0, min(b, d) - max(a, c))
                for (a, b), (c, d) in zip(one, other, strict=True)
            )
            for one, other in product(first[key], second[key])
        )
        for key in first.keys() & second.keys()
    }


def bytes_of(read: Mapping[str, Any]) -> int:
    """Of bfloat16 that one rank read."""
    found = 0
    for part in (part for parts in read.values() for part in parts):
        found += 2 * math.prod(b - a for a, b in part)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    add_arguments(parser, benchmark="start")
    arguments = parser.parse_args(argv)
    if arguments.rank is not None:
        place = DistSpec(arguments.rank, RANKS, port=arguments.port, timeout_s=600)
        print(json.dumps(start(arguments.folder, place)))
        return 0
    figures = Figures()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        parameters = write_random_model(folder, "500M")
        ranks = run_ranks("benchmarks.start", "--folder", str(folder))
    twice = read_twice(ranks[0]["read"], ranks[1]["read"])
    figures.report("parameters", parameters / 1e6, "M")
    for number, rank in enumerate(ranks):
        figures.report(f"rank {number}: shard in float32", rank["shard"] / MIB, "MiB")
        over = (rank["growth"] - rank["shard"]) / MIB
        figures.at_most(f"rank {number}: anonymous memory over its shard", over, "MiB", 512)
        figures.report(
            f"rank {number}: read of the folder", bytes_of(rank["read"]) / MIB, "MiB"
        )
        figures.report(f"rank {number}: seconds to build the actor", rank["seconds"], "s")
    figures.at_most(
        "largest tensor read by both", max(twice.values()) / 1024, "KiB", SMALL / 1024
    )
    figures.report("all that both read", sum(twice.values()) / 1024, "KiB")
    for note in NOTES:
        figures.note(note)
    return figures.finish(arguments, seeds=[0])


if __name__ == "__main__":
    sys.exit(main())
