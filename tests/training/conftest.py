"""One tiny model for the session; no process group outlives its test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentrl.training import leave
from tests.training.harness import write_model


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(autouse=True)
def _no_group_stays() -> Iterator[None]:
    yield
    leave()
