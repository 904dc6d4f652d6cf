"""The sections that say what is learned: model, data, environment, reward and sandbox."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from agentrl.sandbox import DockerSettings, Limits, SandboxSpec
from agentrl.types.section import Arguments, Count, Listed, Positive, Seconds, Section, Words

__all__ = [
    "DataConfig",
    "Dtype",
    "EnvConfig",
    "ModelConfig",
    "RewardConfig",
    "RewardFunctionConfig",
    "RewardModelConfig",
    "SandboxConfig",
    "SandboxDockerConfig",
    "SandboxLimitsConfig",
    "SandboxNetworkConfig",
    "ToolConfig",
]

Dtype = Literal["float32", "bfloat16"]


def _network(value: Any) -> Any:
    return {} if value == "none" else value


class ModelConfig(Section):
    """The policy, and how messages become its tokens."""

    path: str | None = None
    """Folder of a causal model and its tokenizer in Hugging Face's layout, from the file's folder on, or a model of its
    hub, as ``Qwen/Qwen3-0.6B`` or ``Qwen/Qwen3-0.6B@REVISION``, which is downloaded to the usual cache. Goes before
    ``build``."""
    build: str | None = None
    """Function ``(folder, **build_args)`` that writes such a folder: ``file.py:function`` or ``module:function``."""
    build_args: Arguments = Field(default_factory=dict)
    """Keyword arguments of ``build``."""
    dtype: Dtype = "float32"
    """Of the weights and the arithmetic."""
    chat_template: str | None = None
    """For a tokenizer that has none: ``chatml``, a Jinja file, or Jinja text."""
    enable_thinking: bool | None = None
    """The switch of that name in chat templates that have one (Qwen3); null leaves the template's default."""
    renderer: str = "auto"
    """Chat template family: ``chatml`` (Qwen), ``llama``, ``deepseek``, ``glm``, ``gptoss``, or ``generic`` for any
    template that keeps its history; ``auto`` finds out by rendering with the template."""
    tool_parser: str = "auto"
    """How tool calls are written: ``hermes``, ``llama``, ``deepseek``, ``glm``, ``harmony``, ``none``, or a parser of
    your own, ``module:Class``; ``auto`` takes the one that reads what the chat template writes."""


class DataConfig(Section):
    """The tasks to train on (or the demonstrations, for an algorithm that imitates)."""

    train: str | None = None
    """``file.py:function``, ``module:function``, a ``.jsonl`` or ``.parquet`` file, or a folder of HF datasets
    (docs/data.md has their columns)."""
    args: Arguments = Field(default_factory=dict)
    """Keyword arguments of the function."""
    max_prompt_tokens: Count = 1024
    """Longest opening prompt; a task with a longer one is left out when its stage begins, counted and told
    (docs/data.md)."""
    shuffle: bool = True
    """Draw the tasks of each epoch in a seeded order; false keeps the data's own."""


class ToolConfig(Section):
    """One tool on offer. A plain text is short for ``function`` alone."""

    function: str
    """``file.py:name``, ``module:name``, or a built-in tool, ``python`` or ``search``. An object is shared by all
    episodes of a process; of a class or factory each episode gets its own."""
    args: Arguments = Field(default_factory=dict)
    """Keyword arguments for a class, a factory, a function that makes tools, or a built-in tool."""


class EnvConfig(Section):
    """The environment that an episode runs in."""

    entry_point: str | None = None
    """``file.py:name`` or ``module:name`` of an Env class or factory; by default the built-in ToolEnv. It is given
    ``tools``, ``system_prompt`` and ``describe_tools_in_prompt`` where it has parameters of these names, as a subclass of ToolEnv
    has."""
    args: Arguments = Field(default_factory=dict)
    """Keyword arguments of ``entry_point``."""
    tools: Listed[ToolConfig] = ()
    """Tools on offer in every episode."""
    system_prompt: str | None = None
    """Opens every conversation whose task has no system message of its own."""
    describe_tools_in_prompt: bool = True
    """Describe the tools in the prompt, as the model's chat template does."""
    agent_command: Listed[str] = ()
    """An agent's own program and its arguments instead of an environment: run once an episode in the file's folder, it
    asks the policy at OPENAI_BASE_URL (docs/policy-server.md)."""


class RewardFunctionConfig(Section):
    """One part of the reward. A plain text is short for ``function`` alone."""

    function: str
    """``file.py:name`` or ``module:name``: a function of the episode (``EpisodeView``) that gives a number."""
    name: str | None = None
    """Name in metrics; by default the function's own."""
    weight: float = 1.0
    """Weight in the sum."""
    args: Arguments = Field(default_factory=dict)
    """Keyword arguments bound to the function."""


class RewardModelConfig(Section):
    """A reward model that scores every finished episode, as the part ``reward_model``; without ``stage`` and ``path``
    there is none."""

    stage: str | None = None
    """An earlier stage that trained one (``algorithm: reward_model``)."""
    path: str | None = None
    """Folder of a sequence classifier with one label in Hugging Face's layout, from the file's folder on, or a model of
    its hub. It reads the policy's tokens, so its tokenizer must be the policy's."""
    weight: float = 1.0
    """Weight of the score in the sum."""

    @property
    def given(self) -> bool:
        """Whether there is one."""
        return self.stage is not None or self.path is not None


class RewardConfig(Section):
    """What an episode is worth: the weighted sum of the parts, of a reward model's score, and of the environment's step
    rewards."""

    functions: Listed[RewardFunctionConfig] = ()
    """The parts."""
    model: RewardModelConfig = Field(default_factory=RewardModelConfig)
    """What scores episodes beside the functions."""
    step_weight: float = 1.0
    """Weight of the sum of the environment's step rewards."""


class SandboxLimitsConfig(Section):
    """What one execution may use; passing a limit ends it and is a result that the model sees."""

    wall_s: Seconds = 10.0
    """Seconds of wall time."""
    cpu_s: Seconds | None = None
    """Seconds of processor time of one process; by default bounded by ``wall_s`` alone."""
    memory_bytes: Count = 512 * 2**20
    """Memory, of one process and of all together."""
    processes: Count = 32
    """Processes and threads at one time."""
    file_bytes: Count = 64 * 2**20
    """Size of one file."""
    disk_bytes: Count = 256 * 2**20
    """All files together."""
    max_files: Count = 20_000
    """Files and folders together."""
    output_bytes: Count = 2**20
    """Standard output and standard error, each."""
    open_files: Count = 256
    """Descriptors of one process."""
    reserve_bytes: int | None = Field(None, ge=0)
    """Free space that the file system of the sandboxes keeps, where the backend does not guarantee ``disk``: with less
    left, executions that took their part of it are ended, and the others fail as infrastructure. By default half a
    gigabyte, or a tenth of a file system below five."""


class SandboxDockerConfig(Section):
    """The engine and container of the ``docker`` backend."""

    host: str | None = None
    """Address of the engine, as ``unix:///run/user/1000/podman/podman.sock``; by default ``DOCKER_HOST``, then the
    current Docker context."""
    runtime: str | None = None
    """Runtime of the engine, as ``runsc`` for gVisor; by default the engine's own."""
    memory_bytes: Count | None = None
    """Memory of the container, its sandboxes' files included; by default enough for every execution at its limit."""
    cpus: Positive | None = None
    """Processor cores of the container; by default all."""
    max_sandboxes: Count = 128
    """Sandboxes of one container, each with a file system of its own; no process may ask for more at one time."""
    readable: Listed[str] = ()
    """Folders of the image that the code may read and execute beside ``/usr``, ``/opt`` and their like."""


class SandboxNetworkConfig(Section):
    """What of the network the model's code may reach: nothing, or chosen hosts through a proxy that counts and logs."""

    allow: Listed[str] = ()
    """Hosts: ``host`` (ports 80 and 443), ``host:port``, ``*.domain``, or an address with its port. Names that lead to
    private or metadata addresses are refused. Needs ``backend: bubblewrap`` (or ``auto`` that finds it)."""


class SandboxConfig(Section):
    """Where the model's code runs, and within which limits."""

    backend: str = "auto"
    """``auto`` takes the one that guarantees most on this machine (``agentrl doctor`` shows which); ``unsafe`` isolates
    nothing; ``module:function`` names one of your own."""
    require: Words | None = None
    """Level (``none``, ``isolated``, ``full``) or guarantees below which nothing runs; by default ``isolated``, and
    ``none`` where ``unsafe`` is named."""
    limits: SandboxLimitsConfig = Field(default_factory=SandboxLimitsConfig)
    """Of one execution."""
    network: Annotated[SandboxNetworkConfig, BeforeValidator(_network)] = Field(
        default_factory=SandboxNetworkConfig
    )
    """``none``, or hosts that the code may reach through the variables ``HTTP_PROXY`` and ``HTTPS_PROXY``."""
    image: str | None = None
    """Image that the code runs in, or a folder with a Dockerfile (``./``, ``../`` or ``/`` first), for backends that
    have images. Never pulled in a run: ``agentrl doctor --prepare`` does it ahead. By default Python's own."""
    docker: SandboxDockerConfig = Field(default_factory=SandboxDockerConfig)
    """Of the ``docker`` backend."""
    persist: Literal["files", "interpreter"] = "files"
    """What lasts over the calls of one episode: ``files``, or also the ``interpreter``'s variables."""
    preload_modules: Listed[str] = ()
    """Python modules imported once, so that executions find them loaded."""
    site_packages: bool = False
    """Let the code import the packages installed beside agentrl."""
    max_running: Count | None = None
    """Sandboxes at one time over all processes of the run, each held by its episode from the first call that needs it
    to the end; by default ``rollout.max_running`` in each process."""
    max_executing: Count | None = None
    """Executions at one time in each process that hosts episodes; the others wait in order, which no deadline of
    theirs counts. By default two to each core that the process may use."""
    max_starting: Count | None = None
    """Sandboxes that start at one time; by default as many as may run."""
    start_timeout_s: Seconds = 60.0
    """Seconds in which a sandbox must be ready; one that is not is tried again like any failure of infrastructure."""
    max_lifetime_s: Seconds | None = None
    """Seconds after which a sandbox that its episode has not given back is ended; must exceed
    ``rollout.episode_timeout_s``."""
    recycle_after: Count | None = None
    """Executions after which a fresh warm host takes the place of a worn one; by default it stays."""

    def spec(self) -> SandboxSpec:
        """What builds the sandboxes.

        Raises:
            ConfigError: an unknown backend or guarantee, or a limit that no interpreter can live with.
        """
        return SandboxSpec(
            backend=self.backend,
            require=self.require,
            limits=Limits(**self.limits.model_dump()),
            network=self.network.allow,
            image=self.image,
            docker=DockerSettings(**self.docker.model_dump()),
            persist=self.persist,
            preload_modules=self.preload_modules,
            site_packages=self.site_packages,
            max_executing=self.max_executing,
            max_starting=self.max_starting,
            start_timeout_s=self.start_timeout_s,
            max_lifetime_s=self.max_lifetime_s,
            recycle_after=self.recycle_after,
        )
