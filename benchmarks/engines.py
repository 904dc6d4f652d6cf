"""Engines: tokens a second of every engine and of ``generate`` on the same multi-turn episodes, and
how far each one's logprobs are from the trainer's (``python -m benchmarks.engines``).

It needs the environments of both programs (``agentrl install sglang``, ``agentrl install vllm``),
or their interpreters in AGENTRL_SGLANG_PYTHON and AGENTRL_VLLM_PYTHON. ``--only`` leaves servers
out.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from agentrl.engines import EnginePlace, EngineSpec, HostedEngine
from agentrl.engines.sglang import SGLangEngineSpec
from agentrl.engines.sglang.environment import SGLANG
from agentrl.engines.torch import TorchEngineSpec
from agentrl.engines.vllm import VLLMEngineSpec
from agentrl.engines.vllm.environment import VLLM
from agentrl.training import DistSpec, join, leave
from benchmarks.figures import Figures, add_arguments
from benchmarks.rollouts.engine_episodes import (
    CONTEXT,
    SHAPES,
    TURNS,
    Episodes,
    build_module,
    by_engine,
    by_generate,
)
from benchmarks.trainer.exactness_rank import Job, compare
from tests.training.sampled_batch import batch_of

EPISODES = 64
ROUNDS = 3

NOTE = (
    f"Float32, random weights, {EPISODES} episodes at once of {TURNS} turns, as "
    "benchmarks.rollout plays them. Seconds are of the clock, medians of "
    f"{ROUNDS} rounds after a first one that is not counted. Beside each server TorchEngine and "
    "generate play the same episodes, in turn. A server works in processes of its own, on as many "
    "cores as it likes beside this one; TorchEngine and generate have one thread. Distances are "
    "those of twelve further episodes, of every sampled token, from a trainer of one rank: nats."
)


def specs() -> dict[str, EngineSpec]:
    """Every engine of tokens, by its name."""
    sglang = os.environ.get("AGENTRL_SGLANG_PYTHON") or SGLANG.python()
    vllm = os.environ.get("AGENTRL_VLLM_PYTHON") or VLLM.python()
    return {
        "torch": TorchEngineSpec(),
        "sglang": SGLangEngineSpec(python=str(sglang)),
        "vllm": VLLMEngineSpec(python=str(vllm)),
    }


def measure(
    figures: Figures, shape: str, folder: Path, names: Sequence[str], seed: int, rounds: int
) -> None:
    """All engines on one model."""
    module = build_module(shape, torch.float32, "cpu", seed)
    module.save_pretrained(folder / "model")
    episodes = Episodes.draw(EPISODES, SHAPES[shape]["vocab_size"], seed)
    place = EnginePlace(
        str(folder / "model"),
        context_tokens=CONTEXT,
        max_running=EPISODES,
        kv_tokens=EPISODES * CONTEXT,
        num_threads=1,
    )
    known = specs()
    with ExitStack() as ends:

        def built(name: str) -> HostedEngine:
            settled = known[name].resolve(replace(place, folder=str(folder / name)))
            engine: Any = known[name].build(settled, None)
            ends.callback(engine.close)
            return engine  # type: ignore[no-any-return]  # none of these takes messages

        own = built("torch")
        given = by_engine(own, episodes, time.monotonic).given
        sides: dict[str, Callable[[], float]] = {
            "generate": partial(by_generate, module, given, episodes, time.monotonic),
            "torch": partial(played, own, episodes),
        }
        report(figures, sides, episodes, rounds)
        distance(figures, "torch", place.model, own)
        for name in names:
            engine = built(name)
            distance(figures, name, place.model, engine)
            report(
                figures,
                {**sides, name: partial(played, engine, episodes)},
                episodes,
                rounds,
            )
            engine.close()


def played(engine: HostedEngine, episodes: Episodes) -> float:
    """Seconds of all episodes."""
    return by_engine(engine, episodes, time.monotonic).seconds


def report(
    figures: Figures, sides: dict[str, Callable[[], float]], episodes: Episodes, rounds: int
) -> None:
    """Plays the episodes by all sides in turn."""
    last = list(sides)[-1]
    beside = f" beside {last}" if last in ("sglang", "vllm") else ""
    sides[last]()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, play in sides.items():
            seconds[name].append(play())
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    for name, found in medians.items():
        figures.report(f"{name}{beside}", episodes.num_tokens / found, "tokens/s")
        if name != last:
            figures.report(f"{last} over {name}{beside}", found / medians[last], "x")


def distance(figures: Figures, name: str, model: str, engine: HostedEngine) -> None:
    """Of an engine's logprobs from the trainer's."""
    batch = batch_of(engine)
    found = compare(Job(model, batch, {"backend": "plain"}), DistSpec())
    for kind in ("mean", "max", "k3"):
        figures.report(f"{name}: {kind} of its logprobs' distance", found[kind], "nats")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines", description=__doc__
    )
    add_arguments(parser, benchmark="engines")
    names = ("sglang", "vllm")
    parser.add_argument("--only", choices=names, nargs="+", default=names, help="servers")
    parser.add_argument("--shape", choices=SHAPES, default="tiny", help="of the model")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    figures = Figures()
    join(DistSpec())
    with tempfile.TemporaryDirectory() as scratch:
        measure(
            figures,
            arguments.shape,
            Path(scratch),
            arguments.only,
            arguments.seed,
            arguments.rounds,
        )
    leave()
    figures.note(NOTE)
    return figures.finish(arguments, seeds=[arguments.seed])


if __name__ == "__main__":
    sys.exit(main())
