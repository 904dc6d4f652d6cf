"""Publish: processor time and memory of a publish to the engine in this process, and of its
checksums.

``python -m benchmarks.publish`` trains nothing: it publishes a random model of 125 million
parameters several times, in float32 and in bfloat16.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from agentrl.algorithms import make_algorithm
from agentrl.engines import EnginePlace, ServedDtype
from agentrl.engines.checksum import shard_sums
from agentrl.engines.torch import TorchEngine
from agentrl.training import Actor, ActorSpec, DistSpec, join, leave
from agentrl.weight_sync import publish_in_process
from benchmarks.figures import Figures, add_arguments
from benchmarks.start import write_random_model
from benchmarks.trainer.ranks import MemoryPeak

__all__ = ["by_element"]

MIB = 2**20
MOST_RATIO = 1 / 8
MOST_CHECKSUM_MIB = 64
MOST_S = 0.6
DTYPES: tuple[ServedDtype, ...] = ("float32", "bfloat16")

NOTES = (
    "Processor seconds are those of all threads of the process, the least of the runs, since a "
    "busy machine lengthens them too. Checksums by words and those by element, as earlier versions "
    "made them, alternate over the same tensors.",
    "Memory is the growth of the line Anonymous of /proc/self/smaps_rollup, sampled every 10 ms.",
)


def by_element(tensor: Tensor) -> Tensor:
    """The checksum of earlier versions: Σ bits_i · (2i + 1) over elements."""
    bits = tensor.view({2: torch.int16, 4: torch.int32}[tensor.itemsize]).reshape(-1)
    flat = bits.to(torch.int64) & (2 ** (8 * tensor.itemsize) - 1)
    return torch.sum(flat * (2 * torch.arange(flat.numel()) + 1))


def measured(work: Callable[[], object]) -> tuple[float, float]:
    """Processor seconds and MiB of extra memory."""
    peak = MemoryPeak()
    before = time.process_time()
    work()
    seconds = time.process_time() - before
    return seconds, peak.close() / MIB


def _sum_all(make: Callable[[Tensor], Tensor], tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        make(tensor)


def checksums(figures: Figures, actor: Actor, dtype: ServedDtype, runs: int) -> None:
    """Checksums by words beside those by element."""
    tensors = [tensor.contiguous() for _, tensor in actor.weights(dtype)]
    found: dict[Callable[[Tensor], Tensor], list[tuple[float, float]]] = {}
    for _ in range(runs):
        for make in (by_element, shard_sums):
            found.setdefault(make, []).append(measured(partial(_sum_all, make, tensors)))
    (old, new), (_, memory) = (
        [rule(run[place] for run in own) for own in found.values()]
        for place, rule in enumerate((min, max))
    )
    figures.report(f"{dtype}: checksums by element", old, "s")
    figures.report(f"{dtype}: checksums by words", new, "s")
    figures.at_most(f"{dtype}: by words over by element", new / old, "x", MOST_RATIO)
    figures.at_most(f"{dtype}: checksums, extra memory", memory, "MiB", MOST_CHECKSUM_MIB)


def publishes(figures: Figures, actor: Actor, folder: Path, dtype: ServedDtype, runs: int) -> None:
    """A publish to a TorchEngine."""
    place = EnginePlace(str(folder), dtype=dtype, max_running=2, num_threads=1)
    engine = TorchEngine(place)
    try:
        publish_in_process(actor, engine, 1)  # the first one compiles nothing again
        found = [
            measured(partial(publish_in_process, actor, engine, version))
            for version in range(2, runs + 2)
        ]
    finally:
        engine.close()
    seconds, memory = (min(run[place] for run in found) for place in (0, 1))
    figures.at_most(f"{dtype}: a publish in this process", seconds, "s", MOST_S)
    figures.report(f"{dtype}: a publish, extra memory", memory, "MiB")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.publish", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="of each")
    add_arguments(parser, benchmark="publish")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    figures = Figures()
    join(DistSpec())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "model")
        figures.report("parameters", write_random_model(folder, "125M") / 1e6, "M")
        actor = Actor(ActorSpec(str(folder), make_algorithm("sft")), DistSpec())
        for dtype in DTYPES:
            checksums(figures, actor, dtype, arguments.runs)
            publishes(figures, actor, folder, dtype, arguments.runs)
    leave()
    for note in NOTES:
        figures.note(note)
    return figures.finish(arguments, seeds=[0])


if __name__ == "__main__":
    sys.exit(main())
