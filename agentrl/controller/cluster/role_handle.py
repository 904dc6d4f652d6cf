"""Role handle: a role of a group's ranks, as the driver calls it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from agentrl.controller.batch_plan import MiniBatch, PlannedBatch
from agentrl.controller.cluster.role_group import RoleGroup
from agentrl.training import LearningRole, ModelInfo, merge_columns
from agentrl.types import Collect, Dispatch, Stats, registration

R = TypeVar("R", covariant=True)


class RoleHandle(Generic[R]):
    """Calls a role on all its ranks.

    Args:
        group: its ranks.
        name: in the stage's roles; the folder of its checkpoints.
        kind: the role's class, whose methods are marked with ``@register``.
    """

    def __init__(self, group: RoleGroup, name: str, kind: type[R]) -> None:
        self.group = group
        self.name = name
        self.kind = kind

    def call(self, method: Callable[..., Any], *args: Any) -> Any:
        """Calls a registered method, as its mark says (docs/training.md, Dispatch).

        Args:
            method: the role class's own function, marked with ``@register``.
            args: for ``DATA`` the shards by coordinate, then arguments for all; otherwise arguments
                for all.

        Returns:
            For FIRST the answer of rank 0; for DATA a list by data coordinate, or statistics
            merged.
        """
        mark = registration(method)
        name = method.__name__
        if mark.dispatch is Dispatch.FIRST:
            return self.group.call(self.name, name, args=args)[0]
        answers = self.group.call(self.name, name, shards=args[0], args=args[1:])
        return sum(answers, Stats()) if mark.collect is Collect.STATS else answers

    def columns(
        self, method: Callable[..., Any], batch: PlannedBatch
    ) -> dict[str, npt.NDArray[np.float32]]:
        """``[T]`` columns of a batch by a pass without a backward."""
        parts = batch.forward_shards()
        return merge_columns(self.call(method, parts), parts, batch.batch.cu_seqlens)

    def facts(self: RoleHandle[LearningRole]) -> ModelInfo:
        """Sizes of the model."""
        found: ModelInfo = self.call(self.kind.facts)
        return found

    def update(self: RoleHandle[LearningRole], mini_batch: MiniBatch) -> Stats:
        """One optimizer step."""
        stats: Stats = self.call(self.kind.update, mini_batch.shards)
        return stats

    def save(self: RoleHandle[LearningRole], folder: Path) -> None:
        """Model, optimizer and schedule, for ``load``."""
        self.call(self.kind.save, folder)

    def load(self: RoleHandle[LearningRole], folder: Path) -> None:
        """What ``save`` kept."""
        self.call(self.kind.load, folder)

    def export(self: RoleHandle[LearningRole], folder: Path) -> None:
        """An ordinary Hugging Face folder of the model."""
        self.call(self.kind.export, folder)
