"""An answer that comes as it grows: what is new in it is told, and a server that is lost then is
named.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.engines import EnginePlace
from agentrl.engines.servers.http_client import RefusedError, ServerLostError, events
from agentrl.engines.servers.pool import ServerPool
from agentrl.engines.servers.requests import Requests
from agentrl.engines.servers.server import Server
from agentrl.engines.servers.state import ServersState
from agentrl.engines.sglang import SGLangEngineSpec
from agentrl.engines.sglang.client import SGLangClient
from agentrl.engines.sglang.launch import SGLangServers
from agentrl.errors import EngineError
from agentrl.types import GenerateRequest, concat_ids
from tests.engines.servers.broken_server import (
    Behaviour,
    BrokenServer,
    Handler,
    broken_server,
    says,
)
from tests.engines.servers.sglang_answers import VOCAB, answer, request, sglang_client


class Heard:
    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []

    def __call__(self, ids: np.ndarray[Any, Any], logprobs: np.ndarray[Any, Any]) -> None:
        self.ids += ids.tolist()
        self.logprobs += logprobs.tolist()


def after(count: int, *, ended: bool = False) -> dict[str, Any]:
    """The answer when so many of its tokens are there."""
    whole = answer()
    whole["output_ids"] = whole["output_ids"][:count]
    whole["meta_info"]["output_token_logprobs"] = whole["meta_info"][
        "output_token_logprobs"
    ][:count]
    whole["text"] = "two\u2028lines"
    if not ended:
        whole["meta_info"]["finish_reason"] = None
    return whole


def event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def listening() -> tuple[GenerateRequest, Heard]:
    heard = Heard()
    return replace(request(), on_tokens=heard), heard


def client_of(server: BrokenServer) -> SGLangClient:
    return sglang_client(server.url)


async def grown(behaviour: Behaviour) -> tuple[Any, Heard]:
    asked, heard = listening()
    with broken_server({"/generate": behaviour}) as server:
        client = client_of(server)
        try:
            return await client.generate(asked, "r"), heard
        finally:
            await client.close()


async def test_what_is_new_is_told_and_the_last_answer_is_the_whole_one() -> None:
    stream = (
        b"".join(event(after(n)) for n in (1, 3, 3, 5))
        + event(after(6, ended=True))
        + b"data: [DONE]\n\n"
    )
    whole, heard = await grown(says(stream))
    last = after(6, ended=True)
    assert concat_ids(whole.segments).tolist() == last["output_ids"]
    assert heard.ids == last["output_ids"][:5]
    assert heard.logprobs == pytest.approx(
        [t[0] for t in last["meta_info"]["output_token_logprobs"][:5]]
    )


async def test_a_refusal_of_a_stream_is_named() -> None:
    with pytest.raises(RefusedError, match="HTTP 400: too long"):
        await grown(says(b'{"error": {"message": "too long"}}', 400))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "a stream of nothing"),
        (b"data: half\n\n", "no JSON"),
        (b"data: [1]\n\n", "a list"),
    ],
)
async def test_a_stream_that_is_none_is_named(content: bytes, named: str) -> None:
    with pytest.raises(ServerLostError, match=named):
        await grown(says(content))


async def test_events_are_cut_at_line_feeds_alone() -> None:
    whole = event({"text": "a\u2028b\x85c"}) + b"data: [DONE]\n\n"

    async def in_bytes() -> AsyncIterator[bytes]:
        for position in range(len(whole)):
            yield whole[position : position + 1]

    assert [json.loads(data) async for data in events(in_bytes())] == [
        {"text": "a\u2028b\x85c"}
    ]


def breaks_off_after_two(handler: Handler) -> None:
    handler.answer(event(after(2)), promised=10_000)


@pytest.mark.parametrize(("first", "tried"), [(breaks_off_after_two, 1), (says(b""), 4)])
async def test_a_request_is_not_begun_anew_once_its_tokens_were_told(
    first: Behaviour, tried: int, tmp_path: Path
) -> None:
    config = {"vocab_size": VOCAB, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with broken_server(
        {"/generate": first, "/health": says(b"{}"), "/model_info": says(b"{}")}
    ) as server:
        place = EnginePlace(str(tmp_path), str(tmp_path), context_tokens=64)
        kind = SGLangServers(place, SGLangEngineSpec(urls=(server.url,)))
        state = ServersState(kind)

        async def start(one: Server) -> None:
            one._client = client_of(server)

        pool = ServerPool(state, start)
        await pool.start()
        try:
            with pytest.raises(
                EngineError, match="told already" if tried == 1 else "failed 4 times"
            ) as caught:
                await Requests(state, pool).generate(listening()[0])
        finally:
            await pool.close()
    assert caught.value.retryable
    assert server.calls.count("/generate") == tried
