"""Prompt limit: tasks whose prompt is longer than ``data.max_prompt_tokens`` are left out before
they are drawn.

- Only ``ToolEnv`` says its prompt without being played; another environment's is measured in its
  episodes.
- A stage decides once. What it left out is kept in the run directory, so that a resumed run draws
  the same tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.config import StageConfig
from agentrl.envs import EnvSpec, ToolEnv, opened_env
from agentrl.errors import DataError, EnvError
from agentrl.render import Renderer
from agentrl.run.build import LiveObjects, player_spec, renderer_spec
from agentrl.run.data.task_table import TaskTable
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
        more = ", ..." if len(self.ids) > 3 else ""
        named = ", ".join(map(repr, self.ids[:3])) + more
        return (
            f"left out {len(self.ids)} of {self.num_tasks} tasks of data.train, whose prompts have "
            f"more than data.max_prompt_tokens={self.limit} tokens (the longest {self.longest}): "
            f"{named}"
        )

    def positions(self, tasks: Sequence[Task]) -> set[int]:
        """Where they are in ``tasks``.

        Raises:
            DataError: no task is left.
        """
        if not self.ids:
            return set()
        ids = set(self.ids)
        found = {index for index, task in enumerate(tasks) if task.id in ids}
        if len(found) == len(tasks):
            raise DataError(f"{self}; no task is left: raise data.max_prompt_tokens")
        return found


def fitting_tasks(
    stage: StageConfig,
    live: LiveObjects,
    tasks: TaskTable,
    model: Path,
    run: RunDirectory,
) -> tuple[TaskTable, LeftOut]:
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
    return tasks.without(found.positions(tasks)), found


def left_out_tasks(
    stage: StageConfig, live: LiveObjects, tasks: Sequence[Task], model: Path
) -> LeftOut:
    """The tasks whose prompts are too long, as far as they can be told without playing."""
    limit = stage.data.max_prompt_tokens
    found = prompt_lengths(stage, live, tasks, renderer_spec(stage, model).build)
    lengths = {task_id: length for task_id, length in found.items() if length > limit}
    return LeftOut(tuple(lengths), len(tasks), limit, max(lengths.values(), default=0))


def prompt_lengths(
    stage: StageConfig,
    live: LiveObjects,
    tasks: Sequence[Task],
    make_renderer: Callable[[], Renderer],
) -> dict[str, int]:
    """The tokens of each prompt, by the task's id; none where only playing them would tell.

    A task whose prompt cannot be made or rendered is none of them: its episodes say why.
    """
    driver = player_spec(stage, live)
    if not isinstance(driver, EnvSpec) or not _is_tool_env(driver):
        return {}
    return asyncio.run(_lengths(driver, tasks, make_renderer()))


async def _lengths(
    driver: EnvSpec, tasks: Sequence[Task], renderer: Renderer
) -> dict[str, int]:
    offered: dict[str, tuple[ToolSpec, ...]] = {}
    found: dict[str, int] = {}
    for task in tasks:
        try:
            named = repr(task.info.get("tools"))
            if named not in offered:
                async with opened_env(partial(driver.build, task), seed=0) as (_, opening):
                    # the same for every task that names the same tools
                    offered[named] = opening.tools or ()
            tools = offered[named]
            messages = ToolEnv.opening(task, driver.kwargs.get("system_prompt"))
            length = sum(map(len, renderer.prompt(with_images(messages), tools)))
        except (DataError, EnvError):
            continue
        found[task.id] = length
    return found


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
