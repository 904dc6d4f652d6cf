"""What is particular to the ScriptedEngine: its scripts, failures and latency."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.engines.scripted import ScriptedEngine
from agentrl.errors import EngineError
from tests.engines.tiny import request, sampled


async def ids(engine, **settings) -> list[int]:
    return sampled(await engine.generate(request([1, 2, 3], **settings)))[0].tolist()


async def test_a_list_is_the_turns_of_every_session() -> None:
    engine = ScriptedEngine([[7, 8], [9]])
    assert [await ids(engine, session=session) for session in ("a", "b", "a")] == [
        [7, 8],
        [7, 8],
        [9],
    ]


async def test_a_mapping_has_each_sessions_own_turns() -> None:
    engine = ScriptedEngine({"a": [[7]], "b": [[8], [9]]})
    assert [await ids(engine, session=session) for session in ("b", "a", "b")] == [
        [8],
        [7],
        [9],
    ]


async def test_a_function_sees_the_request() -> None:
    assert await ids(ScriptedEngine(lambda asked: asked.token_ids[::-1])) == [3, 2, 1]


async def test_a_script_that_is_over_says_so() -> None:
    with pytest.raises(EngineError, match="has 0 answers for session 'r', call 1 has none"):
        await ids(ScriptedEngine({}))


async def test_an_answer_may_be_empty() -> None:
    completion = await ScriptedEngine([[]]).generate(request([1]))
    assert (completion.segments, completion.finish_reason) == ((), "stop")
    assert completion.usage.completion_tokens == 0


async def test_an_answer_is_cut_at_its_stop_token_and_at_max_new_tokens() -> None:
    engine = ScriptedEngine(lambda asked: [4, 5, 6, 7])
    assert await ids(engine, stop_token_ids=(5,)) == [4, 5]
    assert await ids(engine, max_new_tokens=3) == [4, 5, 6]


async def test_a_failure_hits_the_call_that_the_script_names() -> None:
    engine = ScriptedEngine(lambda asked: [4], failures={1: EngineError("the wire broke")})
    assert await ids(engine) == [4]
    with pytest.raises(EngineError, match="the wire broke"):
        await ids(engine)
    assert await ids(engine) == [4]


async def test_latency_is_an_event() -> None:
    gate = asyncio.Event()
    engine = ScriptedEngine([[4]], latency=lambda asked: gate.wait())
    task = asyncio.create_task(ids(engine))
    while not engine.health().running:
        await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    assert await task == [4]


async def test_a_latency_that_raises_is_the_requests_error() -> None:
    async def broken(asked) -> None:
        raise EngineError("half an answer")

    with pytest.raises(EngineError, match="half an answer"):
        await ids(ScriptedEngine([[4]], latency=broken))


async def test_the_requests_are_kept_for_the_test_to_read() -> None:
    engine = ScriptedEngine([[4]])
    await ids(engine, name="asked")
    assert [asked.request_id for asked in engine.requests] == ["asked"]


async def test_the_next_turn_reuses_what_it_shares_with_the_last() -> None:
    engine = ScriptedEngine([[4, 5], [6]])
    await engine.generate(request([1, 2], name="one", session="s"))
    completion = await engine.generate(request([1, 2, 4, 5, 9], name="two", session="s"))
    assert completion.cached_tokens == 3  # 1 2 4: the last sampled token has no KV yet


async def test_a_drain_waits_for_what_is_in_flight() -> None:
    gate = asyncio.Event()
    engine = ScriptedEngine([[4]], latency=lambda asked: gate.wait())
    task = asyncio.create_task(ids(engine))
    while not engine.health().running:
        await asyncio.sleep(0)
    drain = asyncio.create_task(asyncio.to_thread(engine.pause, "drain"))
    while engine.health().state != "paused":
        await asyncio.sleep(0)
    assert not drain.done()

    gate.set()
    await drain

    assert await task == [4]
