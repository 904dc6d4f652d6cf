"""Tool trial: calls one tool as an episode would, through ``ToolEnv`` and its executor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agentrl.config import StageConfig
from agentrl.envs import EnvSpec, ToolEnv, opened_env
from agentrl.errors import ConfigError, did_you_mean
from agentrl.run.build import LiveObjects, env_spec
from agentrl.sandbox import SandboxSpec
from agentrl.tools import HermesParser, Tool, ToolFactory, ToolReference, resolve_tools
from agentrl.types import Action, CallRecord, Message, Task, ToolSpec

_TASK = Task("try", ({"role": "user", "content": "Try the tool."},))


@dataclass(frozen=True, slots=True)
class ToolTrial:
    """A tool that was tried.

    Args:
        tools: what the reference names, as the model is told of them.
        task: whose episode it was.
        record: the call with its answer; None where none was asked for.
        answer: the message that the model reads.
        reward: of the step.
        end: the call ended the task.
    """

    tools: tuple[ToolSpec, ...]
    task: Task
    record: CallRecord | None = None
    answer: Message | None = None
    reward: float = 0.0
    end: bool = False


async def try_tool(
    reference: str,
    arguments: str | None,
    *,
    args: Mapping[str, Any],
    name: str | None = None,
    stage: StageConfig | None = None,
    task: Task | None = None,
) -> ToolTrial:
    """Builds a tool, and calls it where ``arguments`` are given.

    Args:
        reference: ``file.py:name``, ``module:name`` or a built-in tool; with a stage also the name
            of one of its tools.
        arguments: of the call, JSON as a model would write it.
        args: of a class or a factory.
        name: which tool of a toolset.
        stage: whose resources, sandbox, limits and endpoints hold.
        task: of the episode.

    Raises:
        ConfigError: the reference names nothing, or several tools where one is to be called.
        ToolError: it names something that is no tool.
    """
    spec = _env(reference, args, stage)
    task = task or _TASK
    async with opened_env(partial(spec.build, task), seed=0) as (env, opening):
        tools = opening.tools or ()
        if stage is not None and any(tool.name == reference for tool in tools):
            tools = tuple(tool for tool in tools if tool.name == reference)
        if arguments is None:
            return ToolTrial(tools, task)
        call = (
            json.dumps({"name": _chosen(tools, name)})[:-1]
            + f', "arguments": {arguments}}}'
        )
        parsed = HermesParser().parse(f"<tool_call>\n{call}\n</tool_call>", tools)
        action = Action(call, parsed.message, parsed.tool_calls, parsed.problems)
        result = await env.step(action)
        (record,) = result.calls
        (answer,) = result.observation.messages
        # A ToolEnv has one agent, so that its reward is one number.
        assert not isinstance(result.reward, Mapping)
        return ToolTrial(tools, task, record, answer, result.reward, result.terminated)


def _chosen(tools: tuple[ToolSpec, ...], name: str | None) -> str:
    names = [tool.name for tool in tools]
    if name is None and len(names) == 1:
        return names[0]
    if name not in names:
        got = "none" if name is None else repr(name) + did_you_mean(name, names)
        raise ConfigError(f"--name must be one of the tools {', '.join(names)}, got {got}")
    return name


def _env(reference: str, args: Mapping[str, Any], stage: StageConfig | None) -> EnvSpec:
    """The environment of the stage with its own tools, where the reference names one of them, or
    else with the one of the reference alone.
    """
    own = None if stage is None else env_spec(stage, LiveObjects())
    named = ":" in reference or reference in _built_in()
    kwargs = {} if own is None else {**own.kwargs, "describe_tools_in_prompt": True}
    if own is not None and not named:
        return replace(own, factory=ToolEnv, kwargs=_of_tool_env(kwargs))
    base_dir = "." if own is None else own.base_dir
    entry = ToolReference(function=reference, args=dict(args))
    kwargs = {**_of_tool_env(kwargs), "tools": [entry], "mcp": {}, "base_dir": base_dir}
    (tool,) = resolve_tools([entry], base_dir, frozenset(kwargs.get("resources", ())))
    sandbox = None
    if _may_need_sandbox(tool):
        sandbox = SandboxSpec() if stage is None else stage.sandbox
    return EnvSpec(ToolEnv, kwargs, base_dir, sandbox)


def _of_tool_env(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Those that every ``ToolEnv`` takes; an environment of the user's may take others."""
    known = ToolEnv.__init__.__annotations__
    return {name: value for name, value in kwargs.items() if name in known}


def _may_need_sandbox(tool: Tool | ToolFactory) -> bool:
    return tool.may_need_sandbox if isinstance(tool, ToolFactory) else tool.needs_sandbox


def _built_in() -> frozenset[str]:
    from agentrl.tools.toolset import BUILT_IN

    return frozenset(BUILT_IN)
