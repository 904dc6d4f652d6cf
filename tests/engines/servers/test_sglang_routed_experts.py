"""Experts of a mixture as SGLang tells them: what servers and requests are asked, and how an answer
is read.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.engines import EnginePlace
from agentrl.engines.servers.client import WeightLabels
from agentrl.engines.servers.http_client import ServerLostError
from agentrl.engines.sglang import SGLangEngineSpec
from agentrl.engines.sglang.launch import SGLangServers
from agentrl.engines.sglang.routed_experts import ServedExperts
from agentrl.engines.sglang.wire import generate_body, read_answer
from agentrl.errors import ConfigError, EngineError
from agentrl.rollouts.token_consistency import assert_token_consistency
from agentrl.types import RoutingShape
from tests.engines.servers.sglang_answers import VOCAB, answer, request
from tests.tiny_models import write_family

SERVED = ServedExperts(
    RoutingShape(layers=2, experts=8, top_k=2), layers=(1, 2), num_layers=3
)
ROWS = np.arange(8 * 3 * 2).reshape(8, 3, 2) % 8
"""Of three tokens of a prompt and all but the last of six sampled ones, in three layers, of which
the first is dense."""


def sent(rows: Any) -> str:
    return base64.b64encode(np.asarray(rows, "<i4").tobytes()).decode()


def read(text: str | None, experts: ServedExperts | None = SERVED) -> Any:
    given = {} if text is None else {"routed_experts": text}
    return read_answer(
        request(),
        answer(**given),
        server="server 0",
        version_of=lambda label: int(label.removeprefix("own.")),
        experts=experts,
    )


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp("mixture"), "qwen3_moe", vocab_size=VOCAB)


def test_a_request_asks_from_what_no_call_before_it_told() -> None:
    assert "return_routed_experts" not in generate_body(request(), "rid")
    body = generate_body(replace(request(), experts_from=2), "rid", wants_experts=True)
    assert (body["return_routed_experts"], body["routed_experts_start_len"]) == (True, 2)


def test_an_answers_experts_are_those_of_its_mixtures() -> None:
    completion = read(sent(ROWS))
    record = completion.routed_experts
    assert record.dtype == np.uint8
    assert (record == ROWS[:, 1:]).all()
    assert_token_consistency(request(), completion, VOCAB, SERVED.routing)
    assert read(None).routed_experts is None
    assert read(sent(ROWS), None).routed_experts is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (sent(ROWS[:, :2].ravel()[:-1]), "cannot reshape array of size 31"),
        (sent(ROWS + 1), "experts 0 to 8 of a model of 2 layers of 8 experts, 2 a token"),
        (sent(ROWS - 1), "experts -1 to 6"),
        ("?", "is not one of SGLang's"),
    ],
)
def test_experts_of_another_model_are_named(text: str, named: str) -> None:
    with pytest.raises(ServerLostError, match=named):
        read(text)


def test_a_mixtures_layers_are_read_from_its_folder(mixture: Path, tmp_path: Path) -> None:
    place = EnginePlace(str(mixture), routed_experts=True)
    expected = ServedExperts(RoutingShape(2, 3, 2), (0, 1), 2)
    assert ServedExperts.of(place) == expected
    assert ServedExperts.of(replace(place, routed_experts=False)) is None
    dense = write_family(tmp_path, "llama", vocab_size=VOCAB)
    assert ServedExperts.of(replace(place, model=str(dense))) is None
    later = write_family(tmp_path / "later", "deepseek_v3", vocab_size=VOCAB)
    found = ServedExperts.of(replace(place, model=str(later)))
    assert found == ServedExperts(RoutingShape(1, 4, 2), (1,), 2)


def test_servers_keep_experts_where_they_are_wanted(mixture: Path) -> None:
    place = EnginePlace(
        str(mixture), dtype="bfloat16", context_tokens=64, routed_experts=True
    )
    spec = SGLangEngineSpec(device="cuda", command=("launch",))
    asked = SGLangServers(place, spec)
    flag = "--enable-return-routed-experts"
    assert flag in asked.command(model=mixture, port=1)
    assert asked.routing == RoutingShape(2, 3, 2)
    others = SGLangServers(replace(place, routed_experts=False), spec)
    assert flag not in others.command(model=mixture, port=1)
    assert others.routing is None
    with pytest.raises(ConfigError, match=r"routed_experts needs SGLang servers on a GPU"):
        SGLangServers(place, spec.replace(device="cpu"))


async def test_a_given_server_without_them_is_refused(
    mixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = EnginePlace(str(mixture), context_tokens=64, routed_experts=True)
    given = SGLangEngineSpec(urls=("http://127.0.0.1:9",))
    client = SGLangServers(place, given).client(
        "server 0", given.urls[0], WeightLabels("own")
    )
    info = {"model_path": str(mixture), "dtype": "float32"}

    async def told(_route: str) -> dict[str, Any]:
        return {}

    monkeypatch.setattr(client, "ask", told)
    for flag, refused in ((False, True), (True, False)):
        monkeypatch.setattr(client, "_info", info | {"enable_return_routed_experts": flag})
        if refused:
            with pytest.raises(
                EngineError, match="start it with --enable-return-routed-experts"
            ):
                await client.check_model()
        else:
            await client.check_model()
