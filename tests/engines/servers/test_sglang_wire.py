"""What is sent to ``/generate``, and what is read from its recorded answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentrl.engines.servers.http_client import (
    RefusedError,
    ServerLostError,
    error_text,
    refusal,
)
from agentrl.engines.sglang.wire import generate_body, read_answer, sampling_body
from agentrl.errors import EngineError, TokenMismatchError
from agentrl.rollouts.token_consistency import assert_token_consistency
from agentrl.types import (
    Completion,
    GenerateRequest,
    Image,
    MediaSpan,
    SamplingParams,
    frozen_ints,
)
from tests.engines.servers.sglang_answers import (
    VOCAB,
    answer,
    answer_without_spans,
    request,
)
from tests.tiny_vision import picture


def version_of(label: str) -> int:
    return int(label.removeprefix("own."))


def read(value: dict[str, Any]) -> Completion:
    return read_answer(request(), value, server="server 0", version_of=version_of)


def test_what_is_switched_off_is_not_sent() -> None:
    assert sampling_body(SamplingParams(9, temperature=0.7)) == {
        "max_new_tokens": 9,
        "temperature": 0.7,
    }


def test_every_sampling_parameter_is_sent() -> None:
    params = SamplingParams(
        9, top_p=0.9, top_k=5, min_p=0.1, stop_token_ids=(7, 8), stop=("END",)
    )
    assert sampling_body(params) == {
        "max_new_tokens": 9,
        "temperature": 1.0,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "stop_token_ids": [7, 8],
        "stop": ["END"],
    }


def test_a_schema_is_sent_for_the_servers_grammar() -> None:
    assert (
        sampling_body(SamplingParams(9, json_schema='{"type": "object"}'))["json_schema"]
        == '{"type": "object"}'
    )


def test_a_request_is_ids_and_asks_for_logprobs() -> None:
    body = generate_body(request(), "rid")
    assert body["input_ids"] == [1, 2, 3]
    assert body["return_logprob"] is True
    assert body["rid"] == "rid"


def test_the_spans_of_weight_versions_become_segments() -> None:
    segments = read(answer()).segments
    assert [(s.policy_version, s.token_ids.tolist()) for s in segments] == [
        (3, [253, 31]),
        (4, [281, 95, 235, 192]),
    ]


def test_logprobs_are_those_of_the_tokens() -> None:
    logprobs = np.concatenate(
        [
            segment.logprobs
            for segment in read(answer()).segments
            if segment.logprobs is not None
        ]
    )
    assert logprobs.tolist() == pytest.approx(
        [-4.888582, -5.204637, -5.461483, -4.393973, -6.008896, -5.609510], abs=1e-6
    )


def test_alternatives_are_asked_for_where_they_are_wanted() -> None:
    assert "top_logprobs_num" not in generate_body(request(), "rid")
    asked = replace(request(), num_alternatives=5)
    assert generate_body(asked, "rid")["top_logprobs_num"] == 5


def likely(count: int) -> list[list[list[Any]]]:
    """As SGLang 0.5.23 writes them, with its own sampled ids first."""
    sampled = answer()["output_ids"]
    return [[[-1.0, token, None], [-2.5, 7, None]] for token in sampled[:count]]


def test_alternatives_are_cut_at_the_spans_of_weight_versions() -> None:
    asked = replace(request(), num_alternatives=2)
    given = answer(output_top_logprobs=likely(6))
    first, second = read_answer(
        asked, given, server="server 0", version_of=version_of
    ).segments
    assert first.alternatives is not None
    assert second.alternatives is not None
    assert first.alternatives[0].tolist() == [[253, 7], [31, 7]]
    assert second.alternatives[0][:, 0].tolist() == [281, 95, 235, 192]
    assert second.alternatives[1].tolist() == [[-1.0, -2.5]] * 4


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (
            {"output_top_logprobs": likely(5)},
            TokenMismatchError,
            "6 ids came back and alternatives to 5",
        ),
        ({"output_top_logprobs": None}, TokenMismatchError, "alternatives to 0"),
        ({}, ServerLostError, "not one of SGLang's"),
    ],
)
def test_alternatives_that_were_asked_for_are_missed(
    given: dict[str, Any], error: type[Exception], said: str
) -> None:
    asked = replace(request(), num_alternatives=2)
    with pytest.raises(error, match=said):
        read_answer(asked, answer(**given), server="server 0", version_of=version_of)


def test_a_server_without_spans_makes_one_segment() -> None:
    assert [(s.policy_version, len(s)) for s in read(answer_without_spans()).segments] == [
        (4, 6)
    ]


def test_the_answer_keeps_the_token_consistency() -> None:
    assert_token_consistency(request(), read(answer()), VOCAB)


def test_cached_tokens_and_the_servers_time_are_kept() -> None:
    completion = read(answer())
    assert (completion.cached_tokens, completion.timings["server_s"]) == (
        2,
        pytest.approx(0.0234634, abs=1e-6),
    )


def test_a_stop_string_is_told_apart_from_a_stop_token() -> None:
    assert (
        read(answer(finish_reason={"type": "stop", "matched": "END"})).stop_string == "END"
    )
    by_token = read(answer(finish_reason={"type": "stop", "matched": 192}))
    assert (by_token.finish_reason, by_token.stop_string) == ("stop", None)


def test_an_aborted_completion_keeps_its_partial_tokens() -> None:
    completion = read(
        answer(finish_reason={"type": "abort", "message": "Aborted by client"})
    )
    assert (completion.finish_reason, sum(len(s) for s in completion.segments)) == (
        "abort",
        6,
    )


def test_an_abort_before_the_first_token_has_no_segment() -> None:
    value = answer(
        finish_reason={"type": "abort"},
        output_token_logprobs=[],
        completion_tokens=0,
        weight_versions=[],
    )
    assert read(value | {"output_ids": []}).segments == ()


def test_a_request_that_the_server_gave_up_may_go_to_another() -> None:
    with pytest.raises(
        ServerLostError, match="gave it up with status 503: out of memory"
    ) as caught:
        read(
            answer(
                finish_reason={
                    "type": "abort",
                    "message": "out of memory",
                    "status_code": 503,
                }
            )
        )
    assert caught.value.retryable


@pytest.mark.parametrize("value", [None, float("nan"), float("-inf")])
def test_a_logprob_that_is_no_number_is_refused(value: float | None) -> None:
    triples = answer()["meta_info"]["output_token_logprobs"]
    triples[3][0] = value
    with pytest.raises(RefusedError, match="is not a finite number"):
        read(answer(output_token_logprobs=triples))


def test_sampling_from_logits_that_are_no_numbers_is_refused() -> None:
    with pytest.raises(RefusedError, match="logits that are not numbers"):
        read(answer(finish_reason={"type": "stop", "matched": "NaN happened"}))


@pytest.mark.parametrize(
    "missing", ["finish_reason", "prompt_tokens", "completion_tokens", "weight_version"]
)
def test_an_answer_with_a_part_missing_is_named(missing: str) -> None:
    value = answer_without_spans()
    del value["meta_info"][missing]
    with pytest.raises(ServerLostError, match=f"not one of SGLang's .*{missing}"):
        read(value)


def test_half_an_answer_is_named() -> None:
    with pytest.raises(ServerLostError, match="not one of SGLang's"):
        read({"output_ids": [1, 2]})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"output_token_logprobs": []}, "6 ids came back and 0 logprobs"),
        (
            {"weight_versions": [{"version": "own.3", "start": 0, "end": 4}]},
            "do not cover its 6 ids",
        ),
        (
            {"weight_versions": [{"version": "own.3", "start": 1, "end": 6}]},
            "do not cover its 6 ids",
        ),
    ],
)
def test_an_answer_that_contradicts_itself_breaks_the_token_consistency(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(TokenMismatchError, match=said):
        read(answer(**changes))


def test_logprobs_of_other_tokens_break_the_token_consistency() -> None:
    value = answer()
    value["output_ids"][2] = 280
    with pytest.raises(TokenMismatchError, match="not of the same tokens"):
        read(value)


def test_another_count_of_tokens_breaks_the_token_consistency() -> None:
    with pytest.raises(TokenMismatchError, match="6 ids came back, the engine made 7"):
        assert_token_consistency(request(), read(answer(completion_tokens=7)), VOCAB)


def test_an_id_outside_the_vocabulary_breaks_the_token_consistency() -> None:
    with pytest.raises(TokenMismatchError, match="outside the model's vocabulary of 200"):
        assert_token_consistency(request(), read(answer()), 200)


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, RefusedError, False),
        (401, RefusedError, False),
        (429, ServerLostError, True),
        (500, ServerLostError, True),
    ],
)
def test_an_http_error_has_a_name(
    status: int, kind: type[EngineError], retryable: bool
) -> None:
    error = refusal("server 1", "/generate", status, b'{"error":{"message":"too long"}}')
    assert (type(error), error.retryable) == (kind, retryable)
    assert f"/generate with HTTP {status}: too long" in str(error)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error":{"message":"a"}}', "a"),
        (b'{"error":"b"}', "b"),
        (b'{"success":false,"message":"c"}', "c"),
        (b'{"detail":"d"}', "d"),
        (b"plain\n", "plain"),
        (b"", "no text"),
    ],
)
def test_each_shape_of_error_body_is_read(body: bytes, text: str) -> None:
    assert error_text(body) == text


def test_an_image_is_sent_as_one_placeholder_and_a_data_uri() -> None:
    image, other = Image.read(picture(84, 56)), Image.read(picture(28, 28, seed=1))
    asked = GenerateRequest(
        "r",
        "s",
        frozen_ints([5, 9, 9, 9, 9, 9, 9, 6, 9, 7]),
        SamplingParams(3),
        seed=0,
        media=(
            MediaSpan(1, 6, image.sha256, "image"),
            MediaSpan(8, 1, other.sha256, "image"),
        ),
        images=(image, other),
    )
    body = generate_body(asked, "rid")
    assert body["input_ids"] == [5, 9, 6, 9, 7]
    assert body["image_data"] == [image.data_uri(), other.data_uri()]


def test_a_request_of_text_alone_names_no_images() -> None:
    assert "image_data" not in generate_body(request(), "rid")
