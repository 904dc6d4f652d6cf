"""The sections that say what a run is and what it leaves behind: run, controller, evaluation, checkpoints, metrics."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agentrl.types.section import Arguments, Count, Natural, Section, Weight

__all__ = [
    "CheckpointConfig",
    "ControllerConfig",
    "DebugConfig",
    "EvalConfig",
    "EvalSetConfig",
    "MetricsConfig",
    "RunSection",
]


class RunSection(Section):
    """The run itself."""

    dir: str | None = None
    """Run directory, from the current folder; by default ``runs/<name of the config's folder>``."""
    base_dir: str | None = None
    """Where ``file.py:name`` references and data paths start, from the config file's folder, which is the default."""
    seed: Natural = 0
    """The one root of every random number."""
    deterministic: bool = False
    """The same numbers to the last bit in every run and after every resume; slower."""
    notes: str | None = None
    """Anything worth keeping with the run."""


class ControllerConfig(Section):
    """How the processes are arranged."""

    mode: Literal["ray", "inline"] = "ray"
    """``ray`` starts worker processes; ``inline`` runs everything in this one, for a debugger."""
    ray_address: str | None = None
    """Of a running Ray cluster (``auto`` finds this machine's); null starts a private one and ends it."""


class EvalSetConfig(Section):
    """A held-out set of tasks. A plain text is short for ``data`` alone."""

    data: str
    """As ``data.train``."""
    args: Arguments = Field(default_factory=dict)
    """Keyword arguments of the function."""
    num_tasks: Count | None = None
    """Only the first so many tasks."""
    temperature: Weight | None = None
    """Of this set's sampled episodes; by default ``eval.temperature``."""
    tools: bool = True
    """Offer the tools of ``env.tools``; false shows what they are worth."""
    baseline_only: bool = False
    """Examine it before the first step alone, as a baseline."""


class EvalConfig(Section):
    """When and how the policy is examined."""

    sets: dict[str, EvalSetConfig] = Field(default_factory=dict)
    """Held-out sets by name."""
    before: bool = True
    """Also before the first step; the end is always evaluated."""
    every: Count | None = None
    """Steps between evaluations; null evaluates at the ends only."""
    samples: Count = 1
    """Episodes sampled a task."""
    temperature: Weight = 1.0
    """Of the sampled episodes."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus of the sampled episodes."""
    greedy: bool = True
    """Also one greedy episode a task."""


class CheckpointConfig(Section):
    """What a resume starts from."""

    every: Count | None = 50
    """Steps between checkpoints; null keeps the last step's alone."""
    keep_last: Count = 2
    """Checkpoints kept a stage."""


class DebugConfig(Section):
    """Controls of an experiment: each spoils what is learned in a way that is known. A stage may set them for itself."""

    train_on_tool_tokens: bool = False
    """Train on tool and template tokens too, as if the policy had sampled them."""
    shuffle_rewards: bool = False
    """Rewards change places at random within each batch, so that nothing can be learned from them."""


class MetricsConfig(Section):
    """Where numbers go beside ``metrics.jsonl``."""

    tensorboard: bool = False
    """Also TensorBoard event files in the run directory; needs the extra, ``pip install 'agentrl[tensorboard]'``."""
    verl_names: bool = False
    """Also under verl's names, where the two mean the same."""
