"""Rules between stages: what each starts from, and which reward model scores its episodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from agentrl.algorithms import LearnsFrom, make_algorithm
from agentrl.config.schema import StageConfig
from agentrl.types.section import Fault

__all__ = ["lineage_faults"]


def lineage_faults(stages: Sequence[StageConfig], base_dir: Path) -> Iterator[tuple[int, Fault]]:
    """What is wrong between whole stages, each with the position of the stage to mend.

    Args:
        stages: all of a run, also those skipped because ``model.path`` is given.
        base_dir: where a user's own algorithms start.
    """
    kinds: dict[str, LearnsFrom] = {}
    for position, stage in enumerate(stages):
        own = _learns_from(stage, base_dir)
        if own != "preferences" and kinds.get(stage.starts_from) == "preferences":
            policies = ", ".join(
                name for name, kind in {"model": own, **kinds}.items() if kind != "preferences"
            )
            yield (
                position,
                Fault(
                    (("starts_from",),),
                    f"stages.{stage.name}.from must name a policy ({policies}), since algorithm.name="
                    f"{stage.algorithm.name!r} trains one, got the reward model {stage.starts_from!r}; name one",
                ),
            )
        scorer = stage.reward.model.stage
        if own == "rollouts" and scorer is not None and kinds.get(scorer) != "preferences":
            known = (
                ", ".join(name for name, kind in kinds.items() if kind == "preferences") or "none"
            )
            yield (
                position,
                Fault(
                    (("reward", "model", "stage"),),
                    f"{{key}} must name an earlier stage that trains a reward model (those are: {known}), "
                    f"got {scorer!r}; name one, or a folder by reward.model.path",
                ),
            )
        if scorer is not None and any(
            s.name == scorer and _is_skipped(s) for s in stages[:position]
        ):
            yield (
                position,
                Fault(
                    (("reward", "model", "stage"), ("model", "path")),
                    f"{{key}}={scorer!r} is skipped, since it is `when: built` and model.path is given; "
                    f"set stages.{scorer}.when=always, or reward.model.path",
                ),
            )
        kinds[stage.name] = own


def _is_skipped(stage: StageConfig) -> bool:
    return stage.when == "built" and stage.model.path is not None


def _learns_from(stage: StageConfig, base_dir: Path) -> LearnsFrom:
    """Known without torch for a built-in algorithm; a user's own is made."""
    name, checked = stage.algorithm.name, stage.algorithm.checked
    if checked is not None:
        return checked.learns_from
    return make_algorithm(name, stage.algorithm.settings, base_dir=base_dir).learns_from
