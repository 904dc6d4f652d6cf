"""Algorithm rules: settings elsewhere that do not fit the algorithm, or what it learns from."""

from __future__ import annotations

import math
from collections.abc import Iterator

from agentrl.algorithms import (
    AlgorithmSettings,
    AlgorithmSpec,
    PolicyGradientSettings,
    Traits,
)
from agentrl.algorithms.settings.policy_gradient import DistillationSettings, DPPOSettings
from agentrl.config.rules import both_given, fault, sampler_faults
from agentrl.config.schema import StageConfig
from agentrl.config.train_sections import CriticOptim
from agentrl.engines.find import engines_with
from agentrl.errors import ConfigError
from agentrl.metrics.names import NAMES
from agentrl.types.section import Fault, idle_settings

_TAKEN = {"actor", "critic", "reference", *(name.partition("/")[0] for name in NAMES)}
"""Names of the built-in roles, and what metrics begin with."""


def algorithm_faults(stage: StageConfig) -> Iterator[Fault]:
    """Settings of a stage that do not fit its algorithm.

    A user's own algorithm (``file.py:function``) is made, which imports its file; a built-in one is
    not, unless a function of the user's stands in for one of its own.
    """
    try:
        learner = stage.learner
        if isinstance(learner, AlgorithmSettings) and learner.replaced:
            # This imports the user's files, and checks their functions.
            stage.make_algorithm()
    except ConfigError as error:
        setting = error.fields[0].partition(".")[2] if error.fields else "name"
        yield fault(str(error), f"algorithm.{setting}")
        return
    least = learner.group_size_min
    if stage.rollout.group_size < least:
        yield fault(
            f"algorithm.name={stage.algorithm.name!r} needs rollout.group_size >= {least} (a "
            f"trajectory is compared with its siblings), got {stage.rollout.group_size}; raise it, "
            "or choose another algorithm",
            "rollout.group_size",
        )
    yield from _other_model_faults(stage, learner)
    try:
        check_warmup(learner, stage.train.steps or math.inf)
    except ConfigError as error:
        yield fault(str(error), "algorithm.critic_warmup_steps", "train.steps")
    if learner.learns_from == "rollouts":
        yield from sampler_faults(stage)
    if isinstance(learner, AlgorithmSpec):
        yield from _own_staleness_faults(stage, learner)
    else:
        yield from _built_in_faults(stage, learner)


def check_warmup(learner: Traits, steps: float) -> None:
    """Raises ConfigError where the critic's warm-up takes all ``steps`` of a stage."""
    warmup = getattr(learner, "critic_warmup_steps", 0)
    if warmup >= steps:
        raise ConfigError(
            f"algorithm.critic_warmup_steps must be less than train.steps={steps} (the policy "
            f"learns nothing in a critic's warm-up), got {warmup}; lower it, or raise train.steps"
        )


def _other_model_faults(stage: StageConfig, learner: Traits) -> Iterator[Fault]:
    """What is wrong with the models beside the policy: its critic and its reference."""
    name, needs = stage.algorithm.name, learner.needs
    for key, other in stage.others.items():
        yield from both_given(key, other, "stage", "path")
    yield from _role_faults(stage)
    if needs.critic and stage.critic.stage is None and stage.critic.path is None:
        yield fault(
            f"algorithm.name={name!r} needs a critic, got neither critic.stage nor critic.path; "
            "critic.stage=model starts it from the model of the run, with a new head",
            "critic.stage",
            "critic.path",
        )
    teacher = stage.reference
    if isinstance(learner, DistillationSettings) and teacher.stage is teacher.path is None:
        yield fault(
            f"algorithm.name={name!r} needs a teacher, got neither reference.stage nor "
            "reference.path (what the stage starts from would teach nothing); name a better model "
            "that reads the same tokens",
            "reference.stage",
            "reference.path",
        )
    for field, found, asked in (
        (
            "algorithm.name",
            f"={name!r}",
            needs.critic or learner.learns_from == "preferences",
        ),
        ("reward.model", "", stage.reward.model.given),
    ):
        if asked and stage.train.backend == "megatron":
            yield fault(
                f"train.backend='megatron' computes policies alone, and {{key}}{found} needs a "
                "critic or a reward model; set train.backend=fsdp2, or change the other",
                field,
                "train.backend",
            )


def _role_faults(stage: StageConfig) -> Iterator[Fault]:
    """What is wrong with custom roles; their classes are loaded, and nothing is built."""
    for name, own in stage.roles.items():
        if name in _TAKEN or not name.isidentifier():
            yield fault(
                f"{{key}} must be an identifier and none of {', '.join(sorted(_TAKEN))}, got "
                f"{name!r}; rename it",
                f"roles.{name}",
            )
            continue
        try:
            kind = own.load(stage.base_dir)
        except ConfigError as error:
            yield fault(str(error), f"roles.{name}.role")
            continue
        from agentrl.training import LearnerSpec

        learns = issubclass(kind, LearnerSpec)
        if not learns and own.pass_ is None:
            yield fault(
                f"roles.{name}.pass is needed, since {own.role!r} is no LearnerSpec and the role "
                "would do nothing; name the method that gives its columns",
                f"roles.{name}.pass",
            )
        if not learns and own.optim != CriticOptim():
            yield fault(
                f"{{key}} does nothing, since {own.role!r} is no LearnerSpec; leave it out",
                f"roles.{name}.optim",
            )


def idle_faults(stage: StageConfig) -> Iterator[Fault]:
    """Settings of a stage that were given and cannot act, beside others or with its algorithm."""
    yield from idle_settings(stage)
    yield from _idle_sync_faults(stage)
    learner = stage.learner
    needs = learner.needs
    imitates = learner.learns_from == "demonstrations"
    kl = "set algorithm.kl_coef above 0, or algorithm.name=distillation"
    for name in stage.roles if learner.learns_from != "rollouts" else ():
        yield fault(
            f"{{key}} does nothing with algorithm.name={stage.algorithm.name!r}, which trains no "
            "episodes; leave it out",
            f"roles.{name}",
            "algorithm.name",
        )
    for section, names, is_used, remedy in (
        (
            "critic",
            ("stage", "path", "optim", "lora"),
            needs.critic,
            "choose one with it, such as ppo",
        ),
        ("reference", ("stage", "path"), needs.reference, kl),
        ("data", ("sampler",), stage.plays, "set data.shuffle"),
        (
            "train",
            ("router_replay",),
            stage.plays,
            "choose one that trains what a sampler wrote",
        ),
        ("eval", ("sets",), not imitates, "evaluate the trained model by `agentrl eval`"),
    ):
        own = getattr(stage, section)
        for name in () if is_used else names:
            default = type(own).model_fields[name].get_default(call_default_factory=True)
            if getattr(own, name) != default:
                yield fault(
                    f"{{key}} does nothing with algorithm.name={stage.algorithm.name!r} as it is "
                    f"set; leave it out, or {remedy}",
                    f"{section}.{name}",
                    "algorithm.name",
                )
    has = {
        "critic": needs.critic,
        "reference": needs.reference and not stage.reference_is_actor,
        "reward_model": stage.reward.model.given or learner.learns_from == "preferences",
    }
    for role in stage.placement.roles:
        if not has.get(role, True):
            yield fault(
                f"{{key}} does nothing with algorithm.name={stage.algorithm.name!r} as it is set, "
                f"which has no {role}; leave it out",
                f"placement.roles.{role}",
                "algorithm.name",
            )


def _idle_sync_faults(stage: StageConfig) -> Iterator[Fault]:
    """Where no engine is ever sent only what changed."""
    rollout, own = stage.rollout, "rollout.engine"
    found, remedy = repr(rollout.engine), f"use {engines_with('returns_ids')}"
    if not stage.placement.rollout_workers:
        own, found, remedy = "placement.rollout_workers", "0", "set it above 0"
    elif stage.engine_spec.traits().returns_ids:
        return
    if rollout.full_sync_every != type(rollout).model_fields["full_sync_every"].default:
        yield fault(
            f"{{key}}={rollout.full_sync_every} does nothing with {own}={found} (nothing is "
            f"then sent as changes); leave it out, or {remedy}",
            "rollout.full_sync_every",
            own,
        )


def _built_in_faults(stage: StageConfig, settings: AlgorithmSettings) -> Iterator[Fault]:
    asked = "algorithm.old_logprobs='rollout'" if settings.on_policy_only else ""
    if isinstance(settings, DPPOSettings):
        asked = f"algorithm.name={stage.algorithm.name!r}"
    if asked and stage.debug.train_on_tool_tokens:
        yield fault(
            f"{asked} needs debug.train_on_tool_tokens=false (no sampler gave those tokens a "
            "logprob), got true; set it, or change the other",
            asked.partition("=")[0],
            "debug.train_on_tool_tokens",
        )
    if stage.rollout.schedule != "sync" and settings.learns_from == "rollouts":
        yield from _staleness_faults(stage, settings)
    if settings.on_policy_only and not stage.updates_are_on_policy:
        train = stage.train
        yield fault(
            "algorithm.old_logprobs='rollout' allows one update a batch, "
            "train.updates_per_batch=1 and train.mini_batch_prompts=train.batch_prompts (after "
            "the first, the sampler's policy is no longer the one trained), got "
            f"{train.updates_per_batch} passes over {train.batch_prompts} prompts in mini-batches "
            f"of {train.mini_batch_prompts}; change these, or set "
            "algorithm.old_logprobs='recompute'",
            "algorithm.old_logprobs",
            "train.updates_per_batch",
            "train.mini_batch_prompts",
        )


def _staleness_faults(stage: StageConfig, settings: AlgorithmSettings) -> Iterator[Fault]:
    """Tokens of older versions are trained with the trainer's own logprobs and a factor that makes
    up for their age.
    """
    why = _why(stage)
    if settings.on_policy_only:
        yield fault(
            f"{why}, which needs algorithm.old_logprobs='recompute', got 'rollout'; set it, or "
            "rollout.schedule=sync",
            "algorithm.old_logprobs",
            "rollout.max_staleness",
        )
    elif not settings.corrects_staleness:
        level = "none"
        if isinstance(settings, PolicyGradientSettings):
            level = settings.rollout_correction.level
        yield fault(
            f"{why}, which needs algorithm.rollout_correction.level='token' (truncated importance "
            f"weights), got {level!r}; set it, or rollout.schedule=sync",
            "algorithm.rollout_correction.level",
            "rollout.max_staleness",
        )


def _own_staleness_faults(stage: StageConfig, spec: AlgorithmSpec) -> Iterator[Fault]:
    """The same of a user's own algorithm, which says itself what it can learn from."""
    name = stage.algorithm.name
    staleness = stage.rollout.max_staleness
    if spec.max_staleness is not None and staleness > spec.max_staleness:
        yield fault(
            f"algorithm.name={name!r} allows rollout.max_staleness <= {spec.max_staleness}, got "
            f"{staleness}; lower it",
            "rollout.max_staleness",
        )
    elif (
        stage.rollout.schedule != "sync"
        and spec.learns_from == "rollouts"
        and not spec.corrects_staleness
    ):
        yield fault(
            f"{_why(stage)}, but algorithm.name={name!r} returns an AlgorithmSpec without "
            "`correction` in every step, the factor that makes up for their age; give it one "
            "(agentrl.algorithms.functions.corrections.truncated_importance is GRPO's, and one of "
            "ones is for a loss that weighs by rollout_logprobs itself), or set "
            "rollout.schedule=sync",
            "algorithm.name",
            "rollout.max_staleness",
        )


def _why(stage: StageConfig) -> str:
    rollout = stage.rollout
    return (
        f"rollout.schedule={rollout.schedule!r} with rollout.max_staleness={rollout.max_staleness} "
        "trains tokens that older weights sampled"
    )
