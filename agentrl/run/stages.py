"""Stages: builds a stage's roles, rollouts and schedule from its configuration, and runs the
loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.algorithms import AlgorithmSpec, LearnsFrom
from agentrl.config import StageConfig
from agentrl.config.algorithm_rules import check_warmup
from agentrl.config.sections import MAIN_POOL
from agentrl.controller.admission import RolloutState
from agentrl.controller.checkpoints import (
    CheckpointCopies,
    Checkpoints,
    Manifest,
    newest_step,
)
from agentrl.controller.cluster.role_handle import RoleHandle
from agentrl.controller.cluster.rollout_pool import RolloutWorkerSpec
from agentrl.controller.cluster.worker import RoleSpec
from agentrl.controller.evaluator import Evaluator
from agentrl.controller.recording.recorder import Recorder
from agentrl.controller.recording.skipped_steps import SkippedSteps
from agentrl.controller.rollout_service import HandOver, RolloutService
from agentrl.controller.schedule import Schedule
from agentrl.controller.stage.pair_evaluator import PairEvaluator
from agentrl.controller.stage.stage_run import StageRun
from agentrl.controller.state import TrainState
from agentrl.engines.torch.model.families import is_mixture
from agentrl.engines.weights import tensor_shapes
from agentrl.errors import ConfigError, RankLostError, close_after
from agentrl.metrics import (
    PAIR_COLUMNS,
    RL_COLUMNS,
    SFT_COLUMNS,
    DisplayColumn,
)
from agentrl.metrics.health import Health
from agentrl.run.build import (
    LiveObjects,
    StageRecipe,
    model_settings,
    other_folder,
    parser_name,
    renderer_spec,
    reward_model_folder,
    rollout_evaluator,
    rollout_spec,
    training_loop,
)
from agentrl.run.data.datasets import DataSet
from agentrl.run.data.prompt_limit import fitting_tasks
from agentrl.run.data.stored_batches import StoredBatches
from agentrl.run.data.task_table import TaskStream
from agentrl.run.engine import engine_plan
from agentrl.run.lifetime.session import RunContext
from agentrl.run.run_setup import count_steps, finished_manifest
from agentrl.run.schedule_factory import (
    conversations,
    held_out_pairs,
    rollouts,
    sequence_scores,
    stored_groups,
)
from agentrl.run.stage_tokenizer import keep_tokenizer
from agentrl.run.vocabulary import check_vocabulary
from agentrl.store import read_jsonl
from agentrl.tools import parser_for
from agentrl.training import (
    ActorSpec,
    CriticSpec,
    LearnerSpec,
    ReferenceSpec,
    RewardLearnerSpec,
    RewardModelSpec,
)
from agentrl.training.models.lora_spec import LoraSpec
from agentrl.training.optim.optim_spec import OptimSpec
from agentrl.training.roles.own_role import OwnRoleSpec
from agentrl.types import Collect, Task, seed_for
from agentrl.types.env import MAIN_POLICY
from agentrl.types.user_code.wall import failed_as, wall

_COLUMNS: Mapping[LearnsFrom, tuple[DisplayColumn, ...]] = {
    "rollouts": RL_COLUMNS,
    "demonstrations": SFT_COLUMNS,
    "preferences": PAIR_COLUMNS,
}


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """What a stage came to: where the next one's draws begin, its evaluations, its steps, and how
    many of those had nothing to learn from."""

    next_group_index: int
    results: Mapping[str, Any]
    steps: int
    without_signal: int = 0


def _learner(recipe: StageRecipe) -> dict[str, Any]:
    """What every role that is trained is made of."""
    stage = recipe.stage
    return {
        "model_path": str(recipe.model),
        "algorithm": recipe.algorithm,
        "optim": stage.optim,
        # while a critic warms up the policy takes no step
        "total_steps": recipe.optimizer_steps(after=recipe.algorithm.critic_warmup_steps),
        **model_settings(stage),
        "gradient_checkpointing": stage.train.gradient_checkpointing,
        "vision": stage.train.vision,
        "deterministic": stage.run.deterministic,
    }


def _lora(stage: StageConfig, key: str, own: LoraSpec) -> dict[str, Any]:
    """The adapter of a role that is trained, by the key of its section."""
    if not own.given:
        return {}
    if own.path is not None:
        own = own.replace(path=str(stage.base_dir / Path(own.path).expanduser()))
    return {"lora": own, "lora_seed": seed_for(stage.run.seed, key)}


def _actor(recipe: StageRecipe) -> RoleSpec | None:
    if recipe.algorithm.policy_loss is None:
        return None
    stage = recipe.stage
    return ActorSpec(
        **_learner(recipe),
        **_lora(stage, "model.lora", stage.model.lora),
        detail=stage.store.detail,
        replays_routing=stage.replays_routing,
    )


def _beside(
    recipe: StageRecipe,
    key: str,
    kind: type[Any],
    folder: Path | None,
    optim: OptimSpec | None = None,
    **settings: Any,
) -> RoleSpec:
    """What a role beside the policy is made of.

    Args:
        recipe: of the stage.
        key: of its section, the end of which is the role's name.
        kind: what it is made of.
        folder: of its weights; None for those that the stage starts from.
        optim: of one that learns.
        settings: further fields of ``kind``.

    Raises:
        DataError: it reads other tokens than the policy writes.
    """
    if folder is not None:
        check_vocabulary(recipe.model, folder, f"{key}.path")
    stage = recipe.stage
    given = {**model_settings(stage), "deterministic": stage.run.deterministic}
    if issubclass(kind, LearnerSpec):
        # it learns while a critic warms up too
        given = {
            **_learner(recipe),
            "optim": optim,
            "total_steps": recipe.optimizer_steps(),
        }
        # the setting is of the stage's model
        given["vision"] = "frozen"
    given["reads_policy"] = folder is not None
    if "head_seed" in kind.__dataclass_fields__:
        given["head_seed"] = seed_for(stage.run.seed, f"{key.rpartition('.')[2]}_head")
    if folder is not None and not is_mixture(folder):
        # the stage's settings of experts are those of its model
        given |= {"router_aux_loss": 0.0, "sharding": replace(given["sharding"], ep=1)}
    made: RoleSpec = kind(
        **(given | {"model_path": str(folder or recipe.model)} | settings)
    )
    return made


def _critic(recipe: StageRecipe) -> RoleSpec | None:
    if not recipe.algorithm.needs.critic:
        return None
    folder, own = recipe.others["critic"], recipe.stage.critic
    lora = _lora(recipe.stage, "critic.lora", own.lora)
    return _beside(recipe, "critic", CriticSpec, folder, own.optim, **lora)


def _reference(recipe: StageRecipe) -> RoleSpec | None:
    if not recipe.algorithm.needs.reference or recipe.stage.reference_is_actor:
        return None
    return _beside(recipe, "reference", ReferenceSpec, recipe.others.get("reference"))


def _reward_model(recipe: StageRecipe) -> RoleSpec | None:
    if recipe.algorithm.pair_loss is not None:
        seed = seed_for(recipe.stage.run.seed, "reward_head")
        lora = _lora(recipe.stage, "model.lora", recipe.stage.model.lora)
        return RewardLearnerSpec(**_learner(recipe), **lora, head_seed=seed)
    if recipe.reward_model is None:
        return None
    return _beside(recipe, "reward.model", RewardModelSpec, recipe.reward_model)


def _own(recipe: StageRecipe, name: str) -> RoleSpec:
    own, key = recipe.stage.roles[name], f"roles.{name}"
    told = f"{key}.role={own.role!r}"
    kind = own.load(recipe.stage.base_dir)
    with wall(failed_as(ConfigError, f"{told}, made of {key}.args, raised")):
        spec = _beside(recipe, key, kind, recipe.others.get(key), own.optim, **own.args)
    methods = {"update": Collect.STATS} if isinstance(spec, LearnerSpec) else {}
    if own.pass_ is not None:
        methods[own.pass_] = Collect.COLUMNS
    return OwnRoleSpec(name, spec, methods, told)


_ROLES: Mapping[str, Callable[[StageRecipe], RoleSpec | None]] = {
    "actor": _actor,
    "critic": _critic,
    "reference": _reference,
    "reward_model": _reward_model,
}
"""Every role that a policy may have, by name; None where a stage needs none. The first that learns
is the policy's model."""


def role_specs(recipe: StageRecipe, *, training: bool = True) -> dict[str, RoleSpec]:
    """What every rank hosts during a stage, by role.

    Args:
        recipe: of the stage.
        training: otherwise episodes are only played and scored, so that no weights to train are
            held.

    Raises:
        DataError: the reward model reads other tokens than the policy writes.
    """
    names = _ROLES if training else ("reward_model",)
    made = {name: _ROLES[name](recipe) for name in names}
    if training and recipe.algorithm.learns_from == "rollouts":
        made |= {name: _own(recipe, name) for name in recipe.stage.roles}
    return {name: spec for name, spec in made.items() if spec is not None}


def rollout_worker_spec(
    recipe: StageRecipe, live: LiveObjects, *, training: bool = True
) -> RolloutWorkerSpec | None:
    """What hosts the stage's episodes; None for a stage without rollouts."""
    stage = recipe.stage
    if recipe.algorithm.learns_from != "rollouts" or stage.replays:
        return None
    return RolloutWorkerSpec(
        engine_plan(
            stage, recipe.model, trainer_bytes=_trainer_bytes(recipe) if training else 0
        ),
        rollout_spec(stage, live, recipe.model),
        sleeps=training and stage.sleeps,
    )


def _trainer_bytes(recipe: StageRecipe) -> int:
    """Most that one role brings to a rank's GPU while the engine serves there: a learner's weights
    and AdamW's moments for a checkpoint, a reward model's weights for scores."""
    stage = recipe.stage
    own = stage.train.shard_size if stage.train.shard == "hybrid" else None
    ranks = own or stage.placement.world_size
    # A weight in float32 has 4 bytes, and AdamW's two moments of it have 8, but none beside an
    # adapter.
    bytes_a_number: dict[Path | None, int] = {
        recipe.model: 4 if stage.model.lora.given else 12
    }
    others = [("reward_model", recipe.reward_model, 4)]
    for key, folder in recipe.others.items():
        frozen = key == "critic" and stage.critic.lora.given
        start = folder or (recipe.model if key.startswith("roles.") else None)
        others.append((key.removeprefix("roles."), start, 4 if frozen else 12))
    for role, folder, a_number in others:
        # ranks of another pool have GPUs of their own
        if stage.placement.pool_of(role) == MAIN_POOL:
            bytes_a_number[folder] = max(a_number, bytes_a_number.get(folder, 0))
    sizes = [
        a_number * sum(math.prod(shape) for shape in tensor_shapes(folder).values())
        for folder, a_number in bytes_a_number.items()
        if folder is not None
    ]
    return -(-max(sizes) // ranks)


def _check_trained(stage: StageConfig, begun_at: int, state: TrainState) -> None:
    """A loop of the user's may stop early, and must not do nothing."""
    if stage.train.loop is not None and begun_at == state.step < stage.last_step:
        raise stage.train.broken(
            "loop",
            f"={stage.train.loop!r} must train, and returned at step {state.step} of "
            f"{stage.last_step}, where it began; call run.publish(state, batches) for each batch "
            "and return run.finish(state), as agentrl/controller/loop.py does",
        )


def run_stage(
    context: RunContext,
    stage: StageConfig,
    models: Mapping[str, Path],
    *,
    first_group_index: int,
    resume: bool,
) -> StageOutcome:
    """Trains one stage to its end, from its newest checkpoint where there is one to resume.

    Args:
        context: what all stages share.
        stage: whole.
        models: folders of the model that the run starts from, and of its stages.
        first_group_index: its first draw; draws are unique in a run.
        resume: go on from the newest checkpoint.
    """
    model = models[stage.starts_from]
    scorer = reward_model_folder(stage, models)
    algorithm = stage.make_algorithm()
    checkpoints = _checkpoints(context, stage)
    restored = checkpoints.latest() if resume else None
    manifest = restored[1] if restored else None
    plays = algorithm.learns_from == "rollouts"
    batches = StoredBatches.of_stage(stage) if stage.replays else None
    tasks = _tasks(context, stage, model) if plays and batches is None else ()
    num_steps = batches.num_steps if batches else count_steps(stage, tasks)
    # epochs are steps from here on
    stage = stage.replace(train=stage.train.replace(steps=num_steps, epochs=None))
    check_warmup(algorithm, num_steps)
    _announce(
        context,
        stage,
        algorithm,
        model,
        num_steps,
        done=manifest.state.step if manifest else 0,
    )
    others = {
        key: other_folder(stage, models, key, own) for key, own in stage.others.items()
    }
    recipe = StageRecipe(stage, algorithm, model, scorer, num_steps, others)
    processes = context.processes
    specs = role_specs(recipe)
    left = _left(context, stage, manifest)
    with context.timer.phase("setup"):
        processes.setup(
            specs, rollout_worker_spec(recipe, context.live), going_on=left is not None
        )
    roles = {
        name: RoleHandle(
            processes.roles[name],
            name,
            isinstance(getattr(spec, "spec", spec), LearnerSpec),
            own=name in stage.roles,
        )
        for name, spec in specs.items()
    }
    recorder = _recorder(context, stage, algorithm, manifest)
    snapshot = RolloutState(first_group_index, (), 0, context.ledger.offset)
    snapshot, uncounted = _begins(snapshot, manifest, left)
    recorder.recall(snapshot.groups, uncounted)
    start = snapshot.next_group_index
    schedule: Schedule
    if batches is not None:
        schedule = stored_groups(
            context, recipe, batches, recorder, first_group_index=start
        )
    elif plays:
        policies = {MAIN_POLICY: roles["actor"]}
        schedule = rollouts(
            context,
            recipe,
            tasks,
            policies,
            recorder,
            first_group_index=first_group_index,
            snapshot=snapshot,
            playing=left.playing if left else {},
        )
    else:
        schedule = conversations(
            recipe, context.ledger, first_group_index=first_group_index, start=start
        )
    context.heartbeat.parts["rollouts"] = schedule.now
    url = stage.checkpoint.copy_to
    copies = None if url is None else CheckpointCopies(url, context.directory, stage.name)
    run = StageRun(
        stage,
        algorithm=algorithm,
        schedule=schedule,
        roles={MAIN_POLICY: roles},
        checkpoints=checkpoints,
        evaluator=_evaluator(context, recipe, schedule),
        recorder=recorder,
        skipped=SkippedSteps(
            context.directory.skipped_steps_folder / stage.name,
            stage.name,
            num_steps,
            context.events,
        ),
        model_folder=context.directory.models_folder / stage.name,
        restored=restored,
        stop=context.stop,
        copies=copies,
    )
    context.restarts.left = None
    try:
        with context.stop.deferring():
            state = training_loop(stage)(run)
        _check_trained(stage, manifest.state.step if manifest else 0, state)
    except BaseException as error:
        close_after(error, run.checkpointing.close, "writing the last checkpoint")
        close_after(error, partial(_leave, context, run, error), "closing the stage")
        raise
    # The close ends the thread that takes the snapshot, so this comes before it.
    next_group_index = schedule.snapshot().next_group_index if plays else first_group_index
    schedule.close()
    return StageOutcome(next_group_index, recorder.results, num_steps, state.without_signal)


def _leave(context: RunContext, run: StageRun, error: BaseException) -> None:
    """Ends a stage that failed. Where its ranks are lost, rollout workers apart from them go on."""
    service, left = run.schedule, None
    lost = isinstance(error, RankLostError) and context.processes.has_workers
    if lost and isinstance(service, RolloutService):
        step = newest_step(run.checkpoints.folder)
        left = service.hand_over(step, plays_on=not run.stage.reward.model.given)
    else:
        service.close()
    if left is not None:
        left = replace(left, uncounted=run.recorder.uncounted())
        context.restarts.left = run.stage.name, left


def _left(
    context: RunContext, stage: StageConfig, manifest: Manifest | None
) -> HandOver | None:
    """What the stage's rollout workers go on with; None where they are to be set up."""
    name, left = context.restarts.left or ("", None)
    if left is None or name != stage.name:
        return None
    step = manifest.state.step if manifest else 0
    return left if step == left.step or left.state is None else None


def _begins(
    first: RolloutState, manifest: Manifest | None, left: HandOver | None
) -> tuple[RolloutState, Collection[int]]:
    """The draws that a stage goes on from, and those that are in no step's metrics yet."""
    if left is not None and left.state is not None:
        return left.state, left.uncounted
    return (manifest.rollouts, manifest.uncounted) if manifest else (first, ())


def _checkpoints(context: RunContext, stage: StageConfig) -> Checkpoints:
    folder = context.directory.checkpoints_folder / stage.name
    own = stage.checkpoint
    best = own.keep_best if stage.eval.sets else None
    return Checkpoints(folder, keep_last=own.keep_last, keep_best=best)


def _announce(
    context: RunContext,
    stage: StageConfig,
    algorithm: AlgorithmSpec,
    model: Path,
    num_steps: int,
    *,
    done: int,
) -> None:
    """Shows and records that a stage begins, ``done`` steps of which were taken before."""
    context.display.stage(
        f"{stage.name} ({algorithm.name})",
        num_steps,
        columns=_COLUMNS[algorithm.learns_from],
        done=done,
        sparse=algorithm.learns_from != "rollouts",
    )
    context.heartbeat.reach(stage.name, done)
    keep_tokenizer(context.directory, stage.name, model)
    _tell_renderer(context, stage, model)


def _recorder(
    context: RunContext,
    stage: StageConfig,
    algorithm: AlgorithmSpec,
    manifest: Manifest | None,
) -> Recorder:
    """What the stage leaves behind, from where a checkpoint stood."""
    rows = read_jsonl(context.directory.metrics_path) if manifest else ()
    earlier = [row for row in rows if row.get("stage") == stage.name]
    ahead = stage.plays and not stage.replays and stage.rollout.max_staleness > 0
    watched = stage.health
    if not algorithm.needs.rewards:
        watched = watched.replace(no_signal_max_frac=None, reward_stuck_steps=None)
    recorder = Recorder(
        stage.name,
        writer=context.writer,
        events=context.events,
        sink=context.sink,
        view=context.display,
        timer=context.timer,
        step=manifest.state.step if manifest else 0,
        results=dict(manifest.results) if manifest else {},
        detail=stage.store.detail,
        health=Health(watched, earlier, ahead=ahead) if stage.plays else None,
        ahead=ahead,
    )
    return recorder


def _tell_renderer(context: RunContext, stage: StageConfig, model: Path) -> None:
    """Says which template family was found, and who reads the calls.

    Raises:
        AgentRLError: the model's chat template cannot be rendered, or no parser reads its calls.
    """
    renderer = renderer_spec(stage, model).build()
    parser = type(parser_for(renderer, parser_name(stage))).__name__
    context.events.log(
        "renderer",
        f"stage {stage.name}: chat template family {renderer.family} (model.renderer: "
        f"{stage.model.renderer}), "
        f"tool calls read by {parser} (model.tool_parser: {stage.model.tool_parser})",
        boundary="data",
        family=renderer.family,
        parser=parser,
    )


def _evaluator(
    context: RunContext, recipe: StageRecipe, schedule: Schedule
) -> Evaluator | None:
    """Evaluates the stage's model on held-out data; None for a stage that only imitates."""
    stage = recipe.stage
    kind = recipe.algorithm.learns_from
    if stage.replays:
        if stage.eval.sets:
            told = "run.replay starts no engine, so that no set of eval.sets is evaluated"
            context.display.message(f"{told}; use `agentrl eval` on the trained model")
        return None
    if kind == "rollouts":
        return rollout_evaluator(stage, context.live, schedule.evaluate)
    if kind == "demonstrations":
        return None
    return PairEvaluator(
        held_out_pairs(stage, recipe.model),
        sequence_scores(context.processes.roles["reward_model"], stage),
    )


def _tasks(context: RunContext, stage: StageConfig, model: Path) -> Sequence[Task]:
    """The tasks to draw; those that are left out for the length of their prompts are told."""
    tasks = DataSet.of_training(stage).tasks()
    if isinstance(tasks, TaskStream):
        return tasks  # a prompt that is too long is known in its episode alone
    fitting, left_out = fitting_tasks(stage, context.live, tasks, model, context.directory)
    if left_out.ids:
        context.display.message(str(left_out))
        told = f"stage {stage.name}: {left_out}"
        context.events.log(
            "tasks_left_out", told, boundary="data", level="warning", **asdict(left_out)
        )
    return fitting


def finished_stage(context: RunContext, stage: StageConfig) -> StageOutcome | None:
    """What a stage came to that an earlier attempt of the run finished; None where it did not."""
    manifest = finished_manifest(context.directory, stage)
    if manifest is None:
        return None
    next_group_index = manifest.rollouts.next_group_index if stage.plays else 0
    state = manifest.state
    return StageOutcome(
        next_group_index, manifest.results, state.step, state.without_signal
    )
