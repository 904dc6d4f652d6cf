"""The whole configuration of a run, and one stage of it made whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from agentrl.algorithms import AlgorithmSettings, AlgorithmSpec, LearnsFrom
from agentrl.algorithms.catalog import build_algorithm
from agentrl.config.sections import (
    CheckpointConfig,
    DataConfig,
    DebugConfig,
    Dtype,
    EnvConfig,
    EvalConfig,
    ModelConfig,
    PlacementConfig,
    RewardConfig,
    RunSection,
)
from agentrl.config.stage_merge import stage_trees
from agentrl.config.train_sections import (
    AlgorithmConfig,
    CriticConfig,
    ReferenceConfig,
    RoleConfig,
    RolloutConfig,
    TrainConfig,
)
from agentrl.engines.base import EngineSpec
from agentrl.engines.find import find_engine
from agentrl.metrics.metrics_spec import MetricsSpec
from agentrl.metrics.monitors import HealthSpec
from agentrl.sandbox import SandboxSpec
from agentrl.store.store_spec import StoreSpec
from agentrl.training.device import DeviceType, device_type
from agentrl.training.optim.optim_spec import OptimSpec
from agentrl.types.section import Count, Listed, Section

When = Literal["always", "built"]
_Overlay = Annotated[dict[str, Any], Field(default_factory=dict)]
"""What a stage says of a section; empty by default."""


class _StageSections(Section):
    """What a stage may have of its own; elsewhere it applies to every stage."""

    data: DataConfig = DataConfig()
    env: EnvConfig = EnvConfig()
    reward: RewardConfig = RewardConfig()
    sandbox: SandboxSpec = SandboxSpec()
    rollout: RolloutConfig = RolloutConfig()
    train: TrainConfig = TrainConfig()
    optim: OptimSpec = OptimSpec()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    critic: CriticConfig = CriticConfig()
    reference: ReferenceConfig = ReferenceConfig()
    roles: dict[str, RoleConfig] = Field(default_factory=dict)
    """Roles of your own by name, which is that of their columns, metrics and checkpoints."""
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    health: HealthSpec = HealthSpec()
    debug: DebugConfig = DebugConfig()


class _RunSections(Section):
    """What all stages of a run share."""

    run: RunSection = RunSection()
    placement: PlacementConfig = PlacementConfig()
    model: ModelConfig = ModelConfig()
    metrics: MetricsSpec = MetricsSpec()
    store: StoreSpec = StoreSpec()

    @property
    def base_dir(self) -> Path:
        """Where references start."""
        return Path(self.run.base_dir or ".").resolve()


class StageConfig(_StageSections, _RunSections):
    """One stage, whole: the run's sections, with the stage's own settings merged over them."""

    name: str
    """Prefix of the stage's metrics, and folder of its checkpoints."""
    when: When = "always"
    """``built``: only where ``model.build`` made the model, such as a warm-up."""
    starts_from: str = "model"
    """``model``, or the name of the earlier stage whose last weights it starts from."""

    @property
    def context_tokens(self) -> int:
        """Tokens of a whole sequence."""
        return self.rollout.room(self.data.max_prompt_tokens)

    @property
    def num_hosts(self) -> int:
        """Processes that play episodes: rollout workers, as many as there may be, or without any
        the training processes, of those that have a server together the first."""
        own = self.placement
        if own.rollout_workers:
            return own.worker_range[1]
        together = self.engine_spec.traits().ranks_a_server or 1
        return own.world_size // (1 if own.world_size % together else together)

    @property
    def hosts_setting(self) -> str:
        """What says how many those are."""
        return (
            "placement.rollout_workers"
            if self.placement.rollout_workers
            else "placement.world_size"
        )

    @property
    def sandboxes_a_host(self) -> int:
        """Sandboxes at one time in each process that plays episodes; together they keep to
        ``sandbox.max_running``.
        """
        if self.sandbox.max_running is None:
            return self.rollout.max_running
        return self.sandbox.max_running // self.num_hosts

    @property
    def engine_spec(self) -> EngineSpec:
        """The specification of the engine, with the settings of its section.

        Raises:
            ConfigError: there is no such engine, or its section has a fault.
        """
        kind = find_engine(self.rollout.engine, self.base_dir)
        own = getattr(self.rollout, kind.section, {})
        return own if isinstance(own, kind) else kind(**own)

    @property
    def sleeps(self) -> bool:
        """Whether engines and trainer have the memory of the ranks' devices in turn."""
        if self.rollout.sleep is not None:
            return self.rollout.sleep
        may = self.plays and not self.replays and self.rollout.schedule == "sync"
        return may and self.ranks_a_server > 0

    @property
    def ranks_a_server(self) -> int:
        """Ranks whose GPUs a server has that the first of them starts; 0 where none has theirs."""
        traits = self.engine_spec.traits()
        takes = not self.placement.rollout_workers and traits.ranks_a_server and traits.gpus
        return traits.ranks_a_server if takes and self.device == "cuda" else 0

    @property
    def gpus_a_worker(self) -> int:
        """GPUs that a rollout worker asks for: those of its engine."""
        if self.device != "cuda" and self.placement.worker_pool.gpus is None:
            return 0
        return self.engine_spec.traits().gpus

    @property
    def device(self) -> DeviceType:
        """Where it is trained and played on this machine; looking for a GPU imports torch."""
        return device_type(self.placement.device)

    @property
    def dtype(self) -> Dtype:
        """Of the weights in training, and of the arithmetic."""
        if self.model.dtype is not None:
            return self.model.dtype
        return "float32" if self.run.deterministic or self.device == "cpu" else "bfloat16"

    @property
    def rollout_dtype(self) -> Dtype:
        """Of the engine's weights."""
        return self.rollout.dtype or self.dtype

    def make_algorithm(self) -> AlgorithmSpec:
        """The stage's algorithm, which imports torch; ``train.updates_per_batch`` decides its
        passes over a batch.
        """
        own = self.algorithm
        spec = build_algorithm(own.name, own.settings, base_dir=self.base_dir)
        return spec.for_updates(
            self.train.updates_per_batch, single=self.updates_are_on_policy
        )

    @property
    def others(self) -> dict[str, CriticConfig | ReferenceConfig | RoleConfig]:
        """The models beside the policy on the ranks, by the key of their section."""
        own = {f"roles.{name}": role for name, role in self.roles.items()}
        return {"critic": self.critic, "reference": self.reference, **own}

    @property
    def reference_is_actor(self) -> bool:
        """Whether the policy without its adapter is the reference, so that there is no other."""
        own = self.reference
        return self.model.lora.given and own.stage is None and own.path is None

    @property
    def learner(self) -> AlgorithmSettings | AlgorithmSpec:
        """What a built-in algorithm's settings say of it, without torch; a user's own is made."""
        return self.algorithm.checked or self.make_algorithm()

    @property
    def last_step(self) -> int:
        """Batches to train, in a stage that runs: there ``train.epochs`` are steps already."""
        assert self.train.steps is not None, "the stage's steps are counted when it begins"
        return self.train.steps

    @property
    def rollouts_per_group(self) -> int:
        """Episodes of a task: those that must finish, those beside them, and a greedy baseline."""
        own = self.rollout
        return own.group_size + own.oversample_per_group + self.learner.needs.baseline

    @property
    def learns_from(self) -> LearnsFrom:
        """What it trains on."""
        return self.learner.learns_from

    @property
    def plays(self) -> bool:
        """Whether its policy plays episodes."""
        return self.learns_from == "rollouts"

    @property
    def replays(self) -> bool:
        """Whether it trains the groups that an earlier run stored, instead of playing any."""
        return self.plays and self.run.replay is not None

    @property
    def replays_routing(self) -> bool:
        """Whether its tokens go through the experts that their sampler chose."""
        return self.train.router_replay == "rollout" and self.plays

    @property
    def updates_are_on_policy(self) -> bool:
        """Whether each batch gets one single optimizer step, so that the policy trained is the one
        that sampled.
        """
        return (
            self.train.updates_per_batch == 1
            and self.train.mini_batch_prompts == self.train.batch_prompts
        )


class StageEntry(Section):
    """A stage as written under ``stages``: its name, and what differs from the sections above."""

    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")
    """Unique among the stages."""
    when: When = "always"
    """``built``: skipped where ``model.path`` is given; ``always`` forces it."""
    from_: str | None = Field(default=None, alias="from")
    """``model`` or an earlier stage's name; by default the stage before."""
    steps: Count | None = None
    """Short for ``train.steps``."""
    data: _Overlay
    env: _Overlay
    reward: _Overlay
    sandbox: _Overlay
    rollout: _Overlay
    train: _Overlay
    optim: _Overlay
    algorithm: _Overlay
    critic: _Overlay
    reference: _Overlay
    roles: _Overlay
    eval: _Overlay
    checkpoint: _Overlay
    health: _Overlay
    debug: _Overlay


class RunConfig(_StageSections, _RunSections):
    """A configuration file. Without ``stages`` it is one stage named ``train``.

    Make one with ``load_config``, which checks all of it; the sections here are those written at
    the top, and ``resolved_stages`` are what a run follows.
    """

    stages: Listed[StageEntry] = ()
    """Trained one after another."""

    def resolved_stages(self, *, include_skipped: bool = False) -> list[StageConfig]:
        """The stages in order, each whole; those skipped because ``model.path`` is given only on
        request.

        Where a stage would start from a skipped one, it starts from what that one would have
        started from.
        """
        # Defaults are left out: one that follows another setting must follow the stage's own.
        tree = self.model_dump(by_alias=True, exclude_unset=True)
        stages = [StageConfig.model_validate(stage) for stage in stage_trees(tree)]
        if include_skipped or self.model.path is None:
            return stages
        origin = {"model": "model"}
        kept = []
        for stage in stages:
            starts_from = origin[stage.starts_from]
            skipped = stage.when == "built"
            origin[stage.name] = starts_from if skipped else stage.name
            if not skipped:
                kept.append(stage.replace(starts_from=starts_from))
        return kept
