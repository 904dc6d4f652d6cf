"""Reshard: bytes that ranks receive, and memory that they take, to bring weights from the trainer's
layout into an engine's.

``python -m benchmarks.reshard`` trains nothing: ranks over gloo hold a random model of 125 million
parameters by FSDP2, and each gets its tensor-parallel shard of it in bfloat16.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode

from agentrl.algorithms import make_algorithm
from agentrl.controller.cluster.phases import ranks_of_servers
from agentrl.engines.tensor_parallel import tensor_parallel_shards
from agentrl.engines.tensor_slice import TensorSlice
from agentrl.training import Actor, ActorSpec, DistSpec, join, leave
from agentrl.weight_sync import Resharder, ServedCopy, make_resharder
from agentrl.weight_sync.reshard import BUCKET_BYTES
from benchmarks.figures import Figures, add_arguments
from benchmarks.start import write_random_model
from benchmarks.trainer.ranks import MemoryPeak, run_ranks
from benchmarks.trainer.shapes import SHAPES

MIB = 2**20
Kind = Literal["rows", "columns", "whole"]

NOTES = (
    "Bytes are those that a rank receives from others in the collectives called, by their sizes "
    "as torch dispatches them; a rank holds its generation shard in bfloat16 at the end. Gathering "
    "casts first; verl's order gathers float32, then casts.",
    "The formula is M/t less what a rank holds of its shard, by tensor: M(1/t - 1/d) of those "
    "divided by rows, M(1/t - 1/(d t)) of those divided by columns, M(1 - 1/d) of whole ones.",
    "Memory is the growth of the line Anonymous of /proc/self/smaps_rollup, sampled every 10 ms.",
)


@dataclass(frozen=True)
class Case:
    """``fsdp`` times ``tp`` ranks that train, and the ranks of an engine."""

    fsdp: int
    tp: int
    engine_tp: int

    @property
    def ranks(self) -> int:
        return self.fsdp * self.tp

    @property
    def name(self) -> str:
        trained = f"{self.fsdp} x {self.tp}" if self.tp > 1 else f"{self.fsdp}"
        return f"{trained} to {self.engine_tp}"

    def engine_rank(self, rank: int) -> int:
        """Which rank of its server a rank writes for, as a run has it."""
        servers = ranks_of_servers([""] * self.ranks, self.engine_tp, tp=self.tp)
        return next(own.index(rank) for own in servers if rank in own)

    def share(self, kind: Kind) -> float:
        """Of a tensor, what a rank receives by the formula."""
        if kind == "whole":
            return 1 - 1 / self.fsdp
        if self.tp > 1:
            return 1 / self.engine_tp - 1 / self.ranks
        own = self.fsdp if kind == "rows" else self.fsdp * self.engine_tp
        return 1 / self.engine_tp - 1 / own


CASES = (Case(2, 1, 1), Case(2, 1, 2), Case(4, 1, 1), Case(4, 1, 2), Case(2, 2, 2))


class ReceivedBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what comes from other ranks, whichever interface of torch's is called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        found = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional"):
            self.total += self._received(func.__name__.partition(".")[0], args)
        return found

    def _received(self, name: str, args: Sequence[Any]) -> int:
        if name in ("wait_tensor", "_wrap_tensor_autograd"):
            return 0
        if name == "_allgather_base_":
            return int(args[0].nbytes - args[1].nbytes)
        if name == "alltoall_base_":
            come = list(args[3])
            return int(args[0].itemsize * (sum(come) - come[dist.get_rank()]))
        if name == "all_gather_into_tensor":
            return int(args[0].nbytes * (args[1] - 1))
        raise NotImplementedError(f"the bytes of {name} are not counted here")


def kind_of(name: str, shape: Sequence[int]) -> Kind:
    """How engines divide a tensor."""
    if len(shape) < 2:
        return "whole"
    return "columns" if name.split(".")[-2] in ("o_proj", "down_proj") else "rows"


def counted(work: Iterable[object]) -> int:
    """Bytes received by an iteration that keeps nothing."""
    received = ReceivedBytes()
    with received:
        for _ in work:
            pass
    return received.total


def redistributed(actor: Actor, mesh: DeviceMesh) -> Iterable[Tensor]:
    """By torch's own redistribution over the ranks of an engine, and those beside each."""
    for name, parameter in actor.backend.state().items():
        assert isinstance(parameter, DTensor)
        kind = kind_of(name, parameter.shape)
        divided: Placement = (
            Replicate() if kind == "whole" else Shard(int(kind == "columns"))
        )
        held = DTensor.from_local(
            parameter.to_local().bfloat16(),
            mesh,
            [Shard(0), Shard(0)],
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )
        yield held.redistribute(placements=[divided, Replicate()]).to_local()


def moved(actor: Actor, case: Case, rank: int, kv_heads: int) -> dict[str, float]:
    """One rank's figures of a case, bytes."""
    wholes = {part.name: part.shape for part in actor.parts("bfloat16")}
    shards = tensor_parallel_shards(wholes, case.engine_tp, kv_heads=kv_heads)
    own = shards[case.engine_rank(rank)]
    wanted = [part for tensor in own for part in tensor.parts]
    held = [part.block for part in actor.parts("bfloat16")]
    resharder = Resharder(held, wanted, torch.bfloat16, torch.device("cpu"))
    with ReceivedBytes() as received:
        peak = MemoryPeak()
        got = {part.block: part.tensor for part in resharder.run(actor.parts("bfloat16"))}
        growth = peak.close()
    found: dict[str, float] = {
        "received": received.total,
        "formula": 2
        * sum(
            TensorSlice.whole(name, shape).numel * case.share(kind_of(name, shape))
            for name, shape in wholes.items()
        ),
        "growth": growth,
        "shard": sum(tensor.nbytes for tensor in got.values()),
    }
    with ReceivedBytes() as received:
        equal = [
            torch.equal(tensor, whole[block.slices])
            for name, whole in actor.weights("bfloat16")
            for block, tensor in got.items()
            if block.name == name
        ]
    assert equal == [True] * len(wanted), "the wrong numbers came"
    got.clear()
    found["gathered"] = received.total
    found["verl"] = counted(whole.bfloat16() for _, whole in actor.weights("float32"))
    if case.tp == 1:
        mesh = init_device_mesh("cpu", (case.engine_tp, case.fsdp // case.engine_tp))
        found["torch"] = counted(redistributed(actor, mesh))
    return found


def copies(actor: Actor) -> dict[str, float]:
    """A rank's memory of what it serves to others, and of whole tensors on their way to an engine
    beside it, which keeps none of them."""
    resharder = make_resharder(actor, "bfloat16", has_engine=True)
    served = ServedCopy()
    peak = MemoryPeak()
    for _ in served.renew(actor.parts("bfloat16"), 1):
        pass
    largest = 0
    for part in resharder.run(actor.parts("bfloat16")):
        largest = max(largest, part.tensor.nbytes)
    return {"growth": peak.close(), "largest": largest}


def on_rank(arguments: argparse.Namespace) -> dict[str, float]:
    """What one rank measures."""
    torch.set_num_threads(1)
    case = Case(*json.loads(arguments.case))
    place = DistSpec(
        arguments.rank, case.ranks, port=arguments.port, timeout_s=600, tp=case.tp
    )
    join(place)
    actor = Actor(ActorSpec(arguments.folder, make_algorithm("sft")), place)
    if arguments.copies:
        found = copies(actor)
    else:
        kv_heads = int(SHAPES[arguments.shape]["num_key_value_heads"])
        found = moved(actor, case, arguments.rank, kv_heads)
    leave()
    return found


def report(figures: Figures, case: Case, ranks: Sequence[Mapping[str, float]]) -> None:
    """A case's figures, each the worst of its ranks."""
    worst = {key: max(rank[key] for rank in ranks) for key in ranks[0]}
    for key, told in (
        ("received", "received"),
        ("gathered", "received by gathering"),
        ("verl", "received in verl's order"),
        ("torch", "received by torch's redistribute on a CPU"),
    ):
        if key in worst:
            figures.report(f"{case.name}: {told}", worst[key] / MIB, "MiB")
    error = max(abs(rank["received"] / rank["formula"] - 1) for rank in ranks)
    figures.at_most(f"{case.name}: off the formula", error, "", 0.05)
    if (case.fsdp, case.engine_tp) == (4, 2):
        for key, told in (("gathered", "gathering"), ("verl", "verl's order")):
            ratio = max(rank["received"] / rank[key] for rank in ranks)
            figures.at_most(f"{case.name}: received, over {told}", ratio, "x", 0.5)
    over = max(rank["growth"] - rank["shard"] for rank in ranks)
    room = BUCKET_BYTES / MIB
    figures.at_most(
        f"{case.name}: memory over the generation shard", over / MIB, "MiB", room
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reshard", description=__doc__
    )
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--shape", choices=SHAPES, default="125M", help="of the model")
    parser.add_argument("--copies", action="store_true", help=argparse.SUPPRESS)
    add_arguments(parser, benchmark="reshard")
    arguments = parser.parse_args(argv)
    if arguments.rank is not None:
        print(json.dumps(on_rank(arguments)))
        return 0
    figures = Figures()
    # Freed memory of the ranks goes back at once, so that a peak is what they held.
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        model_bytes = 2 * write_random_model(folder, arguments.shape)
        figures.report("the model in bfloat16", model_bytes / MIB, "MiB")
        for case in CASES:
            given = ("--folder", str(folder), "--shape", arguments.shape, "--case")
            own = json.dumps([case.fsdp, case.tp, case.engine_tp])
            print(f"-- {case.name}", flush=True)
            report(
                figures, case, run_ranks("benchmarks.reshard", *given, own, size=case.ranks)
            )
        both = run_ranks("benchmarks.reshard", *given, "[2, 1, 1]", "--copies")
    kept = sum(rank["growth"] - rank["largest"] - BUCKET_BYTES for rank in both)
    figures.at_most(
        "copies of the model on two ranks outside engines, beside a bucket and a tensor on each",
        kept / model_bytes,
        "x",
        1,
    )
    for note in NOTES:
        figures.note(note)
    return figures.finish(arguments, seeds=[0])


if __name__ == "__main__":
    sys.exit(main())
