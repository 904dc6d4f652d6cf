"""Delta: bytes of publishes that send what changed alone, and of all of them on the link between
two machines.

``python -m benchmarks.delta`` trains a random model of 125 million parameters with AdamW at 1e-6,
served in bfloat16. ``--only link`` needs root and iproute2, for two network namespaces; with
``--sglang PYTHON`` its workers have servers, which are given whole tensors.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.algorithms import make_algorithm
from agentrl.controller.cluster.episode_host import EpisodeHost
from agentrl.controller.cluster.rollout_pool import RolloutWorkerSpec
from agentrl.controller.cluster.worker import Worker
from agentrl.engines import EnginePlace, EnginePlan, ServedDtype
from agentrl.engines.sglang import SGLangEngineSpec
from agentrl.engines.torch import TorchEngineSpec
from agentrl.training import Actor, ActorSpec, DistSpec, OptimSpec
from agentrl.training.backends.backend import StatSum
from agentrl.training.data.packing import Packed
from agentrl.weight_sync import PartBits, ServedWeights
from benchmarks.figures import NOT_HERE, ROOT, Figures, add_arguments, measure_parts
from benchmarks.start import write_random_model
from benchmarks.trainer.shapes import SHAPES, packed_row
from tests.kit.far_node import ADDRESS, FAR, NEAR, ray_node, two_namespaces
from tests.rollouts.bytewise import rollout_spec

__all__ = ["PARTS"]

DTYPE: ServedDtype = "bfloat16"
MOST_DELTA = 0.1
MOST_FULL = 1.1
WORKERS = 2


class RowActor(Actor):
    """An actor that trains rows of random tokens."""

    def train_row(self, shape: str, seed: int) -> None:
        """One optimizer step."""

        def loss(row: Packed, answer: tuple[Tensor, Tensor], _: StatSum) -> Tensor:
            return -answer[0].sum() / row.targets.numel()

        row = packed_row((48, 48), int(SHAPES[shape]["vocab_size"]), seed=seed)
        self.backend.run([row], loss)
        self.step()


@dataclass(frozen=True)
class RowActorSpec(ActorSpec):
    """What a ``RowActor`` is built from."""

    def build(self, place: DistSpec) -> RowActor:
        """See ``ActorSpec.build``."""
        return RowActor(self, place)


def actor_spec(folder: Path, lr: float) -> RowActorSpec:
    return RowActorSpec(str(folder), make_algorithm("sft"), OptimSpec(lr=lr))


def engine_plan(folder: Path, sglang: str | None = None) -> EnginePlan:
    place = EnginePlace(str(folder), dtype=DTYPE, max_running=2, num_threads=1)
    if sglang is None:
        return EnginePlan(TorchEngineSpec(), place)
    own = replace(place, folder=str(folder.with_name("servers")), kv_tokens=1024)
    return EnginePlan(SGLangEngineSpec(python=sglang, device="cpu"), own)


@contextmanager
def model_of(arguments: argparse.Namespace) -> Iterator[tuple[Path, int]]:
    """A model's folder, and its bytes as served."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "model")
        yield folder, 2 * write_random_model(folder, arguments.shape)


class OwnRank:
    """``PartReader`` of a worker of this process; counts its processor seconds."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def ask(self, version: int, names: Sequence[tuple[str, ...]], changes: bool) -> Any:
        return version, names[0], changes

    def take(self, asked: Any) -> list[list[PartBits]]:
        return [self.worker.served_parts("actor", *asked)]

    def root(self, method: str, *args: Any) -> Any:
        raise AssertionError("nothing is broadcast")

    def serve(self, version: int, *, changes: bool) -> tuple[ServedWeights, float]:
        """A version, and the processor seconds that it took."""
        before = time.process_time()
        places, reference, base = self.worker.serve("actor", DTYPE, version, changes)
        assert reference is not None
        seconds = time.process_time() - before
        return ServedWeights(version, DTYPE, (places,), reference, self, base), seconds


def changes(figures: Figures, arguments: argparse.Namespace) -> None:
    """Publishes of changes to an engine in this process, one after each optimizer step.

    Raises:
        AgentRLError: an engine serves other bits than the trainer.
    """
    torch.set_num_threads(1)
    with model_of(arguments) as (folder, model_bytes):
        worker, host = Worker("ranks"), EpisodeHost()
        worker.join(DistSpec(), 1)
        worker.setup({"actor": actor_spec(folder, arguments.lr)})
        rank = OwnRank(worker)
        host.engine = engine_plan(folder).build()  # type: ignore[assignment]
        assert host.engine is not None
        sizes: list[int] = []
        seconds: dict[bool, list[float]] = {True: [], False: []}
        try:
            for version in range(arguments.deltas + 1):
                weights, whole_s = rank.serve(version, changes=version > 0)
                seconds[version > 0].append(whole_s)
                (report,) = host.update(weights, version, "retract")
                if host.engine.checksum() != weights.reference.checksum:
                    raise RuntimeError(f"version {version}: the engine has other checksums")
                sizes.append(report.bytes)
                worker.call("actor", "train_row", arguments.shape, version)
            noted = sum(one.nbytes for one in worker._served["actor"]._changes.values())
            # of the same weights, without a note of what changed
            seconds[False] += [
                rank.serve(version, changes=False)[1] for version in range(3)
            ]
        finally:
            host.engine.close()
            worker.close()
    full, *deltas = sizes
    figures.report("model, as served", model_bytes / 2**20, "MiB")
    figures.report("publishes of changes, checksums equal", len(deltas), "")
    figures.report("full publish, bytes over the model's", full / model_bytes, "x")
    shares = [size / full for size in deltas]
    figures.report(
        "changes, median bytes over a full publish", statistics.median(shares), "x"
    )
    figures.at_most("changes, most bytes over a full publish", max(shares), "x", MOST_DELTA)
    figures.report("places kept beside the served copy, over it", noted / model_bytes, "x")
    figures.report("renewal, processor time", min(seconds[False]), "s")
    figures.report("renewal that notes changes, processor time", min(seconds[True]), "s")


def link(figures: Figures, arguments: argparse.Namespace) -> None:
    """Bytes between two nodes of Ray, of which the far one has the rollout workers."""
    if os.geteuid() or shutil.which("ip") is None:
        print("the part link needs root and iproute2, for network namespaces")
        sys.exit(NOT_HERE)
    # ``-m`` would make the actor's class one of ``__main__``, which no rank can import
    start = "import sys; from benchmarks.delta import main; main(sys.argv[1:])"
    head = ("--head", "--num-cpus=1", "--include-dashboard=false")
    with (
        model_of(arguments) as (folder, model_bytes),
        # a socket's path is short, so that Ray's folders are too
        tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as short,
        two_namespaces(f"agentrl{os.getpid()}") as (near, far),
        ray_node(near, Path(short, "near"), NEAR, *head),
    ):
        own = ["--driver", str(folder), "--far", far, "--scratch", short]
        own += ["--shape", arguments.shape, "--lr", str(arguments.lr)]
        own += ["--sglang", arguments.sglang] if arguments.sglang else []
        driver = subprocess.run(
            ["ip", "netns", "exec", near, sys.executable, "-c", start, *own],
            cwd=ROOT,
            env={**os.environ, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            timeout=900,
            check=True,
        )
    found: Mapping[str, list[int]] = json.loads(driver.stdout.splitlines()[-1])
    full = max(found["full"]) / model_bytes
    delta = max(found["delta"]) / model_bytes
    who = f"{WORKERS} workers on the far node"
    figures.at_most(
        f"full publish, {who}, bytes on the link over the model's", full, "x", MOST_FULL
    )
    figures.at_most(
        f"changes, {who}, bytes on the link over the model's", delta, "x", MOST_DELTA
    )


def _drive(arguments: argparse.Namespace) -> None:
    """The driver, on the near node: tells the bytes of publishes as its last line."""
    from agentrl.config.sections import PlacementConfig
    from agentrl.controller.cluster.ray_cluster import start_ray
    from agentrl.controller.cluster.ray_role_group import RayRoleGroup
    from agentrl.controller.cluster.ray_rollout_pool import rollout_workers
    from agentrl.controller.cluster.role_handle import RoleHandle
    from agentrl.controller.cluster.weight_publisher import ServedSync

    folder = Path(arguments.driver)
    start_ray(1, ADDRESS)
    placement = PlacementConfig(
        rollout_workers=WORKERS, worker_resources={"rollout": 1}, wait_s=120.0
    )
    found: dict[str, list[int]] = {"full": [], "delta": []}
    # the rank stands before there is another node
    group = RayRoleGroup(placement)
    options = (f"--num-cpus={WORKERS}", f'--resources={{"rollout": {WORKERS}}}')
    with ray_node(arguments.far, Path(arguments.scratch, "far"), FAR, *options):
        pool = rollout_workers(placement)
        group.setup({"actor": actor_spec(folder, arguments.lr)})
        pool.setup(RolloutWorkerSpec(engine_plan(folder, arguments.sglang), rollout_spec()))
        publish = ServedSync().publish
        for version in range(6):
            # a full one first, and again
            changes = version not in (0, 3)
            before = _link_bytes()
            reports = publish(
                "main", RoleHandle(group, "actor"), pool, version, changes=changes
            )
            # A worker of servers keeps a copy from the first change on, and is sent all for it.
            is_delta = changes and not (arguments.sglang and version == 1)
            found["delta" if is_delta else "full"].append(_link_bytes() - before)
            print(version, changes, reports, file=sys.stderr)
            group.call("actor", "train_row", args=(arguments.shape, version))
        pool.close()
    group.close()
    print(json.dumps(found))


def _link_bytes() -> int:
    """In both directions, at the near end."""
    counts = Path("/sys/class/net/near/statistics")
    return sum(int((counts / name).read_text()) for name in ("tx_bytes", "rx_bytes"))


PARTS: dict[str, Callable[[Figures, argparse.Namespace], None]] = {
    "changes": changes,
    "link": link,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delta", description=__doc__)
    parser.add_argument(
        "--only",
        choices=PARTS,
        action="append",
        help="one part; may be given several times",
    )
    parser.add_argument(
        "--deltas", type=int, default=100, help="publishes of changes (100)"
    )
    parser.add_argument("--lr", type=float, default=1e-6, help="of AdamW (1e-6)")
    parser.add_argument("--shape", default="125M", help="of the model (125M)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sglang", help="interpreter of an environment with SGLang")
    for internal in ("--driver", "--far", "--scratch"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    add_arguments(parser, benchmark="delta")
    arguments = parser.parse_args(argv)
    if arguments.driver:
        _drive(arguments)
        return 0
    return measure_parts(PARTS, arguments)


if __name__ == "__main__":
    sys.exit(main())
