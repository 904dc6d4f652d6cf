"""Hosted player: plays groups with a stage's own policy, where its configuration hosts it.

``Trainer.evaluate`` and ``rollout``, ``agentrl eval`` and ``agentrl rollout`` play so. A stage that
trains plays by its rollout service, in the same processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from agentrl.config import RunConfig, StageConfig
from agentrl.controller.cluster.episode_host import EpisodeHost
from agentrl.controller.cluster.rollout_pool import (
    GroupPool,
    Incident,
    RolloutWorkerSpec,
    collect_groups,
    stream_groups,
)
from agentrl.engines import EnginePlace, EnginePlan
from agentrl.errors import Closing, ConfigError
from agentrl.rollouts import GroupOutcome, GroupRequest
from agentrl.run.build import LiveObjects, StageRecipe, reward_model_folder, rollout_spec
from agentrl.run.engine import plays_by_messages
from agentrl.run.lifetime.session import RunProcesses, with_device
from agentrl.run.policy_source import check_no_scorer
from agentrl.run.schedule_factory import rollout_deadline_s, scored_pool
from agentrl.run.stages import role_specs, rollout_worker_spec
from agentrl.store.model_folder import given_model


class HostedPlayer(Closing):
    """The policy of a configuration's last stage that plays, with the weights trained last.

    Attributes:
        config: what is hosted.
        models: folders of the models by stage, once they are trained.
        hosting: the processes hold a stage's rollouts.
        log_folder: where each process keeps its log; None keeps none.

    Args:
        config: from ``load_config``.
        live: what was given from Python.
    """

    closing = "ending the workers"

    def __init__(self, config: RunConfig, live: LiveObjects | None = None) -> None:
        self.config = config
        self.live = live or LiveObjects()
        self.models: Mapping[str, Path] = {}
        self.hosting = False
        self.log_folder: Path | None = None
        self._processes: RunProcesses | None = None
        self._chat: EpisodeHost | None = None

    @property
    def processes(self) -> RunProcesses:
        """The ranks and rollout workers, opened at the first look."""
        if self._processes is None:
            self._processes = RunProcesses(self.config, self.log_folder)
        return self._processes

    def stage(self) -> StageConfig:
        """The last stage that plays episodes.

        Raises:
            ConfigError: there is none.
        """
        self.config = with_device(self.config)
        stages = [stage for stage in self.config.resolved_stages() if stage.plays]
        if not stages:
            raise ConfigError(
                "no stage plays episodes: give one an algorithm that learns from rollouts, such as "
                "grpo"
            )
        return stages[-1]

    def play(self, requests: Sequence[GroupRequest]) -> list[GroupOutcome]:
        """Plays groups; all of them, in order of their indices."""
        stage = self.stage()
        deadline_s = rollout_deadline_s(
            stage, sum(request.group_size for request in requests)
        )
        with self._pool(stage) as pool:
            return collect_groups(pool, requests, deadline_s)

    def stream(self, requests: Iterable[GroupRequest]) -> Iterator[GroupOutcome]:
        """Plays any number of groups; each comes as it ends, and nothing is kept."""
        stage = self.stage()
        in_flight = max(1, 2 * stage.rollout.max_running // stage.rollout.group_size)
        deadline_s = rollout_deadline_s(stage, in_flight * stage.rollout.group_size)
        with self._pool(stage) as pool:
            yield from stream_groups(
                pool, requests, in_flight=in_flight, deadline_s=deadline_s
            )

    def take_failures(self) -> list[Incident]:
        """Rollout workers and servers that died since the last call; what was lost with them is
        played again."""
        return [] if self._processes is None else self._processes.rollouts.take_failures()

    def close(self) -> None:
        """Ends the workers; a second call does nothing."""
        opened = [own for own in (self._chat, self._processes) if own is not None]
        self._chat = None
        self._processes = None
        self.hosting = False
        for own in opened:
            own.close()

    @contextmanager
    def _pool(self, stage: StageConfig) -> Iterator[GroupPool]:
        """Where the stage's episodes are played, and scored, outside of training; it is set up if
        missing."""
        if plays_by_messages(stage):
            check_no_scorer(stage, f"rollout.engine={stage.rollout.engine!r}")
            # A server of messages needs neither ranks nor weights: its episodes run in this
            # process.
            if self._chat is None:
                place = EnginePlace(model="", max_running=stage.rollout.max_running)
                engine = EnginePlan(stage.engine_spec, place)
                host = EpisodeHost()
                host.setup(RolloutWorkerSpec(engine, rollout_spec(stage, self.live, None)))
                self._chat = host
            yield self._chat
            return
        if not self.hosting:
            model = self.models.get(stage.name)
            if model is None:
                if self.config.model.path is None:
                    raise ConfigError(
                        "model.path is not set and nothing was trained yet; call train() first, or "
                        "set model.path"
                    )
                model = given_model(self.config.model.path, self.config.base_dir)
            reward_model = reward_model_folder(stage, self.models)
            # Nothing is trained here, so that one step is as good as any number.
            recipe = StageRecipe(
                stage, stage.make_algorithm(), model, reward_model, num_steps=1
            )
            self.processes.setup(
                role_specs(recipe, training=False),
                rollout_worker_spec(recipe, self.live, training=False),
            )
            self.hosting = True
        rollouts = self.processes.rollouts
        scored = scored_pool(rollouts, self.processes.roles, stage)
        with scored or nullcontext(rollouts) as pool:
            yield pool
