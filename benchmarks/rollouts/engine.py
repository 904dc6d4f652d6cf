"""Engine benchmark: TorchEngine on multi-turn episodes, and its lower bounds."""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Literal

import torch

from agentrl.engines import EnginePlace
from agentrl.engines.torch import TorchEngine
from benchmarks.figures import Figures
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
from benchmarks.rollouts.engine_floor import ProductRecorder

__all__ = ["measure"]

DType = Literal["float32", "bfloat16"]

EPISODES = 64
ROUNDS = 3
THREADS = 1
OVER_GENERATE = 2.5
OF_FLOOR = 0.6
CASES: tuple[tuple[str, DType], ...] = (("tiny", "float32"), ("100M", "bfloat16"))
NOTE = (
    f"Engine: {EPISODES} episodes at once of {TURNS} turns on {THREADS} thread, random weights, "
    "temperature 1. Prompts have 32 to 64 ids, tool results 8 to 32, completions a lognormal "
    "length (median 16, at most 64). transformers' generate gets the engine's ids as one padded "
    "batch a turn, which it prefills again. It takes as many steps as the turn's longest "
    "completion; tokens after an episode's own end are not counted. Seconds are the whole "
    f"process's processor time, medians of {ROUNDS} rounds, all sides in turn. The floor is every "
    "matrix product that occurred (attention included, prefill too), done again alone in the same "
    "order with the same weights and KV."
)


def measure(figures: Figures, arguments: argparse.Namespace) -> None:
    """Every model and dtype."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        for name, dtype in CASES:
            print(f"   {name} {dtype}", flush=True)
            _measure_one(figures, name, dtype, arguments.seed)
    finally:
        torch.set_num_threads(before)
    figures.note(NOTE)
    figures.note(bf16_note())


def _measure_one(figures: Figures, name: str, dtype: DType, seed: int) -> None:
    module = build_module(name, getattr(torch, dtype), "cpu", seed)
    episodes = Episodes.draw(EPISODES, SHAPES[name]["vocab_size"], seed)
    place = EnginePlace(
        name, dtype=dtype, context_tokens=CONTEXT, max_running=EPISODES, num_threads=THREADS
    )
    engine = TorchEngine(
        place, config=module.config.to_dict(), state_dict=module.state_dict()
    )
    try:
        given = by_engine(
            engine, episodes, time.process_time
        ).given  # the first of a process is slower than all others
        recorder = _recorded(engine, episodes)
        recorder.replay()
        own = []
        theirs = []
        floors = []
        for _ in range(ROUNDS):
            own.append(by_engine(engine, episodes, time.process_time).seconds)
            floors.append(recorder.replay())
            theirs.append(by_generate(module, given, episodes, time.process_time))
    finally:
        engine.close()
    share = statistics.median(
        floor / own_s for floor, own_s in zip(floors, own, strict=True)
    )
    own_s = statistics.median(own)
    their_s = statistics.median(theirs)
    label = f"engine: {name} {dtype}"
    figures.report(f"{label}: parameters", num_parameters(module), "")
    figures.report(f"{label}: TorchEngine", episodes.num_tokens / own_s, "tokens/s")
    figures.report(
        f"{label}: generate, prefilled anew each turn",
        episodes.num_tokens / their_s,
        "tokens/s",
    )
    figures.at_least(
        f"{label}: TorchEngine over generate", their_s / own_s, "x", OVER_GENERATE
    )
    figures.report(f"{label}: matrix products", recorder.num_products, "")
    if (name, dtype) == ("100M", "bfloat16"):
        figures.at_least(f"{label}: share of its floor", share, "", OF_FLOOR)
    else:
        figures.report(f"{label}: share of its floor", share, "")


def _recorded(engine: TorchEngine, episodes: Episodes) -> ProductRecorder:
    """The matrix products of all episodes."""
    recorder = ProductRecorder()
    thread = engine._thread  # a dispatch mode holds for the thread that enters it
    thread.call(recorder.__enter__)
    by_engine(engine, episodes, time.process_time)
    thread.call(recorder.leave)
    return recorder


def bf16_note() -> str:
    """Whether this processor multiplies bf16 itself."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    names = [flag for flag in ("avx512_bf16", "amx_bf16") if flag in flags]
    how = (
        f"by its own instructions ({', '.join(names)})"
        if names
        else "by float32 instructions: bf16 is emulated"
    )
    return f"This processor multiplies bf16 {how}."
