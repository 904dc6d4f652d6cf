"""``GenerateRequest.on_tokens``: who listens gets each sampled token once, in order, before the
completion is there.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np

from agentrl.errors import EngineError
from tests.engines.tiny import random_ids, request, sampled
from tests.kit.held_engine import HeldEngine


class Heard:
    """What a listener was given."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []

    def __call__(self, ids: np.ndarray, logprobs: np.ndarray) -> None:
        self.ids += ids.tolist()
        self.logprobs += logprobs.tolist()


async def test_each_token_is_told_once_while_the_completion_goes_on(tiny, start) -> None:
    heard = [Heard() for _ in range(4)]
    engine = start(tiny)
    asked = [
        replace(
            request(random_ids(n, 5 + n), name=str(n), seed=n, max_new_tokens=9 + n),
            on_tokens=heard[n],
        )
        for n in range(4)
    ]
    made = await asyncio.gather(*map(engine.generate, asked))
    for own, completion in zip(heard, made, strict=True):
        ids, logprobs = sampled(completion)
        assert own.ids == ids[:-1].tolist()  # the last one comes with the completion
        assert own.logprobs == logprobs[:-1].tolist()


async def test_a_listener_changes_nothing_for_its_neighbours(tiny, start) -> None:
    plain = request([1, 2, 3], name="a", seed=1)
    listening = request([4, 5], name="b", seed=2)
    engine = start(tiny, deterministic=True)
    alone = sampled(await engine.generate(plain))[0].tolist()
    both = await asyncio.gather(
        engine.generate(plain), engine.generate(replace(listening, on_tokens=Heard()))
    )
    assert sampled(both[0])[0].tolist() == alone


async def test_a_completion_that_was_interrupted_is_told_no_token_twice(
    tiny, start
) -> None:
    heard, engine = Heard(), start(tiny)
    wanted = replace(request(random_ids(1, 6), seed=3, max_new_tokens=100), on_tokens=heard)
    held = HeldEngine(engine)
    making = asyncio.create_task(engine.generate(wanted))
    await asyncio.to_thread(held.during, engine.pause, "retract")
    assert 0 < len(heard.ids) < 99
    engine.resume()
    assert heard.ids == sampled(await making)[0][:-1].tolist()


async def test_a_stop_string_and_a_listener_go_together(tiny, start) -> None:
    heard = Heard()
    engine = start(tiny, decode=lambda ids: "".join(chr(97 + int(i) % 26) for i in ids))
    whole = sampled(
        await engine.generate(request([1, 2], name="a", seed=5, max_new_tokens=40))
    )[0]
    stop = chr(97 + int(whole[6]) % 26)
    asked = replace(
        request([1, 2], name="b", seed=5, max_new_tokens=40, stop=(stop,)), on_tokens=heard
    )
    ids = sampled(await engine.generate(asked))[0].tolist()
    assert heard.ids == ids[:-1]


async def test_a_listener_or_decoder_that_raises_fails_its_request_alone(
    tiny, start
) -> None:
    def broken(*given: object) -> str:
        raise ValueError("not today")

    engine = start(tiny, decode=broken)
    plain = request([1, 2, 3], name="a")
    listening = replace(request([4, 5], name="b"), on_tokens=broken)
    stopping = request([6, 7], name="c", stop=("x",))
    whole, *failed = await asyncio.gather(
        *map(engine.generate, (plain, listening, stopping)), return_exceptions=True
    )
    assert whole.finish_reason == "length"
    for error in failed:
        assert isinstance(error, EngineError)
        assert "raised ValueError: not today" in str(error)
    assert engine.health().state == "serving"
