"""The experts that TorchEngine tells of a mixture's tokens are those that its model went through,
wherever their keys and values came from.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from agentrl.engines.torch.model.expert_recorder import ExpertRecorder
from agentrl.types import Completion, GenerateRequest, RoutingShape
from tests.engines.test_any_decoder import FAMILIES
from tests.engines.tiny import TinyModel, make_model, publish, random_ids, request, sampled

MIXTURES = ["mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3"]


def mixture(family: str = "qwen3_moe", seed: int = 0) -> TinyModel:
    return make_model(
        family, seed=seed, **FAMILIES[family] | {"tie_word_embeddings": False}
    )


def own_experts(model: TinyModel, ids: np.ndarray) -> np.ndarray:
    """What transformers' forward over a whole sequence goes through, the last token left out."""
    recorder = ExpertRecorder(model.exact)
    with torch.no_grad():
        model.exact(torch.from_numpy(ids.astype(np.int64))[None])
    return recorder.taken().numpy()[:-1]


def whole(prompt: np.ndarray, completion: Completion) -> np.ndarray:
    return np.concatenate([prompt, sampled(completion)[0]])


def asked(ids: np.ndarray, experts_from: int = 0, **settings: object) -> GenerateRequest:
    return replace(request(ids, **settings), experts_from=experts_from)


def same(
    model: TinyModel, prompt: np.ndarray, completion: Completion, first: int = 0
) -> bool:
    record = completion.routed_experts
    assert record is not None
    assert record.dtype == np.uint8
    own = own_experts(model, whole(prompt, completion))[first:]
    # the order of a token's experts is the router's, by weight
    return record.shape == own.shape and bool((np.sort(record) == np.sort(own)).all())


@pytest.mark.parametrize("family", MIXTURES)
async def test_each_token_of_every_turn_has_the_experts_of_its_forward(
    family, start
) -> None:
    model = mixture(family)
    engine = start(model, max_running=3, kv_tokens=3 * 128 + 200)
    dense = {"deepseek_v3": 1}.get(family, 0)
    assert engine.info().routing == RoutingShape(2 - dense, 4, 2)

    async def episode(number: int) -> None:
        ids, first = random_ids(number, 40), 0
        for turn in range(3):
            name, session = f"{number}/{turn}", f"{number}"
            one = asked(
                ids,
                first,
                name=name,
                session=session,
                seed=number,
                max_new_tokens=4 + number,
            )
            completion = await engine.generate(one)
            assert same(model, ids, completion, first)
            ids = whole(ids, completion)
            # the last token is read in the next turn
            first = ids.size - 1
            ids = np.concatenate([ids, random_ids(turn, 3)])

    # more sessions than rows: some are parked, some exchanged, some evicted
    await asyncio.gather(*(episode(number) for number in range(7)))


async def test_siblings_of_one_prompt_have_its_experts(start) -> None:
    model, prompt = mixture(), random_ids(0, 40)
    engine = start(model)
    engine.pause("retract")
    requests = [asked(prompt, name=f"{n}", seed=n) for n in range(3)]
    waiting = [asyncio.create_task(engine.generate(one)) for one in requests]
    await asyncio.sleep(0)
    engine.resume()
    found = await asyncio.gather(*waiting)
    assert [one.cached_tokens for one in found] == [0, 40, 40]
    assert all(same(model, prompt, one) for one in found)


async def test_tokens_keep_the_experts_under_which_they_were_sampled(start) -> None:
    model, other, prompt = mixture(), mixture(seed=1), random_ids(0, 12)
    engine = start(model)
    told, loop, heard = asyncio.Event(), asyncio.get_running_loop(), []

    def pause_behind_the_fifth(ids: np.ndarray, _logprobs: np.ndarray) -> None:
        heard.extend(ids.tolist())
        if len(heard) == 5:  # from the engine's own thread, between two of its steps
            engine._thread.post(lambda: engine._core.pause("retract"))
            loop.call_soon_threadsafe(told.set)

    one = replace(
        asked(prompt, name="a", max_new_tokens=20), on_tokens=pause_behind_the_fifth
    )
    running = asyncio.create_task(engine.generate(one))
    await told.wait()
    await asyncio.to_thread(publish, engine, 1, other.tensors)
    completion = await running
    ids = whole(prompt, completion)
    before = completion.segments[0]
    assert [(one.policy_version, len(one)) for one in completion.segments] == [
        (0, 5),
        (1, 15),
    ]
    # all but its last token were read by version 0
    read = prompt.size + len(before) - 1
    record = np.sort(completion.routed_experts)
    assert (record[:read] == np.sort(own_experts(model, ids))[:read]).all()
    # what was sampled later saw all of it under version 1
    assert (record[read:] == np.sort(own_experts(other, ids))[read:]).all()
    assert not (record == np.sort(own_experts(model, ids))).all()


async def test_an_aborted_call_tells_what_it_read_and_a_dense_model_nothing(start) -> None:
    engine = start(mixture())
    engine.pause("retract")
    waiting = asyncio.create_task(engine.generate(asked(random_ids(0, 9), name="never")))
    await asyncio.sleep(0)
    await engine.abort(["never"])
    assert (await waiting).routed_experts is None
    dense = start(make_model())
    assert dense.info().routing is None
    assert (await dense.generate(asked(random_ids(0, 9)))).routed_experts is None
