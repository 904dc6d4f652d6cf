"""Server weights: what each way of weights to a server costs.

``python -m benchmarks.server_weights`` trains nothing: it gives a random model of 125 million
parameters to a real SGLang with one tensor-parallel rank and with two, several times in each way.
``--shape tiny --runs 1`` tries in a minute whether all of it runs; its figures say nothing.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from agentrl.algorithms import make_algorithm
from agentrl.engines import EnginePlace, Transport
from agentrl.engines.base import TransportName
from agentrl.engines.checksum import tensor_checksum
from agentrl.engines.sglang import SGLangEngine, SGLangEngineSpec
from agentrl.engines.sglang.environment import SGLANG
from agentrl.training import Actor, ActorSpec, DistSpec, join, leave
from agentrl.weight_sync import make_sender
from benchmarks.figures import Figures, add_arguments
from benchmarks.start import write_random_model
from benchmarks.trainer.ranks import MemoryPeak
from benchmarks.trainer.shapes import SHAPES

MOST_COPIES = 3
MOST_RATIO = 1 / 8

NOTE = (
    "Float32. A way is measured from an update's start to the server's last answer, without "
    "digests and probe, the least of the runs. Processor seconds are those of this process alone, "
    "since a paused SGLang spins. The copies go tensor by tensor to memory that was written "
    "before. Each way sums what it sends once, as the checksums above do; copies of shared memory "
    "are without the seconds of that where nothing else is said. Bytes are those that this "
    "machine's loopback took in an update, whoever sent them. "
    "Memory is the growth of this process's anonymous memory in the first update; what lies in "
    "/dev/shm is not in it."
)


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """By the clock, and of the processor."""
    wall, processor = time.monotonic(), time.process_time()
    work()
    return time.monotonic() - wall, time.process_time() - processor


def _copy_all(tensors: Mapping[str, Tensor], memory: Tensor) -> None:
    for tensor in tensors.values():
        memory[: tensor.numel()].view(tensor.shape).copy_(tensor)


def _sum_all(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        tensor_checksum(name, tensor)


def _update(engine: SGLangEngine, tensors: Mapping[str, Tensor], version: int) -> None:
    session = engine.begin_update(version)
    for name, tensor in tensors.items():
        session.put(name, tensor)
    session.commit()


def loopback_bytes() -> int:
    """That this machine has sent itself so far."""
    lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()
    [counts] = [line.partition(":")[2] for line in lines if line.strip().startswith("lo:")]
    return int(counts.split()[0])


def ways(
    figures: Figures,
    tensors: Mapping[str, Tensor],
    engine: SGLangEngine,
    name: str,
    runs: int,
) -> dict[str, float]:
    """Processor seconds of each way."""
    engine.pause("retract")
    found: dict[str, float] = {}
    size = sum(tensor.nbytes for tensor in tensors.values())
    version = 0
    for way in get_args(TransportName):
        engine.sender = make_sender(Transport(way))
        assert engine.sender is not None
        least = math.inf
        peak = MemoryPeak()
        for run in range(runs + 1):  # the first one makes what is used again
            version += 1
            for tensor in tensors.values():
                # What has not changed is not sent.
                tensor += 1e-3
            before = loopback_bytes()
            wall, processor = seconds(partial(_update, engine, tensors, version))
            sent = loopback_bytes() - before
            if not run:
                figures.report(
                    f"{name}: {way}, memory over the model", peak.close() / size, "x"
                )
            least = min(least, wall)
            found[way] = min(found.get(way, math.inf), processor)
        engine.sender.close()
        figures.report(f"{name}: {way}", least, "s")
        figures.report(f"{name}: {way}, processor", found[way], "s")
        figures.report(f"{name}: {way}, bytes over the model", sent / size, "x")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server_weights", description=__doc__
    )
    parser.add_argument("--shape", choices=SHAPES, default="125M", help="of the model")
    parser.add_argument("--runs", type=int, default=2, help="of each, after a first one")
    parser.add_argument(
        "--tp", type=int, nargs="+", default=(1, 2), help="ranks of a server"
    )
    own = os.environ.get("AGENTRL_SGLANG_PYTHON") or SGLANG.python()
    parser.add_argument("--python", default=str(own), help="of an environment with SGLang")
    add_arguments(parser, benchmark="server_weights")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    figures = Figures()
    join(DistSpec())
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "model")
        figures.report("parameters", write_random_model(folder, arguments.shape) / 1e6, "M")
        actor = Actor(ActorSpec(str(folder), make_algorithm("sft")), DistSpec())
        tensors = {
            name: tensor.detach().clone() for name, tensor in actor.weights("float32")
        }
        memory = torch.ones(max(tensor.numel() for tensor in tensors.values()))
        copy = min(seconds(partial(_copy_all, tensors, memory))[1] for _ in range(5))
        figures.report("a copy of the same bytes, processor", copy, "s")
        sums = min(seconds(partial(_sum_all, tensors))[1] for _ in range(5))
        figures.report("checksums of the same bytes, processor", sums, "s")
        for tp_size in arguments.tp:
            name = f"TP {tp_size}"
            place = EnginePlace(str(folder), str(Path(scratch, name)), kv_tokens=1024)
            spec = SGLangEngineSpec(python=arguments.python, tp_size=tp_size)
            engine = SGLangEngine(place, spec)
            try:
                found = ways(figures, tensors, engine, name, arguments.runs)
            finally:
                engine.close()
            shared = found["shared_memory"]
            figures.report(
                f"{name}: shared_memory in copies, checksums among them", shared / copy, ""
            )
            moved = (shared - sums) / copy
            figures.at_most(f"{name}: shared_memory in copies", moved, "", MOST_COPIES)
            of_http = shared / found["http"]
            figures.at_most(f"{name}: shared_memory over http", of_http, "x", MOST_RATIO)
    leave()
    figures.note(NOTE)
    return figures.finish(arguments, seeds=[0])


if __name__ == "__main__":
    sys.exit(main())
