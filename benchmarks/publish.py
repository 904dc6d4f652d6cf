"""Publish: processor time and memory of a publish to the engine in this process, and of its
checksums.

``python -m benchmarks.publish`` trains nothing: it publishes a random model of 125 million
parameters several times, in float32 and in bfloat16.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from agentrl.algorithms import make_algorithm
from agentrl.controller.cluster.ray_role_group import _KEEP_FREED_MEMORY
from agentrl.engines import EnginePlace, ServedDtype
from agentrl.engines.checksum import shard_sums
from agentrl.engines.torch import TorchEngine
from agentrl.training import Actor, ActorSpec, DistSpec, join, leave
from agentrl.weight_sync import publish_in_process
from benchmarks.figures import ROOT, Figures, add_arguments
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
    "made them, alternate over the same tensors. The process keeps freed memory, as the ranks of a "
    "run do on a CPU.",
    "Memory is that of a second process, which gives it back: the growth of the line Anonymous of "
    "/proc/self/smaps_rollup, sampled every 10 ms. Those looks take processor time of their own.",
)


def by_element(tensor: Tensor) -> Tensor:
    """The checksum of earlier versions: Σ bits_i · (2i + 1) over elements."""
    bits = tensor.view({2: torch.int16, 4: torch.int32}[tensor.itemsize]).reshape(-1)
    flat = bits.to(torch.int64) & (2 ** (8 * tensor.itemsize) - 1)
    return torch.sum(flat * (2 * torch.arange(flat.numel()) + 1))


def seconds(work: Callable[[], object]) -> float:
    """Processor seconds."""
    before = time.process_time()
    work()
    return time.process_time() - before


def memory(work: Callable[[], object]) -> float:
    """MiB of extra memory. To look at it takes processor time, which is measured elsewhere."""
    peak = MemoryPeak()
    work()
    return peak.close() / MIB


MEASURES: Mapping[str, Callable[[Callable[[], object]], float]] = {
    "seconds": seconds,
    "memory": memory,
}
ENVIRONMENTS: Mapping[str, Mapping[str, str]] = {
    "seconds": _KEEP_FREED_MEMORY,
    "memory": {},
}


def _sum_all(make: Callable[[Tensor], Tensor], tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        make(tensor)


def checksums(
    actor: Actor, dtype: ServedDtype, measure: str, runs: int
) -> dict[str, float]:
    """Checksums by words beside those by element."""
    tensors = [tensor.contiguous() for _, tensor in actor.weights(dtype)]
    names: Mapping[Callable[[Tensor], Tensor], str]
    names = {
        by_element: f"{dtype}: checksums by element",
        shard_sums: f"{dtype}: checksums",
    }
    found: dict[str, list[float]] = {}
    for _ in range(runs):
        for make, name in names.items():
            found.setdefault(name, []).append(
                MEASURES[measure](partial(_sum_all, make, tensors))
            )
    rule = min if measure == "seconds" else max
    return {name: rule(own) for name, own in found.items()}


def publishes(
    actor: Actor, folder: Path, dtype: ServedDtype, measure: str, runs: int
) -> float:
    """The least of publishes to a TorchEngine."""
    place = EnginePlace(str(folder), dtype=dtype, max_running=2, num_threads=1)
    engine = TorchEngine(place)
    try:
        publish_in_process(actor, engine, 1)  # the first one compiles nothing again
        return min(
            MEASURES[measure](partial(publish_in_process, actor, engine, version))
            for version in range(2, runs + 2)
        )
    finally:
        engine.close()


def costs(shape: str, measure: str, runs: int) -> dict[str, float]:
    """Of everything, in this process."""
    torch.set_num_threads(1)
    found: dict[str, float] = {}
    join(DistSpec())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "model")
        write_random_model(folder, shape)
        actor = Actor(ActorSpec(str(folder), make_algorithm("sft")), DistSpec())
        for dtype in DTYPES:
            found |= checksums(actor, dtype, measure, runs)
            found[f"{dtype}: a publish"] = publishes(actor, folder, dtype, measure, runs)
    leave()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.publish", description=__doc__
    )
    parser.add_argument("--runs", type=int, default=5, help="of each")
    parser.add_argument("--shape", default="125M", help="of the model (125M)")
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    add_arguments(parser, benchmark="publish")
    arguments = parser.parse_args(argv)
    if arguments.measure:
        print(json.dumps(costs(arguments.shape, arguments.measure, arguments.runs)))
        return 0
    command = [sys.executable, "-m", "benchmarks.publish", "--shape", arguments.shape]
    command += ["--runs", str(arguments.runs), "--measure"]
    found: dict[str, dict[str, float]] = {}
    for measure, env in ENVIRONMENTS.items():
        answer = subprocess.run(
            [*command, measure],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **env},
            stdout=subprocess.PIPE,
            text=True,
            timeout=900,
            check=True,
        )
        found[measure] = json.loads(answer.stdout.splitlines()[-1])
    figures = Figures()
    s, mib = found["seconds"], found["memory"]
    for dtype in DTYPES:
        sums, publish = f"{dtype}: checksums", f"{dtype}: a publish"
        old, new = s[f"{sums} by element"], s[sums]
        figures.report(f"{sums} by element", old, "s")
        figures.report(f"{sums} by words", new, "s")
        figures.at_most(f"{dtype}: by words over by element", new / old, "x", MOST_RATIO)
        figures.at_most(f"{sums}, extra memory", mib[sums], "MiB", MOST_CHECKSUM_MIB)
        figures.at_most(f"{publish} in this process", s[publish], "s", MOST_S)
        figures.report(f"{publish}, extra memory", mib[publish], "MiB")
    for note in NOTES:
        figures.note(note)
    return figures.finish(arguments, seeds=[0])


if __name__ == "__main__":
    sys.exit(main())
