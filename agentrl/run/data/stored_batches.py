"""Stored batches: the groups that an earlier run trained, by step, for ``run.replay``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentrl.config import StageConfig
from agentrl.controller.ledger import trained_batches
from agentrl.errors import ConfigError, DataError, StoreError
from agentrl.store import RunDirectory, TrajectoryReader, TrajectorySummary, read_jsonl
from agentrl.types import SegmentKind, Trajectory, TrajectoryGroup
from agentrl.types.env import MAIN_POLICY


@dataclass(eq=False)
class StoredBatches:
    """What a stage of an earlier run trained.

    Args:
        run: the earlier run.
        stage: of it, by name.
        num_steps: that it trained.
        groups: by step, in the order of the batch: of each group the rollouts that were trained.
    """

    run: RunDirectory
    stage: str
    num_steps: int
    groups: Mapping[int, Mapping[int, Sequence[int]]]
    _reader: TrajectoryReader = field(init=False)

    @classmethod
    def of_stage(cls, stage: StageConfig) -> StoredBatches:
        """Those that ``run.replay`` names for a stage.

        Raises:
            StoreError: its ledger cannot be read.
            DataError: the run has trained no such stage, lacks something that training needs, or
                tokens that are older than the stage allows.
            ConfigError: it names no run, or more steps are asked for than the run has.
        """
        assert stage.run.replay is not None, "asked of a stage that replays"
        try:
            run = RunDirectory.open(stage.run.replay)
        except StoreError as error:
            told = f"run.replay={stage.run.replay!r} must name a run: {error}"
            raise ConfigError(told) from error
        groups = trained_batches(run.ledger_path, stage.name, MAIN_POLICY)
        if not groups:
            raise _unfit(stage, _why_none(run, stage.name))
        rows = read_jsonl(run.metrics_path)
        recorded = (int(row["step"]) for row in rows if row.get("stage") == stage.name)
        # The last steps may have trained nothing, and then the ledger has none of their groups.
        num_steps = max([*groups, *recorded])
        if stage.train.steps is not None and stage.train.steps > num_steps:
            raise ConfigError(
                f"train.steps={stage.train.steps} of stage {stage.name!r} must be at most "
                f"{num_steps}, the steps that run.replay={stage.run.replay!r} has; lower it, or "
                "leave it out for all of them"
            )
        found = cls(run, stage.name, stage.train.steps or num_steps, groups)
        found._check(stage)
        return found

    def __post_init__(self) -> None:
        self._reader = TrajectoryReader(self.run)
        newest: dict[tuple[int, int], TrajectorySummary] = {}
        for one in self._reader.summaries():
            key = one.group_index, one.rollout_index
            if (
                one.stage == self.stage
                and one.purpose != "eval"
                and (key not in newest or newest[key].recorded_at <= one.recorded_at)
            ):
                newest[key] = one
        self._rollouts: dict[int, list[TrajectorySummary]] = {}
        for (group_index, _), one in sorted(newest.items()):
            self._rollouts.setdefault(group_index, []).append(one)

    def groups_of(self, step: int) -> list[TrajectoryGroup]:
        """The groups of a step, whole, in the order of its batch; none where none was trained.

        Raises:
            DataError: a token lacks what the sampler said of it.
            StoreError: a file is damaged.
        """
        groups = []
        for group_index in self.groups.get(step, ()):
            ids = [one.id for one in self._rollouts[group_index]]
            rollouts = tuple(stored.trajectory for stored in self._reader.get_many(ids))
            for trajectory in rollouts:
                self._check_tokens(trajectory)
            groups.append(TrajectoryGroup(group_index, rollouts[0].task, rollouts))
        return groups

    def _check(self, stage: StageConfig) -> None:
        """Whether the store has every trajectory, and none is too old."""
        most = stage.rollout.max_staleness
        needs = stage.learner.needs
        alone = getattr(stage.learner, "critic_warmup_steps", 0)
        version = 0
        for step in range(1, self.num_steps + 1):
            for group_index, trained in self.groups.get(step, {}).items():
                stored = self._rollouts.get(group_index, ())
                rewarded = [one for one in stored if one.reward is not None]
                if needs.baseline and all(one.purpose != "baseline" for one in rewarded):
                    raise _unfit(
                        stage,
                        f"algorithm.name={stage.algorithm.name!r} compares with a greedy rollout "
                        f"of each group, and group {group_index} of step {step} has none",
                        self._reader.damage,
                    )
                finished = [one.rollout_index for one in rewarded if one.purpose == "train"]
                if finished != sorted(trained):
                    raise _unfit(
                        stage,
                        f"group {group_index} of step {step} was trained with rollouts "
                        f"{sorted(trained)} and traj/ has {finished} (store.keep of that run "
                        "decides which stay)",
                        self._reader.damage,
                    )
                oldest = min(
                    (v for one in stored if (v := one.policy_version_min) is not None),
                    default=version,
                )
                masks = stage.rollout.on_stale == "mask_tokens"
                if not masks and oldest < version - most:
                    raise ConfigError(
                        f"run.replay={stage.run.replay!r}: group {group_index} of step {step} was "
                        f"sampled {version - oldest} versions earlier than it was trained, and "
                        f"rollout.max_staleness={most}; set rollout.schedule and "
                        "rollout.max_staleness as that run had them"
                    )
            # A step that trained no group published nothing, nor did one of the critic's alone.
            version += bool(self.groups.get(step)) and step > alone

    def _check_tokens(self, trajectory: Trajectory) -> None:
        for turn in trajectory.turns if trajectory.status.finished else ():
            for segment in turn.segments:
                if segment.kind != SegmentKind.POLICY:
                    continue
                for name in ("logprobs", "policy_version"):
                    if getattr(segment, name) is None:
                        raise DataError(
                            f"run.replay: trajectory {trajectory.id} of {self.run.root} has no "
                            f"{name} of its sampled tokens, which training needs; replay a run of "
                            "an engine that returns them"
                        )


def _why_none(run: RunDirectory, stage: str) -> str:
    stages = sorted({str(row.get("stage")) for row in read_jsonl(run.metrics_path)})
    return (
        f"its ledger.jsonl has no trained group of stage {stage!r} "
        f"(metrics.jsonl has {', '.join(stages) or 'none'})"
    )


def _unfit(stage: StageConfig, why: str, damage: Sequence[str] = ()) -> DataError:
    told = f" ({'; '.join(damage[:3])})" if damage else ""
    return DataError(
        f"run.replay={stage.run.replay!r} cannot give stage {stage.name!r} its groups: "
        f"{why}{told}; name a run whose stage of this name was trained by episodes"
    )
