"""The sections that say how it is learned: rollout, train, optimizer and algorithm."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from agentrl.algorithms import AlgorithmSettings
from agentrl.algorithms.catalog import settings_of
from agentrl.config.sections import Dtype, NamedSettings
from agentrl.engines.openai_spec import OpenAIEngineSpec
from agentrl.engines.sglang.sglang_spec import SGLangEngineSpec
from agentrl.engines.torch.torch_spec import TorchEngineSpec
from agentrl.engines.vllm.vllm_spec import VLLMEngineSpec
from agentrl.rollouts import EpisodeSettings
from agentrl.training.models.lora_spec import LoraSpec
from agentrl.training.optim.optim_spec import OptimSpec
from agentrl.types.section import (
    ActsWith,
    Arguments,
    Count,
    Fraction,
    Natural,
    Section,
    Weight,
)
from agentrl.types.user_code.load import load_named
from agentrl.types.user_code.values import shown

_AHEAD = ActsWith("schedule", but=("sync",))
_SHARDED = ActsWith("backend", only=("fsdp2",))


class RolloutConfig(EpisodeSettings):
    """How episodes are played."""

    # A plug-in's section has keys of its own; see ``engine_faults``.
    model_config = ConfigDict(extra="allow")

    engine: str = "torch"
    """``torch`` in process, ``sglang`` or ``vllm`` servers, ``openai``-compatible servers (never
    trained), or ``module:name`` of an engine's specification, whose section has the name that it
    says."""
    torch: Annotated[TorchEngineSpec, ActsWith("engine", only=("torch",))] = (
        TorchEngineSpec()
    )
    sglang: Annotated[SGLangEngineSpec, ActsWith("engine", only=("sglang",))] = (
        SGLangEngineSpec()
    )
    vllm: Annotated[VLLMEngineSpec, ActsWith("engine", only=("vllm",))] = VLLMEngineSpec()
    openai: Annotated[OpenAIEngineSpec, ActsWith("engine", only=("openai",))] = (
        OpenAIEngineSpec()
    )
    schedule: Literal["sync", "one_step_off", "async"] = "sync"
    """``sync``: every batch is played by the weights that it trains; ``one_step_off``: the next
    batch is played while one is trained; ``async``: as far ahead as ``max_staleness`` allows,
    episodes run through a publish."""
    max_staleness: Natural = Field(
        default_factory=lambda data: int(data["schedule"] != "sync")
    )
    """Published versions that a trained token may lie behind; by default 1, or 0 with
    ``schedule: sync``.
    """
    pause_mode: Annotated[Literal["drain", "retract", "in_place"], _AHEAD] = Field(
        default_factory=lambda data: (
            "drain" if data["schedule"] == "one_step_off" else "retract"
        )
    )
    """Model calls in flight when weights are published: ``drain`` lets them end, ``retract``
    interrupts them, and they go on with their KV recomputed; ``in_place`` keeps the old KV, where
    the engine can. By default ``retract``, or ``drain`` with ``schedule: one_step_off``."""
    on_stale: Annotated[Literal["wait", "drop", "mask_tokens"], _AHEAD] = Field(
        default_factory=lambda data: "drop" if data["schedule"] == "sync" else "wait"
    )
    """So that no trained token is older than ``max_staleness``: ``wait`` closes a batch only where
    all that stays can still be trained in time, and loses nothing; ``drop`` gives up groups that
    are too old, the slow ones first; ``mask_tokens`` leaves such tokens out of the loss. By default
    ``wait``; with ``schedule: sync``, where none can be older, it has no use."""
    oversample: Weight = 0.0
    """Draws played beyond a batch, as a share of ``train.batch_prompts``: the groups that finish
    first are trained, and with ``schedule: sync`` the others are cancelled. It favours tasks with
    short episodes."""
    group_size: Count = 8
    """Episodes of each task in a batch."""
    oversample_per_group: Natural = 0
    """Episodes of each task beyond ``group_size``: once that many have finished, the others are cut
    off, and count as truncated with the turns that they have."""
    allow_biased_sampling: bool = False
    """Train although ``top_p`` or ``top_k`` make the sampler another distribution than the
    policy.
    """
    sleep: bool | None = None
    """Engines beside the ranks give their memory back while these train, and the trainer gives its
    own back while they play; needs ``schedule: sync`` and ``placement.rollout_workers: 0``. By
    default true for servers on the ranks' GPUs."""
    full_sync_every: Count = 50
    """Versions from one whose weights rollout workers are sent whole to the next; of those between
    they are sent what changed. Beside an engine that cannot be read, such as ``sglang``, a worker
    keeps a copy for that. 1 sends all of each."""
    max_running: Count = 32
    """Episodes in flight at once."""
    kv_tokens: Count | None = None
    """Tokens of KV cache in all, of each engine or server. ``torch`` keeps ``context_tokens`` of
    them for each episode that runs, so that fewer than ``max_running`` may, and the rest for
    waiting ones; by default twice what ``max_running`` need. By default servers choose."""
    dtype: Dtype | None = None
    """Of the engine's weights; by default ``model.dtype``."""
    min_group_size: Count = Field(default_factory=lambda data: min(2, data["group_size"]))
    """A group with fewer finished episodes is dropped; by default 2, or 1 with
    ``group_size: 1``.
    """
    max_failed_frac: Fraction = 0.5
    """The run stops with a checkpoint where more of a batch's episodes than this share failed at
    one boundary (``env`` counts ``truncated(env_exception)`` too, and ``tool``
    ``truncated(tool_crash)``); up to it each step says how many and why."""
    max_resample_ratio: Weight = 1.0
    """Draws that may replace dropped groups in a step, as a share of ``train.batch_prompts``."""


class TrainConfig(Section):
    """How much is trained, and in which portions. Sizes are global, never per process."""

    steps: Count | None = None
    """Training steps, one batch each."""
    epochs: Count | None = None
    """Passes over the data, instead of ``steps``; 1 where neither is given."""
    batch_prompts: Count = 16
    """Tasks in a batch; each is played ``rollout.group_size`` times."""
    mini_batch_prompts: Count = Field(default_factory=lambda data: data["batch_prompts"])
    """Tasks of one optimizer step; by default the whole batch."""
    updates_per_batch: Count = 1
    """Passes over a batch."""
    micro_batch_tokens: Count = 8192
    """Tokens in one forward and backward of a rank, those that rollouts begin with alike once; a
    matter of memory, it changes no number."""
    logprob_micro_batch_tokens: Count = Field(
        default_factory=lambda data: data["micro_batch_tokens"]
    )
    """Tokens in one forward without gradients; by default ``micro_batch_tokens``."""
    backend: str = "fsdp2"
    """``fsdp2`` shards weights, gradients and optimizer over the ranks; ``plain`` is one process
    without FSDP, with the same numbers; ``megatron`` divides layers into parts and stages by
    megatron-core, on GPUs (docs/megatron.md); or ``module:NAME`` of a backend of your own."""
    loop: str | None = None
    """``file.py:name`` of a training loop of your own, which takes the stage's ``StageRun``; by
    default ``agentrl.controller.loop.train`` (docs/controller.md)."""
    shard: Annotated[Literal["full", "grad_op", "hybrid"], _SHARDED] = "full"
    """How ``fsdp2`` shards: ``full`` gathers each layer for its forward and again for its backward;
    ``grad_op`` keeps it gathered from a step's first forward to its last backward; ``hybrid``
    shards within groups of ``shard_size`` ranks, which are replicas of each other."""
    shard_size: Annotated[Count | None, ActsWith("shard", only=("hybrid",))] = None
    """Data-parallel ranks of a group with ``shard: hybrid``, such as the GPUs of a machine."""
    gradient_sync: Annotated[Literal["micro_batch", "mini_batch"], _SHARDED] = "micro_batch"
    """When ranks sum gradients: after each micro-batch, so that each keeps a shard; or once an
    optimizer step, for which each keeps the whole gradient in float32."""
    ep_size: Annotated[Count, _SHARDED] = 1
    """Ranks that share the experts of each layer of a mixture and send each other the rows of their
    tokens (expert parallelism of Qwen3-MoE, Mixtral and gpt-oss). What a rank holds of them is
    sharded over the others."""
    router_aux_loss: Weight = 0.0
    """Weight of the loss that evens out the loads of a mixture's experts, by transformers' formula
    over a mini-batch. It costs a further forward pass. 0 leaves the router to the algorithm."""
    gradient_checkpointing: bool | Literal["selective"] = False
    """Compute activations again in the backward instead of keeping them. ``selective`` keeps what
    costs most to make again: the results of attention and of every second matrix product."""
    vision: Literal["frozen", "trained"] = "frozen"
    """Whether the tower of a model that sees images moves, with its projector (docs/training.md,
    Images)."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """What waits in the host's memory while no call of a role needs it: ``optimizer`` its state
    between steps, ``all`` the weights too between calls."""
    router_replay: Literal["off", "rollout"] = "off"
    """Of a mixture of experts: ``rollout`` has every forward of the policy put a token through the
    experts that the sampler chose for it, with gates of its own (docs/training.md)."""
    compile: bool = False
    """Compile layers with ``torch.compile``; rows are filled up to one of eight lengths an
    octave."""


class AlgorithmConfig(NamedSettings):
    """The algorithm by name, and its own settings beside it (see ``docs/configuration.md``)."""

    name: str = "grpo"
    """Name of an algorithm of agentrl."""

    @property
    def checked(self) -> AlgorithmSettings | None:
        """All settings of a built-in algorithm; None for a user's own, which is checked when it is
        made.
        """
        kind = settings_of(self.name)
        return None if kind is None else kind.check_as(self.settings)


class ReferenceConfig(Section):
    """The reference of a KL term, by default what the stage starts from; or the teacher of
    ``distillation``, which has no default."""

    stage: str | None = None
    """``model``, or an earlier stage whose last weights it has."""
    path: str | None = None
    """Folder of a causal model in Hugging Face's layout, from the file's folder on, or a model of
    its hub. It reads the policy's tokens, so its tokenizer must be the policy's."""


class CriticOptim(OptimSpec):
    """The critic's optimizer, in steps of its own."""

    lr: Weight = 1e-5
    """See optim."""


class CriticLora(LoraSpec):
    """The critic's adapter, of ranks and layers of its own; its head is trained whole. See
    ``model.lora``."""


class CriticConfig(Section):
    """The critic of an algorithm that needs one, such as ppo: what it starts from, and how it
    learns."""

    stage: str | None = None
    """``model``, or an earlier stage whose last weights it starts from: those of a reward model
    with their head, others with a new one."""
    path: str | None = None
    """Folder of a model in Hugging Face's layout, from the file's folder on, or a model of its hub.
    It reads the policy's tokens, so its tokenizer must be the policy's."""
    optim: CriticOptim = CriticOptim()
    """Its optimizer."""
    lora: CriticLora = CriticLora()
    """Its adapter."""


class RoleConfig(Section):
    """A role of your own, in stages that play: its model, and what it does with a batch
    (docs/training.md)."""

    role: str
    """``file.py:SPEC`` or ``module:SPEC`` of its specification, a subclass of
    ``agentrl.training.ModelSpec``, or of ``LearnerSpec`` for one that learns;
    ``agentrl.training:CriticSpec`` is a second critic."""
    pass_: str | None = Field(default=None, alias="pass")
    """The method that gives its columns before an update, such as ``values``; the algorithm reads
    them as ``ROLE/COLUMN``. By default none, for a role that only learns."""
    stage: str | None = None
    """``model``, or an earlier stage whose last weights it starts from; by default those that this
    stage starts from."""
    path: str | None = None
    """Folder of a model in Hugging Face's layout, from the file's folder on, or a model of its hub.
    It reads the policy's tokens, so its tokenizer must be the policy's."""
    optim: CriticOptim = CriticOptim()
    """Its optimizer, where it learns."""
    args: Arguments = Field(default_factory=dict)
    """Further fields of the specification."""

    def load(self, base_dir: Path) -> type[Any]:
        """The class of its specification; importing it imports torch.

        Raises:
            ConfigError: there is no such class.
        """
        from agentrl.training.models.packed_model import ModelSpec

        found: type[Any] = load_named(self.role, base_dir, partial(self.broken, "role"))
        if not isinstance(found, type) or not issubclass(found, ModelSpec):
            raise self.broken(
                "role",
                f"={self.role!r} must be a subclass of agentrl.training.ModelSpec, got "
                f"{shown(found)}; name one",
            )
        return found
