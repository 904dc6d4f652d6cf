"""Environment check: tries an environment and names each rule of the contract that it breaks."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any

from agentrl.envs.async_env import AsyncEnv, build_env, call_env
from agentrl.envs.contract import (
    Finding,
    observation_findings,
    state_form_findings,
    step_findings,
)
from agentrl.envs.env import Env
from agentrl.envs.env_spec import EnvSpec
from agentrl.errors import EnvError
from agentrl.guards.secret_mask import beginning
from agentrl.types import Action, CallProblem, Observation, StepResult, Task, ToolCall
from agentrl.types.user_code.place import exited

logger = logging.getLogger(__name__)

_MAX_STEPS = 8


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
        raise EnvError(
            f"the environment breaks {len(findings)} rule(s) of the contract:\n{lines}"
        )


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
    findings, said = await _trial(spec, task, seed)
    if not findings:
        findings, said_again = await _trial(spec, task, seed)
        findings += _difference(said, said_again)
        findings += await _closed_unused(spec, task)
    if not findings:
        findings = await _resumed(spec, task, seed, said)
    return tuple(dict.fromkeys(findings))


async def first_step(spec: EnvSpec, task: Task, *, seed: int) -> None:
    """Builds, resets and closes an environment as an episode does, with one step between: a
    malformed call where tools are on offer, else plain text. What that step or ``close`` raises is
    a warning, since another action may fare better.

    Raises:
        AgentRLError: there is no environment, ``reset`` raised, or it or the step broke a rule.
    """
    env = AsyncEnv(await build_env(lambda: spec.build(task)))
    try:
        env.use_tokenizer(lambda text: range(1, len(text) + 1))
        opening = await env.reset(seed=seed)
        try:
            await env.step(_actions(bool(opening.tools))[0])
            await env.close()
        except EnvError as error:
            # A broken rule.
            if error.__cause__ is None:
                raise
            logger.warning(
                "tried on task %r before the first step, %s; tell the model of its own mistakes in "
                "the observation",
                task.id,
                error,
                extra={"event": "env_raised"},
            )
    finally:
        await env.close()


async def _trial(spec: EnvSpec, task: Task, seed: int) -> tuple[list[Finding], list[str]]:
    """What one instance did wrong, and what it said, to compare with another instance's."""
    findings: list[Finding] = []
    said: list[str] = []
    try:
        env = spec.build(task)
    except EnvError as error:
        return [_raised("builds", error)], said
    try:
        await _play(env, seed, findings, said)
    except EnvError as error:
        remedy = "; tell the model of its own mistakes in the observation"
        findings.append(_raised("raises", error, remedy))
    finally:
        for rule in ("close", "close-twice"):
            try:
                await call_env(env, "close")
            except EnvError as error:
                remedy = "; close must work in any state, and a second time"
                findings.append(_raised(rule, error, remedy))
                break
    return findings, said


async def _play(env: Env, seed: int, findings: list[Finding], said: list[str]) -> None:
    observation = await call_env(env, "reset", seed=seed)
    findings += observation_findings(observation, verb="reset")
    if findings:
        return
    said.append(_said(observation))
    snapshot = await call_env(env, "snapshot")
    try:
        json.dumps(snapshot, allow_nan=False)
    except (TypeError, ValueError) as error:
        detail = f"snapshot must give JSON or None, got {type(snapshot).__name__} ({error})"
        findings.append(Finding("json-snapshot", detail))
    findings += state_form_findings(snapshot)
    has_tools = bool(observation.tools)
    for action in _actions(has_tools):
        result = await call_env(env, "step", action)
        broken = list(step_findings(result))
        findings += broken
        if broken:
            return
        said.append(_told(result))
        if has_tools:
            findings += _unanswered(action, result)
        if result.terminated or result.truncated:
            return


def _actions(has_tools: bool) -> Sequence[Action]:
    spoken = Action("I do not know.", {"role": "assistant", "content": "I do not know."})
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
        "",
        {"role": "assistant", "content": "", "tool_calls": [call.openai()]},
        tool_calls=(call,),
    )
    return [malformed, unknown, *[spoken] * (_MAX_STEPS - 2)]


def _unanswered(action: Action, result: StepResult) -> Iterator[Finding]:
    """A call that is neither answered nor recorded was dropped in silence."""
    answered = {message.get("tool_call_id") for message in result.observation.messages}
    recorded = {
        record.result.call_id for record in result.calls if record.result is not None
    }
    ended = result.terminated or result.truncated
    written = {call.id: "call of an unknown tool" for call in action.tool_calls}
    written |= {problem.id: "malformed call" for problem in action.problems}
    for call_id, kind in written.items():
        what = f"step: the {kind} {call_id!r}"
        if not ended and call_id not in answered:
            yield Finding(
                "calls-answered",
                f"{what} got no tool message; answer it with what to correct, or use ToolExecutor",
            )
        if call_id not in recorded:
            yield Finding(
                "calls-recorded",
                f"{what} is not in StepResult.calls; add a CallRecord with its result",
            )


def _difference(first: Sequence[str], second: Sequence[str]) -> list[Finding]:
    both = "two instances with one seed and equal actions"
    for position, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            verb = f"step {position}" if position else "reset"
            fault = f"{verb}: {both} differ: {beginning(one, 200)!r} and {beginning(other, 200)!r}"
            break
    else:
        if len(first) == len(second):
            return []
        fault = f"{both} took {len(first) - 1} and {len(second) - 1} steps"
    return [
        Finding(
            "seed-determinism", f"{fault}; draw all that is random from the seed of reset"
        )
    ]


async def _closed_unused(spec: EnvSpec, task: Task) -> list[Finding]:
    try:
        await call_env(spec.build(task), "close")
    except EnvError as error:
        return [_raised("close-unused", error, "; close also runs where reset never did")]
    return []


async def _resumed(
    spec: EnvSpec, task: Task, seed: int, said: Sequence[str]
) -> list[Finding]:
    """Whether an instance goes on from another's state as that one did; one that cannot be saved
    starts again.
    """
    # It ended with its first step.
    if len(said) < 3:
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
            # What it holds outside of its state is gone, as after a kill.
            await before.close()
            await after.restore(state)
            found = _told(await after.step(second))
    except EnvError as error:
        fault = f"a fresh instance with a saved state: {error}"
    else:
        if found == said[2]:
            return []
        fault = (
            f"a fresh instance with the state after a step says {beginning(found, 200)!r} "
            f"instead of {beginning(said[2], 200)!r}"
        )
    return [Finding("state-restored", f"{fault}; {remedy}")]


def _raised(rule: str, error: EnvError, remedy: str = "") -> Finding:
    """What an environment raised, as a finding.

    Raises:
        EnvError: it exited, after which nothing of it can be tried.
    """
    if exited(error):
        raise error
    return Finding(rule, f"{error}{remedy}")


def _told(result: StepResult) -> str:
    return f"{result.reward} {result.terminated} {result.truncated} {_said(result.observation)}"


def _said(observation: Any) -> str:
    assert isinstance(observation, Observation)
    return repr(
        (
            observation.messages,
            observation.rewrite,
            observation.tools,
            observation.agent,
            sorted(observation.images),
        )
    )
