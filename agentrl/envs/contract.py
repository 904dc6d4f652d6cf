"""Environment contract: checks of an environment's answers; each names rule, value and remedy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.errors import DataError
from agentrl.types import CallRecord, Observation, StepResult, ToolSpec, with_images
from agentrl.types.messages import is_parts, message_faults
from agentrl.types.user_code.values import finite_number, shown

_FORMS: Mapping[str, Mapping[str, type]] = {
    "text": {"text": str},
    "table": {"columns": list, "rows": list},
    "grid": {"cells": list},
    "image": {"media_type": str, "base64": str},
}
"""The forms of a state for people, with their fields (docs/envs.md)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule.

    Args:
        rule: the rule's name.
        detail: where, the value found, and the remedy.
    """

    rule: str
    detail: str

    def __str__(self) -> str:
        return f"[{self.rule}] {self.detail}"


def observation_findings(observation: object, *, verb: str) -> Iterator[Finding]:
    """What is wrong with an observation from ``verb`` (``reset`` or ``step``) after which the
    policy speaks.
    """
    if not isinstance(observation, Observation):
        where = "" if verb == "reset" else " in its StepResult"
        yield Finding(
            "observation-type",
            f"{verb} must give an Observation{where}, got {type(observation).__name__}; use "
            "agentrl.types.Observation",
        )
        return
    if not observation.messages and observation.rewrite is None:
        yield Finding(
            "something-to-answer",
            f"{verb} must give at least one message (or a rewrite) while the episode goes on, got "
            "none; add one, or end the episode with terminated=True",
        )
    faults = [
        *_message_findings(
            observation.messages, f"{verb}: messages", own_turns=verb == "reset"
        )
    ]
    if observation.rewrite is not None:
        faults += _message_findings(observation.rewrite, f"{verb}: rewrite", own_turns=True)
    yield from faults
    said = () if faults else (*(observation.rewrite or ()), *observation.messages)
    if said and said[-1]["role"] == "assistant":
        yield Finding(
            "policy-speaks-next",
            f"{verb}: the last message must not be an assistant's, since the policy's answer would "
            f"be a second turn of it, got {shown(said[-1])}; leave it out, or let the user ask "
            "for what it begins",
        )
    yield from _image_findings(observation, verb)
    if observation.tools is not None:
        yield from _tool_findings(observation.tools, verb)
    if not isinstance(observation.agent, str) or not observation.agent:
        yield Finding(
            "agent-name",
            f"{verb}: agent must name the agent whose turn is next, got "
            f"{shown(observation.agent)}; leave it out where there is one alone",
        )
    yield from _json_findings(observation.info, f"{verb}: observation.info")


def step_findings(result: object) -> Iterator[Finding]:
    """What is wrong with a step's result."""
    if not isinstance(result, StepResult):
        yield Finding(
            "step-type",
            f"step must give a StepResult, got {type(result).__name__}; use "
            "agentrl.types.StepResult(observation, ...)",
        )
        return
    for name in ("terminated", "truncated"):
        if not isinstance(flag := getattr(result, name), bool):
            fault = f"{name} must be True or False, got {shown(flag)}; wrap it in bool(...)"
            yield Finding("end-flags", f"step: {fault}")
    if result.terminated is True and result.truncated is True:
        yield Finding(
            "end-flags",
            "step: terminated and truncated must not both hold, since the value of what follows is "
            "0 after the one "
            "and bootstrapped after the other; choose terminated where the task came to its end",
        )
    yield from _reward_findings(result.reward)
    if not isinstance(result.calls, tuple) or not all(
        isinstance(record, CallRecord) for record in result.calls
    ):
        yield Finding(
            "step-calls",
            f"step: calls must be a tuple of CallRecord, got {shown(result.calls)}",
        )
    yield from _json_findings(result.info, "step: info")
    if not result.terminated and not result.truncated:
        yield from observation_findings(result.observation, verb="step")


def _reward_findings(reward: Any) -> Iterator[Finding]:
    given = reward if isinstance(reward, Mapping) else {"": reward}
    for agent, value in given.items():
        whose = f" of agent {shown(agent)}" if isinstance(reward, Mapping) else ""
        if isinstance(value, bool) or finite_number(value) is None:
            yield Finding(
                "step-reward",
                f"step: reward{whose} must be a finite number, got {shown(value)}; 0.0 where there "
                "is none",
            )
        if not isinstance(agent, str):
            yield Finding(
                "step-reward",
                f"step: reward must name agents by text, got the key {shown(agent)}",
            )


def state_form_findings(state: object) -> Iterator[Finding]:
    """What is wrong with the form that a state for people names (``Env.snapshot``)."""
    form = state.get("form") if isinstance(state, Mapping) else None
    if form is None:
        return
    # See above.
    assert isinstance(state, Mapping)
    fields = _FORMS.get(form) if isinstance(form, str) else None
    if fields is None:
        known = ", ".join(_FORMS)
        yield Finding(
            "snapshot-form",
            f"snapshot: form must be one of {known}, got {shown(form)}; or none",
        )
        return
    for name, kind in fields.items():
        if not isinstance(state.get(name), kind):
            yield Finding(
                "snapshot-form",
                f"snapshot: the form {form!r} needs {name!r}, a {kind.__name__}, got "
                f"{shown(state.get(name))}",
            )


def _message_findings(
    messages: object, where: str, *, own_turns: bool
) -> Iterator[Finding]:
    if not isinstance(messages, tuple):
        yield Finding(
            "messages-type",
            f"{where} must be a tuple of messages, got {shown(messages)}; wrap it in tuple()",
        )
        return
    for position, message in enumerate(messages):
        for fault in _message_faults(message, own_turns=own_turns):
            yield Finding(
                "message-shape", f"{where}[{position}] {fault}, got {shown(message)}"
            )


def _message_faults(message: Any, *, own_turns: bool) -> Iterator[str]:
    yield from message_faults(message)
    if not isinstance(message, Mapping):
        return
    role = message.get("role")
    if role == "assistant" and not own_turns:
        yield (
            "must not be an assistant's: only the policy speaks as the assistant; use the role user"
        )
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        yield "answers a call, so it needs the tool_call_id of that call"
    calls = message.get("tool_calls", [])
    if not isinstance(calls, list) or not all(_is_call(call) for call in calls):
        yield (
            'needs tool_calls like {"id": ..., "type": "function", "function": {"name": ..., '
            '"arguments": {...}}}'
        )


def may_hold_images(given: object) -> bool:
    """Whether some of the messages that are checked in what reset or step gave are of parts, whose
    images are read for it. Those of a step that ends the episode are not.
    """
    if isinstance(given, StepResult):
        return not (given.terminated or given.truncated) and may_hold_images(
            given.observation
        )
    return isinstance(given, Observation) and bool(_of_parts(given))


def _of_parts(observation: Observation) -> list[Any]:
    groups = (observation.messages, observation.rewrite)
    said = [message for group in groups if isinstance(group, tuple) for message in group]
    return [
        message
        for message in said
        if isinstance(message, Mapping) and is_parts(message.get("content"))
    ]


def _image_findings(observation: Observation, verb: str) -> Iterator[Finding]:
    try:
        with_images(_of_parts(observation), observation.images)
    except DataError as error:
        yield Finding("message-images", f"{verb}: {error}")


def _is_call(call: Any) -> bool:
    match call:
        case {"id": str(), "function": {"name": str(), "arguments": Mapping()}}:
            return True
    return False


def _tool_findings(tools: Sequence[Any], verb: str) -> Iterator[Finding]:
    if not isinstance(tools, tuple) or not all(
        isinstance(tool, ToolSpec) for tool in tools
    ):
        yield Finding(
            "tool-specs",
            f"{verb}: tools must be a tuple of ToolSpec, got {shown(tools)}; use tool.spec",
        )
        return
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        yield Finding("tool-specs", f"{verb}: tools need different names, got {names}")


def _json_findings(info: object, where: str) -> Iterator[Finding]:
    if not isinstance(info, Mapping):
        yield Finding("json-info", f"{where} must be a mapping, got {shown(info)}")
        return
    try:
        json.dumps(dict(info), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        yield Finding(
            "json-info",
            f"{where} must be JSON, since it is stored with the turn, got {shown(info)} "
            f"({error}); convert it to str, int, float, bool, list and dict",
        )
