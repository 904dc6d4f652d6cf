"""How a TorchEngine begins and ends: its specification, its clock, its crash."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys

import pytest
from pydantic import ValidationError

from agentrl.engines import EnginePlace, EnginePlan
from agentrl.engines.torch import TorchEngineSpec
from agentrl.engines.torch.torch_spec import RowPlan
from agentrl.errors import ConfigError, EngineError
from agentrl.types import MediaSpan
from tests.engines.tiny import random_ids, request, sampled
from tests.kit.waiting import DEADLINE_S


def test_the_specification_is_picklable_and_frozen() -> None:
    spec = TorchEngineSpec(device="cuda:0")
    plan = EnginePlan(spec, EnginePlace("folder", dtype="bfloat16", kv_tokens=5000))
    assert pickle.loads(pickle.dumps(plan)) == plan
    with pytest.raises(ValidationError, match="frozen"):
        spec.device = "cpu"  # type: ignore[misc]


def test_the_specification_imports_no_torch() -> None:
    code = "import sys; from agentrl.engines.torch import TorchEngineSpec; assert 'torch' not in sys.modules"  # noqa: E501
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE_S)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"dtype": "float16"}, "EnginePlace.dtype"),
        ({"max_running": 0}, "EnginePlace.max_running"),
        ({"context_tokens": 1}, "EnginePlace.context_tokens"),
        (
            {"kv_tokens": 100, "context_tokens": 200},
            "EnginePlace.kv_tokens.*EnginePlace.context_tokens=200",
        ),
    ],
)
def test_a_value_out_of_range_is_named(settings, named) -> None:
    with pytest.raises(ConfigError, match=named):
        TorchEngineSpec().resolve(EnginePlace("folder", **settings))


def test_threads_are_at_least_one() -> None:
    with pytest.raises(ConfigError, match="num_threads"):
        TorchEngineSpec(num_threads=0)


def test_kv_tokens_bound_the_rows() -> None:
    plan = RowPlan.of(
        EnginePlace("folder", context_tokens=100, max_running=8, kv_tokens=350)
    )
    assert (plan.num_rows, plan.parked_tokens) == (3, 50)


def test_a_context_beyond_the_models_positions_is_refused(tiny, start) -> None:
    with pytest.raises(ConfigError, match="max_position_embeddings=256, got 257"):
        start(tiny, context_tokens=257)


async def test_images_are_refused(tiny, start) -> None:
    with pytest.raises(EngineError, match="sglang"):
        await start(tiny).generate(
            request([1], media=(MediaSpan(0, 1, "0" * 64, "image"),))
        )


async def test_the_engines_clock_stands_still_while_it_is_paused(tiny, start) -> None:
    engine = start(tiny)
    await asyncio.to_thread(engine.pause, "retract")
    waiting = asyncio.create_task(
        engine.generate(request([1, 2], max_new_tokens=1, deadline_s=5.0))
    )
    while not engine.health().waiting:
        await asyncio.sleep(0)
    before = engine._core.now()
    await asyncio.sleep(0.02)
    assert engine._core.now() == before
    await asyncio.to_thread(engine.resume)
    assert (await waiting).timings["queue_s"] < 5.0


async def test_a_crash_of_the_thread_fails_everything_and_is_named(tiny, start) -> None:
    engine = start(tiny)
    await asyncio.to_thread(engine.pause, "retract")
    waiting = asyncio.create_task(engine.generate(request([1, 2])))
    while not engine.health().waiting:
        await asyncio.sleep(0)

    def crash() -> None:
        raise RuntimeError("it broke")

    engine._core.step = crash
    engine.resume()
    with pytest.raises(EngineError, match="RuntimeError: it broke") as caught:
        await waiting
    assert caught.value.retryable
    assert engine.health().state == "closed"
    for call in (engine.checksum, engine.resume, lambda: engine.pause("drain")):
        with pytest.raises(EngineError, match="closed"):
            call()
    engine.close()


async def test_timings_name_the_stages(tiny, start) -> None:
    completion = await start(tiny).generate(request(random_ids(0, 5)))
    assert set(completion.timings) == {"queue_s", "prefill_s", "decode_s"}
    assert all(seconds >= 0 for seconds in completion.timings.values())


async def test_an_engine_outlives_the_loops_of_its_callers(tiny, start) -> None:
    engine = start(tiny)

    def abandoned() -> None:
        async def ask() -> None:
            task = asyncio.ensure_future(
                engine.generate(request([1], name="abandoned", max_new_tokens=100))
            )
            await asyncio.sleep(0)
            task.cancel()

        asyncio.run(ask())

    await asyncio.to_thread(abandoned)
    assert sampled(await engine.generate(request([1])))[0].size == 8


def test_less_kv_than_all_that_may_run_need_is_told(tiny, start, caplog) -> None:
    start(tiny, max_running=2, kv_tokens=2 * 128)
    assert not caplog.messages
    start(tiny, max_running=8, kv_tokens=3 * 128 - 1)
    [message] = caplog.messages
    assert (
        "room for 2 requests of context_tokens=128 at once, fewer than max_running=8"
        in message
    )
