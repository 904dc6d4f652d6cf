"""TorchEngine shown images: the model's own numbers, whatever is cached, copied, parked, moved."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import current_thread
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.modules.module import register_module_forward_hook
from transformers import AutoModelForImageTextToText

from agentrl.engines import EnginePlace
from agentrl.engines.checksum import tensor_checksum
from agentrl.engines.conformance import check_engine
from agentrl.engines.torch import TorchEngine, TorchEngineSpec
from agentrl.engines.torch.model import images as served
from agentrl.engines.torch.sessions import SessionCache
from agentrl.errors import EngineError
from agentrl.types import Completion, GenerateRequest, Image
from tests.engines.seen import asked, assert_own_logprobs, own_table
from tests.engines.tiny import publish, sampled
from tests.kit.marks import wide_but
from tests.tiny_vision import picture, write_qwen_vl

CONTEXT = 1024
FAMILIES = wide_but(("qwen3_vl",), ("qwen2_5_vl", "qwen3_vl"))
ONE = picture(84, 56)
OTHER = picture(84, 56, seed=1)
WIDE = picture(60, 130, seed=2, form="JPEG")


class Seeing:
    """A tiny model in its folder, in transformers, and engines of it."""

    def __init__(self, folder: Path, family: Any, seed: int = 5) -> None:
        self.folder = write_qwen_vl(folder, family=family, seed=seed, context=CONTEXT)
        self.reference: Any = AutoModelForImageTextToText.from_pretrained(
            self.folder, dtype=torch.float32
        ).eval()

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return load_file(self.folder / "model.safetensors")

    def asked(self, name: str, *parts: str | bytes, **sampling: Any) -> GenerateRequest:
        return asked(self.folder, name, *parts, **sampling)

    def hold(self, request: GenerateRequest, completion: Completion) -> None:
        """The completion's logprobs are transformers' own, and so are greedy tokens."""
        ids, logprobs = sampled(completion)
        assert ids.size
        assert ids.min() >= 0
        assert_own_logprobs(self.reference, self.folder, request, ids.tolist(), logprobs)
        if request.sampling.temperature == 0.0:
            table = own_table(self.reference, self.folder, request, ids.tolist())
            assert table.argmax(-1).tolist() == ids.tolist()


@pytest.fixture(scope="module", params=FAMILIES)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Seeing:
    return Seeing(tmp_path_factory.mktemp("vl"), request.param)


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return Seeing(tmp_path_factory.mktemp("vl"), "qwen3_vl")


@pytest.fixture
def begin() -> Iterator[Callable[..., TorchEngine]]:
    """Builds engines and closes them at the end of the test."""
    engines: list[TorchEngine] = []

    def build(model: Seeing, **settings: Any) -> TorchEngine:
        place = EnginePlace(
            str(model.folder), **{"context_tokens": 256, "max_running": 8} | settings
        )
        engines.append(TorchEngine(place))
        return engines[-1]

    yield build
    for engine in engines:
        engine.close()


@pytest.fixture
def looks() -> Iterator[list[list[int]]]:
    """The grid of each image whenever an engine's tower looks at it."""
    seen: list[list[int]] = []

    def note(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        if (
            hasattr(module, "patch_embed")
            and current_thread().name == "agentrl-torch-engine"
        ):
            seen.extend(kwargs["grid_thw"].tolist())

    with register_module_forward_hook(note, with_kwargs=True):
        yield seen


def behind(
    request: GenerateRequest, completion: Completion, more: GenerateRequest
) -> GenerateRequest:
    """The session's next turn: what was asked, what was said, and what more is asked."""
    history = np.concatenate([request.token_ids, sampled(completion)[0]])
    moved = tuple(replace(span, start=span.start + history.size) for span in more.media)
    return replace(
        more,
        session_id=request.session_id,
        token_ids=np.concatenate([history, more.token_ids]),
        media=request.media + moved,
        images=request.images + more.images,
    )


async def together(
    engine: TorchEngine, requests: list[GenerateRequest]
) -> list[Completion]:
    """Their completions; all are in the queue before the first runs."""
    engine.pause("retract")
    tasks = [asyncio.ensure_future(engine.generate(request)) for request in requests]
    await asyncio.sleep(0)
    engine.resume()
    return await asyncio.gather(*tasks)


async def test_rows_with_and_without_images_give_transformers_own_numbers(
    model: Seeing, begin: Callable[..., TorchEngine]
) -> None:
    requests = [
        model.asked("one", "What is ", ONE, "?"),
        model.asked("greedy", "What is ", ONE, "?", temperature=0.0),
        model.asked("two", OTHER, "and", WIDE, temperature=0.0),
        model.asked("twice", WIDE, "and once more", WIDE, "!", max_new_tokens=24),
        model.asked("none", "No image at all.", temperature=0.0),
        model.asked("last", "Ends in", picture(28, 28)),
    ]
    requests[-1] = replace(
        requests[-1], token_ids=requests[-1].token_ids[: requests[-1].media[0].start + 1]
    )
    for request, answer in zip(
        requests, await together(begin(model), requests), strict=True
    ):
        model.hold(request, answer)


async def test_images_of_one_size_are_told_apart(
    model: Seeing, begin: Callable[..., TorchEngine]
) -> None:
    engine = begin(model)
    first, second, again = (
        replace(model.asked(name, "Look: ", one, "?", temperature=0.0), session_id="s")
        for name, one in (("a", ONE), ("b", OTHER), ("c", OTHER))
    )
    assert first.token_ids.tolist() == second.token_ids.tolist()
    answers = [await engine.generate(request) for request in (first, second, again)]
    for request, answer in zip((first, second, again), answers, strict=True):
        model.hold(request, answer)
    # up to the image
    start = first.media[0].start
    assert [one.cached_tokens for one in answers] == [0, start, first.token_ids.size - 1]
    assert sampled(answers[0])[1].tolist() != sampled(answers[1])[1].tolist()


async def test_siblings_compute_their_prompt_and_look_at_its_image_once(
    model: Seeing, begin: Callable[..., TorchEngine], looks: list[list[int]]
) -> None:
    engine = begin(model)
    requests = [replace(model.asked(f"{n}", "What?", ONE), seed=n) for n in range(4)]
    answers = await together(engine, requests)
    late = replace(requests[0], request_id="late", session_id="late", seed=9)
    for request, answer in zip(
        [*requests, late], [*answers, await engine.generate(late)], strict=True
    ):
        model.hold(request, answer)
    size = requests[0].token_ids.size
    assert sorted(answer.cached_tokens for answer in answers) == [0, size, size, size]
    assert len({sampled(answer)[0].tobytes() for answer in answers}) == 4
    assert looks == [[1, 4, 6]]


async def test_a_later_turn_brings_another_image_and_keeps_what_was_computed(
    model: Seeing, begin: Callable[..., TorchEngine], looks: list[list[int]]
) -> None:
    # one row: between its turns each session is parked beside it
    engine = begin(model, max_running=1, kv_tokens=4 * 256)
    firsts = [
        model.asked(f"{n}", "Look: ", one) for n, one in enumerate((ONE, WIDE, OTHER))
    ]
    answers = [await engine.generate(first) for first in firsts]
    for first, answer in zip(firsts, answers, strict=True):
        request = behind(
            first, answer, model.asked(f"{first.request_id}/2", "Now: ", OTHER, "?")
        )
        then = await engine.generate(request)
        model.hold(request, then)
        # the last token that was sampled was never read
        assert then.cached_tokens == first.token_ids.size + sampled(answer)[0].size - 1
    assert len(looks) == 3


@pytest.mark.parametrize("over", [1, 3, 6, 7])
async def test_an_image_across_the_end_of_a_chunk(
    over: int, model: Seeing, begin: Callable[..., TorchEngine]
) -> None:
    asked = model.asked("long", OTHER, "Then", WIDE, "What?", temperature=0.0)
    # so many of the second image's tokens lie in the first chunk of 512
    before = 512 - over - asked.media[1].start
    words = np.random.default_rng(0).integers(0, 400, before).astype(np.int32)
    request = replace(
        asked,
        token_ids=np.concatenate([words, asked.token_ids]),
        media=tuple(replace(span, start=span.start + before) for span in asked.media),
    )
    assert request.media[1].start < 512
    model.hold(request, await begin(model, context_tokens=CONTEXT).generate(request))


async def test_rows_that_are_exchanged_keep_their_positions(
    qwen3: Seeing, begin: Callable[..., TorchEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped = []
    swap = SessionCache.swap
    monkeypatch.setattr(
        SessionCache, "swap", lambda *args: (swapped.append(args[1:]), swap(*args))
    )
    engine = begin(qwen3)
    short = [qwen3.asked(f"{n}", "Short", max_new_tokens=3) for n in range(5)]
    long = [
        qwen3.asked(f"long{n}", WIDE, OTHER, f"{n}", max_new_tokens=40) for n in range(2)
    ]
    answers = await together(engine, [*short, *long])
    assert swapped
    for request, answer in zip([*short, *long], answers, strict=True):
        qwen3.hold(request, answer)
    then = behind(long[0], answers[5], qwen3.asked("then", "And?"))
    answer = await engine.generate(then)
    qwen3.hold(then, answer)
    assert answer.cached_tokens == long[0].token_ids.size + 39


async def test_published_weights_look_again(
    model: Seeing, begin: Callable[..., TorchEngine], looks: list[list[int]], tmp_path: Path
) -> None:
    engine = begin(model)
    family = model.reference.config.model_type
    other = Seeing(tmp_path, family, seed=6)
    before = model.asked("before", "What is ", ONE, "?", temperature=0.0)
    running = asyncio.Event()
    loop = asyncio.get_running_loop()
    told = lambda ids, logprobs: loop.call_soon_threadsafe(running.set)  # noqa: E731
    long = replace(model.asked("long", OTHER, "?", max_new_tokens=200), on_tokens=told)
    interrupted = asyncio.ensure_future(engine.generate(long))
    model.hold(before, await engine.generate(before))
    await running.wait()
    await asyncio.to_thread(publish, engine, 1, other.tensors)
    after = replace(before, request_id="after")
    answer = await engine.generate(after)
    other.hold(after, answer)
    assert answer.cached_tokens == 0
    old, new = (await interrupted).segments
    assert (old.policy_version, new.policy_version) == (0, 1)
    whole = replace(long, token_ids=np.concatenate([long.token_ids, old.token_ids]))
    assert_own_logprobs(
        other.reference, other.folder, whole, new.token_ids.tolist(), np.array(new.logprobs)
    )
    # each image once under each version
    assert len(looks) == 4
    assert engine.checksum() == {
        name: tensor_checksum(name, tensor) for name, tensor in other.tensors.items()
    }
    assert any("visual" in name for name in engine.checksum())


async def test_images_beyond_what_is_kept_are_read_again(
    qwen3: Seeing,
    begin: Callable[..., TorchEngine],
    looks: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = begin(qwen3)
    # an image has six
    monkeypatch.setattr(served, "KEPT_TOKENS", 8)
    first = qwen3.asked("a", "Look: ", ONE, "?")
    answer = await engine.generate(first)
    both = qwen3.asked("b", OTHER, WIDE, ONE)
    qwen3.hold(both, await engine.generate(both))
    # by then the first was read again, and is kept as the last
    then = behind(first, answer, qwen3.asked("c", "And?"))
    again = await engine.generate(then)
    qwen3.hold(then, again)
    assert again.cached_tokens == first.media[0].start
    assert looks == [[1, 4, 6], [1, 4, 6], [1, 10, 4], [1, 4, 6]]


async def test_bfloat16_agrees_within_its_own_rounding(
    model: Seeing, begin: Callable[..., TorchEngine]
) -> None:
    request = model.asked("half", "What is ", ONE, "?")
    ids, logprobs = sampled(await begin(model, dtype="bfloat16").generate(request))
    table = own_table(model.reference, model.folder, request, ids.tolist())
    assert np.abs(table.numpy()[np.arange(ids.size), ids] - logprobs).max() < 0.1


def test_it_keeps_the_contract(model: Seeing) -> None:
    place = EnginePlace(str(model.folder), context_tokens=64, max_running=2)
    check_engine(TorchEngineSpec(), place, tensors=model.tensors.items())


def torn(request: GenerateRequest, fault: str) -> GenerateRequest:
    (image,) = request.images
    (span,) = request.media
    if fault == "corrupt":
        assert image.data is not None
        return replace(request, images=(replace(image, data=image.data[:50]),))
    if fault == "without bytes":
        return replace(request, images=(replace(image, data=None),))
    if fault == "missing":
        return replace(request, images=())
    if fault == "more placeholders":
        ids = np.insert(request.token_ids, span.start, request.token_ids[span.start])
        return replace(request, token_ids=ids, media=(replace(span, num_tokens=7),))
    if fault == "moved":
        return replace(request, media=(replace(span, start=span.start + 2),))
    if fault == "stray":
        return replace(request, media=(), images=())
    # cut to nothing
    data = picture(400, 1)
    return replace(
        request,
        images=(Image.read(data),),
        media=(replace(span, sha256=Image.read(data).sha256),),
    )


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("corrupt", "cannot be read: .*image"),
        ("without bytes", "the bytes of image .* are not at hand"),
        ("missing", "images must be those of media, one each, got 0 for 1"),
        ("more placeholders", "is 6 tokens of image_token_id=.*, got 7 in media's 7"),
        ("moved", "is 6 tokens of image_token_id=.*, got 4 in media's 6"),
        ("stray", "where media names no image, 6 in all"),
        ("nothing", "cannot be shown to the model: .*crop it"),
    ],
)
async def test_images_that_do_not_fit_are_refused_and_the_next_request_is_served(
    fault: str, told: str, qwen3: Seeing, begin: Callable[..., TorchEngine]
) -> None:
    engine = begin(qwen3)
    request = qwen3.asked("a", "Look: ", ONE, "?")
    with pytest.raises(EngineError, match=told) as caught:
        await engine.generate(torn(request, fault))
    assert not caught.value.retryable
    qwen3.hold(request, await engine.generate(request))


def changed(model: Seeing, folder: Path, **values: Any) -> EnginePlace:
    """The model's folder with another configuration."""
    for path in model.folder.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | values))
    return EnginePlace(str(folder), context_tokens=64)


def test_another_family_is_named_with_those_that_are_served(
    qwen3: Seeing, tmp_path: Path
) -> None:
    told = "'qwen2_vl': of models that see images it serves qwen2_5_vl and qwen3_vl"
    with pytest.raises(EngineError, match=told):
        TorchEngine(changed(qwen3, tmp_path, model_type="qwen2_vl"))


def test_deterministic_mode_is_refused(qwen3: Seeing) -> None:
    place = EnginePlace(str(qwen3.folder), context_tokens=64, deterministic=True)
    with pytest.raises(
        EngineError, match=r"which a model that sees has not .* got 'qwen3_vl'"
    ):
        TorchEngine(place)


def test_a_wrong_order_of_positions_is_found_when_the_model_is_loaded(
    model: Seeing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        served, "image_positions", lambda size, images: np.tile(np.arange(size), (3, 1))
    )
    with pytest.raises(
        EngineError, match="its forward over rows of a cache is not its forward"
    ):
        TorchEngine(EnginePlace(str(model.folder), context_tokens=64))
