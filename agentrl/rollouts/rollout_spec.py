"""Rollout spec: everything that the episodes of a stage share; picklable, built by their host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, Protocol, Self

from pydantic import Field, model_validator

from agentrl.engines.openai_spec import OpenAIEngineSpec
from agentrl.envs import EnvSpec, Rubric
from agentrl.errors import ConfigError
from agentrl.render import Renderer
from agentrl.rollouts.driver import DriverSpec
from agentrl.types import Purpose, SamplingParams
from agentrl.types.section import ActsWith, Count, Listed, Natural, Seconds, Section, Weight


class RubricFactory(Protocol):
    """Builds a Rubric in the process that hosts the episodes."""

    def build(self) -> Rubric: ...


class RendererFactory(Protocol):
    """Builds a Renderer in the process that hosts the episodes; ``RendererSpec`` is one."""

    def build(self) -> Renderer: ...


class EpisodeSettings(Section):
    """What section ``rollout`` says of each episode; deadlines nest, episode ⊇ turn ⊇ generate |
    step.

    A wait that other episodes cause, for a sandbox or for its executor, counts for no deadline.
    """

    max_turns: Count = 8
    """Model calls in an episode."""
    max_calls_per_turn: Count = 32
    """Calls of one turn that are run or answered each; those beyond are not run, and one answer
    counts them.
    """
    max_bad_turns: Count = 5
    """Turns in a row, each with calls of which none can be read, after which an episode is
    ``truncated(bad_calls)``.
    """
    max_turn_tokens: Count = 512
    """Tokens sampled in one model call."""
    max_response_tokens: Count = 4096
    """Tokens of a sequence after its opening prompt, the policy's and the tools' together."""
    context_tokens: Count | None = None
    """Tokens of a whole sequence; by default
    ``data.max_prompt_tokens + rollout.max_response_tokens``.
    """
    temperature: Weight = 1.0
    """Of sampling for training; 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus of sampling for training; 1 is off."""
    top_k: Natural = 0
    """Only the k likeliest tokens; 0 is off."""
    stop: Listed[Annotated[str, Field(min_length=1)]] = ()
    """Texts that end a model call, beside the end-of-turn token."""
    turn_timeout_s: Seconds = 120.0
    """Seconds of one turn: generation, tools and environment; waiting for a sandbox or thread that
    others use, or for a server that starts again, does not count.
    """
    episode_timeout_s: Seconds = 600.0
    """Seconds of one episode, counted in the same way."""
    total_timeout_s: Seconds | None = None
    """Seconds of an episode from its start to its close, with every attempt and the reward, counted
    in the same way; one that takes longer is ``failed(env)``. By default twice
    ``episode_timeout_s`` for each attempt.
    """
    tool_timeout_s: Seconds = 30.0
    """Wall-clock seconds of one tool call, where the tool sets no limit of its own."""
    tool_threads: Count = 32
    """Calls of synchronous tools that run at once in each process that plays episodes; others wait,
    which no deadline counts."""
    env_threads: Count = 32
    """Threads of each such process in which environments are made, synchronous ones are stepped,
    and rewards scored.
    """
    measure_retokenization: bool = True
    """Whether each episode says how its token ids differ from those of its re-tokenized text
    (``mismatch/retok_frac``).
    """
    max_retries: Natural = 2
    """Further attempts at an episode that infrastructure failed."""

    @model_validator(mode="after")
    def _check_total_timeout(self) -> Self:
        if self.total_s <= self.episode_timeout_s:
            raise self.broken(
                "total_timeout_s",
                f" must be more than episode_timeout_s={self.episode_timeout_s:g} (it holds start, "
                f"attempts, reward and close beside it), got {self.total_s:g}; raise it, or lower "
                "episode_timeout_s",
            )
        return self

    @property
    def total_s(self) -> float:
        """Seconds after which an episode is given up, whatever it does."""
        return self.total_timeout_s or 2 * (self.max_retries + 1) * self.episode_timeout_s

    @property
    def sampling(self) -> SamplingParams:
        """The sampling of training tokens."""
        return SamplingParams(
            max_new_tokens=self.max_turn_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=self.stop,
        )

    def room(self, max_prompt_tokens: int) -> int:
        """Tokens of a whole sequence whose opening prompt has at most ``max_prompt_tokens``."""
        return self.context_tokens or max_prompt_tokens + self.max_response_tokens


class AgentSpec(Section):
    """One of several agents of an environment, as its observations name it."""

    train: bool = True
    """Train its tokens; those of another agent are stored alone."""
    engine: Literal["policy", "openai"] = "policy"
    """``policy``: the policy itself, by the stage's engine; ``openai``: a server of its own, which
    is never trained."""
    openai: Annotated[OpenAIEngineSpec, ActsWith("engine", only=("openai",))] = Field(
        default_factory=OpenAIEngineSpec
    )
    """Of ``engine: openai``, as ``rollout.openai``."""

    @model_validator(mode="after")
    def _check_engine(self) -> Self:
        if self.engine == "openai":
            if self.train:
                raise self.broken(
                    "train",
                    " must be false with engine: openai (such a server returns neither token ids "
                    "nor logprobs), got true; set it",
                )
            try:
                self.openai.server(max_concurrent=1)
            except ConfigError as error:
                own = str(error).replace(f"{type(self.openai).__name__}.", "")
                raise self.broken("openai", f" describes no server: {own}") from None
        return self


@dataclass(frozen=True, slots=True)
class StagePermits:
    """Bounds of one runner: episodes in each phase, and sandboxes."""

    preparing: int = 64
    running: int = 1024
    scoring: int = 64
    sandboxes: int = 64


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """Everything that the episodes of a stage share.

    Args:
        env: builds one environment an episode, or another driver, such as an agent program.
        renderer: builds the renderer; None for an engine that takes messages.
        parser: the name of the tool-call parser; ``auto`` selects it by the renderer.
        rubric: builds the rubric that scores an episode.
        episode: section ``rollout``: the bounds of an episode, and the sampling of training tokens.
        max_prompt_tokens: tokens of a sequence's opening prompt.
        root_seed: ``run.seed``.
        step_reward_weight: the weight of the sum of step rewards beside the rubric.
        permits: bounds of the runner.
        save_episode_state: save the environment's state after every training turn, so that a
            checkpoint can hold it.
        states: when the changed files of the sandbox are stored: never, at the end, after each
            turn.
        num_alternatives: most likely tokens to record beside each sampled one.
        cleanup_s: seconds for closing the environment after the episode.
        agents: those of several agents that are no plain policy, by name.
    """

    env: EnvSpec | DriverSpec
    renderer: RendererFactory | None
    parser: str
    rubric: RubricFactory
    episode: EpisodeSettings
    max_prompt_tokens: int
    root_seed: int
    step_reward_weight: float = 1.0
    permits: StagePermits = field(default_factory=StagePermits)
    save_episode_state: bool = False
    states: Literal["off", "end", "turn"] = "off"
    num_alternatives: int = 0
    cleanup_s: float = 10.0
    agents: Mapping[str, AgentSpec] = field(default_factory=dict)

    @property
    def context_tokens(self) -> int:
        """Tokens of a whole sequence."""
        return self.episode.room(self.max_prompt_tokens)

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
