"""Sections of the configuration, but for rollout, training and algorithm: the run, the model, the
task, the evaluation.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from agentrl.envs import WrapperReference
from agentrl.errors import ConfigError
from agentrl.rollouts import AgentSpec
from agentrl.rollouts.samplers.catalog import settings_of
from agentrl.rollouts.samplers.settings import SamplerSettings
from agentrl.tools import McpServerSpec, ResourceReference, ToolReference
from agentrl.training.models.lora_spec import LoraSpec
from agentrl.types.section import (
    ActsWith,
    Arguments,
    Count,
    Folder,
    Listed,
    Natural,
    Positive,
    Seconds,
    Section,
    Weight,
    Words,
)

Dtype = Literal["float32", "bfloat16"]
MAIN_POOL = "main"
"""The pool of the policy's ranks, and of every role that names no other."""
PLACED_ROLES = frozenset({"critic", "reference", "reward_model"})
"""What ``placement.roles`` may place, beside the names under ``roles``."""

_OF_EVALUATIONS = ActsWith("sets", but=({},))
_OF_WORKERS = ActsWith("rollout_workers", but=(0,))
_OF_RAY = ActsWith("mode", only=("ray",))
_OF_A_PATH = ActsWith("path", but=(None,))
_OF_AN_ENV = ActsWith("agent_command", only=((),))
_SHARD = re.compile(r"\d{1,6}/[1-9]\d{0,5}")


class RunSection(Section):
    """The run itself."""

    dir: Folder = None
    """Run directory, from the current folder; by default ``runs/NAME``: the name of the file, or of
    its folder for a ``config.yaml``.
    """
    base_dir: Folder = None
    """Where ``file.py:name`` references and data paths start, from the config file's folder, which
    is the default.
    """
    seed: Natural = 0
    """The one root of every random number."""
    deterministic: bool = False
    """The same numbers to the last bit in every run and after every resume, and on a CPU the
    sampler's logprobs equal to the trainer's; slower (docs/engines.md, Deterministic mode)."""
    replay: Folder = None
    """Run directory, from the current folder: stages that play train the groups that it stored
    instead, step by step and without an engine, to compare algorithms (docs/replay.md)."""
    notes: str | None = None
    """Anything worth keeping with the run."""


class PoolConfig(Section):
    """Training processes (ranks) of one layout, which hold roles together; or the machines of
    rollout workers."""

    world_size: Count = 1
    """Training processes (ranks): those that get different data times ``tp_size`` times
    ``sp_size`` times ``pp_size``. With ``gpus`` it follows from them."""
    nodes: Count | None = None
    """Machines, each with an equal part of the processes; null takes as few as have room."""
    gpus: Count | None = None
    """GPUs of each of the ``nodes``, by default of one; a rank has one, a rollout worker as many as
    its engine needs. They are asked for with ``device: cpu`` too."""
    cpus: Positive = 1.0
    """CPUs that each process asks Ray for."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Ray labels of the machines, such as ``{ray.io/accelerator-type: H100}``."""
    tp_size: Count = 1
    """Ranks that hold each layer together (tensor parallelism of Qwen2, Qwen3 and Llama, and of all
    but the experts of Qwen3-MoE and Mixtral)."""
    sp_size: Count = 1
    """Ranks that hold each packed row together (sequence parallelism, Ulysses), so that
    ``micro_batch_tokens`` are divided among them."""
    pp_size: Count = 1
    """Stages that the layers are divided into, each on ranks of its own (pipeline parallelism of
    ``train.backend: megatron``)."""
    threads_per_rank: Count = 1
    """CPU threads of a rank, and of a rollout worker; more than one is slower for tiny models."""

    @model_validator(mode="before")
    @classmethod
    def _count_ranks(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        sizes = given.get("nodes") or 1, given.get("gpus") or 1
        # what is no number is told by its own rule
        counted = all(isinstance(size, int) for size in sizes) and sizes != (1, 1)
        return {"world_size": math.prod(sizes), **given} if counted else given

    @model_validator(mode="after")
    def _check_ranks(self) -> Self:
        nodes, gpus = self.nodes or 1, self.gpus or self.world_size // (self.nodes or 1)
        if self.world_size != nodes * gpus:
            raise self.broken(
                "world_size",
                f" must be nodes * gpus (or a multiple of nodes, without gpus), got nodes={nodes}, "
                f"gpus={self.gpus} and {self.world_size}; change one of them",
            )
        return self

    @property
    def data_parallel(self) -> int:
        """Ranks that get different data."""
        return self.world_size // (self.tp_size * self.sp_size * self.pp_size)


def _worker_numbers(value: Any) -> Any:
    """A number of processes, or the least and the most of them."""
    value = tuple(value) if isinstance(value, list) else value
    ends = value if isinstance(value, tuple) else (1, value)
    if [*map(type, ends)] != [int, int] or not (1 <= ends[0] <= ends[1] or value == 0):
        raise ConfigError(
            "{key} must be a number of processes, or [least, most] of them with 1 <= least <= "
            f"most, got {list(value) if value is ends else value!r}; put the smaller first, or "
            "name one number (0 plays episodes in the training processes)"
        )
    return value


class PlacementConfig(PoolConfig):
    """The run's processes, which serve all stages: a pool of ranks, ``main``, which holds every
    role that names no other, further pools, and the rollout workers."""

    mode: Literal["ray", "inline"] = "ray"
    """``ray`` starts worker processes; ``inline`` runs everything in this one, for a debugger."""
    ray_address: Annotated[str | None, _OF_RAY] = None
    """Of a running Ray cluster (``auto`` finds this machine's); null starts a private one and ends
    it (docs/cluster.md)."""
    wait_s: Annotated[Seconds, _OF_RAY] = 10.0
    """Seconds that the cluster has to give the run its processes; more waits for machines that an
    autoscaler starts."""
    env: Annotated[dict[str, str], _OF_RAY] = Field(default_factory=dict)
    """Environment variables of every process that Ray starts for the run, such as
    ``{NCCL_SOCKET_IFNAME: eth1}``."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where ranks, TorchEngine and evaluation compute: ``cuda`` gives each process a GPU of its
    own; ``auto`` is ``cuda`` where this machine has a GPU, or with ``placement.ray_address``
    those of the cluster, else ``cpu``."""
    call_timeout_s: Seconds = 1800.0
    """Deadline of a call of a worker, and of a collective of the ranks: the longest that a step's
    part, a checkpoint or loading a model may take. A worker that failed ends the call at once."""
    rank_restarts: Annotated[Natural, _OF_RAY] = 3
    """Times that a run starts its ranks again from the newest checkpoint after one of them died or
    did not answer; one more ends it. Rollout workers go on meanwhile (docs/controller.md)."""
    rollout_workers: Annotated[int | tuple[int, int], BeforeValidator(_worker_numbers)] = 0
    """Processes that play episodes with engines of their own, on any machine of the Ray cluster; 0
    plays them in the training processes. ``[least, most]`` starts with the least, and others join
    where the cluster has room (docs/cluster.md)."""
    pools: dict[str, PoolConfig] = Field(default_factory=dict)
    """Further pools by name (docs/cluster.md)."""
    roles: dict[str, str] = Field(default_factory=dict)
    """The pool of a role, as ``{critic: NAME}``: of ``critic``, ``reference``, ``reward_model`` or
    one of ``roles``. Passes of roles in different pools run at once."""
    rollout: Annotated[str | None, _OF_WORKERS] = None
    """The pool of the rollout workers. In one that holds roles, such as ``main``, they share its
    ranks' GPUs. Null spreads them over the cluster."""
    worker_resources: Annotated[Arguments, _OF_WORKERS] = Field(default_factory=dict)
    """Ray resources that each of them asks for beside CPUs and GPUs, such as ``{rollout: 1}``, to
    place them."""
    worker_restarts: Annotated[Natural, _OF_WORKERS] = 3
    """Losses of them that a run goes on after between two publishes of weights (or ever, where
    nothing is trained); one more ends it. The workers of a node that is lost are one loss."""
    worker_liveness_timeout_s: Annotated[Seconds, _OF_RAY] = 120.0
    """Seconds in which a rollout worker or a rank answers a call that costs it no work. One that
    does not, since it hangs or its machine is out of reach, is ended and started again as if it had
    died. After half of them a rollout worker gets no groups."""

    @property
    def worker_range(self) -> tuple[int, int]:
        """The rollout workers that the run starts with and keeps, and the most that it may have."""
        own = self.rollout_workers
        return own if isinstance(own, tuple) else (own, own)

    @property
    def rank_pools(self) -> dict[str, PoolConfig]:
        """The pools that hold roles, by name."""
        used = set(self.roles.values())
        return {
            MAIN_POOL: self,
            **{name: own for name, own in self.pools.items() if name in used},
        }

    def pool_of(self, role: str) -> str:
        """The name of the pool that holds ``role``."""
        return self.roles.get(role, MAIN_POOL)

    @property
    def worker_pool(self) -> PoolConfig:
        """Where rollout workers are; without a name anywhere."""
        if self.rollout is None:
            return PoolConfig(threads_per_rank=self.threads_per_rank)
        return self.pools.get(self.rollout, self)

    @property
    def host_pool(self) -> PoolConfig:
        """Where episodes are played."""
        return self.worker_pool if self.rollout_workers else self

    @property
    def workers_share(self) -> bool:
        """Whether rollout workers share the GPUs of ranks."""
        return self.rollout in self.rank_pools


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
    """When and how the policy is evaluated."""

    sets: dict[str, EvalSetConfig] = Field(default_factory=dict)
    """Held-out sets by name."""
    before: Annotated[bool, _OF_EVALUATIONS] = True
    """Also before the first step; the end is always evaluated."""
    every: Annotated[Count | None, _OF_EVALUATIONS] = None
    """Steps between evaluations; null evaluates at the ends only."""
    samples: Annotated[Count, _OF_EVALUATIONS] = 1
    """Episodes sampled a task."""
    temperature: Annotated[Weight, _OF_EVALUATIONS] = 1.0
    """Of the sampled episodes."""
    top_p: Annotated[float, Field(gt=0, le=1), _OF_EVALUATIONS] = 1.0
    """Nucleus of the sampled episodes."""
    greedy: Annotated[bool, _OF_EVALUATIONS] = True
    """Also one greedy episode a task."""


class CheckpointConfig(Section):
    """What a resume starts from."""

    every: Count | None = 50
    """Steps between checkpoints; null keeps the last step's alone."""
    keep_last: Count = 2
    """Checkpoints kept a stage."""
    asynchronous: bool = True
    """Write it beside the steps that follow, from a copy in the host's memory; the last one is
    waited for. Where it cannot be written, the one before stays and the run goes on."""
    keep_best: str | None = None
    """One more is kept: that of the step whose evaluation had the highest value of this metric,
    as ``eval/SET/greedy`` (docs/training.md)."""
    copy_to: str | None = None
    """URL of a folder, as ``s3://bucket/runs/a``: each checkpoint is copied there once it exists,
    beside the steps that follow. Where the run directory has none, ``--resume`` fetches the newest
    (docs/training.md)."""


class DebugConfig(Section):
    """Controls of an experiment: each spoils what is learned in a way that is known. A stage may
    set them for itself.
    """

    train_on_tool_tokens: bool = False
    """Train on tool and template tokens too, as if the policy had sampled them."""
    shuffle_rewards: bool = False
    """Rewards change places at random within each batch, so that nothing can be learned from
    them.
    """


class ModelConfig(Section):
    """The policy, and how messages become its tokens."""

    path: str | None = None
    """Folder of a causal model and its tokenizer in Hugging Face's layout, from the file's folder
    on, or a model of its hub, as ``Qwen/Qwen3-0.6B`` or ``Qwen/Qwen3-0.6B@REVISION``, or a URL, as
    ``s3://bucket/model``; these are downloaded to a cache. Goes before ``build``."""
    build: str | None = None
    """Function ``(folder, **build_args)`` that writes such a folder: ``file.py:function`` or
    ``module:function``.
    """
    build_args: Annotated[Arguments, ActsWith("build", but=(None,))] = Field(
        default_factory=dict
    )
    """Keyword arguments of ``build``."""
    dtype: Dtype | None = None
    """Of the weights and the arithmetic; by default bfloat16 on CUDA, float32 on a CPU and with
    ``run.deterministic``."""
    head_dtype: Literal["float32"] | None = None
    """Of the output layer's products in training, beside a bfloat16 ``dtype``, which is the
    default; its weights stay those that are published."""
    attention: Literal[
        "auto", "segments", "varlen", "flex", "flash_attention_2", "flash_attention_3"
    ] = "auto"
    """How rows attend in training. ``segments`` is one call a sample, anywhere; of a GPU ``varlen``
    is torch's kernel for whole samples, ``flex`` that over shared beginnings, and
    ``flash_attention_2`` and ``flash_attention_3`` are packages to install. ``auto`` is
    ``segments`` on a CPU and in float32, else ``flex`` for rows with shared beginnings and
    ``varlen`` for others."""
    lora: LoraSpec = LoraSpec()
    chat_template: str | None = None
    """For a tokenizer that has none: ``chatml``, a Jinja file, or Jinja text."""
    enable_thinking: bool | None = None
    """The switch of that name in chat templates that have one (Qwen3); null leaves the template's
    default.
    """
    renderer: str = "auto"
    """Chat template family: ``chatml`` (Qwen), ``llama``, ``deepseek``, ``glm``, ``gptoss``, or
    ``generic`` for any template that keeps its history; ``auto`` finds out by rendering with the
    template."""
    tool_parser: str = "auto"
    """How tool calls are written: ``hermes``, ``llama``, ``deepseek``, ``glm``, ``harmony``,
    ``qwen_coder``, ``mistral``, ``pythonic``, ``fences``,
    ``none``, or a parser of your own, ``module:Class``; ``auto`` takes the one that reads what the
    chat template writes."""


class NamedSettings(Section):
    """Something by its name, and its own settings beside it."""

    model_config = ConfigDict(extra="allow")

    name: str
    """What it is."""

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        # This raises what is wrong with them.
        self.checked  # noqa: B018
        return self

    @property
    def settings(self) -> dict[str, Any]:
        """Its own settings, as given."""
        return dict(self.__pydantic_extra__ or {})

    @property
    def checked(self) -> Section | None:
        """All settings of what is built in; None for a user's own."""
        raise NotImplementedError


class SamplerConfig(NamedSettings):
    """Which task a stage that plays draws next, and the sampler's own settings beside its name
    (docs/curricula.md). A plain text is short for ``name`` alone."""

    name: str = "uniform"
    """``uniform``, ``difficulty_band``, ``signal``, or a sampler of your own, as
    ``file.py:function`` or ``module:function``."""

    @property
    def checked(self) -> SamplerSettings | None:
        """All settings of a built-in sampler; None for a user's own."""
        kind = settings_of(self.name)
        return None if kind is None else kind.check_as(self.settings)


class DataSourceConfig(Section):
    """One of several sources of ``data.train``. A plain text is short for ``data`` alone."""

    data: str
    """A reference, as a ``data.train`` of text is."""
    weight: Positive | None = None
    """Share of the draws, over the sum of all weights. Where one source has a weight, the others'
    default is 1; where none has, every task is played once an epoch."""
    args: Arguments = Field(default_factory=dict)
    """Keyword arguments of the function, or of ``datasets.load_dataset``."""
    name: str | None = None
    """Begins the ids of its tasks; by default ``data``."""


class CustomDataConfig(Section):
    """verl's custom data set: a class or function of the user's that reads ``data.train``; without
    ``path`` there is none."""

    path: str | None = None
    """A Python file, from the configuration's folder on, or a module."""
    name: Annotated[str, _OF_A_PATH] = "CustomDataset"
    """Of the class, called as verl calls it (docs/data.md), or of a function."""
    args: Annotated[Arguments, _OF_A_PATH] = Field(default_factory=dict)
    """Further keys of the ``config`` that it is given."""


def _as_sources(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    return tuple(
        entry
        if isinstance(entry, DataSourceConfig)
        else DataSourceConfig.check_as(entry, n)
        for n, entry in enumerate(value)
    )


TrainData: TypeAlias = str | tuple[DataSourceConfig, ...] | None


class DataConfig(Section):
    """The tasks to train on (or the demonstrations, for an algorithm that imitates)."""

    train: Annotated[TrainData, BeforeValidator(_as_sources)] = None
    """``file.py:function``, ``module:function``, a ``.jsonl`` or ``.parquet`` file, a pattern such
    as ``shards/*.parquet``, a folder of such files or of HF datasets, ``hf://ORG/NAME/SPLIT``; or a
    list of sources (docs/data.md has their columns)."""
    args: Arguments = Field(default_factory=dict)
    """Keyword arguments of the function, or of ``datasets.load_dataset``."""
    custom: CustomDataConfig = CustomDataConfig()
    shard: str | None = None
    """``K/N``: only rows K, K + N, K + 2N, ... of each source, with K from 0 to N - 1, for several
    machines that play a part each."""
    stream: bool = False
    """Read rows as they are drawn, in the data's order, and hold none: for a function that yields
    for ever. Needs ``train.steps`` and ``data.shuffle: false``."""
    max_prompt_tokens: Count = 1024
    """Longest opening prompt; a task with a longer one is left out when its stage begins, counted
    and told (docs/data.md)."""
    shuffle: bool = True
    """Draw the rows of each epoch in a seeded order; false keeps the data's own, as rows to imitate
    or compare always do that a function yields."""
    sampler: SamplerConfig = SamplerConfig()

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        if self.shard is not None and not _SHARD.fullmatch(self.shard):
            raise self.broken(
                "shard",
                f" must be K/N with K from 0 to N - 1, such as 0/4, got {self.shard!r}",
            )
        if self.part[0] >= self.part[1]:
            raise self.broken("shard", f" must be K/N with K below N, got {self.shard!r}")
        if isinstance(self.train, tuple):
            if not self.train:
                raise self.broken(
                    "train", " must name at least one source, got []; name one"
                )
            if self.args:
                raise self.broken(
                    "args",
                    " belongs to a data.train of one source; give each source its own args",
                )
            names = [source.name or source.data for source in self.train]
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise self.broken(
                    "train",
                    f" needs sources of different names, got {twice!r} twice, and task ids begin "
                    "with them; give one a `name`",
                )
        return self

    @property
    def part(self) -> tuple[int, int]:
        """``shard`` as two numbers: which part, of how many."""
        which, _, of = (self.shard or "0/1").partition("/")
        return int(which), int(of)

    @property
    def weighed(self) -> bool:
        """Whether sources have weights."""
        return isinstance(self.train, tuple) and any(
            s.weight is not None for s in self.train
        )


class EnvConfig(Section):
    """The environment that an episode runs in."""

    entry_point: Annotated[str | None, _OF_AN_ENV] = None
    """``file.py:name`` or ``module:name`` of an Env class or factory; by default the built-in
    ToolEnv. It is given ``tools``, ``resources``, ``system_prompt`` and
    ``describe_tools_in_prompt`` where it has parameters of these names, as a subclass of ToolEnv
    has."""
    args: Annotated[Arguments, ActsWith("entry_point", but=(None,))] = Field(
        default_factory=dict
    )
    """Keyword arguments of ``entry_point``."""
    tools: Annotated[Listed[ToolReference], _OF_AN_ENV] = ()
    """Tools on offer in every episode."""
    resources: Annotated[dict[str, ResourceReference], _OF_AN_ENV] = Field(
        default_factory=dict
    )
    """What tools share over all episodes of a process, by name: a client, an index, a database.
    Tools get it by a parameter of that name (docs/tools.md)."""
    mcp: Annotated[dict[str, McpServerSpec], _OF_AN_ENV] = Field(default_factory=dict)
    """MCP servers by name, whose tools are on offer behind ``tools``."""
    endpoints: Annotated[Words, _OF_AN_ENV] = ()
    """URLs of services that tools ask, beside those in the arguments of ``tools`` and
    ``resources``: where they fail, the episode is tried again (docs/tools.md)."""
    max_tool_seconds: Annotated[Seconds | None, _OF_AN_ENV] = None
    """Seconds that the calls of an episode may take together; further ones are answered with
    that."""
    system_prompt: Annotated[str | None, _OF_AN_ENV] = None
    """Opens every conversation whose task has no system message of its own."""
    describe_tools_in_prompt: Annotated[bool, _OF_AN_ENV] = True
    """Describe the tools in the prompt, as the model's chat template does."""
    wrappers: Annotated[Listed[WrapperReference], _OF_AN_ENV] = ()
    """Around the environment, the first one innermost (docs/envs.md)."""
    agents: Annotated[dict[str, AgentSpec], _OF_AN_ENV] = Field(default_factory=dict)
    """Those of several agents that are not the policy in training, by name (docs/envs.md); an agent
    that is not listed is."""
    agent_command: Listed[str] = ()
    """An agent's own program and its arguments instead of an environment: run once an episode in
    the file's folder, it asks the policy at OPENAI_BASE_URL or ANTHROPIC_BASE_URL
    (docs/policy-server.md)."""
    agent_keys: Annotated[
        Literal["noted", "strict"], ActsWith("agent_command", but=((),))
    ] = "noted"
    """What becomes of keys and types of tools in the agent's requests that nobody here knows:
    ``noted`` leaves them out and names them in the turn's ``info``, ``strict`` refuses the
    request."""
    history: Annotated[Literal["strict", "loose"], ActsWith("agent_command", but=((),))] = (
        "strict"
    )
    """Which messages of the agent's requests repeat a turn: ``strict`` takes those that are equal,
    ``loose`` also those that differ in white space, reminders, emptied thoughts or the spelling of
    numbers, whose tokens stay those that were sampled (docs/policy-server.md)."""


class RewardFunctionConfig(Section):
    """One part of the reward. A plain text is short for ``function`` alone."""

    function: str
    """``file.py:name`` or ``module:name``: a function of the episode (``EpisodeView``) that gives a
    number; or a built-in one: ``exact_answer``, ``exact_match``, ``f1``, ``math_answer``,
    ``unit_tests``, ``json_schema``, ``text_format``, ``length_cost``, ``tool_cost``, ``judge``
    (docs/rewards.md).
    """
    name: str | None = None
    """Name in metrics; by default the function's own."""
    weight: float = 1.0
    """Weight in the sum; a part of weight 0 is a metric."""
    args: Arguments = Field(default_factory=dict)
    """Keyword arguments bound to the function."""


class RewardModelConfig(Section):
    """A reward model that scores every finished episode, as the part ``reward_model``; without
    ``stage`` and ``path`` there is none."""

    stage: str | None = None
    """An earlier stage that trained one (``algorithm: reward_model``)."""
    path: str | None = None
    """Folder of a sequence classifier with one label in Hugging Face's layout, from the file's
    folder on, or a model of its hub. It reads the policy's tokens, so its tokenizer must be the
    policy's."""
    weight: Annotated[float, ActsWith("given", only=(True,))] = 1.0
    """Weight of the score in the sum."""

    @property
    def given(self) -> bool:
        """Whether there is one."""
        return self.stage is not None or self.path is not None


class CustomRewardConfig(Section):
    """One part more: verl's ``compute_score`` or TRL's reward function, called as they are there
    (docs/rewards.md); without ``path`` there is none."""

    path: str | None = None
    """A Python file, from the configuration's folder on, or a module."""
    name: Annotated[str, _OF_A_PATH] = "compute_score"
    """Of the function, and of the part."""
    weight: Annotated[float, _OF_A_PATH] = 1.0
    """Weight in the sum."""
    args: Annotated[Arguments, _OF_A_PATH] = Field(default_factory=dict)
    """Further keyword arguments of each call."""
    conversational: Annotated[bool, _OF_A_PATH] = True
    """Give TRL's function completions as lists of messages, as for its conversational data sets;
    false gives texts."""


class RewardConfig(Section):
    """What an episode is worth: the weighted sum of the parts, of a reward model's score, and of
    the environment's step rewards."""

    functions: Listed[RewardFunctionConfig] = ()
    """The parts."""
    custom: CustomRewardConfig = CustomRewardConfig()
    deadline_s: Seconds = 60.0
    """Seconds that one function may take over an episode, or over a group."""
    model: RewardModelConfig = RewardModelConfig()
    """What scores episodes beside the functions."""
    step_weight: float = 1.0
    """Weight of the sum of the environment's step rewards."""
    full_marks: float | None = None
    """The reward of a right solution, by which `agentrl check` judges; by default the sum of the
    functions' positive weights, or 1 without functions; the built-in costs are then left out."""
