"""What the benchmarks of the engine compare with: the same episodes, the products alone, and
memory's floor.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from agentrl.engines import EnginePlace
from agentrl.engines.torch import TorchEngine
from benchmarks import gpu_rollout
from benchmarks.figures import NOT_HERE
from benchmarks.rollouts.engine_episodes import (
    CONTEXT,
    SHAPES,
    TURNS,
    Episodes,
    build_module,
    by_engine,
    by_generate,
)
from benchmarks.rollouts.engine_floor import ProductRecorder

pytestmark = pytest.mark.tooling


def small(number: int) -> Episodes:
    return Episodes.draw(number, SHAPES["tiny"]["vocab_size"], 0)


def test_the_products_of_a_thread_are_noted_in_order_and_done_again() -> None:
    weight, short = torch.randn(8, 4), torch.randn(2, 8)
    recorder = ProductRecorder()
    with recorder, torch.inference_mode():
        torch.relu(short @ weight) + 1.0
        torch.nn.functional.linear(short, weight.t())
        torch.addmm(torch.zeros(3), torch.ones(2, 5), torch.ones(5, 3))
        torch.bmm(torch.ones(2, 1, 3), torch.ones(2, 3, 1))
    assert recorder.num_products == 4
    assert recorder.replay() >= 0.0


def test_both_sides_see_the_same_ids_and_make_the_same_number_of_tokens() -> None:
    module, episodes = build_module("tiny", torch.float32, "cpu", 0), small(3)
    place = EnginePlace("tiny", context_tokens=CONTEXT, max_running=3, num_threads=1)
    engine = TorchEngine(
        place, config=module.config.to_dict(), state_dict=module.state_dict()
    )
    try:
        timed = by_engine(engine, episodes, time.perf_counter)
    finally:
        engine.close()
    for turn in range(1, TURNS):
        for index in range(3):
            before, given = timed.given[turn - 1][index], timed.given[turn][index]
            tool = episodes.tools[index][turn - 1]
            assert given.size == before.size + episodes.sizes[index, turn - 1] + tool.size
            assert given[: before.size].tolist() == before.tolist()
            assert given[-tool.size :].tolist() == tool.tolist()
    assert by_generate(module, timed.given, episodes, time.perf_counter) > 0.0


def test_memorys_floor_is_weights_once_a_step_and_keys_once_a_token() -> None:
    zeros = np.zeros(4, dtype=np.int32)
    episodes = Episodes(
        [zeros, zeros], [[zeros[:2]], [zeros[:2]]], np.array([[2, 1], [1, 1]])
    )
    # the longest has 3 steps; keys before each token: 4, 5 and after the tool 8; 4 and 7
    assert gpu_rollout.least_seconds(episodes, 1000, 10, 1.0) == 3 * 1000 + 10 * (
        4 + 5 + 8 + 4 + 7
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_gpu_the_gpu_benchmark_refuses_by_name(capsys) -> None:
    assert gpu_rollout.main([]) == NOT_HERE
    assert "needs a CUDA device" in capsys.readouterr().out
