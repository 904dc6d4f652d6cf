"""What is sent to vLLM and what its answers are read as."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentrl.engines.servers.client import WeightLabels
from agentrl.engines.servers.http_client import RefusedError, ServerLostError
from agentrl.engines.vllm.model_check import meaning_problem
from agentrl.engines.vllm.wire import (
    PROBE_TEMPERATURE,
    generate_body,
    joined,
    probe_bodies,
    read_answer,
    read_table,
    score_body,
    told,
)
from agentrl.errors import EngineError, TokenMismatchError
from agentrl.types import Completion, concat_ids
from tests.engines.servers.sglang_answers import request
from tests.engines.servers.vllm_answers import answer, events, position


def read(told: dict[str, Any], **sampling: Any) -> Completion:
    alternatives = sampling.pop("num_alternatives", 0)
    asked = replace(request(**sampling), num_alternatives=alternatives)
    return read_answer(
        asked, told, server="server 0", version_of=WeightLabels("own").version_of
    )


def sampling_of(**sampling: Any) -> dict[str, Any]:
    body: dict[str, Any] = generate_body(request(**sampling), "r")["sampling_params"]
    return body


def test_a_request_is_ids_and_asks_for_logprobs() -> None:
    body = generate_body(request(temperature=0.7), "episode/0#own.1")
    assert body == {
        "request_id": "episode/0#own.1",
        "token_ids": [1, 2, 3],
        "sampling_params": {
            "max_tokens": 6,
            "temperature": 0.7,
            "ignore_eos": True,
            "detokenize": False,
            "logprobs": 0,
        },
    }


def test_every_sampling_parameter_is_sent() -> None:
    sent = sampling_of(
        top_p=0.9, top_k=5, stop_token_ids=(4,), stop=("x",), json_schema="{}"
    )
    assert {key: sent[key] for key in ("top_p", "top_k", "stop_token_ids", "stop")} == {
        "top_p": 0.9,
        "top_k": 5,
        "stop_token_ids": [4],
        "stop": ["x"],
    }
    # a text is needed for strings, and the model's own end where a grammar says when
    assert (sent["detokenize"], sent["ignore_eos"]) == (True, False)
    assert sent["structured_outputs"] == {"json": "{}"}


@pytest.mark.parametrize(
    ("sampling", "alternatives", "said"),
    [
        ({"min_p": 0.1}, 0, r"min_p must be 0 for vLLM .* got 0\.1; use top_p or top_k"),
        (
            {"top_p": 0.9},
            2,
            r"num_alternatives=2 needs top_p and top_k off .* got {'top_p': 0\.9}",
        ),
        ({"top_k": 3}, 1, "num_alternatives=1 needs top_p and top_k off"),
    ],
)
def test_what_has_no_logprobs_of_our_meaning_is_refused(
    sampling: dict[str, Any], alternatives: int, said: str
) -> None:
    asked = replace(request(**sampling), num_alternatives=alternatives)
    with pytest.raises(EngineError, match=said) as caught:
        generate_body(asked, "r")
    assert not caught.value.retryable


def test_the_spans_of_weight_versions_become_segments() -> None:
    found = read(answer())
    assert [(s.policy_version, s.token_ids.tolist()) for s in found.segments] == [
        (3, [250]),
        (4, [256, 8, 204]),
    ]
    assert found.segments[0].logprobs is not None
    assert found.segments[0].logprobs.tolist() == [np.float32(-4.203820)]
    assert (found.cached_tokens, found.usage.completion_tokens) == (2, 4)


def test_alternatives_are_the_likeliest_whether_or_not_the_sampled_one_is_among_them() -> (
    None
):
    body = generate_body(replace(request(), num_alternatives=2), "r")
    # the sampled one takes a place of its own
    assert body["sampling_params"]["logprobs"] == 3
    found = read(answer(), num_alternatives=2)
    [first, rest] = [segment.alternatives for segment in found.segments]
    assert first is not None
    assert rest is not None
    assert [first[0][0].tolist(), rest[0][1].tolist()] == [[23, 156], [129, 105]]
    content = [position((23, -4.0), (156, -4.1), (7, -4.2))]
    one = answer(
        token_ids=[23],
        logprobs={"content": content},
        weight_versions=[{"version": "own.4", "start": 0, "end": 1}],
    )
    [segment] = read(one, num_alternatives=2).segments
    assert segment.alternatives is not None
    assert segment.alternatives[0].tolist() == [[23, 156]]


@pytest.mark.parametrize(
    ("stop_reason", "stop_string"), [("x", "x"), (4, None), (None, None)]
)
def test_a_stop_string_is_told_from_a_stop_token(
    stop_reason: object, stop_string: str | None
) -> None:
    found = read(answer(finish_reason="stop", stop_reason=stop_reason))
    assert (found.finish_reason, found.stop_string) == ("stop", stop_string)


def test_an_aborted_request_may_have_no_token() -> None:
    empty = answer(
        finish_reason="abort", token_ids=[], logprobs={"content": []}, weight_versions=None
    )
    found = read(empty)
    assert (found.finish_reason, found.segments) == ("abort", ())


def test_what_stands_for_a_logprob_that_is_no_number_is_refused() -> None:
    content = [position((1, -9999.0))]
    spans = [{"version": "own.4", "start": 0, "end": 1}]
    broken = answer(token_ids=[1], logprobs={"content": content}, weight_versions=spans)
    with pytest.raises(
        RefusedError, match="a logprob is nan, which is not a finite number"
    ):
        read(broken)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"token_ids": [250, 256, 8]}, "3 ids came back and 4 logprobs"),
        ({"weight_versions": []}, "do not cover its 4 ids"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(TokenMismatchError, match=said):
        read(answer(**changes))


@pytest.mark.parametrize("changes", [{"logprobs": None}, {"finish_reason": "error"}])
def test_another_answer_is_a_lost_server(changes: dict[str, Any]) -> None:
    with pytest.raises(
        ServerLostError, match=r"not one of vLLM's .* /inference/v1/generate"
    ):
        read(answer(**changes))


def test_the_weights_of_another_owner_are_refused() -> None:
    spans = [{"version": "other.1", "start": 0, "end": 4}]
    with pytest.raises(EngineError, match=r"weights called 'other\.1'"):
        read(answer(weight_versions=spans))


def test_a_stream_adds_up_to_the_answer() -> None:
    parts = events()
    ids, logprobs = zip(*map(told, parts), strict=True)
    whole = read(answer())
    assert np.concatenate(ids).tolist() == concat_ids(whole.segments).tolist()
    assert np.concatenate(logprobs).size == 4
    streamed = read(dict(joined(parts)))
    assert [s.token_ids.tolist() for s in streamed.segments] == [
        s.token_ids.tolist() for s in whole.segments
    ]
    assert (streamed.usage, streamed.cached_tokens) == (whole.usage, whole.cached_tokens)


@pytest.mark.parametrize("parts", [[], events()[:2]])
def test_a_stream_that_ends_early_is_a_lost_server(parts: list[dict[str, Any]]) -> None:
    with pytest.raises(ServerLostError, match="not one of vLLM's"):
        read(dict(joined(parts)))


def test_a_score_names_the_token_beside_the_sampled_one() -> None:
    body = score_body([1, 2], 7)
    assert body["sampling_params"]["logprob_token_ids"] == [7, 7]
    table = read_table(
        answer(logprobs={"content": [position((3, -1.0), (7, -2.5))]}), 9, server="server 0"
    )
    assert table[7] == -2.5
    with pytest.raises(ServerLostError, match="server 0 answered without logprobs"):
        read_table(answer(logprobs=None), 9, server="server 0")


# --- what a server's logprobs mean

LOGITS = np.array([3.0, 2.5, 1.0, -1.0, -6.0])
SCALED = LOGITS / PROBE_TEMPERATURE


def log_softmax(values: np.ndarray) -> np.ndarray:
    return values - np.logaddexp.reduce(values)


def cut(values: np.ndarray) -> np.ndarray:
    """Without the last two tokens, which top-p leaves out."""
    return np.where(np.arange(values.size) < 3, values, np.nan)


def test_probes_are_the_same_position_twice() -> None:
    plain, with_top_p = probe_bodies(61)
    assert plain["token_ids"] == with_top_p["token_ids"]
    assert plain["sampling_params"]["logprobs"] == -1
    own = {"temperature": 0.7, "top_p": 0.9}
    assert with_top_p["sampling_params"] == plain["sampling_params"] | own


def test_logprobs_of_our_meaning_are_accepted() -> None:
    assert meaning_problem(log_softmax(LOGITS), cut(log_softmax(SCALED))) == ""


@pytest.mark.parametrize(
    ("plain", "with_top_p"),
    [
        pytest.param(log_softmax(LOGITS), log_softmax(LOGITS), id="raw_logprobs"),
        pytest.param(
            log_softmax(LOGITS),
            cut(SCALED - np.logaddexp.reduce(SCALED[:3])),
            id="processed_logprobs",
        ),
        pytest.param(LOGITS, LOGITS, id="raw_logits"),
        pytest.param(LOGITS, cut(SCALED), id="processed_logits"),
        pytest.param(cut(log_softmax(LOGITS)), cut(log_softmax(SCALED)), id="a part alone"),
        pytest.param(log_softmax(LOGITS), np.full(5, np.nan), id="none"),
    ],
)
def test_logprobs_of_another_meaning_are_refused(
    plain: np.ndarray, with_top_p: np.ndarray
) -> None:
    said = meaning_problem(plain, with_top_p)
    assert said.startswith(
        "has logprobs of another meaning than log-softmax(logits / temperature)"
    )
    assert "--logprobs-mode processed_logits" in said
