"""No text can forge a marker, and each token's kind follows from the characters that it covers."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from agentrl.errors import DataError
from agentrl.render import ChatMLRenderer, Piece, PieceEncoder, Source
from agentrl.tools.execution.outputs import clip_tokens
from agentrl.types import SegmentKind, concat_ids

MARKERS = (
    "<|im_end|>",
    "<|im_start|>",
    "<tool_call>",
    "</tool_response>",
    "<think>",
    "<|fim_prefix|>",
    "<|endoftext|>",
)
# Text that is likely to go wrong: markers whole and in parts, white space, digits, and any Unicode
# at all.
CONTENT = st.lists(
    st.one_of(
        st.sampled_from(MARKERS),
        st.sampled_from(("<|im_", "end|>", "\n", "  ", "1234")),
        st.text(max_size=8),
    ),
    max_size=6,
).map("".join)


@pytest.fixture(scope="module")
def tokenizer(built: Callable[..., tuple[ChatMLRenderer, Any]]) -> Any:
    return built("qwen3_instruct")[1]


@pytest.fixture(scope="module")
def encoder(tokenizer: Any) -> PieceEncoder:
    return PieceEncoder(tokenizer.backend_tokenizer, ["<tool_call>", "</tool_call>"])


def added(encoder: PieceEncoder, ids: np.ndarray[Any, Any]) -> list[int]:
    return [
        int(token_id)
        for token_id in ids
        if int(token_id) in set(encoder.added_ids.values())
    ]


@given(content=st.one_of(CONTENT, st.text("e\u0301\u0327 \n\u1100\u1161", min_size=20)))
@pytest.mark.parametrize("family", ["qwen3_instruct", "qwen2_5"])
def test_the_fewest_tokens_are_no_more_than_there_are(
    built: Callable[..., tuple[ChatMLRenderer, Any]], family: str, content: str
) -> None:
    renderer = built(family)[0]
    told = [{"role": "user", "content": content}]
    assert renderer.fewest_tokens(told) <= len(renderer.prompt(told)[0])


def test_a_long_text_has_many_tokens_at_least(chatml: ChatMLRenderer) -> None:
    said = {"role": "assistant", "content": "x" * 10**6}
    told = {"role": "tool", "content": "x" * 10**6}
    assert (chatml.fewest_tokens([said]), chatml.fewest_tokens([told]) > 10**4) == (0, True)
    # what cannot be encoded is refused by prompt, not here
    assert chatml.fewest_tokens([{"role": "user", "content": "\ud800"}]) == 0


@given(content=CONTENT)
def test_content_never_becomes_an_added_token_and_comes_back_as_it_was(
    encoder: PieceEncoder, tokenizer: Any, content: str
) -> None:
    ids, covers = encoder.encode([Piece(content, Source.CONTENT)])
    assert added(encoder, ids) == []
    assert covers.all()
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", content)


@given(content=CONTENT)
def test_the_kinds_of_an_extension_cover_the_content_and_no_template(
    chatml: ChatMLRenderer, content: str
) -> None:
    completion = chatml.target({"role": "assistant", "content": "x"}).token_ids
    segments = chatml.extend(completion, ({"role": "tool", "content": content},))
    assert segments is not None
    observed = [s for s in segments if s.kind is SegmentKind.OBSERVATION]
    assert len(observed) == (1 if content else 0)
    # a border token may carry the template's newline as well, never a letter of it
    said = chatml.decode(concat_ids(observed))
    assert said.strip("\n") == unicodedata.normalize("NFC", content).strip("\n")
    around = chatml.decode(
        concat_ids(s for s in segments if s.kind is SegmentKind.TEMPLATE)
    )
    assert (
        around.replace("\n", "")
        == "<|im_start|>user<tool_response></tool_response><|im_end|><|im_start|>assistant"
    )


@given(st.text(max_size=40))
def test_clean_text_has_the_ids_of_the_tokenizer_wherever_it_is_cut(
    encoder: PieceEncoder, tokenizer: Any, text: str
) -> None:
    assume(not any(marker in text for marker in encoder.added_ids))
    half = len(text) // 2
    pieces = [Piece(text[:half], Source.TEMPLATE), Piece(text[half:], Source.CONTENT)]
    assert encoder.encode(pieces)[0].tolist() == tokenizer.encode(
        text, add_special_tokens=False
    )


@pytest.mark.parametrize("marker", MARKERS)
def test_a_templates_marker_is_one_token(encoder: PieceEncoder, marker: str) -> None:
    ids, covers = encoder.encode([Piece(f"a{marker}b", Source.TEMPLATE)])
    assert added(encoder, ids) == [encoder.added_ids[marker]]
    assert not covers.any()


def test_an_assistant_may_write_its_own_markers_alone(encoder: PieceEncoder) -> None:
    ids, _ = encoder.encode(
        [Piece("<tool_call>x<|im_end|><|im_start|>system", Source.ASSISTANT)]
    )
    assert added(encoder, ids) == [encoder.added_ids["<tool_call>"]]


def test_markers_of_an_output_are_counted_and_cut_as_the_tokens_that_they_become(
    chatml: ChatMLRenderer, encoder: PieceEncoder
) -> None:
    def rendered(text: str) -> int:
        return int(encoder.encode([Piece(text, Source.CONTENT)])[0].size)

    output = "<|im_start|>" * 100
    ends = chatml.token_ends(output)
    assert (len(ends), ends[-1]) == (rendered(output), len(output))
    clipped, was_cut = clip_tokens(output, ends, 100)
    head, _, rest = clipped.partition("\n[... ")
    tail = rest.partition(" left out ...]\n")[2]
    assert was_cut
    assert output.startswith(head)
    assert output.endswith(tail)
    assert rendered(head) + rendered(tail) <= 100


def test_a_marker_is_not_made_of_two_authors_halves(encoder: PieceEncoder) -> None:
    ids, _ = encoder.encode(
        [Piece("<|im_", Source.TEMPLATE), Piece("end|>", Source.CONTENT)]
    )
    assert added(encoder, ids) == []


def test_of_two_markers_at_one_place_the_longer_counts() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"<": 0, "a": 1, ">": 2}, merges=[]))
    tokenizer.add_tokens(["<a", "<a>"])
    encoder = PieceEncoder(tokenizer, [])
    assert (
        encoder.encode([Piece("<a><a", Source.TEMPLATE)])[0].tolist()
        == tokenizer.encode("<a><a").ids
        == [4, 3]
    )


def test_a_word_that_is_in_the_vocabulary_as_a_marker_is_spelt_out() -> None:
    # a trainer writes special tokens into the vocabulary too, where ignore_merges takes a whole
    # word for one token
    vocab = {letter: index for index, letter in enumerate("<end>")} | {"<end>": 5}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    tokenizer.add_special_tokens(["<end>"])
    encoder = PieceEncoder(tokenizer, [])
    assert encoder.encode([Piece("<end>", Source.CONTENT)])[0].tolist() == [0, 1, 2, 3, 4]


def test_a_tokenizer_that_is_no_bpe_is_refused() -> None:
    tokenizer = Tokenizer(models.WordLevel(vocab={"a": 0}, unk_token="a"))
    with pytest.raises(DataError, match="must be BPE"):
        PieceEncoder(tokenizer, [])


def test_a_tokenizer_whose_merges_build_a_marker_is_refused() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    tokenizer.add_special_tokens(["ab"])
    encoder = PieceEncoder(tokenizer, [])
    with pytest.raises(DataError, match="merges build"):
        encoder.encode([Piece("ab", Source.CONTENT)])


def test_half_of_a_surrogate_pair_is_named(encoder: PieceEncoder) -> None:
    with pytest.raises(DataError, match=r"UTF-8 can carry, got '\\udcff'"):
        encoder.encode([Piece("file \udcff", Source.CONTENT)])
