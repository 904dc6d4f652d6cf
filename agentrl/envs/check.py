"""Environment check: tries an environment and names each rule of the contract that it breaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from agentrl.envs.async_env import AsyncEnv, call_env
from agentrl.envs.contract import Finding, observation_findings, step_findings
from agentrl.envs.env import Env
from agentrl.envs.env_spec import EnvSpec
from agentrl.errors import EnvError
from agentrl.types import Action, CallProblem, Observation, StepResult, Task, ToolCall

_MAX_STEPS = 8


@dataclass
class _Trial:
    """What one instance did: its findings, and what it said, to compare with another instance's."""

    findings: list[Finding] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


def check_env(env: EnvSpec | Callable[[Task], Env], task: Task, *, seed: int = 0) -> None:
    """Try ``env`` out on ``task``; see :func:`env_findings`. It can be called anywhere, also beside
    a running loop.

    Raises:
        EnvError: it breaks rules; the message names each rule, the value found and the remedy.
    """
    # The caller's thread may run an event loop already.
    with ThreadPoolExecutor(1, thread_name_prefix="agentrl-check-env") as thread:
        findings = thread.submit(asyncio.run, env_findings(env, task, seed=seed)).result()
    if findings:
        lines = "\n".join(f"  {finding}" for finding in findings)
        raise EnvError(f"the environment breaks {len(findings)} rule(s) of the contract:\n{lines}")


async def env_findings(
    env: EnvSpec | Callable[[Task], Env], task: Task, *, seed: int = 0
) -> tuple[Finding, ...]:
    """The rules that an environment breaks, by trying fresh instances.

    Two instances get the same seed and the same actions: a malformed call, a call of a tool that
    does not exist, then plain text until the episode ends (at most 8 steps). They must answer
    alike, each call must be answered where tools are on offer, types and shapes must be right, and
    ``close`` must work twice. A third is closed without a ``reset``. Where the state after a step
    can be saved, a fresh instance must go on from it alike.
    """
    spec = env if isinstance(env, EnvSpec) else EnvSpec(env)
    first = await _trial(spec, task, seed)
    findings = list(first.findings)
    if not findings:
        second = await _trial(spec, task, seed)
        findings += second.findings
        findings += _difference(first.said, second.said)
        findings += await _closed_unused(spec, task)
    if not findings:
        findings += await _resumed(spec, task, seed, first.said)
    return tuple(dict.fromkeys(findings))


async def _trial(spec: EnvSpec, task: Task, seed: int) -> _Trial:
    trial = _Trial()
    try:
        env = spec.build(task)
    except EnvError as error:
        trial.findings.append(Finding("builds", str(error)))
        return trial
    try:
        await _play(env, seed, trial)
    except EnvError as error:
        trial.findings.append(
            Finding("raises", f"{error}; tell the model of its own mistakes in the observation")
        )
    finally:
        for rule in ("close", "close-twice"):
            try:
                await call_env(env, "close")
            except EnvError as error:
                trial.findings.append(
                    Finding(rule, f"{error}; close must work in any state, and a second time")
                )
                break
    return trial


async def _play(env: Env, seed: int, trial: _Trial) -> None:
    observation = await call_env(env, "reset", seed=seed)
    trial.findings += observation_findings(observation, verb="reset")
    if trial.findings:
        return
    trial.said.append(_said(observation))
    snapshot = await call_env(env, "snapshot")
    trial.findings += _snapshot_findings(snapshot)
    has_tools = bool(observation.tools)
    for action in _actions(has_tools):
        result = await call_env(env, "step", action)
        broken = list(step_findings(result))
        trial.findings += broken
        if broken:
            return
        ended = result.terminated or result.truncated
        trial.said.append(_told(result))
        if has_tools:
            trial.findings += _unanswered(action, result, ended=ended)
        if ended:
            return


def _actions(has_tools: bool) -> Sequence[Action]:
    spoken = Action(
        text="I do not know.", message={"role": "assistant", "content": "I do not know."}
    )
    if not has_tools:
        return [spoken] * _MAX_STEPS
    problem = CallProblem(
        "call_0", "malformed_json", "the call is no valid JSON", "<tool_call>{</tool_call>"
    )
    malformed = Action(
        problem.raw, {"role": "assistant", "content": problem.raw}, problems=(problem,)
    )
    call = ToolCall("call_0", "no_such_tool_check_env", {"x": 1})
    unknown = Action(
        "", {"role": "assistant", "content": "", "tool_calls": [call.openai()]}, tool_calls=(call,)
    )
    return [malformed, unknown, *[spoken] * (_MAX_STEPS - 2)]


def _unanswered(action: Action, result: StepResult, *, ended: bool) -> list[Finding]:
    """A call that is neither answered nor recorded was dropped in silence."""
    answered = {message.get("tool_call_id") for message in result.observation.messages}
    recorded = {record.result.call_id for record in result.calls if record.result is not None}
    findings = []
    written = {call.id: "call of an unknown tool" for call in action.tool_calls}
    written |= {problem.id: "malformed call" for problem in action.problems}
    for call_id, kind in written.items():
        what = f"{kind} {call_id!r}"
        if not ended and call_id not in answered:
            detail = f"step: the {what} got no tool message; answer it with what to correct, or use ToolExecutor"  # noqa: E501
            findings.append(Finding("calls-answered", detail))
        if call_id not in recorded:
            detail = (
                f"step: the {what} is not in StepResult.calls; add a CallRecord with its result"
            )
            findings.append(Finding("calls-recorded", detail))
    return findings


def _difference(first: Sequence[str], second: Sequence[str]) -> list[Finding]:
    for position, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            verb = "reset" if position == 0 else f"step {position}"
            detail = f"{verb}: two instances with one seed and equal actions differ: {one[:200]!r} and {other[:200]!r}"  # noqa: E501
            return [
                Finding(
                    "seed-determinism", f"{detail}; draw all that is random from the seed of reset"
                )
            ]
    if len(first) != len(second):
        detail = f"two instances with one seed and equal actions took {len(first) - 1} and {len(second) - 1} steps"  # noqa: E501
        return [
            Finding("seed-determinism", f"{detail}; draw all that is random from the seed of reset")
        ]
    return []


async def _closed_unused(spec: EnvSpec, task: Task) -> list[Finding]:
    try:
        await call_env(spec.build(task), "close")
    except EnvError as error:
        return [Finding("close-unused", f"{error}; close also runs where reset never did")]
    return []


async def _resumed(spec: EnvSpec, task: Task, seed: int, said: Sequence[str]) -> list[Finding]:
    """Whether an instance goes on from another's state as that one did; one that cannot be saved
    starts again.
    """
    if len(said) < 3:  # it ended with its first step
        return []
    remedy = "let state_dict give all that it needs, or None where it cannot be saved"
    try:
        async with AsyncExitStack() as stack:
            before = AsyncEnv(spec.build(task))
            after = AsyncEnv(spec.build(task))
            stack.push_async_callback(after.close)
            stack.push_async_callback(before.close)
            opening = await before.reset(seed=seed)
            first, second, *_ = _actions(bool(opening.tools))
            await before.step(first)
            try:
                state = await before.save()
            except EnvError:
                return []
            await before.close()  # what it holds outside of its state is gone, as after a kill
            await after.restore(state)
            found = _told(await after.step(second))
    except EnvError as error:
        return [
            Finding("state-restored", f"a fresh instance with a saved state: {error}; {remedy}")
        ]
    if found != said[2]:
        detail = f"a fresh instance with the state after a step says {found[:200]!r} instead of {said[2][:200]!r}"  # noqa: E501
        return [Finding("state-restored", f"{detail}; {remedy}")]
    return []


def _snapshot_findings(snapshot: object) -> list[Finding]:
    try:
        json.dumps(snapshot, allow_nan=False)
    except (TypeError, ValueError) as error:
        return [
            Finding(
                "json-snapshot",
                f"snapshot must give JSON or None, got {type(snapshot).__name__} ({error})",
            )
        ]
    return []


def _told(result: StepResult) -> str:
    return f"{result.reward} {result.terminated} {result.truncated} {_said(result.observation)}"


def _said(observation: Any) -> str:
    assert isinstance(observation, Observation)
    said = (
        observation.messages,
        observation.rewrite,
        observation.tools,
        observation.agent,
        sorted(observation.images),
    )
    return repr(said)
