"""Try command: ``agentrl try``."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.cli.terminal import say
from agentrl.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from agentrl.config import RunConfig, StageConfig
    from agentrl.run.rehearsal.tool_trial import ToolTrial
    from agentrl.types import Task


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
        raise ConfigError("--task names a task of a configuration's data; add --config FILE")
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
    """A task of ``data.train`` by its id or its number from 0; the first by default.

    Raises:
        ConfigError: there is none of this id.
    """
    from agentrl.run.data.datasets import DataSet

    tasks = DataSet.of_training(stage).tasks()
    if wanted is None:
        return tasks[0]
    by_id = {task.id: task for task in tasks}
    if wanted in by_id:
        return by_id[wanted]
    if wanted.isdecimal() and int(wanted) < len(tasks):
        return tasks[int(wanted)]
    raise ConfigError(
        f"--task must be the id of a task of data.train, or its number below {len(tasks)}, got "
        f"{wanted!r}{did_you_mean(wanted, by_id)}"
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
    from agentrl.run.rehearsal.prompt_lengths import stage_renderer, tokenizer_folder

    with tokenizer_folder(config) as folder:
        if folder is None:
            say("the model is not on this machine: no rendered prompt")
            return
        renderer = stage_renderer(stage, folder)
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
