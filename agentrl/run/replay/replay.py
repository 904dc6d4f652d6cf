"""Replay: stored episodes in fresh environments and sandboxes, with the recorded seeds."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from agentrl.config import RunConfig, StageConfig, load_config, read_document
from agentrl.config.document import value_at
from agentrl.envs import EnvSpec
from agentrl.errors import ConfigError
from agentrl.guards.secret_mask import SecretMask
from agentrl.rollouts import EpisodeKey
from agentrl.run.build import LiveObjects, env_spec, rollout_spec
from agentrl.run.data.images import with_stored_images
from agentrl.run.play import Player, ScriptedPolicy
from agentrl.run.play.recorded_driver import RecordedActions
from agentrl.run.policy_source import played_stage
from agentrl.run.replay.difference import ReplayDifference, first_difference
from agentrl.store import RunDirectory, StoredTrajectory, TrajectoryReader
from agentrl.types import Task, Trajectory
from agentrl.types.section import Key
from agentrl.types.user_code.load import source_of

States = Literal["off", "end", "turn"]
_EPISODES_AT_ONCE = 8


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """A stored episode and what came of its actions now.

    Args:
        recorded: as it was stored.
        replayed: as it was played again.
        stage: whose environment and rewards were used.
        difference: the first one; None where everything is the same, and where the replay failed.
    """

    recorded: Trajectory
    replayed: Trajectory
    stage: str
    difference: ReplayDifference | None

    @property
    def failure(self) -> str:
        """Why the replay itself failed; empty where it did not."""
        status = self.replayed.status
        failed = status.kind == "failed" and self.recorded.status.kind != "failed"
        return f"{status}: {status.detail}" if failed else ""


class Replayer:
    """Replays episodes of one run.

    Args:
        run: the run, whose configuration says what is built.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._mask = SecretMask()

    def code(self) -> list[str]:
        """The code that a replay may run: each file, module and program that the run's
        configuration names, and what else its user should know before. Nothing is imported for it.

        Raises:
            ConfigError: the run's configuration cannot be read.
        """
        tree = read_document(self._run.config_path).tree
        given = value_at(tree, ("run", "base_dir"))
        base_dir = self._run.root / (given if isinstance(given, str) else "")
        return list(dict.fromkeys(_code((), tree, base_dir)))

    def replay(self, ids: Sequence[str]) -> list[Replayed]:
        """Plays each episode's actions again; an id that is given twice, once.

        Raises:
            StoreError: an episode cannot be read.
            ConfigError: the configuration cannot be read, something of it cannot be built, such as
                for a file that is gone, or an agent's own program played the episodes.
        """
        config = load_config(self._run.config_path, trains=False)
        order = {
            trajectory_id: number for number, trajectory_id in enumerate(dict.fromkeys(ids))
        }
        stored = TrajectoryReader(self._run).get_many(order)
        found = asyncio.run(self._replay(config, stored))
        return sorted(found, key=lambda one: order[one.recorded.id])

    async def _replay(
        self, config: RunConfig, stored: Iterator[StoredTrajectory]
    ) -> list[Replayed]:
        found: list[Replayed] = []
        async with AsyncExitStack() as stack:
            by_name = {
                stage.name: stage for stage in config.resolved_stages() if stage.plays
            }
            opened: dict[str, _ReplayStage] = {}
            # Several workers ask for a stage at once: the lock lets one of them open it.
            opening = asyncio.Lock()

            async def stage_of(name: str) -> _ReplayStage:
                async with opening:
                    if name not in opened:
                        opened[name] = await _ReplayStage.open(by_name[name], stack)
                    return opened[name]

            async def work() -> None:
                # All workers share the iterator: each takes the next episode.
                for entry in stored:
                    recorded = entry.trajectory
                    known = recorded.stage in by_name
                    name = recorded.stage if known else played_stage(config).name
                    stage = await stage_of(name)
                    messages = with_stored_images(recorded.task.messages, self._run)
                    task = replace(recorded.task, messages=tuple(messages))
                    replayed = await stage.play(recorded, task)
                    difference = None
                    if replayed.status.kind != "failed" or recorded.status.kind == "failed":
                        difference = first_difference(recorded, replayed, self._mask)
                    found.append(Replayed(recorded, replayed, stage.name, difference))

            workers = [asyncio.create_task(work()) for _ in range(_EPISODES_AT_ONCE)]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
        return found


class _ReplayStage:
    """What the episodes of one stage are replayed with.

    Args:
        stage: whole.
        env: its environment.
        player: plays them.
    """

    def __init__(self, stage: StageConfig, env: EnvSpec, player: Player) -> None:
        self.name = stage.name
        self._stage = stage
        self._env = env
        self._player = player

    @classmethod
    async def open(cls, stage: StageConfig, stack: AsyncExitStack) -> _ReplayStage:
        """Builds the parts of a stage, which end with ``stack``."""
        spec = await asyncio.to_thread(rollout_spec, stage, LiveObjects(), None)
        if not isinstance(spec.env, EnvSpec):
            raise ConfigError(
                f"stage {stage.name!r}: env.agent_command cannot be replayed, since its program "
                "decides by itself what it asks; replay episodes of an environment"
            )
        # The policy generates nothing here: each action is a recorded one.
        player = Player(
            replace(spec, parser="none", save_episode_state=False),
            ScriptedPolicy(""),
            sandboxes=_EPISODES_AT_ONCE,
        )
        return cls(stage, spec.env, await stack.enter_async_context(player))

    async def play(self, recorded: Trajectory, task: Task) -> Trajectory:
        """The episode that the recorded actions lead to now."""
        named = {one.name: getattr(recorded, one.name) for one in fields(EpisodeKey)}
        actions = RecordedActions(self._env_of(recorded.label), recorded)
        return await self._player.play(
            task, EpisodeKey(**named), actions, states=_states_of(recorded)
        )

    def _env_of(self, label: str) -> EnvSpec:
        """The stage's environment; without its tools for an evaluation that has none."""
        sets = self._stage.eval.sets
        named = max(
            (name for name in sets if label.startswith(f"{name}/")), key=len, default=""
        )
        if named and not sets[named].tools:
            return env_spec(self._stage, LiveObjects(), with_tools=False)
        return self._env


def _states_of(recorded: Trajectory) -> States:
    """When the files of its sandbox were stored."""
    *earlier, last = [bool(turn.files) for turn in recorded.turns] or [False]
    return "turn" if any(earlier) else "end" if last else "off"


def _code(key: Key, value: Any, base_dir: Path) -> Iterator[str]:
    """What the settings in ``value`` import or start. It goes by the form of a value, not by a list
    of settings: so one that is new is named too.
    """
    if key and str(key[-1]).endswith("command") and isinstance(value, str | list):
        words = [value] if isinstance(value, str) else value
        if words:
            yield f"program {shlex.join(map(str, words))}"
    elif isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _code((*key, name), inner, base_dir)
    elif isinstance(value, str):
        # verl's functions have their file and their name apart.
        source = value if key[-2:] == ("custom", "path") else source_of(value)
        if source.endswith(".py"):
            yield str(Path(base_dir, os.path.expanduser(source)).resolve())
        elif source:
            yield f"module {source}"
        elif key[-1] == "backend" and value == "unsafe":
            yield "the calls that the model made, without isolation (sandbox.backend: unsafe)"
