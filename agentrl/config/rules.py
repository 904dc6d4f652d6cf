"""Rules between settings, which no single field can know, and between stages."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agentrl.config.key_names import with_keys
from agentrl.config.schema import RunConfig, StageConfig
from agentrl.errors import ConfigError
from agentrl.metrics import REWARD_MODEL_PART
from agentrl.rollouts.samplers.catalog import users_function
from agentrl.training.parallel.layout_rules import check_megatron
from agentrl.types.section import Fault, Section


def fault(message: str, *keys: str) -> Fault:
    """A broken rule about settings that are named by dotted keys, the first being the one to
    change.
    """
    return Fault(tuple(tuple(key.split(".")) for key in keys), message)


def broken_by(check: Callable[..., object], *args: Any) -> Iterator[Fault]:
    """The rule that a check of a layer below finds broken; its error names the settings."""
    try:
        check(*args)
    except ConfigError as error:
        yield fault(str(error), *map(with_keys, error.fields))


def both_given(key: str, own: Section, name: str, other: str) -> Iterator[Fault]:
    """A section at ``key`` has values for two of its settings, of which it may have one."""
    values = getattr(own, name), getattr(own, other)
    if None not in values:
        yield fault(
            f"{key}.{name} and {key}.{other} exclude each other, got {values[0]!r} and "
            f"{values[1]!r}; keep one",
            f"{key}.{other}",
            f"{key}.{name}",
        )


def run_faults(config: RunConfig, *, trains: bool = True) -> Iterator[Fault]:
    """Rules about the run as a whole, and those that only matter where something is trained."""
    if trains and config.model.path is None and config.model.build is None:
        yield fault(
            "model.path or model.build is required: name a folder in Hugging Face's layout, or a "
            "function that writes one; got neither",
            "model.path",
        )
    model = config.model
    # The engine's output layer is float32, and a GPU's bfloat16 kernels were not tried.
    is_exact = model.head_dtype == "float32" and config.placement.device == "cpu"
    if config.run.deterministic and model.dtype not in (None, "float32") and not is_exact:
        yield fault(
            f"run.deterministic needs model.dtype='float32', got {model.dtype!r}; set it, or "
            "run.deterministic=false, or model.head_dtype='float32' on placement.device='cpu'",
            "model.dtype",
            "run.deterministic",
        )
    own = config.run
    if own.replay and own.dir and Path(own.replay).resolve() == Path(own.dir).resolve():
        yield fault(
            f"run.replay must be another folder than run.dir, got {own.replay!r} for both; name a "
            "new run.dir",
            "run.replay",
            "run.dir",
        )
    stages = config.stages
    if stages and model.path is not None and all(entry.when == "built" for entry in stages):
        yield fault(
            f"model.path={model.path!r} skips each of the stages, since all have when='built'; set "
            "when='always' for one of them, or model.build in place of model.path",
            "model.path",
        )
    yield from _stage_name_faults(config)


def _stage_name_faults(config: RunConfig) -> Iterator[Fault]:
    earlier: list[str] = ["model"]
    for index, entry in enumerate(config.stages):
        if entry.name in earlier:
            yield Fault(
                (("stages", index, "name"),),
                f"stages need different names, and 'model' is taken, got {entry.name!r} again; "
                "rename this one",
            )
        if entry.from_ is not None and entry.from_ not in earlier:
            yield Fault(
                (("stages", index, "from"),),
                f"{{key}} must be one of {', '.join(earlier)} (the stages before it), got "
                f"{entry.from_!r}",
            )
        if entry.steps is not None and "steps" in entry.train:
            yield Fault(
                (("stages", index, "steps"),),
                f"{{key}} is short for train.steps, got both ({entry.steps} and "
                f"{entry.train['steps']}); keep one",
            )
        earlier.append(entry.name)


def stage_faults(stage: StageConfig, *, trains: bool = True) -> Iterator[Fault]:
    """Rules within one stage, and those that only matter where it is trained."""
    if trains:
        if stage.data.train is None:
            yield fault(
                "data.train is required: a function as file.py:name, a .jsonl or .parquet file, or "
                "a folder; got none",
                "data.train",
            )
        if stage.data.stream and stage.data.shuffle:
            yield fault(
                "data.stream=true reads rows in the data's own order, and needs "
                "data.shuffle=false, got true; set it",
                "data.stream",
                "data.shuffle",
            )
        yield from _sampling_faults(stage)
        yield from _lora_faults(stage)
        yield from _megatron_faults(stage)
    yield from _reward_faults(stage)
    yield from _eval_faults(stage)
    yield from _keep_best_faults(stage)
    yield from _size_faults(stage)
    yield from _rollout_faults(stage)


def _lora_faults(stage: StageConfig) -> Iterator[Fault]:
    """What does not go with adapters."""
    if _is_skipped(stage):
        return
    if stage.model.lora.given and stage.train.vision == "trained":
        yield fault(
            "train.vision='trained' moves the tower, which stays as it is beside an adapter; leave "
            "it out, or model.lora",
            "train.vision",
            "model.lora",
        )
    own = {"optim": stage.model.lora, "critic.optim": stage.critic.lora}
    for key, lora in own.items():
        optim = stage.optim if key == "optim" else stage.critic.optim
        if lora.given and optim.name == "muon":
            yield fault(
                f"{key}.name='muon' moves whole hidden matrices, which stay as they are beside an "
                f"adapter; set {key}.name=adamw, or leave the adapter out",
                f"{key}.name",
                "model.lora" if key == "optim" else "critic.lora",
            )


def _megatron_faults(stage: StageConfig) -> Iterator[Fault]:
    """What does not go with ``train.backend: megatron``. What the model's folder tells, such as its
    family, its role refuses."""
    train = stage.train
    if train.backend != "megatron" or _is_skipped(stage):
        return
    named = (
        "compile",
        "ep_size",
        "gradient_checkpointing",
        "gradient_sync",
        "offload",
        "shard",
    )
    settings = {f"TrainConfig.{name}": getattr(train, name) for name in (*named, "vision")}
    yield from broken_by(
        check_megatron,
        settings
        | {
            "LoraSpec.rank": stage.model.lora.rank,
            "LoraSpec.path": stage.model.lora.path,
            "ModelConfig.dtype": stage.model.dtype,
            "OptimSpec.name": stage.optim.name,
            "RunSection.deterministic": stage.run.deterministic,
            "TrainConfig.router_aux_loss": train.router_aux_loss,
            "TrainConfig.router_replay": train.router_replay,
        },
    )


def _is_skipped(stage: StageConfig) -> bool:
    return stage.when == "built" and stage.model.path is not None


def sampler_faults(stage: StageConfig) -> Iterator[Fault]:
    """Faults of ``data.sampler`` that its own settings cannot know, of a stage that plays; a user's
    own is loaded, and not called.
    """
    own = stage.data.sampler
    settings = own.checked
    if settings is None:
        try:
            users_function(own.name, own.settings, stage.base_dir)
        except ConfigError as error:
            yield fault(str(error), "data.sampler.name")
    in_order = bool(settings and settings.plays_epochs)
    if stage.data.weighed and not in_order:
        yield fault(
            f"data.train gives its sources weights, and data.sampler.name={own.name!r} chooses "
            "among all tasks by a rule of its own; leave one of them out",
            "data.train",
            "data.sampler.name",
        )
    if stage.data.stream and not in_order:
        yield fault(
            "data.stream=true reads rows in the data's own order, and needs "
            f"data.sampler.name='uniform', got {own.name!r}; set it",
            "data.stream",
            "data.sampler.name",
        )
    if not stage.data.shuffle and not in_order:
        yield fault(
            f"data.shuffle=false keeps the order of the data, and data.sampler.name={own.name!r} "
            "chooses another; leave one of them out",
            "data.shuffle",
            "data.sampler.name",
        )


def _reward_faults(stage: StageConfig) -> Iterator[Fault]:
    own = stage.reward.model
    yield from both_given("reward.model", own, "stage", "path")
    for index, function in enumerate(stage.reward.functions):
        if (
            own.given
            and (function.name or function.function.rpartition(":")[2]) == REWARD_MODEL_PART
        ):
            yield Fault(
                (("reward", "functions", index),),
                f"reward.functions needs another name than {REWARD_MODEL_PART!r} for "
                f"{function.function!r}, since that "
                "part is the reward model's score; give it a `name`",
            )


def _keep_best_faults(stage: StageConfig) -> Iterator[Fault]:
    metric = stage.checkpoint.keep_best
    if metric is None:
        return
    kind, _, rest = metric.partition("/")
    known = sorted(stage.eval.sets)
    if kind != "eval" or "/" not in rest:
        remedy = "name one as eval/SET/greedy"
    elif known and rest.rpartition("/")[0] not in known:
        remedy = f"the stage's sets are {', '.join(known)}"
    else:
        # A stage without evaluations keeps its last checkpoints alone.
        return
    yield fault(
        f"checkpoint.keep_best must be a metric of an evaluation, got {metric!r}; {remedy}",
        "checkpoint.keep_best",
    )


def _eval_faults(stage: StageConfig) -> Iterator[Fault]:
    env = stage.env
    if env.agent_command:
        setting, why = "agent_command", "the agent of env.agent_command brings its own"
    elif env.entry_point is not None and not env.tools:
        setting = "entry_point"
        why = f"env.entry_point={env.entry_point!r} has its own, so it would change nothing"
    else:
        return
    for name, item in stage.eval.sets.items():
        if not item.tools:
            yield Fault(
                (("eval", "sets", name, "tools"), ("env", setting)),
                f"{{key}}=false takes env.tools away, and {why}; leave it out",
            )


def _size_faults(stage: StageConfig) -> Iterator[Fault]:
    train, placement = stage.train, stage.placement
    yield from both_given("train", train, "steps", "epochs")
    if train.batch_prompts % train.mini_batch_prompts:
        numbers = range(1, train.batch_prompts + 1)
        divisors = [str(number) for number in numbers if train.batch_prompts % number == 0]
        yield fault(
            f"train.mini_batch_prompts must divide train.batch_prompts={train.batch_prompts}, "
            f"got {train.mini_batch_prompts}; the divisors are {', '.join(divisors)}",
            "train.mini_batch_prompts",
            "train.batch_prompts",
        )
    if train.backend not in ("fsdp2", "megatron", "plain") and ":" not in train.backend:
        yield fault(
            f"train.backend must be fsdp2, megatron, plain or module:NAME of a TrainBackend, got "
            f"{train.backend!r}; set one of them",
            "train.backend",
        )
    if train.compile and train.gradient_checkpointing == "selective":
        yield fault(
            "train.gradient_checkpointing='selective' chooses single operations, which "
            "train.compile=true fuses; set it to true or false, or train.compile=false",
            "train.gradient_checkpointing",
            "train.compile",
        )
    if placement.device == "cpu" and stage.model.attention not in ("auto", "segments"):
        yield fault(
            f"model.attention={stage.model.attention!r} needs a GPU, got placement.device='cpu'; "
            "set "
            "model.attention to auto or segments, or placement.device=cuda",
            "model.attention",
            "placement.device",
        )


def _rollout_faults(stage: StageConfig) -> Iterator[Fault]:
    rollout = stage.rollout
    if rollout.min_group_size > rollout.group_size:
        yield fault(
            f"rollout.min_group_size must be at most rollout.group_size={rollout.group_size}, got "
            f"{rollout.min_group_size}",
            "rollout.min_group_size",
            "rollout.group_size",
        )
    if stage.run.deterministic and stage.placement.rollout_workers:
        yield fault(
            "run.deterministic needs placement.rollout_workers=0 (groups of several workers come "
            "in any "
            f"order), got {json.dumps(stage.placement.rollout_workers)}; set it, or "
            "run.deterministic=false",
            "placement.rollout_workers",
            "run.deterministic",
        )
    yield from _schedule_faults(stage)
    if (
        rollout.context_tokens is not None
        and rollout.context_tokens <= stage.data.max_prompt_tokens
    ):
        yield fault(
            "rollout.context_tokens must be more than "
            f"data.max_prompt_tokens={stage.data.max_prompt_tokens} "
            f"(nothing could be sampled after the longest prompt), got {rollout.context_tokens}",
            "rollout.context_tokens",
            "data.max_prompt_tokens",
        )


def _schedule_faults(stage: StageConfig) -> Iterator[Fault]:
    rollout = stage.rollout
    if rollout.sleep and (rollout.schedule != "sync" or stage.placement.rollout_workers):
        yield fault(
            "rollout.sleep=true needs rollout.schedule='sync' and placement.rollout_workers=0 (an "
            "engine sleeps while its own batch is trained beside it), got "
            f"{rollout.schedule!r} and {json.dumps(stage.placement.rollout_workers)}; leave it "
            "out",
            "rollout.sleep",
            "rollout.schedule",
            "placement.rollout_workers",
        )
    wanted, most = {"sync": ("0", 0), "one_step_off": ("1", 1)}.get(
        rollout.schedule, ("at least 1", math.inf)
    )
    if not min(most, 1) <= rollout.max_staleness <= most:
        yield fault(
            f"rollout.max_staleness must be {wanted} with rollout.schedule={rollout.schedule!r}, "
            f"got {rollout.max_staleness}; leave it out, or choose another schedule",
            "rollout.max_staleness",
            "rollout.schedule",
        )
    if rollout.schedule == "one_step_off" and rollout.pause_mode != "drain":
        yield fault(
            "rollout.schedule='one_step_off' lets model calls end before a publish, "
            "rollout.pause_mode='drain', "
            f"got {rollout.pause_mode!r}; leave it out, or set rollout.schedule=async",
            "rollout.pause_mode",
            "rollout.schedule",
        )
    if rollout.schedule != "sync" and rollout.on_stale == "wait" and rollout.oversample:
        yield fault(
            f"rollout.on_stale='wait' loses no group, so that no more are in flight than "
            f"rollout.max_staleness={rollout.max_staleness} lets be trained in time, and "
            f"rollout.oversample must be 0, got {rollout.oversample:g}; leave it out and raise "
            "rollout.max_staleness, or set rollout.on_stale=drop",
            "rollout.oversample",
            "rollout.on_stale",
        )
    for name in ("schedule", "oversample", "oversample_per_group"):
        value = getattr(rollout, name)
        if stage.run.deterministic and value not in ("sync", 0):
            yield fault(
                "run.deterministic closes batches in the order of their draws, whatever finishes "
                f"first, so that rollout.{name} must be left out, got {value!r}; "
                "leave it out, or set run.deterministic=false",
                f"rollout.{name}",
                "run.deterministic",
            )


def _sampling_faults(stage: StageConfig) -> Iterator[Fault]:
    """What is sampled must be what can be trained."""
    rollout = stage.rollout
    if (rollout.top_p < 1 or rollout.top_k > 0) and not rollout.allow_biased_sampling:
        yield fault(
            "rollout.top_p=1 and rollout.top_k=0 are needed for training (anything else samples "
            "from another "
            f"distribution than the one whose logprobs are trained), got top_p={rollout.top_p}, "
            f"top_k={rollout.top_k}; set rollout.allow_biased_sampling=true to train all the same",
            "rollout.top_p" if rollout.top_p < 1 else "rollout.top_k",
            "rollout.allow_biased_sampling",
        )
    if rollout.temperature == 0:
        yield fault(
            "rollout.temperature must be more than 0 for training (a greedy token was not sampled, "
            "and greedy rollouts are all alike), got 0; eval.greedy evaluates the greedy policy",
            "rollout.temperature",
        )


def sandbox_faults(stage: StageConfig) -> Iterator[Fault]:
    """Room for the sandboxes of each process that plays; its engine says how many these are."""
    try:
        stage.sandbox.check_room(stage.sandboxes_a_host)
    except ConfigError as error:
        owner = "rollout" if stage.sandbox.max_running is None else "sandbox"
        yield fault(str(error), f"{owner}.max_running", "sandbox.docker.max_sandboxes")
    cap = stage.sandbox.max_running
    if cap is not None and cap < stage.num_hosts:
        setting = stage.hosts_setting
        yield fault(
            f"sandbox.max_running must be at least {stage.num_hosts}, one for each process that "
            f"hosts episodes ({setting}), got {cap}; raise it",
            "sandbox.max_running",
            setting,
        )
    lifetime_s = stage.sandbox.max_lifetime_s
    episode_s = stage.rollout.episode_timeout_s
    if lifetime_s is not None and lifetime_s <= episode_s:
        yield fault(
            f"sandbox.max_lifetime_s must be more than rollout.episode_timeout_s={episode_s:g} "
            "(else a slow policy's episodes would fail instead of being truncated and trained), "
            f"got {lifetime_s:g}; raise it",
            "sandbox.max_lifetime_s",
            "rollout.episode_timeout_s",
        )


def lineage_faults(stage: StageConfig, earlier: Sequence[StageConfig]) -> Iterator[Fault]:
    """What is wrong between whole stages.

    Args:
        stage: the one to fix.
        earlier: those before it, also if they are skipped because ``model.path`` is given.
    """
    kinds = {one.name: one.learns_from for one in earlier}
    skipped = [one.name for one in earlier if _is_skipped(one)]
    policies = ["model", *(name for name, kind in kinds.items() if kind != "preferences")]
    if stage.learns_from != "preferences" and kinds.get(stage.starts_from) == "preferences":
        yield fault(
            f"stages.{stage.name}.from must name a policy ({', '.join(policies)}), "
            f"since algorithm.name={stage.algorithm.name!r} trains one, got the reward model "
            f"{stage.starts_from!r}; name one",
            "starts_from",
        )
    if stage.model.lora.path is not None and stage.starts_from not in ("model", *skipped):
        yield fault(
            f"model.lora.path={stage.model.lora.path!r} is an adapter of model.path, and the stage "
            f"{stage.name!r} starts from the merged weights of {stage.starts_from!r}; leave it out "
            "and set model.lora.rank, or train one stage",
            "model.lora.path",
        )
    starts = ["model", *(name for name in kinds if name not in skipped)]
    for key, other in stage.others.items():
        # a reward model can be a critic's start, and has no logprobs
        own = [one for one in starts if key != "reference" or one in policies]
        if other.stage is not None and other.stage not in own:
            yield fault(
                f"{{key}} must name what the {key.rpartition('.')[2]} starts from "
                f"({', '.join(own)}), got {other.stage!r}; name one, or a folder by {key}.path",
                f"{key}.stage",
            )
    scorer = stage.reward.model.stage
    if scorer is None:
        return
    if stage.plays and kinds.get(scorer) != "preferences":
        known = ", ".join(name for name, kind in kinds.items() if kind == "preferences")
        yield fault(
            "{key} must name an earlier stage that trains a reward model (those are: "
            f"{known or 'none'}), got {scorer!r}; name one, or a folder by reward.model.path",
            "reward.model.stage",
        )
    if scorer in skipped:
        yield fault(
            f"{{key}}={scorer!r} is skipped, since it is `when: built` and model.path is given; "
            f"set stages.{scorer}.when=always, or reward.model.path",
            "reward.model.stage",
            "model.path",
        )
