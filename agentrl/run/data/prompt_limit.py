"""Prompt limit: tasks whose prompt is longer than ``data.max_prompt_tokens`` are left out before
they are drawn.

- Only ``ToolEnv`` says its prompt without being played; another environment's is measured in its
  episodes.
- A stage decides once. What it left out is kept in the run directory, so that a resumed run draws
  the same tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentrl.config import StageConfig
from agentrl.envs import Env, EnvSpec, ToolEnv
from agentrl.errors import DataError, EnvError
from agentrl.render import Renderer
from agentrl.run.build import LiveObjects, player_spec, renderer_spec
from agentrl.store import RunDirectory, write_json
from agentrl.store.json_text import from_json
from agentrl.types import Task, ToolSpec, load_object, with_images


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Tasks that are not drawn.

    Args:
        ids: of the tasks, in the data's order.
        num_tasks: of the data set.
        limit: ``data.max_prompt_tokens``.
        longest: tokens of the longest prompt.
    """

    ids: Sequence[str]
    num_tasks: int
    limit: int
    longest: int

    def __str__(self) -> str:
        named = ", ".join(map(repr, self.ids[:3])) + (", ..." if len(self.ids) > 3 else "")
        return (
            f"left out {len(self.ids)} of {self.num_tasks} tasks of data.train, whose prompts have "
            f"more than data.max_prompt_tokens={self.limit} tokens (the longest {self.longest}): "
            f"{named}"
        )

    def others(self, tasks: Sequence[Task]) -> dict[int, Task]:
        """Those of ``tasks`` that are drawn, by position.

        Raises:
            DataError: no task is left.
        """
        ids = set(self.ids)
        fitting = {index: task for index, task in enumerate(tasks) if task.id not in ids}
        if ids and not fitting:
            raise DataError(f"{self}; no task is left: raise data.max_prompt_tokens")
        return fitting


def fitting_tasks(
    stage: StageConfig,
    live: LiveObjects,
    tasks: Sequence[Task],
    model: Path,
    run: RunDirectory,
) -> tuple[list[Task], LeftOut]:
    """The tasks that the stage draws, and what it leaves out, decided when it began.

    Raises:
        DataError: no task is left.
    """
    kept: dict[str, Any] = (
        from_json(run.left_out_path.read_bytes()) if run.left_out_path.is_file() else {}
    )
    if stage.name in kept:
        found = LeftOut(**kept[stage.name])
    else:
        found = left_out_tasks(stage, live, tasks, model)
        write_json(run.left_out_path, {**kept, stage.name: asdict(found)})
    return list(found.others(tasks).values()), found


def left_out_tasks(
    stage: StageConfig, live: LiveObjects, tasks: Sequence[Task], model: Path
) -> LeftOut:
    """The tasks whose prompts are too long, as far as they can be told without playing."""
    driver = player_spec(stage, live)
    limit = stage.data.max_prompt_tokens
    lengths: Mapping[str, int] = {}
    if isinstance(driver, EnvSpec) and _is_tool_env(driver):
        lengths = asyncio.run(
            long_prompts(driver, tasks, renderer_spec(stage, model).build(), limit)
        )
    return LeftOut(tuple(lengths), len(tasks), limit, max(lengths.values(), default=0))


async def long_prompts(
    driver: EnvSpec, tasks: Sequence[Task], renderer: Renderer, limit: int
) -> dict[str, int]:
    """The tokens of each prompt that has more than ``limit``, by the task's id.

    A task whose prompt cannot be made or rendered is none of them: its episodes say why.
    """
    tools: tuple[ToolSpec, ...] | None = None
    found: dict[str, int] = {}
    for task in tasks:
        try:
            if tools is None:
                tools = await _tools(driver.build(task))
            messages = ToolEnv.opening(task, driver.kwargs.get("system_prompt"))
            length = sum(map(len, renderer.prompt(with_images(messages), tools)))
        except (DataError, EnvError):
            continue
        if length > limit:
            found[task.id] = length
    return found


async def _tools(env: Env) -> tuple[ToolSpec, ...]:
    """What a ToolEnv announces, which is the same for every task."""
    assert isinstance(env, ToolEnv)
    try:
        return (await env.reset(seed=0)).tools or ()
    finally:
        await env.close()


def _is_tool_env(driver: EnvSpec) -> bool:
    """Whether its prompt is that of ``ToolEnv``: the system prompt, then the task's messages."""
    factory = driver.factory
    made = load_object(factory, driver.base_dir) if isinstance(factory, str) else factory
    return (
        isinstance(made, type)
        and issubclass(made, ToolEnv)
        and made.reset is ToolEnv.reset
        and made.__init__ is ToolEnv.__init__
    )
