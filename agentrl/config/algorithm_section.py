"""An algorithm's own settings, checked like any other section although their schema lives with the algorithm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import Field, ValidationError, create_model

from agentrl.algorithms import ALGORITHMS, AlgorithmSpec, check_settings, make_algorithm
from agentrl.config.schema import StageConfig
from agentrl.config.verdicts import Fault, validation_faults
from agentrl.errors import ConfigError
from agentrl.types.section import Section

__all__ = ["algorithm_faults", "settings_section"]

# A record's field that a setting outside the section decides, so that no run has it twice.
_DECIDED_BY = {
    "num_epochs": "train.updates_per_batch",
}


def algorithm_faults(stage: StageConfig, base_dir: Path) -> Iterator[Fault]:
    """What is wrong with the section ``algorithm``, and with settings that do not fit its algorithm.

    A user's own algorithm (``file.py:function``) is made, which imports its file; a built-in one is not.
    """
    name = stage.algorithm.name
    try:
        if name not in ALGORITHMS:
            spec = make_algorithm(name, stage.algorithm.settings, base_dir=base_dir)
            yield from _group_size_fault(stage, spec.group_size_min)
            yield from _own_staleness_faults(stage, spec)
            return
        yield from _group_size_fault(stage, ALGORITHMS[name].settings.group_size_min)
        faults = list(_schema_faults(stage))
        yield from faults
        if faults:
            return
        settings = check_settings(name, stage.algorithm.settings)
    except ConfigError as error:
        yield Fault((_key_of(error),), str(error))
        return
    if settings.on_policy_only and stage.train.tool_tokens:
        yield Fault(
            (("algorithm", "old_logprobs"), ("train", "tool_tokens")),
            "algorithm.old_logprobs='rollout' needs train.tool_tokens=false (no sampler gave those tokens a logprob), "
            "got true; set it, or algorithm.old_logprobs='recompute'",
        )
    if stage.rollout.schedule != "sync" and settings.learns_from == "rollouts":
        yield from _staleness_faults(
            stage, settings.on_policy_only, getattr(settings, "correction", "none")
        )
    if settings.on_policy_only and not stage.updates_are_on_policy:
        train = stage.train
        yield Fault(
            (
                ("algorithm", "old_logprobs"),
                ("train", "updates_per_batch"),
                ("train", "mini_batch_prompts"),
            ),
            "algorithm.old_logprobs='rollout' allows one update a batch, train.updates_per_batch=1 and "
            "train.mini_batch_prompts=train.batch_prompts (after the first, the sampler's policy is no longer the one "
            f"trained), got {train.updates_per_batch} passes over {train.batch_prompts} prompts in mini-batches of "
            f"{train.mini_batch_prompts}; change these, or set algorithm.old_logprobs='recompute'",
        )


def _staleness_faults(stage: StageConfig, on_policy_only: bool, correction: str) -> Iterator[Fault]:
    """Tokens of older versions are trained with the trainer's own logprobs and a factor that makes up for their age."""
    why = _why(stage)
    if on_policy_only:
        yield Fault(
            (("algorithm", "old_logprobs"), ("rollout", "max_staleness")),
            f"{why}, which needs algorithm.old_logprobs='recompute', got 'rollout'; set it, or rollout.schedule=sync",
        )
    elif correction == "none":
        yield Fault(
            (("algorithm", "correction"), ("rollout", "max_staleness")),
            f"{why}, which needs algorithm.correction='token' (truncated importance weights), got 'none'; set it, or "
            "rollout.schedule=sync",
        )


def _own_staleness_faults(stage: StageConfig, spec: AlgorithmSpec) -> Iterator[Fault]:
    """The same of a user's own algorithm, which says itself what it can learn from."""
    name, staleness = stage.algorithm.name, stage.rollout.max_staleness
    if spec.max_staleness is not None and staleness > spec.max_staleness:
        yield Fault(
            (("rollout", "max_staleness"),),
            f"algorithm.name={name!r} allows rollout.max_staleness <= {spec.max_staleness}, got {staleness}; lower it",
        )
    elif (
        stage.rollout.schedule != "sync"
        and spec.learns_from == "rollouts"
        and spec.correction is None
    ):
        yield Fault(
            (("algorithm", "name"), ("rollout", "max_staleness")),
            f"{_why(stage)}, but algorithm.name={name!r} returns an AlgorithmSpec without `correction`, the factor "
            "that makes up for their age; give it one (agentrl.algorithms.losses.truncated_importance is GRPO's, and "
            "one of ones is for a loss that weighs by rollout_logprobs itself), or set rollout.schedule=sync",
        )


def _why(stage: StageConfig) -> str:
    return f"rollout.max_staleness={stage.rollout.max_staleness} trains tokens that older weights sampled"


def _group_size_fault(stage: StageConfig, least: int) -> Iterator[Fault]:
    if stage.rollout.group_size < least:
        yield Fault(
            (("rollout", "group_size"),),
            f"algorithm.name={stage.algorithm.name!r} needs rollout.group_size >= {least} (a trajectory is compared "
            f"with its siblings), got {stage.rollout.group_size}; raise it, or choose another algorithm",
        )


def _schema_faults(stage: StageConfig) -> Iterator[Fault]:
    given = stage.algorithm.settings
    for name in _DECIDED_BY.keys() & given.keys():
        yield Fault(
            (("algorithm", name),),
            f"{{key}} is not set here; set {_DECIDED_BY[name]}, got {given.pop(name)!r}",
        )
    root = _root_of(stage.algorithm.name)
    try:
        root.model_validate({"algorithm": given})
    except ValidationError as error:
        yield from validation_faults(error, root)


@cache
def settings_section(algorithm: str) -> type[Section]:
    """The settings of a built-in algorithm as a section: those that no setting elsewhere decides."""
    kind = ALGORITHMS[algorithm].settings
    hints = get_type_hints(kind)
    settings: dict[str, Any] = {
        field.name: (hints[field.name], ... if field.default is MISSING else field.default)
        for field in fields(kind)
        if field.name not in _DECIDED_BY
    }
    return create_model(f"{kind.__name__}Section", __base__=Section, **settings)


@cache
def _root_of(algorithm: str) -> type[Section]:
    """A schema whose one section is ``algorithm``."""
    section = settings_section(algorithm)
    return create_model(
        "AlgorithmRoot", __base__=Section, algorithm=(section, Field(default_factory=section))
    )


def _key_of(error: ConfigError) -> tuple[str, str]:
    """The setting that an algorithm's own message is about: the first that it names."""
    named = re.search(r"algorithm\.(\w+)", str(error))
    return "algorithm", named[1] if named else "name"
