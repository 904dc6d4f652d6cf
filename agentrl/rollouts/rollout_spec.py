"""Rollout spec: everything that the episodes of a stage share; picklable, built by their host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from agentrl.engines.base import RolloutEngine
from agentrl.engines.openai import OpenAIEngine
from agentrl.envs import EnvSpec, Rubric
from agentrl.errors import ConfigError
from agentrl.llm import ChatServerSpec
from agentrl.render import Renderer
from agentrl.rollouts.driver import DriverSpec
from agentrl.types import Purpose, SamplingParams


class RubricFactory(Protocol):
    """Builds a Rubric in the process that hosts the episodes."""

    def build(self) -> Rubric: ...


class RendererFactory(Protocol):
    """Builds a Renderer in the process that hosts the episodes; ``RendererSpec`` is one."""

    def build(self) -> Renderer: ...


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Bounds of one episode; deadlines nest, episode ⊇ turn ⊇ generate | step.

    A wait that other episodes cause, for a sandbox or for its executor, counts for no deadline.

    Args:
        max_turns: model calls.
        max_turn_tokens: tokens sampled in one call.
        max_prompt_tokens: tokens of a sequence's opening prompt.
        max_response_tokens: tokens of a sequence after its prompt, sampled and observed together.
        context_tokens: tokens of a whole sequence.
        episode_timeout_s: seconds of the whole episode, which is then truncated.
        turn_timeout_s: seconds of one turn: generation, tools and environment.
        cleanup_s: seconds for closing the environment after the episode.
        max_calls_per_turn: calls of one turn that an environment gets; one problem counts the
            others.
        max_bad_turns: consecutive turns without a readable call after which it is truncated.
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
class AgentSpec:
    """One of several agents of an episode, as ``Observation.agent`` names it.

    Args:
        train: whether its tokens are trained; those of another one are stored alone.
        server: answers in its place, and is never trained; by default the policy's own engine.

    Raises:
        ConfigError: a server is to be trained.
    """

    train: bool = True
    server: ChatServerSpec | None = None

    def __post_init__(self) -> None:
        if self.train and self.server is not None:
            raise ConfigError(
                "AgentSpec.train must be False for an agent with a server of its own (it gives "
                f"neither ids nor logprobs), got True with {self.server.base_url}; set it"
            )

    def engine(self, policy: RolloutEngine) -> OpenAIEngine:
        """The engine of its server; ``policy`` has no part in it."""
        assert self.server is not None, "else the policy's engine is its own"
        return OpenAIEngine(self.server)


@dataclass(frozen=True, slots=True)
class StagePermits:
    """Bounds of one runner: episodes in each phase, sandboxes, and threads of its process.

    ``tool_threads`` run synchronous tools, ``env_threads`` environments and rewards.
    """

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
        env: builds one environment an episode, or another driver, such as an agent program.
        renderer: builds the renderer; None for an engine that takes messages.
        parser: the name of the tool-call parser; ``auto`` selects it by the renderer.
        rubric: builds the rubric that scores an episode.
        limits: bounds of an episode.
        sampling: the sampling of training tokens; the limits also bound ``max_new_tokens``.
        root_seed: ``run.seed``.
        step_reward_weight: the weight of the sum of step rewards beside the rubric.
        max_retries: attempts after a first one that failed by infrastructure.
        permits: bounds of the runner.
        measure_retokenization: measure how each finished episode's ids differ from its text's.
        save_episode_state: save the environment's state after every training turn, so that a
            checkpoint can hold it.
        states: when the changed files of the sandbox are stored: never, at the end, after each
            turn.
        num_alternatives: most likely tokens to record beside each sampled one.
        agents: those of several agents that are no plain policy, by name.
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
    states: Literal["off", "end", "turn"] = "off"
    num_alternatives: int = 0
    agents: Mapping[str, AgentSpec] = field(default_factory=dict)

    def trains(self, agent: str) -> bool:
        """Whether an agent's tokens are trained."""
        own = self.agents.get(agent)
        return own is None or own.train


@dataclass(frozen=True, slots=True)
class EpisodeKey:
    """An episode's name, from which its seeds are derived, and where it was played; attempt, stage
    and group size are in no seed.
    """

    group_index: int
    rollout_index: int
    attempt: int = 0
    purpose: Purpose = "train"
    label: str = ""
    stage: str = ""
    group_size: int = 0

    @property
    def trajectory_id(self) -> str:
        """The id of the episode's trajectory."""
        places = (self.stage, self.label) if self.label else ()
        return "/".join([*filter(None, places), self._indices])

    @property
    def session_id(self) -> str:
        """The episode's KV session, unique for each attempt: a retry never finds an old cache."""
        return f"{self.label or self.purpose}/{self._indices}"

    @property
    def _indices(self) -> str:
        return f"{self.group_index}-{self.rollout_index}-{self.attempt}"
