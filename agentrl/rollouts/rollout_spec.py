"""What a rollout is made with: picklable, so that whoever hosts the episodes builds the parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from agentrl.envs import EnvSpec, Rubric
from agentrl.render import Renderer
from agentrl.types import Purpose, SamplingParams, Task

if TYPE_CHECKING:
    from agentrl.rollouts.driver import DriverSpec
    from agentrl.rollouts.snapshots import GroupState

__all__ = [
    "EpisodeKey",
    "EpisodeLimits",
    "GroupRequest",
    "RendererFactory",
    "RolloutSpec",
    "RubricFactory",
    "StagePermits",
]


class RubricFactory(Protocol):
    """Anything that builds a Rubric where the episodes run."""

    def build(self) -> Rubric: ...


class RendererFactory(Protocol):
    """Anything that builds a Renderer where the episodes run, such as ``agentrl.render.RendererSpec``."""

    def build(self) -> Renderer: ...


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Bounds of one episode; deadlines nest, episode ⊇ turn ⊇ generate | step.

    Args:
        max_turns: model calls.
        max_turn_tokens: tokens sampled in one call.
        max_prompt_tokens: tokens of a sequence's opening prompt.
        max_response_tokens: tokens of a sequence after its prompt, the policy's and the tools' together.
        context_tokens: tokens of a whole sequence.
        episode_timeout_s: seconds of the whole episode; what was finished by then counts as truncated.
        turn_timeout_s: seconds of one turn: generation, tools and environment. Neither counts a wait for a sandbox, or
            for a turn at executing in it, that other episodes cause.
        cleanup_s: seconds for closing the environment after the episode.
        max_calls_per_turn: calls of one turn that an environment is given; those beyond are answered by one count.
        max_bad_turns: turns in a row, each with calls of which none can be read, after which it is truncated.
    """

    max_turns: int
    max_turn_tokens: int
    max_prompt_tokens: int
    max_response_tokens: int
    context_tokens: int
    episode_timeout_s: float = 600.0
    turn_timeout_s: float = 120.0
    cleanup_s: float = 10.0
    max_calls_per_turn: int = 32
    max_bad_turns: int = 5


@dataclass(frozen=True, slots=True)
class StagePermits:
    """How many episodes may be in each stage of one runner at once, and how many may hold a sandbox; and the threads of
    its process for synchronous tools, and for environments and rewards."""

    preparing: int = 64
    running: int = 1024
    scoring: int = 64
    sandboxes: int = 64
    tool_threads: int = 32
    env_threads: int = 32


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """Everything that the episodes of a stage share.

    Args:
        env: makes one environment an episode, or another player of it, such as an agent's program.
        renderer: builds the renderer; None for an engine that takes messages.
        parser: name of the tool-call parser; ``auto`` for the one that reads what the renderer writes.
        rubric: builds what scores an episode.
        limits: bounds of an episode.
        sampling: how training tokens are drawn; ``max_new_tokens`` is bounded further by the limits.
        root_seed: ``run.seed``.
        step_reward_weight: weight of the sum of step rewards beside the rubric.
        max_retries: attempts after the first one that infrastructure failed.
        permits: episodes in each stage.
        measure_retokenization: whether each finished episode says how its ids differ from those of its text.
        save_episode_state: whether each episode in training keeps its environment's state after every turn, so that a
            checkpoint can hold it.
    """

    env: EnvSpec | DriverSpec
    renderer: RendererFactory | None
    parser: str
    rubric: RubricFactory
    limits: EpisodeLimits
    sampling: SamplingParams
    root_seed: int
    step_reward_weight: float = 1.0
    max_retries: int = 2
    permits: StagePermits = field(default_factory=StagePermits)
    measure_retokenization: bool = True
    save_episode_state: bool = False


@dataclass(frozen=True, slots=True)
class EpisodeKey:
    """What an episode is called and what its random numbers are derived from (the attempt is in no seed)."""

    group_index: int
    rollout_index: int
    attempt: int = 0
    purpose: Purpose = "train"
    label: str = ""

    @property
    def trajectory_id(self) -> str:
        """The id of the episode's trajectory."""
        own = f"{self.group_index}-{self.rollout_index}-{self.attempt}"
        return f"{self.label}/{own}" if self.label else own

    @property
    def session_id(self) -> str:
        """The episode's KV session: unique over attempts, so that a retried one never meets its own remains."""
        return (
            f"{self.label or self.purpose}/{self.group_index}-{self.rollout_index}-{self.attempt}"
        )


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """One draw to roll out.

    Args:
        draw: position in the data order.
        task: the problem.
        group_size: siblings that must come to their end.
        purpose: training, baseline or evaluation.
        label: names the evaluation; empty in training.
        sampling: overrides the stage's sampling.
        min_version: lowest policy version that may answer.
        env: overrides the stage's environment or player.
        oversample_per_group: played beside them: once ``group_size`` have finished, those that still play are cut off.
        first_attempt: attempts before were lost with those who hosted them.
        saved: where each sibling stood when a checkpoint was made; it goes on from there.
    """

    group_index: int
    task: Task
    group_size: int
    purpose: Purpose = "train"
    label: str = ""
    sampling: SamplingParams | None = None
    min_version: int = 0
    env: EnvSpec | DriverSpec | None = None
    oversample_per_group: int = 0
    first_attempt: int = 0
    saved: GroupState | None = None

    @property
    def num_rollouts(self) -> int:
        """All that are played."""
        return self.group_size + self.oversample_per_group
