"""Control: an engine's pauses, sleep, updates and end."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np

from agentrl.engines.base import HostedEngine, PauseMode
from agentrl.engines.checksum import tensor_checksum
from agentrl.types.user_code.contract import hold

from .requests import versions
from .subject import PROMPT, Subject, hold_refused, hold_same

_SLEEPS = ["kv_cache", "graphs"]
"""What comes back without an update."""
_CLOSE = 1e-3


async def check_control(subject: Subject) -> None:
    """Rules of the face that an engine's owner sees, to its end."""
    await _check_pauses(subject)
    await _check_sleep(subject)
    if subject.takes_updates:
        await _check_updates(subject)
    engine = subject.engine
    async with subject.holds(
        "a closed engine says so, and fails what it has and what comes"
    ):
        _, call = await subject.running()
        await to_thread(engine.close)
        subject.hold_state("closed")
        await hold_refused(subject.answer(call))
        await hold_refused(subject.ask(subject.request()))
    if subject.takes_updates and subject.tensors and await subject.build():
        await _check_torn_update(subject)


async def _check_pauses(subject: Subject) -> None:
    engine = subject.engine
    for mode in get_args(PauseMode):
        async with subject.holds(
            f"after pause({mode!r}) nothing is answered until resume()"
        ):
            await to_thread(engine.pause, mode)
            subject.hold_state("paused")
            call = await subject.held_back(subject.request())
            await to_thread(engine.resume)
            await subject.answer(call)
    async with subject.holds("pause('drain') lets what runs end"):
        _, call = await subject.running()
        await to_thread(engine.pause, "drain")
        hold((await subject.answer(call)).finish_reason != "abort", "it was aborted")
    async with subject.holds("begin_update() needs a paused engine"):
        await hold_refused(to_thread(engine.begin_update, 1))


async def _check_sleep(subject: Subject) -> None:
    engine = subject.engine
    async with subject.holds("score() gives a logprob for every token but the first"):
        before = await to_thread(engine.score, PROMPT)
        hold(bool(before), "no server has a score")
        for server, logprobs in before.items():
            good = logprobs.shape == (2,) and bool((logprobs <= 0).all())
            hold(good, f"{server} gave {logprobs!r}")
    async with subject.holds("sleep() is refused while requests run"):
        await subject.running()
        await hold_refused(to_thread(engine.sleep, _SLEEPS))
        subject.hold_state("serving")
    async with subject.holds("an engine that slept says what it said before"):
        await to_thread(engine.pause, "drain")
        await to_thread(engine.sleep, _SLEEPS)
        subject.hold_state("asleep")
        await to_thread(engine.wake, _SLEEPS)
        await to_thread(engine.resume)
        await subject.ask(subject.request())
        for server, logprobs in (await to_thread(engine.score, PROMPT)).items():
            close = np.allclose(logprobs, before[server], atol=_CLOSE)
            hold(close, f"{server} gave {logprobs}, and before {before[server]}")


async def _check_updates(subject: Subject) -> None:
    engine, tensors = subject.engine, subject.tensors
    version = engine.info().policy_version
    async with subject.holds("an update that is given up before a tensor changes nothing"):
        await to_thread(engine.pause, "retract")
        session = await to_thread(engine.begin_update, version + 1)
        await to_thread(session.abort)
        await to_thread(engine.resume)
        hold_same("policy_version", engine.info().policy_version, version)
    if not tensors:
        return
    async with subject.holds("a committed update is served under its version"):
        await to_thread(engine.pause, "retract")
        await to_thread(_update, engine, version + 1, tensors)
        await to_thread(engine.resume)
        found = set(versions(await subject.ask(subject.request())))
        hold_same("versions", found, {version + 1})
    async with subject.holds(
        "checksum() is of the tensors that were put, in the served dtype"
    ):
        sums = await to_thread(engine.checksum)
        wide = engine.layout().dtype == "float32"
        for name, tensor in tensors:
            wanted = tensor_checksum(name, tensor.float() if wide else tensor.bfloat16())
            hold_same(name, sums.get(name), wanted)
    if hasattr(engine, "read"):
        async with subject.holds("read() gives the tensors that were put"):
            for name, tensor in tensors:
                read = await to_thread(engine.read, name)
                hold(bool((read == tensor.to(read)).all()), f"{name} is another one")
    async with subject.holds(
        "a completion across an update tells the version of each token"
    ):
        _, call = await subject.running()
        await to_thread(engine.pause, "retract")
        before, health = len(subject.told), engine.health()
        await to_thread(_update, engine, version + 2, tensors)
        await to_thread(engine.resume)
        of = versions(await subject.answer(call))
        old = of.count(version + 1)
        hold_same("versions", of, [version + 1] * old + [version + 2] * (len(of) - old))
        hold(old >= before, f"{before} tokens came before it, {old} are said to")
        if health.running + health.waiting:
            hold(old < len(of), "none came after it")


async def _check_torn_update(subject: Subject) -> None:
    engine = subject.engine
    async with subject.holds("an incomplete update leaves a corrupt engine"):
        await to_thread(engine.pause, "retract")
        version = engine.info().policy_version + 1
        await hold_refused(to_thread(_update, engine, version, subject.tensors[:1]))
        subject.hold_state("corrupt")
        await hold_refused(subject.ask(subject.request()))
    await to_thread(engine.close)


def _update(engine: HostedEngine, version: int, tensors: Sequence[tuple[str, Any]]) -> None:
    session = engine.begin_update(version)
    for name, tensor in tensors:
        session.put(name, tensor)
    session.commit()
