"""What is refused before any engine runs it is named, with the value found."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from agentrl.engines.checks import check_request, require_new
from agentrl.engines.life import EngineLife
from agentrl.errors import EngineError
from agentrl.types import EngineInfo, GenerateRequest
from tests.engines.tiny import VOCAB, random_ids, request

INFO = EngineInfo("torch", "tiny", VOCAB, 512, policy_version=0)
BAD = {
    "id above the vocabulary": (request([1, VOCAB]), rf"\[0, {VOCAB}\).*got {VOCAB}"),
    "negative id": (request([-1, 2]), "got -1"),
    "no id": (request([]), "at least one"),
    "prompt over the context": (
        request(random_ids(0, 513), max_new_tokens=1),
        "context_tokens=512, got 513 ",
    ),
    "completion over it": (request([1] * 500, max_new_tokens=13), r"500 \+ 13"),
    "more alternatives than tokens": (
        replace(request([1]), num_alternatives=VOCAB + 1),
        f"vocabulary's {VOCAB}, got {VOCAB + 1}",
    ),
    "stop string without decode": (request([1], stop=("x",)), "stop_token_ids"),
}


@pytest.mark.parametrize(("bad", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_named(bad: GenerateRequest, message: str) -> None:
    with pytest.raises(EngineError, match=message) as caught:
        check_request(bad, INFO, stop_strings=False)
    assert not caught.value.retryable


def test_a_version_that_is_not_served_yet_is_named() -> None:
    with pytest.raises(EngineError, match=r"min_version=2.*policy_version=0") as caught:
        EngineLife().require_version(request([1], min_version=2))
    assert caught.value.retryable


def test_an_id_in_flight_is_named() -> None:
    with pytest.raises(EngineError, match="request_id 'r' is already in flight") as caught:
        require_new(request([1]), {"r"})
    assert not caught.value.retryable


def test_an_engine_error_crosses_processes_with_its_verdict() -> None:
    error = pickle.loads(pickle.dumps(EngineError("no", retryable=False)))
    assert (str(error), error.retryable) == ("no", False)
