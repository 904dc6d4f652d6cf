"""What every engine must do, proved on ours: usage, abort, release, versions, refusals, ends."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from agentrl.engines import EngineControl, EnginePlace, RolloutEngine
from agentrl.engines.scripted import ScriptedEngine
from agentrl.engines.torch import TorchEngine
from agentrl.engines.vllm import VLLMEngine, VLLMEngineSpec
from agentrl.errors import EngineError
from agentrl.types import SegmentKind
from agentrl.weight_sync import DiskSender
from tests.engines.tiny import VOCAB, TinyModel, make_model, random_ids, request, sampled
from tests.engines.vllm.conftest import interpreter, running_server


@dataclass
class Subject:
    """An engine under test, whose requests of session ``slow`` don't end by themselves for a
    while.
    """

    engine: TorchEngine | ScriptedEngine | VLLMEngine
    tensors: dict[str, torch.Tensor]

    async def running(self) -> None:
        while self.engine.health().running == 0:  # ends as soon as the engine took the request
            await asyncio.sleep(0)


@dataclass(frozen=True)
class Served:
    """A model, its folder and a vLLM server of it."""

    model: TinyModel
    folder: Path
    url: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    python = interpreter()
    # vLLM has no attention for smaller heads on a CPU
    model = make_model(max_position_embeddings=1 << 15, head_dim=32)
    folder = tmp_path_factory.mktemp("qwen3")
    model.module.save_pretrained(folder)
    own = {"context_tokens": 512, "stop_strings": False}
    with running_server(python, folder, tmp_path_factory.mktemp("server"), **own) as url:
        yield Served(model, folder, url)


DRAWS_WITH_SEEDS = (
    "test_the_same_request_gives_the_same_tokens",
    "test_what_an_engine_says_is_the_same_after_a_sleep",
)
"""What servers do not."""

VLLM = pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)])


@pytest.fixture(params=["torch", "torch-deterministic", "scripted", VLLM])
async def subject(
    request: pytest.FixtureRequest, tmp_path: Path, wanted: None
) -> AsyncIterator[Subject]:
    model = make_model(max_position_embeddings=1 << 15)
    engine: TorchEngine | ScriptedEngine | VLLMEngine
    if request.param == "vllm":
        server: Served = request.getfixturevalue("served")
        place = EnginePlace(str(server.folder), str(tmp_path), context_tokens=512)
        spec = VLLMEngineSpec(urls=(server.url,))
        model = server.model
        engine = await asyncio.to_thread(VLLMEngine, place, spec, DiskSender())
    elif request.param == "scripted":
        tensors = model.tensors
        del tensors["lm_head.weight"]
        engine = ScriptedEngine(
            lambda asked: [asked.seed % VOCAB] * asked.sampling.max_new_tokens,
            vocab_size=VOCAB,
            context_tokens=512,
            latency=lambda asked: asyncio.sleep(3600 if asked.session_id == "slow" else 0),
            shapes={name: tuple(tensor.shape) for name, tensor in tensors.items()},
        )
    else:
        place = EnginePlace(
            "tiny",
            context_tokens=512,
            max_running=4,
            deterministic=request.param == "torch-deterministic",
        )
        engine = TorchEngine(place, config=model.config, state_dict=model.tensors)
    yield Subject(engine, model.tensors)
    await asyncio.to_thread(engine.close)


@pytest.fixture
def wanted(request: pytest.FixtureRequest) -> None:
    """Leaves servers out of what they do not do."""
    if "vllm" in request.node.name and request.node.originalname in DRAWS_WITH_SEEDS:
        pytest.skip("servers draw with seeds of their own")


def test_it_has_both_faces(subject) -> None:
    engine: RolloutEngine = subject.engine
    control: EngineControl = subject.engine
    assert engine.info().vocab_size == VOCAB
    assert control.health().state == "serving"


async def test_the_account_agrees_with_what_was_sent_and_made(subject) -> None:
    ids = random_ids(0, 17)
    for turn in range(3):
        completion = await subject.engine.generate(
            request(ids, name=f"{turn}", session="s", max_new_tokens=5)
        )
        new, logprobs = sampled(completion)
        usage = completion.usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (ids.size, new.size)
        # servers do not tell
        assert usage.kv_tokens in (None, ids.size + new.size - 1)
        assert completion.request_id == f"{turn}"
        assert (logprobs <= 0).all()
        assert all(segment.kind is SegmentKind.POLICY for segment in completion.segments)
        assert 0 <= completion.cached_tokens < ids.size
        ids = np.concatenate([ids, new, random_ids(turn, 4)])


async def test_max_new_tokens_ends_with_reason_length(subject) -> None:
    completion = await subject.engine.generate(request(random_ids(0, 4), max_new_tokens=3))
    assert (completion.finish_reason, sampled(completion)[0].size) == ("length", 3)


async def test_a_sampled_stop_token_is_kept(subject) -> None:
    completion = await subject.engine.generate(
        request(random_ids(0, 4), stop_token_ids=tuple(range(VOCAB)))
    )
    assert (completion.finish_reason, sampled(completion)[0].size) == ("stop", 1)


async def test_the_same_request_gives_the_same_tokens(subject) -> None:
    one = await subject.engine.generate(request(random_ids(0, 9), name="one", seed=11))
    two = await subject.engine.generate(request(random_ids(0, 9), name="two", seed=11))
    assert sampled(one)[0].tolist() == sampled(two)[0].tolist()


async def test_an_aborted_request_ends_with_what_it_has(subject) -> None:
    slow = asyncio.create_task(
        subject.engine.generate(request([1, 2], session="slow", max_new_tokens=500))
    )
    await subject.running()
    await subject.engine.abort(["r", "unknown"])
    completion = await slow
    assert completion.finish_reason == "abort"
    assert completion.usage.completion_tokens == sampled(completion)[0].size < 500


async def test_a_waiting_request_can_be_aborted_while_paused(subject) -> None:
    await asyncio.to_thread(subject.engine.pause, "retract")
    waiting = asyncio.create_task(subject.engine.generate(request([1, 2])))
    while not subject.engine.health().waiting:
        await asyncio.sleep(0)
    await subject.engine.abort(["r"])
    assert (await waiting).finish_reason == "abort"


async def test_a_cancelled_caller_leaves_nothing_running(subject) -> None:
    slow = asyncio.create_task(
        subject.engine.generate(request([1, 2], session="slow", max_new_tokens=500))
    )
    await subject.running()
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    while subject.engine.health().running:  # ends as soon as the engine heard of it
        await asyncio.sleep(0)
    assert (await subject.engine.generate(request([1, 2]))).finish_reason == "length"


async def test_releasing_an_unknown_session_is_no_error(subject) -> None:
    await subject.engine.release("never seen")


async def test_a_released_session_starts_afresh(subject) -> None:
    prompt = random_ids(0, 9)
    await subject.engine.generate(request(prompt, name="one", session="s", max_new_tokens=1))
    await subject.engine.release("s")
    completion = await subject.engine.generate(
        request(prompt, name="two", session="s", max_new_tokens=1)
    )
    assert completion.cached_tokens == 0


async def test_an_update_is_served_under_its_version_and_checksum(subject) -> None:
    engine = subject.engine

    def update() -> None:
        engine.pause("drain")
        session = engine.begin_update(5)
        for name, tensor in subject.tensors.items():
            if name != "lm_head.weight":  # tied
                session.put(name, tensor * 2)
        session.commit()
        engine.resume()

    await asyncio.to_thread(update)
    completion = await engine.generate(request([1, 2, 3]))
    assert [segment.policy_version for segment in completion.segments] == [5]
    assert engine.info().policy_version == 5
    assert set(engine.checksum()) == set(subject.tensors) - {"lm_head.weight"}


async def test_an_incomplete_update_tears_the_engine(subject) -> None:
    engine = subject.engine

    def update() -> None:
        engine.pause("retract")
        session = engine.begin_update(1)
        session.put("model.norm.weight", torch.ones(32))
        session.commit()

    with pytest.raises(EngineError):
        await asyncio.to_thread(update)
    assert engine.health().state == "corrupt"
    with pytest.raises(EngineError, match="corrupt"):
        await engine.generate(request([1, 2]))


async def test_requests_wait_while_it_is_paused(subject) -> None:
    await asyncio.to_thread(subject.engine.pause, "retract")
    assert subject.engine.health().state == "paused"
    waiting = asyncio.create_task(subject.engine.generate(request([1, 2])))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await asyncio.to_thread(subject.engine.resume)
    assert (await waiting).finish_reason == "length"


async def test_it_serves_any_number_of_event_loops(subject) -> None:
    results: list[int] = []

    def other_loop(number: int) -> None:
        async def ask() -> int:
            asked = [request([1, number], name=f"{number}-{n}") for n in range(5)]
            return sum(
                [
                    sampled(c)[0].size
                    for c in await asyncio.gather(*map(subject.engine.generate, asked))
                ]
            )

        results.append(asyncio.run(ask()))

    threads = [threading.Thread(target=other_loop, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    await asyncio.to_thread(lambda: [thread.join() for thread in threads])
    assert results == [40, 40, 40]


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "id above the vocabulary": (lambda: request([1, VOCAB]), rf"\[0, {VOCAB}\).*got {VOCAB}"),
    "negative id": (lambda: request([-1, 2]), "got -1"),
    "no id": (lambda: request([]), "at least one"),
    "prompt over the context": (
        lambda: request(random_ids(0, 513), max_new_tokens=1),
        "context_tokens=512, got 513 ",
    ),
    "completion over it": (lambda: request([1] * 500, max_new_tokens=13), r"500 \+ 13"),
    "more alternatives than tokens": (
        lambda: replace(request([1]), num_alternatives=VOCAB + 1),
        f"vocabulary's {VOCAB}, got {VOCAB + 1}",
    ),
    "stop string without decode": (lambda: request([1], stop=("x",)), "stop_token_ids"),
}


@pytest.mark.parametrize("case", BAD)
async def test_bad_input_is_refused_before_anything_runs(case, subject) -> None:
    make, message = BAD[case]
    with pytest.raises(EngineError, match=message) as caught:
        await subject.engine.generate(make())
    assert not caught.value.retryable


async def test_a_version_above_the_served_one_is_refused_but_may_be_tried_elsewhere(
    subject,
) -> None:
    with pytest.raises(EngineError, match=r"min_version=2.*policy_version=0") as caught:
        await subject.engine.generate(request([1], min_version=2))
    assert caught.value.retryable


async def test_a_request_id_in_flight_is_not_taken_twice(subject) -> None:
    slow = asyncio.create_task(
        subject.engine.generate(request([1, 2], session="slow", max_new_tokens=500))
    )
    await subject.running()
    with pytest.raises(EngineError, match="already in flight"):
        await subject.engine.generate(request([1, 2]))
    await subject.engine.abort(["r"])
    await slow


async def test_a_spent_deadline_is_an_error_that_may_be_retried(subject) -> None:
    with pytest.raises(EngineError, match=r"deadline_s=0\.001") as caught:
        await subject.engine.generate(
            request([1, 2], session="slow", max_new_tokens=500, deadline_s=0.001)
        )
    assert caught.value.retryable
    while subject.engine.health().running:
        await asyncio.sleep(0)


async def test_closing_fails_what_is_in_flight_and_what_comes_later(subject) -> None:
    slow = asyncio.create_task(
        subject.engine.generate(request([1, 2], session="slow", max_new_tokens=500))
    )
    await subject.running()
    await asyncio.to_thread(subject.engine.close)
    with pytest.raises(EngineError, match="closed"):
        await slow
    with pytest.raises(EngineError, match="closed"):
        await subject.engine.generate(request([1, 2], name="later"))
    assert subject.engine.health().state == "closed"


def test_an_engine_error_crosses_processes_with_its_verdict() -> None:
    error = pickle.loads(pickle.dumps(EngineError("no", retryable=False)))
    assert (str(error), error.retryable) == ("no", False)


async def test_sleep_is_refused_while_requests_run(subject) -> None:
    slow = asyncio.create_task(
        subject.engine.generate(request([1, 2], session="slow", max_new_tokens=500))
    )
    await subject.running()
    with pytest.raises(EngineError, match=r"1 requests (are running|do)"):
        await asyncio.to_thread(subject.engine.sleep, ["kv_cache", "graphs"])
    assert subject.engine.health().state == "serving"
    await subject.engine.abort(["r"])
    assert (await slow).finish_reason == "abort"


async def test_what_an_engine_says_is_the_same_after_a_sleep(subject) -> None:
    ids = random_ids(0, 9)
    before = sampled(await subject.engine.generate(request(ids, name="before", seed=3)))
    subject.engine.pause("drain")
    subject.engine.sleep(["graphs", "kv_cache"])
    subject.engine.wake(["kv_cache", "graphs"])
    subject.engine.resume()
    after = sampled(await subject.engine.generate(request(ids, name="after", seed=3)))
    assert [one.tobytes() for one in after] == [one.tobytes() for one in before]
