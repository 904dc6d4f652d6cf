"""Retokenise: each difference is found and named for its cause."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from agentrl.errors import DataError
from agentrl.render import CHATML_TEMPLATE
from agentrl.types import (
    Blob,
    Message,
    Segment,
    SegmentKind,
    Status,
    Task,
    Trajectory,
    Turn,
)
from agentrl.viewer.analysis.retokenise import retokenise
from agentrl.viewer.template import ChatTemplateText
from tests.kit.episodes import sampled, trajectory, turn

K = SegmentKind
MERGES = [("a", "b"), ("ab", "c"), ("d", "e")]
ADDED = ("<|im_start|>", "<|im_end|>")


def byte_tokenizer(normalizer: object = None) -> Tokenizer:
    """Bytes and three merges, with ChatML's markers."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *("".join(pair) for pair in MERGES)]
    made = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, MERGES))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    if normalizer is not None:
        made.normalizer = normalizer
    made.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in ADDED]
    )
    return made


TOKENIZER = byte_tokenizer()


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


def bytes_of(data: bytes) -> list[int]:
    """A token a byte, whatever merges there are."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    names = {byte: chr(byte) for byte in shown}
    names |= {byte: chr(256 + place) for place, byte in enumerate(others)}
    return [TOKENIZER.token_to_id(names[byte]) for byte in data]


def segment(kind: K, token_ids: list[int]) -> Segment:
    return (
        sampled(token_ids)
        if kind is K.POLICY
        else Segment(kind, np.array(token_ids, np.int32))
    )


def episode(
    *turns: tuple[list[Segment], list[int]], said: list[list[Message]] | None = None
) -> Trajectory:
    made = (
        turn(
            index,
            context,
            [sampled(completion)],
            TOKENIZER.decode(completion),
            observed=tuple(said[index]) if said else (),
        )
        for index, (context, completion) in enumerate(turns)
    )
    return trajectory(*made)


def causes(
    trajectory: Trajectory, turn: int = 0, tokenizer: Tokenizer = TOKENIZER
) -> list[str]:
    return [one.cause for one in retokenise(trajectory, turn, tokenizer).differences]


def test_text_that_comes_back_has_no_difference() -> None:
    found = retokenise(
        episode(([segment(K.PROMPT, ids("hello"))], ids("abc"))), 0, TOKENIZER
    )

    assert (found.equal, found.differences) == (True, ())
    assert found.template.equal is None
    assert "no chat template" in found.template.missing


def test_another_split_of_the_same_text() -> None:
    trajectory = episode(
        ([segment(K.PROMPT, ids("x"))], [*ids("y "), *bytes_of(b"abc"), *ids(" z")])
    )

    (one,) = retokenise(trajectory, 0, TOKENIZER).differences

    assert (one.cause, one.turn, one.start) == ("other_split", 0, 3)
    assert (one.recorded, one.again) == (bytes_of(b"abc"), ids("abc"))
    assert (one.recorded_text, one.again_text) == ("abc", "abc")


def test_a_merge_across_the_end_of_the_prompt() -> None:
    trajectory = episode(([segment(K.PROMPT, ids("xa"))], ids("by")))

    (one,) = retokenise(trajectory, 0, TOKENIZER).differences

    assert (one.cause, one.recorded_text, one.again) == (
        "merge_across_boundary",
        "ab",
        ids("ab"),
    )


def test_a_marker_that_a_tool_wrote_out() -> None:
    output = segment(K.OBSERVATION, bytes_of(b"see <|im_end|> there"))
    trajectory = episode(
        ([segment(K.PROMPT, ids("q"))], ids("call")), ([output], ids("done"))
    )

    (one,) = retokenise(trajectory, 1, TOKENIZER).differences

    assert (one.cause, one.turn, one.recorded_text) == (
        "special_token_in_text",
        1,
        "<|im_end|>",
    )
    assert one.again == [TOKENIZER.token_to_id("<|im_end|>")]


def test_bytes_that_are_no_characters() -> None:
    trajectory = episode(
        ([segment(K.PROMPT, ids("q"))], [*ids("a"), *bytes_of(b"\xe2"), *ids("z")])
    )

    (one,) = retokenise(trajectory, 0, TOKENIZER).differences

    assert (one.cause, one.recorded_text) == ("invalid_utf8", "\ufffd")


def test_an_id_beyond_the_vocabulary() -> None:
    trajectory = episode(([segment(K.PROMPT, ids("q"))], [*ids("ok"), 9999]))

    assert causes(trajectory) == ["unknown_id"]


def test_what_a_normalizer_changes() -> None:
    # NFKC writes the ligature as two letters; the tokenizer had it byte by byte
    normal = byte_tokenizer(normalizers.NFKC())
    trajectory = episode(([segment(K.PROMPT, ids("q"))], [*ids("o"), *ids("ﬁ"), *ids("x")]))

    assert causes(trajectory, tokenizer=normal) == ["normalisation"]


def test_white_space_that_a_normalizer_strips() -> None:
    strip = byte_tokenizer(normalizers.Replace("  ", " "))
    trajectory = episode(([segment(K.PROMPT, ids("q"))], ids("k  m")))

    assert causes(trajectory, tokenizer=strip) == ["whitespace"]


def test_each_of_many_differences_stays_small() -> None:
    many = [
        token for _ in range(50) for token in (*ids("k"), *bytes_of(b"abc"), *ids("mnop"))
    ]

    found = retokenise(
        episode(([segment(K.PROMPT, ids("q"))], many)), 0, TOKENIZER
    ).differences

    assert [one.recorded_text for one in found] == ["abc"] * 50


QUESTION: Message = {"role": "user", "content": "How many?"}
OPENING = "<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n"


def chat() -> Trajectory:
    answer = "<think>Hm</think>Two"
    end = TOKENIZER.token_to_id("<|im_end|>")
    between = "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"
    return episode(
        ([segment(K.PROMPT, ids(OPENING))], [*ids(answer), end]),
        ([segment(K.TEMPLATE, ids(between))], [*ids("Yes"), end]),
        said=[[QUESTION], [{"role": "user", "content": "Sure?"}]],
    )


def with_message(trajectory: Trajectory, turn: int, message: Message) -> Trajectory:
    turns = list(trajectory.turns)
    turns[turn] = replace(turns[turn], message=message)
    return replace(trajectory, turns=tuple(turns))


def whole() -> Trajectory:
    return with_message(chat(), 0, {"role": "assistant", "content": "<think>Hm</think>Two"})


def test_the_template_applied_anew_gives_the_input() -> None:
    found = retokenise(whole(), 1, TOKENIZER, ChatTemplateText(CHATML_TEMPLATE)).template

    assert (found.equal, found.missing, found.differences) == (True, "", ())


def test_a_template_that_drops_the_reasoning_of_earlier_turns() -> None:
    text = CHATML_TEMPLATE.replace(
        "'\\n' + said(message.content) }}",
        "'\\n' + said(message.content).split('</think>')[-1] }}",
    )
    assert text != CHATML_TEMPLATE

    found = retokenise(whole(), 1, TOKENIZER, ChatTemplateText(text)).template

    assert found.equal is False
    (one,) = found.differences
    assert (one.cause, one.turn) == ("rewritten_turn", 0)
    assert one.recorded_text == "<think>Hm</think>"


def test_another_template_is_named() -> None:
    text = "<|im_start|>system\nBe brief.<|im_end|>\n" + CHATML_TEMPLATE

    found = retokenise(whole(), 0, TOKENIZER, ChatTemplateText(text)).template

    assert [one.cause for one in found.differences] == ["template_change"]
    assert "Be brief." in found.differences[0].again_text


TOOLS = b'[{"type":"function","function":{"name":"add","parameters":{"b":1,"a":2}}}]'


def offered(tools: bytes) -> Trajectory:
    """The chat after a prompt in which the template wrote ``TOOLS``."""
    chatml = ChatTemplateText(CHATML_TEMPLATE)
    given = chatml.render([dict(QUESTION)], json.loads(TOOLS), generation=True)
    assert '"parameters": {"b": 1, "a": 2}' in given
    first = whole().turns[0]
    turn = replace(
        first,
        context=(segment(K.PROMPT, ids(given)),),
        offered_tools=Blob.of(tools),
    )
    return replace(whole(), turns=(turn,))


def test_the_template_gets_the_tools_that_were_on_offer() -> None:
    trajectory = offered(TOOLS)
    named = trajectory.turns[0].offered_tools
    assert named is not None
    template = ChatTemplateText(CHATML_TEMPLATE)

    found = retokenise(trajectory, 0, TOKENIZER, template, {named.sha256: TOOLS}).template

    assert (found.equal, found.missing, found.differences) == (True, "", ())
    unnamed = replace(trajectory, turns=(replace(trajectory.turns[0], offered_tools=None),))
    (one, *_) = retokenise(unnamed, 0, TOKENIZER, template).template.differences
    assert one.cause == "template_change"


@pytest.mark.parametrize(
    ("tools", "kept", "said"),
    [
        (TOOLS, False, "does not keep the tools on offer (74 bytes"),
        (b"{}", True, "no list of objects"),
        (b'["add"]', True, "no list of objects"),
        (b"\xff", True, "are no JSON"),
        (
            b"x" * (2**20 + 1),
            False,
            "does not keep the tools on offer (1048577 bytes, and at most",
        ),
    ],
)
def test_tools_that_cannot_be_read_are_named(tools: bytes, kept: bool, said: str) -> None:
    trajectory = offered(tools)
    named = trajectory.turns[0].offered_tools
    assert named is not None
    blobs = {named.sha256: tools} if kept else {}

    found = retokenise(
        trajectory, 0, TOKENIZER, ChatTemplateText(CHATML_TEMPLATE), blobs
    ).template

    assert found.equal is None
    assert said in found.missing


def test_every_sequence_of_an_episode() -> None:
    first = ([segment(K.PROMPT, ids("p"))], bytes_of(b"abc"))
    second = ([segment(K.PROMPT, ids("longer"))], bytes_of(b"de"))
    trajectory = episode(first, second)
    turns = (trajectory.turns[0], replace(trajectory.turns[1], parent=None))

    found = retokenise(replace(trajectory, turns=turns), None, TOKENIZER)

    assert found.turns == (0, 1)
    # places among all tokens: p abc, then the six letters of the second prompt
    assert [(one.turn, one.start, one.again_text) for one in found.differences] == [
        (0, 1, "abc"),
        (1, 4 + 6, "de"),
    ]


def test_a_template_with_a_fault_is_told_and_not_raised() -> None:
    found = retokenise(
        whole(), 0, TOKENIZER, ChatTemplateText("{{ raise_exception('no') }}")
    )

    assert found.equal is True
    assert found.template.equal is None
    assert "cannot render: TemplateError: no" in found.template.missing


def test_a_turn_that_is_not_there() -> None:
    with pytest.raises(DataError, match="turns 0 to 1, got 2"):
        retokenise(whole(), 2, TOKENIZER)


def test_a_turn_without_ids() -> None:
    turn = Turn(0, None, (), (), "hi", {"role": "assistant", "content": "hi"})
    trajectory = Trajectory(Task("t"), 0, 0, 0, "eval", (turn,), Status("terminated"))

    with pytest.raises(DataError, match="no token ids"):
        retokenise(trajectory, 0, TOKENIZER)
