"""Tool environment: a prompt, tools, and an end when the model calls none of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from agentrl.envs.env import Env
from agentrl.errors import DataError, EnvError
from agentrl.sandbox import Sandbox, SandboxPool, SandboxSpec
from agentrl.tools import (
    Endpoints,
    McpServerSpec,
    TokenEnds,
    Tool,
    ToolContext,
    ToolEntry,
    ToolExecutor,
    Toolset,
)
from agentrl.types import (
    Action,
    CallRecord,
    Message,
    Observation,
    StepResult,
    Task,
    seed_for,
)

_NOTHING: Mapping[str, object] = {}
_NO_SERVERS: Mapping[str, McpServerSpec] = {}
_TOOLS = "tools"
"""The key of a state that holds what belongs to the tools."""


class ToolEnv(Env):
    """Answers calls until the assistant makes none; that message is its answer, and the episode is
    terminated.

    A malformed call is answered like any other, by a tool message that says what to correct, and
    does not end the episode. A completion that was cut by its length before one call was complete
    ends it as truncated.

    Args:
        task: its messages are the prompt.
        tools: tools, which episodes share; factories, which make this episode its own; or
            references to such. A task's ``info["tools"]`` names those of them that it is offered.
        system_prompt: put in front of the task's messages, which then must bring none of their own.
        describe_tools_in_prompt: whether the opening describes the tools; without it they work all
            the same, for a model that was taught them and has no tokens to spare.
        sandbox: a spec or a pool, from which the episode takes a sandbox at the first call of a
            tool that may use it, and keeps it until ``close``. Tools find it as
            ``context.sandbox``, rewards by ``await env.open_sandbox()``.
        tool_deadline_s: seconds a call may take, for tools that set none.
        max_tool_output_chars: characters of output kept, for tools that set none.
        max_tool_seconds: seconds that the calls of the episode may take together; further ones are
            answered with that.
        endpoints: URLs of services that tools ask, beside those in the arguments of ``tools`` and
            ``resources``: their failures are ours, and no answer to the model.
        base_dir: the folder that relative paths in ``tools`` and ``resources`` start from.
        resources: what all episodes of the process share, by name: a ResourceReference, which is
            opened once, or an object as it is. Tools take it by a parameter of the name, classes
            and factories by one of their constructor.
        mcp: MCP servers by name, whose tools are on offer behind ``tools``. Those of an episode's
            own are ended with it.

    Attributes:
        sandbox: the episode's sandbox while it has one; None before it is needed and after
            ``close``.
        tool_state: what tools share as ``ToolContext.state``.

    Raises:
        EnvError: the task has no messages, two system prompts, or a tool needs a sandbox and there
            is none.
        DataError: ``task.info["tools"]`` names a tool that is not among ``tools``.
        ToolError: something among ``tools`` is none, or two have one name.
        ConfigError: text among ``tools`` names nothing.
    """

    def __init__(
        self,
        task: Task,
        *,
        tools: Sequence[ToolEntry] = (),
        system_prompt: str | None = None,
        describe_tools_in_prompt: bool = True,
        sandbox: SandboxPool | SandboxSpec | None = None,
        tool_deadline_s: float = 30.0,
        max_tool_output_chars: int = 8_000,
        max_tool_seconds: float | None = None,
        endpoints: Sequence[str] = (),
        base_dir: str | Path | None = None,
        resources: Mapping[str, object] = _NOTHING,
        mcp: Mapping[str, McpServerSpec] = _NO_SERVERS,
    ) -> None:
        of_subclass = set(vars(self))
        self.task = task
        self.sandbox: Sandbox | None = None
        self._opening = self.opening(task, system_prompt)
        self._describe_tools_in_prompt = describe_tools_in_prompt
        self._sandbox_source = sandbox
        # Calls of one turn run at once, and the first of them takes the sandbox for all.
        self._taking_sandbox = asyncio.Lock()
        self._closed = False
        self.tool_state: dict[str, Any] = {}
        self._toolset = Toolset(
            tools,
            ToolContext(task=task, state=self.tool_state),
            base_dir=base_dir,
            resources=resources,
            servers=mcp,
        )
        named = [getattr(entry, "args", None) for entry in (*tools, *resources.values())]
        try:
            self._executor = ToolExecutor(
                self._of_task(),
                deadline_s=tool_deadline_s,
                max_output_chars=max_tool_output_chars,
                max_seconds=max_tool_seconds,
                endpoints=Endpoints.of(endpoints, named),
            )
        except BaseException:
            # Nobody else knows of them.
            self._toolset.close_now()
            raise
        # What a fresh instance has too, and no checkpoint keeps; a subclass may have begun its own
        # state before.
        self._fresh_names = frozenset(
            vars(self).keys() - of_subclass | {"task", "_fresh_names"}
        )
        self._seed = 0
        self._num_turns = 0

    @property
    def is_plain(self) -> bool:
        """Whether it was made by this class's own constructor, of tools that all episodes share and
        that wait for no server.
        """
        own = type(self)
        made_here = own.__init__ is ToolEnv.__init__ and own.__new__ is object.__new__
        alone = self._toolset.is_shared and not self._toolset.has_servers
        return made_here and own.opening is ToolEnv.opening and alone

    @staticmethod
    def opening(task: Task, system_prompt: str | None = None) -> tuple[Message, ...]:
        """The opening messages: the system prompt, where there is one, and the task's.

        Raises:
            EnvError: the task has no messages, or there are two system prompts.
        """
        if not task.messages:
            raise EnvError(
                f"task {task.id!r} has no messages, and ToolEnv makes its prompt of them; add a "
                "user's message"
            )
        if system_prompt is None:
            return task.messages
        if task.messages[0]["role"] == "system":
            raise EnvError(
                f"task {task.id!r} brings a system prompt of its own, and system_prompt is "
                "another; keep one"
            )
        return ({"role": "system", "content": system_prompt}, *task.messages)

    def use_tokenizer(self, token_ends: TokenEnds) -> None:
        """Tools with ``max_output_tokens`` count by it."""
        self._executor.token_ends = token_ends

    async def reset(self, *, seed: int) -> Observation:
        """The system prompt, the task's messages, and the tools where they are announced."""
        self._seed = seed
        await self._set_up()
        return Observation(
            messages=self._opening,
            tools=self._executor.specs if self._describe_tools_in_prompt else (),
        )

    async def step(self, action: Action) -> StepResult:
        """Run the action's calls; the answers are the observation, and the calls' rewards its
        reward. A call that asks for the end terminates the episode.

        ``info`` counts what went wrong: ``tool_errors`` by ToolErrorKind, ``call_problems`` by
        ProblemKind; and gives the ``reason`` (``length``) where the episode was cut.

        Raises:
            SandboxError, MachineError: there is no sandbox to be had, or it failed.
        """
        await self._set_up()
        turn = self._num_turns
        self._num_turns += 1
        cut = not action.tool_calls and action.finish_reason == "length"
        if not action.tool_calls and not action.problems and not cut:
            return StepResult(Observation(), terminated=True)
        records = await self._answer(action, turn)
        info = _counts(records)
        if cut:
            info["reason"] = "length"
            return StepResult(Observation(), truncated=True, calls=records, info=info)
        results = [record.result for record in records if record.result is not None]
        answers = tuple(result.message() for result in results)
        return StepResult(
            Observation(
                messages=answers, tools_in_messages=self._executor.told_specs or None
            ),
            reward=sum(result.reward for result in results),
            terminated=any(result.end for result in results),
            calls=records,
            info=info,
        )

    def sandbox_of(self, task: Task) -> str | None:
        """The image in which a task's sandbox runs; None is the configured one. By default a task
        names it as ``task.info["sandbox_image"]``.
        """
        image: str | None = task.info.get("sandbox_image")
        return image

    async def open_sandbox(self) -> Sandbox:
        """The episode's sandbox; the first call takes it, and waits where a pool has none left.

        Raises:
            EnvError: the environment was given none, or is closed.
            SandboxError, MachineError: there is no sandbox to be had.
        """
        async with self._taking_sandbox:
            if self.sandbox is not None:
                return self.sandbox
            source = self._sandbox_source
            if source is None:
                raise EnvError(
                    "the environment was given no sandbox; pass ToolEnv(sandbox=SandboxSpec())"
                )
            self._check_open()
            image = self.sandbox_of(self.task)
            if isinstance(source, SandboxPool):
                sandbox = await source.acquire(image)
            else:
                sandbox = await asyncio.to_thread(source.of_image(image).build)
            # While this waited.
            if self._closed:
                await self._end_sandbox(sandbox)
                self._check_open()
            self.sandbox = sandbox
            return sandbox

    def state_dict(self) -> Mapping[str, Any] | None:
        """What differs from a fresh instance, with the state of the tools.

        None once a sandbox is taken, where a call offered tools that the configuration does not
        name, where a tool of the episode's own has no ``state_dict``, and with ``__slots__``.
        """
        own, attributes = self._toolset.states(), super().state_dict()
        if (
            self.sandbox is not None
            or own is None
            or self._executor.told_specs
            or not attributes
        ):
            return None
        kept = {
            name: value
            for name, value in attributes.items()
            if name not in self._fresh_names
        }
        tools = {
            "state": self.tool_state,
            "own": own,
            "offered": self._executor.offered,
            "usage": self._executor.usage,
        }
        return {**kept, _TOOLS: tools}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` gave; tools of the episode's own are set up behind it."""
        rest = dict(state)
        tools = rest.pop(_TOOLS)
        super().load_state_dict(rest)
        self.tool_state.update(tools["state"])
        self._toolset.restore(tools["own"])
        self._executor.restore_usage(tools["usage"])
        if tools["offered"] is not None:
            self._executor.offer(tools["offered"])

    async def close(self) -> None:
        """End the sandbox and the tools that belong to this episode; a second call does nothing."""
        self._closed = True
        # Each one is ended, whatever another one raises.
        async with AsyncExitStack() as stack:
            sandbox = self.sandbox
            self.sandbox = None
            if sandbox is not None:
                stack.push_async_callback(self._end_sandbox, sandbox)
            stack.push_async_callback(self._toolset.close)

    async def _end_sandbox(self, sandbox: Sandbox) -> None:
        source = self._sandbox_source
        await (
            source.release(sandbox) if isinstance(source, SandboxPool) else sandbox.close()
        )

    def _check_open(self) -> None:
        if self._closed:
            raise EnvError(
                "the environment is closed, and its sandbox with it; use it before close"
            )

    def _of_task(self) -> list[Tool]:
        """The tools that ``task.info["tools"]`` names, all where it names none."""
        for tool in self._toolset.tools:
            if tool.needs_sandbox and self._sandbox_source is None:
                raise EnvError(
                    f"tool {tool.spec.name!r} needs a sandbox, got none; pass "
                    "ToolEnv(sandbox=SandboxSpec())"
                )
        names = self.task.info.get("tools")
        if names is None:
            return self._toolset.tools
        where = f"task {self.task.id!r}: info['tools']"
        known = {tool.spec.name: tool for tool in self._toolset.tools}
        if not isinstance(names, list | tuple) or not all(
            isinstance(name, str) for name in names
        ):
            raise DataError(f"{where} must be a list of names of tools, got {names!r}")
        if unknown := [name for name in names if name not in known]:
            raise DataError(
                f"{where} names {unknown[0]!r}, which is not configured; the tools are "
                f"{', '.join(known) or 'none'}: add it to ToolEnv.tools, or correct the task"
            )
        return [tool for name, tool in known.items() if name in names]

    async def _set_up(self) -> None:
        """Once, before the first call: at the beginning, or after a state was loaded."""
        seed = seed_for(self._seed, "tools", "setup")
        context = ToolContext(seed, self.episode_id, task=self.task, state=self.tool_state)
        await self._toolset.set_up(context)

    async def _answer(self, action: Action, turn: int) -> tuple[CallRecord, ...]:
        # Taken before the calls begin, so that no tool's deadline counts the wait for it.
        if self._sandbox_source is not None and any(
            self._executor.may_use_sandbox(call.name) for call in action.tool_calls
        ):
            await self.open_sandbox()
        return await self._executor.run(
            action.tool_calls,
            action.problems,
            seed=seed_for(self._seed, "tools", turn),
            episode_id=self.episode_id,
            sandbox=self.sandbox,
            task=self.task,
            state=self.tool_state,
        )


def _counts(records: Sequence[CallRecord]) -> dict[str, Any]:
    errors = Counter(
        record.result.error for record in records if record.result and record.result.error
    )
    problems = Counter(record.problem.kind for record in records if record.problem)
    kinds = {"tool_errors": dict(errors), "call_problems": dict(problems)}
    return {name: counts for name, counts in kinds.items() if counts}
