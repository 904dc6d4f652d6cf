"""Role group: the ranks that host a stage's roles, called all together."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from agentrl.controller.cluster.episode_host import EpisodeHost
from agentrl.controller.cluster.mesh import MeshShape
from agentrl.controller.cluster.rollout_pool import ProcessInfo
from agentrl.controller.cluster.worker import RoleSpec, Worker
from agentrl.errors import TrainingError, WeightMismatchError
from agentrl.training import DistSpec


class RoleGroup(Protocol):
    """Collective calls run first in, first out.

    The first rank's exception is raised at once. It poisons the group: every later call raises.
    """

    @property
    def mesh(self) -> MeshShape:
        """How the ranks are arranged."""
        ...

    def setup(self, roles: Mapping[str, RoleSpec]) -> None:
        """Builds a stage's roles on every rank; what an earlier stage left is ended first."""
        ...

    def call(
        self,
        target: str,
        method: str,
        *,
        shards: Sequence[Any] | None = None,
        args: tuple[Any, ...] = (),
    ) -> list[Any]:
        """Calls a method on every rank.

        Args:
            target: a role's name, ``rollouts`` for the rank's episode host, or ``weights``.
            method: of the target.
            shards: one for each data coordinate; every rank of the coordinate gets it as its first
                argument.
            args: the same for all ranks.

        Returns:
            With shards one answer for each data coordinate, otherwise one for each rank.
        """
        ...

    def describe(self) -> list[ProcessInfo]:
        """Where each rank runs."""
        ...

    def close(self) -> None:
        """Ends every rank and what it started."""
        ...


class LocalRoleGroup:
    """One rank in the driver's own process: no Ray, breakpoints work, the same addressing.

    Args:
        threads: torch threads of this process.
        device: where the roles compute.
    """

    def __init__(self, *, threads: int, device: str = "cpu") -> None:
        self._worker = Worker("episodes-0", DistSpec(device=device), threads)
        self._error: BaseException | None = None
        # one collective call at a time: the loop's thread trains, the service's thread may score
        self._calling = threading.Lock()

    @property
    def mesh(self) -> MeshShape:
        return MeshShape()

    @property
    def rollouts(self) -> EpisodeHost:
        """The rollout pool that the rank serves."""
        return self._worker.rollouts

    def setup(self, roles: Mapping[str, RoleSpec]) -> None:
        with self._poisoning():
            self._worker.setup(roles)

    def call(
        self,
        target: str,
        method: str,
        *,
        shards: Sequence[Any] | None = None,
        args: tuple[Any, ...] = (),
    ) -> list[Any]:
        (own,) = self.mesh.arguments(shards, args)
        with self._poisoning():
            return [self._worker.call(target, method, *own)]

    def describe(self) -> list[ProcessInfo]:
        return [self._worker.describe()]

    def close(self) -> None:
        self._worker.close()

    @contextmanager
    def _poisoning(self) -> Iterator[None]:
        with self._calling:
            if self._error is not None:
                raise TrainingError(
                    f"the group is poisoned by an earlier error: {self._error}", rank=0
                )
            try:
                yield
            except WeightMismatchError:  # after the last collective: the ranks are sound
                raise
            except BaseException as error:
                self._error = error
                raise
