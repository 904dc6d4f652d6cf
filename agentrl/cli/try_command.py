"""Try commands: ``agentrl try`` and ``agentrl play``."""

from __future__ import annotations

import asyncio
import json
import os
import select
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.cli.terminal import say
from agentrl.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from agentrl.config import RunConfig, StageConfig
    from agentrl.run.rehearsal.tool_trial import ToolTrial
    from agentrl.types import Message, Task, ToolSpec, Trajectory

# A stream of tasks may have no end.
_LOOKED_AT = 1000


def try_command(
    tool: str,
    arguments: str | None = None,
    /,
    *,
    args: str = "{}",
    name: str | None = None,
    config: Path | None = None,
    task: str | None = None,
) -> int:
    """Show a tool as the model reads it, and call it as an episode would.

    `agentrl try task.py:add '{"a": 1, "b": 2}'` shows the schema and the answer; a configuration
    brings the model's template, resources, sandbox and limits. It ends with 1 where the answer is
    an error.

    Parameters
    ----------
    tool
        file.py:name, module:name, a built-in tool, or the name of a tool of --config.
    arguments
        Of the call, as JSON; a fault is answered as the model would be.
    args
        What a class or factory is made with, as JSON.
    name
        Which tool, where several are made.
    config
        A configuration file.
    task
        The id of the task whose episode it is; by default the first of data.train. Needs --config.
    """
    from agentrl.config import load_config
    from agentrl.run.policy_source import played_stage
    from agentrl.run.rehearsal.tool_trial import try_tool

    if task is not None and config is None:
        raise ConfigError(
            "--task names a task of a configuration's data; add --config FILE"
        )
    loaded = None if config is None else load_config(config)
    stage = None if loaded is None else played_stage(loaded)
    trial = asyncio.run(
        try_tool(
            tool,
            arguments,
            args=_args(args),
            name=name,
            stage=stage,
            task=None if stage is None else task_named(stage, task),
        )
    )
    for spec in trial.tools:
        say(json.dumps(spec.openai(), indent=2, ensure_ascii=False))
    if loaded is not None and stage is not None:
        _print_prompt(loaded, stage, trial)
    return _print_answer(trial)


def task_named(stage: StageConfig, wanted: str | None) -> Task:
    """A task of ``data.train`` by its id or its number from 0, among the first ones of a stream;
    the first by default.

    Raises:
        ConfigError: there is none of this id.
    """
    from agentrl.run.data.datasets import DataSet

    tasks: Sequence[Task] = DataSet.of_training(stage).tasks()
    if wanted is None:
        return tasks[0]
    if stage.data.stream:
        tasks = list(islice(tasks, _LOOKED_AT))
    by_id = {task.id: task for task in tasks}
    if wanted in by_id:
        return by_id[wanted]
    if wanted.isdecimal() and int(wanted) < len(tasks):
        return tasks[int(wanted)]
    first = f" among the first {len(tasks)} of the stream" if stage.data.stream else ""
    raise ConfigError(
        f"--task must be the id of a task of data.train{first}, or its number below {len(tasks)}, "
        f"got {wanted!r}{did_you_mean(wanted, by_id)}"
    )


def _args(text: str) -> dict[str, Any]:
    try:
        args = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--args must be a JSON object, got {text!r} ({error})") from None
    if not isinstance(args, dict):
        raise ConfigError(f"--args must be a JSON object, got {text!r}")
    return args


def _print_prompt(config: RunConfig, stage: StageConfig, trial: ToolTrial) -> None:
    from agentrl.run.build import renderer_spec
    from agentrl.run.rehearsal.prompt_lengths import tokenizer_folder

    with tokenizer_folder(config) as folder:
        if folder is None:
            say("the model is not on this machine: no rendered prompt")
            return
        renderer = renderer_spec(stage, folder).build()
        (segment,) = renderer.prompt(trial.task.messages, trial.tools)
        say(f"the prompt of task {trial.task.id!r}, {len(segment)} tokens:")
        say(renderer.text(segment.token_ids))


def _print_answer(trial: ToolTrial) -> int:
    """Prints what the call came to.

    Returns:
        The exit code.
    """
    if trial.record is None or trial.record.result is None or trial.answer is None:
        return 0
    result = trial.record.result
    facts = [f"error {result.error}" if result.error else "ok", f"{result.latency_s:.3f} s"]
    facts += [f"reward {trial.reward:g}"] if trial.reward else []
    facts += ["ends the task"] if trial.end else []
    facts += ["output cut"] if result.truncated else []
    say(f"answer ({', '.join(facts)}):")
    say(str(trial.answer["content"]))
    return 1 if result.error else 0


def play_command(config: Path, /, *overrides: str, task: str | None = None) -> int:
    """Play an episode yourself, in place of the policy.

    Each turn is a line: the assistant's text, or a call as JSON, {"name": "add", "arguments":
    {"a": 1}}. An empty line is the empty answer. At the end the rewards are shown. Ctrl-D or Ctrl-C
    leaves the episode. It ends with 0 where the episode finished, 3 where your own code exited, 130
    where you left it, and otherwise 1.

    Parameters
    ----------
    config
        A configuration file: its environment, tools, limits and rewards hold.
    overrides
        Settings that go before the file's, as key=value.
    task
        The id of a task of data.train, or its number from 0; by default the first.
    """
    from agentrl.config import load_config
    from agentrl.run.play.person_policy import PersonPolicy, play
    from agentrl.run.policy_source import played_stage

    stage = played_stage(load_config(config, overrides, trains=False))
    chosen = task_named(stage, task)
    say(f"task {chosen.id} ({chosen.data_source})")
    if stage.reward.model.given:
        say("reward.model scores nothing here: the reward is that of the other parts")
    policy = PersonPolicy(_show, _LineReader().line)
    played = asyncio.run(play(stage, chosen, policy))
    _print_end(played)
    return 0 if played.status.finished else int(played.info.get("exit_code", 1))


class _LineReader:
    """Lines of standard input, awaited without a thread: one that waits for the terminal could not
    be ended.
    """

    def __init__(self) -> None:
        self._read = b""
        self._ended = False

    async def line(self) -> str:
        """The next line.

        Raises:
            KeyboardInterrupt: the input has ended.
        """
        print("you: ", end="", flush=True)
        while b"\n" not in self._read and not self._ended:
            await self._more()
        if not self._read:
            raise KeyboardInterrupt("the input has ended")
        line, _, self._read = self._read.partition(b"\n")
        return line.decode(errors="replace")

    async def _more(self) -> None:
        number = sys.stdin.fileno()
        # A regular file or /dev/null can always be read, and an event loop cannot watch one.
        if not select.select([number], [], [], 0)[0]:
            loop = asyncio.get_running_loop()
            readable = asyncio.Event()
            loop.add_reader(number, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(number)
        more = os.read(number, 65536)
        self._ended = not more
        self._read += more


def _show(messages: Sequence[Message], tools: Sequence[ToolSpec] | None) -> None:
    from agentrl.cli.views.trajectory_text import print_message
    from agentrl.store.json_text import to_json

    for tool in tools or ():
        say(f"  tool {tool.name}: {tool.description} {to_json(tool.parameters)}")
    for message in messages:
        print_message(message)


def _print_end(trajectory: Trajectory) -> None:
    last = trajectory.turns[-1] if trajectory.turns else None
    answered = [record.result for record in last.calls if record.result] if last else []
    # What the environment said last, beside the answers to calls.
    said = [message for message in trajectory.last_observed if message["role"] != "tool"]
    _show([*(result.message() for result in answered), *said], None)
    reward = "none" if trajectory.reward is None else f"{trajectory.reward:g}"
    parts = ", ".join(f"{name} {value:g}" for name, value in trajectory.rewards.items())
    detail = f": {trajectory.status.detail}" if trajectory.status.detail else ""
    say(f"{trajectory.status}{detail}   reward {reward}{f' = {parts}' if parts else ''}")
    for part, why in trajectory.reasons.items():
        say(f"  why {part}: {why}")
