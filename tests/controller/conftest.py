"""One Ray for all tests of this folder, and one tiny model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controller.tiny import write_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def ray_started() -> Iterator[None]:
    import ray

    from agentrl.controller.ray_group import start_ray

    started = start_ray(4)
    yield
    if started:
        ray.shutdown()
