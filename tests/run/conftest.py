"""The fixtures of configuration files, and a run that many tests look at."""

from __future__ import annotations

import pytest

from agentrl.store import RunDirectory
from tests.config.conftest import problems, write
from tests.run.tiny_run import TRAINED, train

__all__ = ["problems", "write"]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of two stages, trained once; no test changes it."""
    return RunDirectory(train(tmp_path_factory.mktemp("trained"), *TRAINED))
