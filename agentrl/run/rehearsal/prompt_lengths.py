"""Prompt lengths: how long a data set's prompts are, in the model's tokens where its tokenizer is
at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from agentrl.config import RunConfig, StageConfig
from agentrl.render import Renderer
from agentrl.run.build import LiveObjects
from agentrl.run.data.datasets import call_named
from agentrl.run.data.prompt_limit import prompt_lengths
from agentrl.run.data.task_table import TaskStream
from agentrl.store.model_folder import cached_model
from agentrl.types import Task


@dataclass(frozen=True, slots=True)
class Lengths:
    """Statistics of lengths.

    Args:
        count: of the texts that were measured.
        shortest, median, p95, longest: tokens.
        too_long: texts above the limit.
        limit: tokens.
    """

    count: int
    shortest: int
    median: float
    p95: float
    longest: int
    too_long: int
    limit: int

    @classmethod
    def of(cls, tokens: Sequence[int], limit: int) -> Lengths:
        """Of the lengths of at least one text; quantiles are linear between two lengths."""
        median, p95 = np.quantile(np.asarray(tokens), (0.5, 0.95)).tolist()
        too_long = sum(length > limit for length in tokens)
        return cls(len(tokens), min(tokens), median, p95, max(tokens), too_long, limit)


def spread(tasks: Sequence[Task], most: int) -> list[Task]:
    """At most ``most`` tasks, the first, the last and others at equal distances between them; of a
    stream the first ones.
    """
    if isinstance(tasks, TaskStream):
        return list(islice(tasks, most))
    if len(tasks) <= most:
        return list(tasks)
    return [tasks[int(index)] for index in np.linspace(0, len(tasks) - 1, most)]


@contextmanager
def tokenizer_folder(config: RunConfig) -> Iterator[Path | None]:
    """A folder with the model's tokenizer: of this machine or of the hub's cache, or one that
    ``model.build`` makes for now; nothing is downloaded, and None stands for a model that is not
    here.

    Raises:
        DataError: ``model.build`` raised.
    """
    own = config.model
    if own.path is not None:
        yield cached_model(own.path, config.base_dir)
        return
    if own.build is None:
        yield None
        return
    with TemporaryDirectory(prefix="agentrl-check-") as made:
        args = (own.build, config.base_dir, config.run.seed, own.build_args)
        call_named("model.build", *args, Path(made))
        yield Path(made)


def measured(
    stage: StageConfig, tasks: Sequence[Task], renderer: Renderer
) -> Lengths | None:
    """The lengths of the tasks' prompts; None where only playing them would tell."""
    lengths = prompt_lengths(stage, LiveObjects(), tasks, lambda: renderer)
    return (
        Lengths.of(list(lengths.values()), stage.data.max_prompt_tokens)
        if lengths
        else None
    )
