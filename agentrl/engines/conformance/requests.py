"""Requests: an engine's account of its tokens, and all that may happen to a request."""

from __future__ import annotations

import asyncio
from asyncio import to_thread
from dataclasses import replace

import numpy as np

from agentrl.engines.checks import experts_fault
from agentrl.types import (
    Completion,
    GenerateRequest,
    Image,
    MediaSpan,
    SamplingParams,
    concat_ids,
)
from agentrl.types.arrays import F32
from agentrl.types.user_code.contract import hold

from .subject import GREEDY, PROMPT, SHORT, Subject, hold_refused, hold_same

_SAME_LOGPROB = 1e-3
"""By which two logprobs of one token in one answer may differ: nats, and a share of their size."""


async def check_requests(subject: Subject) -> None:
    """Rules of the face that episodes see."""
    await _check_answers(subject)
    await _check_refusals(subject)
    await _check_interruptions(subject)
    if subject.pictures:
        await _check_pictures(subject)


async def _check_answers(subject: Subject) -> None:
    engine, info, place = subject.engine, subject.info, subject.place
    with subject.rule("info() and layout() are those of the place"):
        hold_same(
            "context_tokens, returns_ids, dtype",
            (info.context_tokens, info.returns_ids, engine.layout().dtype),
            (place.context_tokens, subject.spec.traits().returns_ids, place.dtype),
        )
    async with subject.holds("a completion accounts for every token, turn by turn"):
        ids = list(PROMPT)
        for _ in range(3):
            request = subject.request(ids, GREEDY, "turns")
            completion = await subject.ask(request)
            _hold_account(request, completion)
            ids += [*concat_ids(completion.segments).tolist(), 1]
    async with subject.holds("tokens are told in order, and are those of the completion"):
        told: list[int] = []
        request = subject.request(on_tokens=lambda ids, _: told.extend(ids.tolist()))
        made = concat_ids((await subject.ask(request)).segments).tolist()
        subject.streams = bool(told)
        hold_same("tokens told", told, made[: len(told)])
    async with subject.holds("max_new_tokens ends a completion, with reason length"):
        await _hold_end(subject, SHORT, "length", SHORT.max_new_tokens)
    async with subject.holds("a sampled stop token ends a completion, and is kept"):
        every = tuple(range(info.vocab_size))
        await _hold_end(subject, replace(SHORT, stop_token_ids=every), "stop", 1)
    async with subject.holds("a completion carries the version served"):
        found = set(versions(await subject.ask(subject.request())))
        hold_same("versions", found, {engine.info().policy_version})
    async with subject.holds(
        "alternatives are the likeliest tokens beside each sampled one"
    ):
        for asked in (0, 3):
            answer = await subject.ask(subject.request(num_alternatives=asked))
            _hold_alternatives(answer, asked)
    async with subject.holds(
        "experts, where it tells any, are of every token that it has read"
    ):
        completion = await subject.ask(subject.request())
        read = len(PROMPT) - 1 + concat_ids(completion.segments).size
        fault = experts_fault(completion, read, info.routing)
        hold(not fault, fault)
    if subject.spec.traits().deterministic and place.deterministic:
        async with subject.holds("a deterministic engine repeats itself"):
            one, two = [await subject.ask(subject.request()) for _ in range(2)]
            hold_same(
                "tokens", *(concat_ids(made.segments).tolist() for made in (one, two))
            )
    async with subject.holds("release() frees what is kept for a session"):
        await subject.ask(subject.request(session="kept"))
        held = engine.health().kv_tokens
        for session in ("never seen", "kept"):
            await engine.release(session)
        await subject.until(lambda: not held or engine.health().kv_tokens < held)


async def _check_refusals(subject: Subject) -> None:
    info, sees = subject.info, subject.spec.traits().images
    image = Image("0" * 64, "image/png", 1, 1, 1, b"0")
    media = (MediaSpan(0, 1, image.sha256, "image"),)
    bad = {
        "an id above the vocabulary": subject.request([0, info.vocab_size]),
        "a negative id": subject.request([-1, 2]),
        "a request without ids": subject.request([]),
        "a prompt over the context": subject.request([1] * info.context_tokens),
        "a completion over it": replace(subject.long(), token_ids=np.zeros(4, np.int32)),
        "more alternatives than tokens": subject.request(
            num_alternatives=info.vocab_size + 1
        ),
        "an image that cannot be": subject.request(
            media=media, images=() if sees else (image,)
        ),
    }
    if not (subject.place.stop_strings or subject.place.decode):
        bad["a stop string"] = subject.request(sampling=replace(SHORT, stop=("x",)))
    for what, request in bad.items():
        async with subject.holds(f"{what} is refused, not to be tried again"):
            await hold_refused(subject.ask(request), False)
    async with subject.holds("a version above the served one is refused, for elsewhere"):
        await hold_refused(
            subject.ask(subject.request(min_version=info.policy_version + 1)), True
        )


async def _check_interruptions(subject: Subject) -> None:
    engine = subject.engine
    async with subject.holds("abort() ends a request with what it has"):
        request, call = await subject.running()
        await engine.abort([request.request_id, "unknown"])
        completion = await subject.answer(call)
        hold_same("reason", completion.finish_reason, "abort")
        _hold_account(request, completion)
    async with subject.holds("abort() ends a request that waits in a pause"):
        await to_thread(engine.pause, "retract")
        request = subject.request()
        call = subject.begin(request)
        await subject.until(lambda: engine.health().waiting)
        await engine.abort([request.request_id])
        hold_same("reason", (await subject.answer(call)).finish_reason, "abort")
        await subject.until(lambda: not engine.health().waiting)
    async with subject.holds("a cancelled caller leaves nothing running"):
        _, call = await subject.running()
        call.cancel()
        await subject.until(lambda: call.done() and not engine.health().running)
        hold(call.cancelled(), "the caller was answered")
    async with subject.holds("a request of an id that is in flight is refused, for good"):
        request, _ = await subject.running()
        twin = replace(request, session_id="another", sampling=SHORT)
        await hold_refused(subject.ask(twin), False)
    async with subject.holds(
        "a request that spent its deadline fails, and may be tried again"
    ):
        await hold_refused(subject.ask(subject.long(deadline_s=0.001)), True)
        await subject.until(lambda: not engine.health().running)
    async with subject.holds("no deadline passes in a pause"):
        await to_thread(engine.pause, "retract")
        await subject.held_back(subject.request(deadline_s=0.01))
    async with subject.holds("it serves any number of event loops"):
        asked = (subject.request() for _ in range(3))
        loops = (to_thread(asyncio.run, engine.generate(request)) for request in asked)
        for completion in await asyncio.gather(*loops):
            hold_same("reason", completion.finish_reason, "length")


async def _check_pictures(subject: Subject) -> None:
    async with subject.holds("another image gives other logprobs"):
        told = []
        for request in subject.pictures:
            completion = await subject.ask(replace(request, sampling=GREEDY))
            _hold_account(request, completion)
            told.append(_logprobs(completion)[:1])
        hold(told[0] != told[1], f"{told[0]} twice")


def versions(completion: Completion) -> list[int | None]:
    """Of each token."""
    return [part.policy_version for part in completion.segments for _ in part.token_ids]


def _logprobs(completion: Completion) -> F32:
    found = [part.logprobs for part in completion.segments if part.logprobs is not None]
    return np.concatenate([np.zeros(0, np.float32), *found])


async def _hold_end(subject: Subject, sampling: SamplingParams, *wanted: object) -> None:
    completion = await subject.ask(subject.request(sampling=sampling))
    found = (completion.finish_reason, concat_ids(completion.segments).size)
    hold_same("reason and tokens", found, wanted)


def _hold_account(request: GenerateRequest, completion: Completion) -> None:
    given, made = request.token_ids.size, concat_ids(completion.segments).size
    usage, logprobs = completion.usage, _logprobs(completion).size
    hold_same(
        "id, prompt tokens, completion tokens, logprobs",
        (completion.request_id, usage.prompt_tokens, usage.completion_tokens, logprobs),
        (request.request_id, given, made, made),
    )
    kept, cached = usage.kv_tokens, completion.cached_tokens
    hold(kept in (None, given + made - 1), f"kv_tokens is {kept}")
    hold(0 <= cached < given, f"cached_tokens is {cached}")


def _hold_alternatives(completion: Completion, asked: int) -> None:
    """Holds what an engine gave beside its sampled tokens; it may give nothing."""
    for segment in completion.segments:
        if segment.alternatives is None or segment.logprobs is None:
            continue
        ids, logprobs = segment.alternatives
        shape = (len(segment), asked)
        hold(asked > 0, "they came, and the request asked for none")
        hold(ids.shape == logprobs.shape == shape, f"{ids.shape} came in place of {shape}")
        falls = bool((logprobs[:, 1:] <= logprobs[:, :-1]).all())
        hold(falls, f"their logprobs do not fall: {logprobs}")
        same = ids == segment.token_ids[:, None]
        hold(bool((same.sum(1) <= 1).all()), f"a token is its own alternative twice: {ids}")
        own = np.broadcast_to(segment.logprobs[:, None], shape)
        close = _SAME_LOGPROB * (1 + np.abs(own))
        unlike = (np.abs(logprobs - own) - close)[same].max(initial=0)
        hold(
            bool(unlike <= 0),
            f"the sampled token's own logprob among them differs by {unlike:.2g} too much",
        )
        above = (own - close - logprobs)[~same.any(1), -1].max(initial=0)
        hold(
            bool(above <= 0),
            f"a sampled token that is not among them is likelier than the last by {above:.2g}",
        )
