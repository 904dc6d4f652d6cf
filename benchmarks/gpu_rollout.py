"""GPU rollout: TorchEngine with a random 0.6B model in bf16, against ``generate``.

``python -m benchmarks.gpu_rollout`` needs a CUDA device and says so where there is none.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence

import torch

from agentrl.engines import EnginePlace
from agentrl.engines.torch import TorchEngine, TorchEngineSpec
from benchmarks.figures import NOT_HERE, Figures, add_arguments
from benchmarks.rollouts.engine_episodes import (
    CONTEXT,
    SHAPES,
    TURNS,
    Episodes,
    build_module,
    by_engine,
    by_generate,
    num_parameters,
)

__all__ = ["copy_bytes_per_s", "least_seconds"]

MODEL = "0.6B"
DEVICE = "cuda:0"
ROUNDS = 3
BYTES = 2
NOTE = (
    f"Episodes of {TURNS} turns; prompts of 32 to 64 ids, tool results of 8 to 32, completions of "
    "a lognormal length (median 16, at most 64). generate gets the same ids as one padded batch a "
    f"turn and prefills it again; medians of {ROUNDS} rounds, both sides in turn. The floor is the "
    "least that memory allows: each step of the longest episode reads every weight once, and each "
    "token the keys and values before it, at the speed of a copy on this device."
)


def copy_bytes_per_s(device: str) -> float:
    """Bytes read and written a second by a large copy on the device, the best of a few."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(10):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * source.numel() / best


def least_seconds(
    episodes: Episodes, weight_bytes: int, kv_bytes: int, bytes_per_s: float
) -> float:
    """What reading alone takes, whatever the engine.

    Args:
        episodes: all at once.
        weight_bytes: of the whole model.
        kv_bytes: of one position, all layers.
        bytes_per_s: of the memory.
    """
    steps = int(episodes.sizes.sum(axis=1).max())
    read = steps * weight_bytes
    for prompt, tools, sizes in zip(
        episodes.prompts, episodes.tools, episodes.sizes, strict=True
    ):
        length = prompt.size
        for turn, size in enumerate(sizes.tolist()):
            read += kv_bytes * sum(range(length, length + size))
            length += size + (tools[turn].size if turn < len(tools) else 0)
    return read / bytes_per_s


def measure(figures: Figures, number: int, seed: int) -> None:
    """One number of episodes at once."""
    shape = SHAPES[MODEL]
    module = build_module(MODEL, torch.bfloat16, DEVICE, seed)
    episodes = Episodes.draw(number, shape["vocab_size"], seed)
    place = EnginePlace(MODEL, dtype="bfloat16", context_tokens=CONTEXT, max_running=number)
    spec = TorchEngineSpec(device=DEVICE)
    engine = TorchEngine(
        place, spec, config=module.config.to_dict(), state_dict=module.state_dict()
    )
    try:
        given = by_engine(engine, episodes, time.perf_counter).given
        by_generate(module, given, episodes, time.perf_counter)
        own = []
        theirs = []
        for _ in range(ROUNDS):
            own.append(by_engine(engine, episodes, time.perf_counter).seconds)
            theirs.append(by_generate(module, given, episodes, time.perf_counter))
    finally:
        engine.close()
    kv_bytes = (
        2
        * shape["num_hidden_layers"]
        * shape["num_key_value_heads"]
        * shape["head_dim"]
        * BYTES
    )
    floor = least_seconds(
        episodes, num_parameters(module) * BYTES, kv_bytes, copy_bytes_per_s(DEVICE)
    )
    own_s = statistics.median(own)
    their_s = statistics.median(theirs)
    label = f"{number} episodes"
    figures.report(f"{label}: TorchEngine", episodes.num_tokens / own_s, "tokens/s")
    figures.report(
        f"{label}: generate, prefilled anew each turn",
        episodes.num_tokens / their_s,
        "tokens/s",
    )
    figures.report(f"{label}: TorchEngine over generate", their_s / own_s, "x")
    figures.report(f"{label}: memory's floor", episodes.num_tokens / floor, "tokens/s")
    figures.report(f"{label}: share of memory's floor", floor / own_s, "")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_rollout", description=__doc__
    )
    parser.add_argument(
        "--episodes",
        type=int,
        action="append",
        help="at once; may be given several times (64, 256)",
    )
    parser.add_argument("--seed", type=int, default=0)
    add_arguments(parser, benchmark="gpu_rollout")
    arguments = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print(
            "benchmarks.gpu_rollout needs a CUDA device and finds none; run it on a machine with a "
            "GPU"
        )
        return NOT_HERE

    figures = Figures()
    for number in arguments.episodes or (64, 256):
        measure(figures, number, arguments.seed)
    figures.note(NOTE)
    return figures.finish(arguments, seeds=[arguments.seed])


if __name__ == "__main__":
    sys.exit(main())
