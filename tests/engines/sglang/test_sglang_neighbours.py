"""A real server beside a broken one: no request is lost, and what is broken is named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from agentrl.engines.sglang import SGLangEngine
from agentrl.errors import EngineError
from agentrl.weight_sync import HttpSender
from tests.engines.servers.broken_server import (
    Behaviour,
    breaks_off,
    keeps_silent,
    passes_on,
    says,
)
from tests.engines.sglang.conftest import Neighbour
from tests.engines.sglang.models import HuggingFace, made, publish, request

pytestmark = pytest.mark.sglang

PROMPT = [5, 17, 200, 33, 8]
Build = Callable[..., SGLangEngine]


BROKEN = [
    pytest.param(says(b'{"error": {"message": "boom"}}', 500), "boom", id="500"),
    pytest.param(breaks_off, "broke off", id="half"),
    pytest.param(says(b'{"output_ids": [1]}'), "not one of SGLang's", id="other"),
]


@pytest.mark.parametrize(("behaviour", "said"), BROKEN)
async def test_a_request_that_a_server_fails_goes_to_another(
    build: Build, server: str, neighbour: Neighbour, behaviour: Behaviour, said: str
) -> None:
    del said
    broken = neighbour(behaviour)
    engine = build(broken.url, server, sender=HttpSender)
    answers = [await engine.generate(request(f"r{n}", PROMPT)) for n in range(4)]
    assert all(made(answer) for answer in answers)
    assert "/generate" in broken.calls


@pytest.mark.parametrize(("behaviour", "said"), BROKEN)
async def test_where_no_other_is_left_the_last_failure_is_named(
    build: Build, neighbour: Neighbour, behaviour: Behaviour, said: str
) -> None:
    engine = build(neighbour(behaviour).url, sender=HttpSender)
    with pytest.raises(EngineError, match=f"failed 4 times.*{said}") as caught:
        await engine.generate(request("r", PROMPT))
    assert caught.value.retryable


async def test_a_server_that_keeps_silent_spends_the_deadline(
    build: Build, neighbour: Neighbour
) -> None:
    engine = build(neighbour(keeps_silent).url, sender=HttpSender)
    with pytest.raises(EngineError, match=r"spent its deadline_s=1"):
        await engine.generate(request("r", PROMPT, deadline_s=1.0))


async def test_a_server_that_answers_late_is_waited_for(
    build: Build, server: str, neighbour: Neighbour
) -> None:
    engine = build(neighbour(passes_on(server, after_s=1.0)).url, sender=HttpSender)
    assert made(await engine.generate(request("r", PROMPT, deadline_s=120.0)))
    assert [one.state for one in engine.pool.servers] == ["serving"]


async def test_a_server_that_is_gone_is_out_of_the_rotation(
    build: Build, server: str, neighbour: Neighbour
) -> None:
    broken = neighbour(keeps_silent)
    engine = build(broken.url, server, sender=HttpSender)
    broken.vanish()
    answers = [await engine.generate(request(f"r{n}", PROMPT)) for n in range(4)]
    assert all(made(answer) for answer in answers)
    assert sorted(one.state for one in engine.pool.servers) == ["lost", "serving"]


async def test_a_server_that_dies_in_an_update_is_left_behind(
    build: Build, server: str, neighbour: Neighbour, reference: HuggingFace
) -> None:
    broken = neighbour(says(b"{}", 500))
    engine = build(broken.url, server, sender=HttpSender)
    broken.vanish()
    await asyncio.to_thread(publish, engine, reference, 1)
    assert made(await engine.generate(request("r", PROMPT)))
    assert sorted(one.state for one in engine.pool.servers) == ["lost", "serving"]
