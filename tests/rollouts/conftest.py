"""Runners of episodes that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentrl.rollouts import EpisodeRunner
from tests.rollouts.bytewise import rollout_spec

Open = Callable[..., EpisodeRunner]


@pytest.fixture
def opened() -> Iterator[Open]:
    runners: list[EpisodeRunner] = []

    def open_runner(engine: Any, **settings: Any) -> EpisodeRunner:
        runners.append(EpisodeRunner(rollout_spec(**settings), engine))
        return runners[-1]

    yield open_runner
    for runner in runners:
        runner.close()
