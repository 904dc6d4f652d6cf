"""One Ray for all tests of this folder, one tiny model, and rollout services that end with their
test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import StageConfig
from agentrl.controller.cluster.role_group import LocalRoleGroup
from tests.controller.hand_pool import MakeWorld, World
from tests.controller.tiny import write_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def ray_started() -> Iterator[None]:
    import ray

    from agentrl.controller.cluster.ray_cluster import start_ray

    started = start_ray(7)
    yield
    if started:
        ray.shutdown()


@pytest.fixture
def group() -> Iterator[LocalRoleGroup]:
    group = LocalRoleGroup(threads=1)
    yield group
    group.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[MakeWorld]:
    made: list[World] = []

    def make(stage: StageConfig, **settings: Any) -> World:
        made.append(World(tmp_path / f"ledger-{len(made)}.jsonl", stage, **settings))
        return made[-1]

    yield make
    for each in made:
        each.service.close()
        each.ledger.close()
