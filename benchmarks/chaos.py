"""Chaos: the code example while its processes are killed (``python -m benchmarks.chaos``).

Two ranks and two rollout workers train ``--steps`` steps twice, from one warm-up: undisturbed, and
with a kill every 60 to 180 s (``--every``) for ``--minutes``: of a rank, a rollout worker, a
sandbox or the driver, which ``agentrl train --retries`` starts again. With ``--node`` the link to
the second of two Ray nodes is cut too, and that node started again (root, iproute2); with
``--sglang PYTHON`` servers are killed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from agentrl.controller.ledger import Ledger
from agentrl.engines.servers.supervise import marker_of, processes
from agentrl.sandbox.owner_id import Owner
from benchmarks.figures import Figures, add_arguments
from benchmarks.step import CODE, checkpoint, default_cache, environment
from tests.kit.far_node import ADDRESS, FAR, NEAR, ray_node, run, two_namespaces
from tests.run.tiny_run import descendants, name_of

LIVENESS_S = 20.0
ASKED_S = {"worker": 15.0, "node": LIVENESS_S + 30.0, "rank": 60.0}
"""Seconds from a kill to the next trained step."""
POINTS = 8.0
CUT_S = 60.0
LIMIT_S = 600.0
"""A kill after which nothing is trained for so long has ended the run."""
POLL_S = 0.2
MISSES = 5
"""Kills in a row that may find nothing, such as a worker that starts."""
OPEN = ("running", "finished", "buffered", "taken")


@dataclass
class Driven:
    """``agentrl train`` in a process, and the steps that its ledger has as trained."""

    process: subprocess.Popen[bytes]
    run_dir: Path
    _at: int = field(default=0, init=False)

    def look(self) -> int:
        """Batches that were trained since the last look, also those that are rolled back later."""
        path = self.run_dir / "ledger.jsonl"
        if not path.exists():
            return 0
        with path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        rows = [json.loads(line) for line in whole.splitlines() if b'"trained"' in line]
        return len({row["step"] for row in rows if row["to"] == "trained"})

    def wait(self, seconds: float, *, until_trained: bool = True) -> bool:
        """So long, or until a batch was trained; whether one was."""
        end = time.monotonic() + seconds
        trained = False
        while time.monotonic() < end and self.process.poll() is None:
            trained = bool(self.look()) or trained
            if trained and until_trained:
                break
            time.sleep(POLL_S)
        return trained


def processes_of(driven: Driven, kind: str, arguments: argparse.Namespace) -> list[int]:
    """What may be killed, or of a node the worker that it takes along. On two nodes only the driver
    descends from the run."""
    if kind == "driver":
        return [
            pid for pid in children(driven.process.pid) if "--retries" not in name_of(pid)
        ]
    own = descendants(os.getpid())
    if kind == "server":
        # it is no child of its owner, and bears its name
        owners = {pid: Owner.parse(marker_of(pid).split("/")[0]) for pid in processes()}
        return sorted(pid for pid, owner in owners.items() if owner and owner.pid in own)
    marks = {
        "rank": "ray::_Rank",
        "worker": "ray::_RolloutWorker",
        "node": "ray::_RolloutWorker",
        "sandbox": "bwrap",
    }
    found = sorted(pid for pid in own if marks[kind] in name_of(pid))
    if kind == "node":
        command = ["ip", "netns", "pids", arguments.spaces[1]]
        far = subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout.split()
        found = [pid for pid in found if str(pid) in far]
    return found


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []


@contextmanager
def trains(run_dir: Path, log: Path, *overrides: str, space: str = "") -> Iterator[Driven]:
    """The example from its warm-up, with retries; it ends with the block."""
    command = ["ip", "netns", "exec", space] if space else []
    command += [
        sys.executable,
        "-m",
        "agentrl",
        "train",
        str(CODE / "config.yaml"),
        f"run.dir={run_dir}",
    ]
    command += [*overrides, "--retries", "1000"]
    env = {**environment(1), "RAY_AUTH_MODE": "disabled"}
    with log.open("ab") as told:
        process = subprocess.Popen(command, env=env, stdout=told, stderr=told)
    try:
        yield Driven(process, run_dir)
    finally:
        process.terminate()
        process.wait()


def disturb(
    driven: Driven, kinds: Sequence[str], arguments: argparse.Namespace, rng: random.Random
) -> tuple[Counter[str], dict[str, list[float]]]:
    """Kills until the time is over; how many of each kind, and seconds to the next trained step."""
    kills: Counter[str] = Counter()
    seconds: dict[str, list[float]] = defaultdict(list)
    missed = 0
    driven.wait(LIMIT_S)
    end = time.monotonic() + 60 * arguments.minutes
    while time.monotonic() < end and driven.process.poll() is None:
        driven.wait(rng.uniform(*arguments.every), until_trained=False)
        # Each kind in turn, so that none is left out.
        least = min(kills[kind] for kind in kinds)
        kind = rng.choice([kind for kind in kinds if kills[kind] == least])
        pids = processes_of(driven, kind, arguments)
        if not pids:
            missed += 1
            assert missed < MISSES, f"of a {kind} no process is found"
            continue
        missed = 0
        if kind == "node":
            run("ip", "-n", arguments.spaces[0], "link", "set", "near", "down")
        else:
            os.kill(rng.choice(pids), signal.SIGKILL)
        killed = time.monotonic()
        kills[kind] += 1
        driven.look()
        trained = driven.wait(LIMIT_S)
        took = time.monotonic() - killed
        if kind == "node":
            time.sleep(max(0.0, CUT_S - took))
            run("ip", "-n", arguments.spaces[0], "link", "set", "near", "up")
            # The cluster has given it up by now, so that it ends, and has to be started.
            arguments.start_far()
        print(f"{kind}: {took:.1f} s to the next trained step", flush=True)
        if trained:
            seconds[kind].append(took)
    return kills, seconds


def settings(arguments: argparse.Namespace, start: Path) -> list[str]:
    """Of both runs."""
    own = [
        f"model.path={start}",
        f"train.steps={arguments.steps}",
        f"run.seed={arguments.seed}",
        "stages.rl.eval.before=false",
        "placement.mode=ray",
        "placement.world_size=2",
        "placement.rollout_workers=2",
        "placement.rank_restarts=1000",
        f"placement.worker_liveness_timeout_s={LIVENESS_S:g}",
        "placement.worker_restarts=10",
        "rollout.schedule=async",
        "rollout.max_staleness=1",
        "algorithm.rollout_correction.level=token",
        # A step plays as many groups once all of them are solved.
        "algorithm.filter_zero_variance=false",
        "optim.lr=3e-4",
        "checkpoint.every=2",
    ]
    if arguments.sglang:
        own += ["rollout.engine=sglang", f"rollout.sglang.python={arguments.sglang}"]
    return own


def accuracy(run_dir: Path) -> float:
    """Sampled, on the held-out problems, at the end."""
    summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    return float(summary["eval"]["code"]["after"]["sampled"])


def measure(figures: Figures, arguments: argparse.Namespace, folder: Path) -> None:
    """Both runs, and how they compare."""
    start = checkpoint(default_cache(), "code", CODE, seed=arguments.seed)
    own = settings(arguments, start)
    calm = folder / "calm"
    if not (calm / "summary.json").exists():
        with trains(calm, folder / "calm.log", *own) as undisturbed:
            undisturbed.process.wait()
    kinds = ["rank", "worker", "sandbox", "driver"]
    kinds += ["server"] * bool(arguments.sglang) + ["node"] * arguments.node
    rng = random.Random(arguments.seed)
    space = ""
    if arguments.node:
        own += [
            f"placement.ray_address={ADDRESS}",
            "placement.worker_resources={rollout: 1}",
        ]
        space = arguments.spaces[0]
    with trains(folder / "run", folder / "run.log", *own, space=space) as driven:
        kills, seconds = disturb(driven, kinds, arguments, rng)
        code = driven.process.wait()
    figures.at_most("exit code of the disturbed run", abs(code), "", 0)
    for kind in kinds:
        figures.report(f"{kind}: kills", kills[kind], "")
        if kind in ASKED_S and seconds[kind]:
            name = f"{kind}: median to the next trained step"
            figures.at_most(name, median(seconds[kind]), "s", ASKED_S[kind])
        if seconds[kind]:
            figures.report(
                f"{kind}: longest to the next trained step", max(seconds[kind]), "s"
            )
    counts = Ledger(driven.run_dir / "ledger.jsonl").counts()
    figures.at_most("trajectories left open", sum(counts[state] for state in OPEN), "", 0)
    figures.report("trajectories trained", counts["trained"], "")
    figures.report("trajectories rolled back", counts["rolled_back"], "")
    if code == 0:
        before, after = accuracy(calm), accuracy(driven.run_dir)
        figures.report("undisturbed: sampled accuracy", before, "")
        figures.report("disturbed: sampled accuracy", after, "")
        figures.at_most("points lost", 100 * (before - after), "points", POINTS)


@contextmanager
def two_nodes(arguments: argparse.Namespace) -> Iterator[None]:
    """A rollout worker fits on each of two nodes, and the ranks on the first."""
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as short,
        two_namespaces("chaos") as (near, far),
        ExitStack() as far_node,
    ):
        numbers = itertools.count()

        def start_far() -> None:
            far_node.close()
            folder = Path(short) / f"far{next(numbers)}"
            options = ("--num-cpus=2", '--resources={"rollout": 1}')
            far_node.enter_context(ray_node(far, folder, FAR, *options))

        arguments.spaces, arguments.start_far = (near, far), start_far
        head = (
            "--head",
            "--num-cpus=6",
            "--include-dashboard=false",
            '--resources={"rollout": 1}',
        )
        with ray_node(near, Path(short) / "near", NEAR, *head):
            start_far()
            yield


def main() -> int:
    """Measures what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of kills")
    parser.add_argument(
        "--every", nargs=2, type=float, default=(60.0, 180.0), metavar="SECONDS"
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--node", action="store_true", help="cut the link to a second node too"
    )
    parser.add_argument(
        "--sglang", metavar="PYTHON", help="play with servers of its environment"
    )
    parser.add_argument(
        "--runs",
        type=Path,
        help="keeps the runs, and takes the undisturbed one that is there",
    )
    add_arguments(parser, benchmark="chaos")
    arguments = parser.parse_args()
    # What it started ends with it, whatever asks it to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    figures = Figures()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.runs or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if arguments.node:
            with two_nodes(arguments):
                measure(figures, arguments, folder)
        else:
            measure(figures, arguments, folder)
    return figures.finish(arguments, seeds=[arguments.seed])


if __name__ == "__main__":
    sys.exit(main())
