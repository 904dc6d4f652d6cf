"""What sandboxes cost and what they hold: executions a second, the time until a fresh one's first
statement, a soak, attacks, survivors, and a training step's share.

``python -m benchmarks.sandbox`` measures all of it, ``--only`` one part. Docker's own ways
(``docker exec``, ``docker run``) and the docker backend need a container engine, by DOCKER_HOST or
at its usual socket, and the image that ``--image`` names; without one they are left out, and the
figures say so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.figures import Figures, add_arguments
from benchmarks.sandboxes import attacks, creation, grpo_step, soak, survivors, throughput
from benchmarks.step import default_cache

__all__ = ["PARTS"]

PARTS: dict[str, Callable[[Figures, argparse.Namespace], None]] = {
    "throughput": throughput.measure,
    "creation": creation.measure,
    "attacks": attacks.measure,
    "survivors": survivors.measure,
    "soak": soak.measure,
    "step": grpo_step.measure,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sandbox", description=__doc__
    )
    parser.add_argument(
        "--only",
        choices=PARTS,
        action="append",
        help="one part; may be given several times",
    )
    parser.add_argument(
        "--image",
        default="agentrl-python:local",
        help="image for docker's own ways and the backend",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="rounds of interleaved blocks of executions (5)",
    )
    parser.add_argument(
        "--executions", type=int, default=300, help="warm executions of a block (300)"
    )
    parser.add_argument(
        "--creations", type=int, default=60, help="fresh warm sandboxes of a round (60)"
    )
    parser.add_argument(
        "--soak-executions", type=int, default=20_000, help="executions of the soak (20000)"
    )
    parser.add_argument("--soak-backend", default="auto", help="backend of the soak (auto)")
    parser.add_argument(
        "--blocks", type=int, default=4, help="blocks of training steps of each side (4)"
    )
    parser.add_argument(
        "--block-steps", type=int, default=5, help="counted steps of a block (5)"
    )
    parser.add_argument(
        "--cache", type=Path, default=default_cache(), help="warm-up checkpoints"
    )
    parser.add_argument("--seed", type=int, default=0)
    add_arguments(parser, benchmark="sandbox")
    arguments = parser.parse_args(argv)

    figures = Figures()
    for name in arguments.only or PARTS:
        print(f"-- {name}", flush=True)
        PARTS[name](figures, arguments)
    return figures.finish(arguments, seeds=[arguments.seed])


if __name__ == "__main__":
    sys.exit(main())
