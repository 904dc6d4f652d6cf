"""Own role: a role of the user's, built on a rank and held to what the driver asks of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentrl.errors import ConfigError, TrainingError
from agentrl.training.parallel.process_group import DistSpec
from agentrl.training.roles.learner import LearningRole
from agentrl.training.roles.role import Role
from agentrl.types import BatchShard, Collect, Dispatch, Stats, register
from agentrl.types.arrays import Floats
from agentrl.types.user_code.values import shown
from agentrl.types.user_code.wall import failed_as, wall


@dataclass(frozen=True, slots=True)
class OwnRoleSpec:
    """What a role of the user's is built from.

    Args:
        name: of the role.
        spec: the user's ``ModelSpec``, whose ``build`` makes the role.
        methods: that the role must have, with what becomes of their answers.
        told: the setting that named its class, with its value, for errors.
    """

    name: str
    spec: Any
    methods: Mapping[str, Collect]
    told: str

    def build(self, place: DistSpec) -> Role:
        """The role on one rank.

        Raises:
            ConfigError: the user's code raised, or made no role with the methods.
        """
        with wall(failed_as(ConfigError, f"{self.told}: its build raised", "; correct it")):
            role: Role = self.spec.build(place)
        for name, collect in self.methods.items():
            method = getattr(type(role), name, None)
            mark = getattr(method, "__registration__", None)
            if mark is None or mark.collect is not collect or method is LearningRole.update:
                raise ConfigError(
                    f"{self.told}: its build must return a Role with a method {name!r} marked with "
                    f"@register(Dispatch.DATA, collect={collect}), got {type(role).__name__}; "
                    "write the method"
                )
        role.own_name = self.name
        return role


def own_pass(name: str) -> Callable[[Role, BatchShard], dict[str, Floats]]:
    """What calls the pass of that name; see ``RoleHandle.begin_columns``."""

    @register(Dispatch.DATA, collect=Collect.COLUMNS)
    def called(role: Role, shard: BatchShard) -> dict[str, Floats]:
        raise NotImplementedError

    called.__name__ = name
    return called


def check_columns(answers: Sequence[Any], shards: Sequence[BatchShard], whose: str) -> None:
    """Refuses what is no column of a shard.

    Args:
        answers: of a pass, by data coordinate.
        shards: that it was given.
        whose: the pass, for errors.

    Raises:
        TrainingError: one is no dict of names to one finite number a token.
    """
    for answer, shard in zip(answers, shards, strict=True):
        number = shard.batch.num_tokens
        wanted = (
            f"{whose} must return a dict of columns, each one finite float for each of the "
        )
        wanted += f"{number} tokens of its shard, got"
        if not isinstance(answer, dict) or not answer:
            raise TrainingError(f"{wanted} {shown(answer)}; return a dict of arrays")
        for name, column in answer.items():
            is_float = isinstance(column, np.ndarray) and column.dtype.kind == "f"
            if not is_float or column.shape != (number,) or not np.isfinite(column).all():
                kind = getattr(column, "dtype", type(column).__name__)
                raise TrainingError(
                    f"{wanted} {name!r} of {kind} and shape {np.shape(column)}: {shown(column)}; "
                    "return 0 for tokens that are not trained"
                )


def check_stats(answers: Sequence[Any], whose: str) -> None:
    """Refuses what is no statistics of an update.

    Raises:
        TrainingError: one is none.
    """
    for answer in answers:
        if not isinstance(answer, Stats):
            raise TrainingError(
                f"{whose} must return Stats, got {shown(answer)}; return what learn() gives"
            )
