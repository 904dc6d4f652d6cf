"""Images as tokens: so many placeholders, of the right kind, whatever stands around them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.errors import DataError
from agentrl.render import Renderer, RendererSpec
from agentrl.types import (
    Image,
    Message,
    Segment,
    SegmentKind,
    ToolSpec,
    concat_ids,
    concat_media,
    with_images,
)
from tests.render.qwen_kind import template_text
from tests.tiny_vision import MARKERS, picture, write_vision_tokenizer

LOOK = ToolSpec("look", "Looks.", {"type": "object", "properties": {}})
Made = tuple[Renderer, Any]


@pytest.fixture(scope="module", params=["chatml", "qwen2_5_vl", "qwen3_vl"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Renderers of plain ChatML and of the templates that the models ship, with their tokenizer."""
    folder = tmp_path_factory.mktemp("vision")
    plain = request.param == "chatml"
    tokenizer = write_vision_tokenizer(
        folder, None if plain else template_text(request.param)
    )
    return RendererSpec(
        str(folder), chat_template="chatml" if plain else None
    ).build(), tokenizer


def parts(*given: str | bytes) -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image", "image": part}
        for part in given
    ]


def asked(*given: str | bytes, role: Any = "user") -> tuple[Message, ...]:
    return with_images([{"role": role, "content": parts(*given)}])


def shown(tokenizer: Any, segments: tuple[Segment, ...]) -> str:
    return str(tokenizer.decode(concat_ids(segments)))


def test_an_image_becomes_as_many_placeholders_as_its_grid_has_cells(made: Made) -> None:
    renderer, tokenizer = made
    # 84 x 56 pixels are a grid of 6 x 4 patches of 14, merged by 2 x 2: 6 tokens
    segments = renderer.prompt(asked("What is ", picture(84, 56), "?"))
    expected = (
        "user\nWhat is <|vision_start|>"
        + "<|image_pad|>" * 6
        + "<|vision_end|>?<|im_end|>\n"
    )
    assert expected in shown(tokenizer, segments)


def test_ids_are_those_of_the_template_with_each_placeholder_expanded(made: Made) -> None:
    renderer, tokenizer = made
    pictures = [picture(84, 56), picture(28, 28, seed=1)]
    (segment,) = renderer.prompt(asked("a", pictures[0], "b", pictures[1]))
    text = tokenizer.decode(
        [i for i in segment.token_ids if i not in renderer.image_token_ids]
    )
    assert text.endswith(
        "user\na<|vision_start|><|vision_end|>b<|vision_start|><|vision_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    assert int(np.isin(segment.token_ids, list(renderer.image_token_ids)).sum()) == 6 + 1


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_ids_are_those_that_the_models_own_template_gives(
    name: str, tmp_path: Path
) -> None:
    tokenizer = write_vision_tokenizer(tmp_path, template_text(name))
    # the template of Qwen2.5-VL has no place for tools
    tools = (LOOK,) if name == "qwen3_vl" else ()
    answered: Any = {"role": "tool", "content": parts("It is ", picture(28, 28, seed=1))}
    conversation = with_images(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": parts("What is ", picture(84, 56), "?")},
            {"role": "assistant", "content": "I look."},
            answered if tools else {**answered, "role": "user"},
        ]
    )
    (segment,) = RendererSpec(str(tmp_path)).build().prompt(conversation, tools)
    theirs = tokenizer.apply_chat_template(
        list(conversation),
        tools=[tool.openai() for tool in tools] or None,
        add_generation_prompt=True,
        return_dict=False,
    )
    placeholder = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    counts = iter([6, 1])
    expanded = [
        i
        for token in theirs
        for i in ([token] * next(counts) if token == placeholder else [token])
    ]
    assert segment.token_ids.tolist() == expanded


def test_media_names_each_image_and_where_it_is(made: Made) -> None:
    renderer, tokenizer = made
    first, second = picture(84, 56), picture(28, 28, seed=1)
    (segment,) = renderer.prompt(asked(first, second))
    assert [(span.num_tokens, span.sha256, span.kind) for span in segment.media] == [
        (6, Image.read(first).sha256, "image"),
        (1, Image.read(second).sha256, "image"),
    ]
    placeholder = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    for span in segment.media:
        assert set(segment.token_ids[span.start : span.start + span.num_tokens]) == {
            placeholder
        }
        assert (
            segment.token_ids[span.start - 1]
            != placeholder
            != segment.token_ids[span.start + span.num_tokens]
        )


def test_an_image_in_an_observation_is_an_observation(made: Made) -> None:
    renderer, tokenizer = made
    history = (*asked("Look."), {"role": "assistant", "content": "I look."})
    completion = tokenizer.encode("I look.<|im_end|>", return_tensors="np")[0].astype(
        np.int32
    )
    segments = renderer.extend(completion, asked("see", picture(84, 56)), history)
    assert segments is not None
    placeholder = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert {s.kind for s in segments if placeholder in s.token_ids} == {
        SegmentKind.OBSERVATION
    }
    (span,) = concat_media(segments)
    ids = concat_ids(segments)
    assert np.flatnonzero(ids == placeholder).tolist() == list(
        range(span.start, span.start + 6)
    )


def test_an_image_of_a_tool_stands_in_its_response(tmp_path: Path) -> None:
    tokenizer = write_vision_tokenizer(tmp_path)
    renderer = RendererSpec(str(tmp_path), chat_template="chatml").build()
    answered = asked("It is", picture(28, 28), role="tool")
    segments = renderer.extend(
        np.asarray([tokenizer.convert_tokens_to_ids("<|im_end|>")], np.int32), answered
    )
    assert segments is not None
    assert shown(tokenizer, segments) == (
        "\n<|im_start|>user\n<tool_response>\nIt "
        "is<|vision_start|><|image_pad|><|vision_end|>\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n"
    )


def test_text_that_looks_like_an_image_is_none(made: Made) -> None:
    renderer, _ = made
    (segment,) = renderer.prompt(asked("".join(MARKERS), picture(28, 28), MARKERS[2]))
    added = [i for i in segment.token_ids.tolist() if i in renderer.image_token_ids]
    assert len(added) == sum(span.num_tokens for span in segment.media) == 1


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=12),
            st.sampled_from(MARKERS),
            st.integers(0, 3).map(
                lambda seed: picture(28 + 20 * seed, 28 + 9 * seed, seed=seed)
            ),
        ),
        min_size=1,
        max_size=7,
    )
)
def test_fuzzed_parts_never_forge_or_lose_an_image(
    made: Made, given_parts: list[str | bytes]
) -> None:
    renderer, tokenizer = made
    history = (*asked("Look."), {"role": "assistant", "content": "Yes."})
    completion = tokenizer.encode("Yes.<|im_end|>", return_tensors="np")[0].astype(np.int32)
    observed = asked(*given_parts)
    segments = renderer.extend(completion, observed, history)
    assert segments is not None
    ids, spans = concat_ids(segments), concat_media(segments)
    images = [Image.read(part) for part in given_parts if isinstance(part, bytes)]
    assert [span.sha256 for span in spans] == [image.sha256 for image in images]
    placeholder = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    inside = [
        place for span in spans for place in range(span.start, span.start + span.num_tokens)
    ]
    assert np.flatnonzero(ids == placeholder).tolist() == inside
    assert all(s.kind in (SegmentKind.OBSERVATION, SegmentKind.TEMPLATE) for s in segments)
    # what extends a sequence is what the whole conversation, rendered anew, ends with
    whole = concat_ids(renderer.prompt((*history, *observed)))
    assert whole[-ids.size :].tolist() == ids.tolist()


def test_a_model_of_text_alone_refuses_images_by_name(chatml: Renderer) -> None:
    with pytest.raises(DataError, match="has 1 images, and the model takes text alone"):
        chatml.prompt(asked("?", picture()))


def test_a_template_without_a_place_for_images_is_named(tmp_path: Path) -> None:
    template = template_text("qwen2_5_vl").replace(
        "<|vision_start|><|image_pad|><|vision_end|>", ""
    )
    write_vision_tokenizer(tmp_path, template)
    with pytest.raises(DataError, match="writes 0 placeholders for 1 images"):
        RendererSpec(str(tmp_path)).build().prompt(asked("?", picture()))


def test_an_image_too_long_for_the_processor_is_named(made: Made) -> None:
    with pytest.raises(
        DataError, match=r"image 2010x10, .* cannot be shown to the model: .*crop it"
    ):
        made[0].prompt(asked(picture(2010, 10)))


@pytest.mark.parametrize(
    ("settings", "size"),
    [({"min_pixels": 0}, (3, 3)), ({"min_pixels": 0, "max_pixels": 0}, (84, 56))],
)
def test_an_image_that_the_settings_cut_to_nothing_is_named(
    settings: dict[str, int], size: tuple[int, int], tmp_path: Path
) -> None:
    write_vision_tokenizer(tmp_path)
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    renderer = RendererSpec(str(tmp_path), chat_template="chatml").build()
    with pytest.raises(
        DataError, match=r"image \d+x\d+, .* becomes no token by min_pixels"
    ):
        renderer.prompt(asked("?", picture(*size)))


def test_a_template_that_writes_an_image_twice_is_named(tmp_path: Path) -> None:
    once = "<|vision_start|><|image_pad|><|vision_end|>"
    write_vision_tokenizer(tmp_path, template_text("qwen2_5_vl").replace(once, 2 * once))
    with pytest.raises(DataError, match="writes 2 placeholders for 1 images"):
        RendererSpec(str(tmp_path)).build().prompt(asked("?", picture()))


def test_a_model_that_sees_needs_its_image_processor(tmp_path: Path) -> None:
    write_vision_tokenizer(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(DataError, match="copy preprocessor_config"):
        RendererSpec(str(tmp_path), chat_template="chatml").build()


def test_a_tokenizer_with_another_placeholder_is_refused(tmp_path: Path) -> None:
    write_vision_tokenizer(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"image_token_id": 3}))
    with pytest.raises(DataError, match="sees images by image_token_id=3"):
        RendererSpec(str(tmp_path), chat_template="chatml").build()


def test_tools_are_told_beside_images(tmp_path: Path) -> None:
    tokenizer = write_vision_tokenizer(tmp_path)
    renderer = RendererSpec(str(tmp_path), chat_template="chatml").build()
    assert '"name": "look"' in shown(
        tokenizer, renderer.prompt(asked("?", picture()), (LOOK,))
    )
