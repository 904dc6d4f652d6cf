"""A stage's configuration becomes picklable specs; the process that hosts an object builds it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from agentrl.agent_server import AgentProgramSpec
from agentrl.algorithms import AlgorithmSpec
from agentrl.config import StageConfig
from agentrl.config.sections import (
    CustomRewardConfig,
    RewardConfig,
    RewardFunctionConfig,
    RewardModelConfig,
)
from agentrl.config.train_sections import CriticConfig, ReferenceConfig, RoleConfig
from agentrl.controller.evaluator import EvalSet, RollOut, RolloutEvaluator
from agentrl.controller.loop import train
from agentrl.controller.stage.stage_run import StageRun
from agentrl.controller.state import TrainState
from agentrl.envs import (
    EnvSpec,
    EpisodeView,
    RewardFn,
    Rubric,
    Score,
    ToolEnv,
    WrapperReference,
)
from agentrl.envs.rewards import BUILT_IN
from agentrl.envs.rewards.custom import custom_reward
from agentrl.errors import ConfigError
from agentrl.render import RendererSpec
from agentrl.rollouts import RolloutSpec, RubricFactory, StagePermits
from agentrl.rollouts.samplers.catalog import make_sampler
from agentrl.rollouts.samplers.task_sampler import TaskSampler
from agentrl.run.data.datasets import DataSet
from agentrl.run.data.task_table import TaskTable
from agentrl.store.model_folder import given_model
from agentrl.store.store_spec import NUM_ALTERNATIVES
from agentrl.tools import (
    Tool,
    ToolFactory,
    check_resources,
    close_tools,
    resolve_tools,
)
from agentrl.training.backends.find import absolute
from agentrl.training.parallel.process_group import Sharding
from agentrl.types import Task
from agentrl.types.user_code.load import UserFunction, built_in, check_takes, load_function
from agentrl.types.user_code.values import private_copy


@dataclass(frozen=True, slots=True)
class LiveObjects:
    """What a caller from Python gives in place of references in the configuration.

    Args:
        tools: tools on offer, instead of ``env.tools``.
        env: an Env class or factory, or a whole EnvSpec, instead of ``env.entry_point``.
        reward: a reward function, a Rubric, or several functions, instead of ``reward.functions``.
    """

    tools: Sequence[Tool | ToolFactory] | None = None
    env: EnvSpec | Callable[..., Any] | None = None
    reward: Rubric | RewardFn | Sequence[RewardFn] | None = None


@dataclass(frozen=True, slots=True)
class StageRecipe:
    """What a stage's roles and rollouts are built from.

    Args:
        stage: whole.
        algorithm: of the stage.
        model: the weights that it starts from.
        reward_model: what scores its episodes, where ``reward.model`` asks for it.
        num_steps: batches to train.
        others: the weights of the models beside it, by the keys of their sections; None for those
            that the stage starts from.
    """

    stage: StageConfig
    algorithm: AlgorithmSpec
    model: Path
    reward_model: Path | None
    num_steps: int
    others: Mapping[str, Path | None] = field(default_factory=dict)

    def optimizer_steps(self, *, after: int = 0) -> int:
        """Of the stage, without those of its first ``after`` batches."""
        train = self.stage.train
        updates = (self.num_steps - after) * train.updates_per_batch
        return updates * math.ceil(train.batch_prompts / train.mini_batch_prompts)


@dataclass(frozen=True, slots=True)
class RubricSpec:
    """Builds a configuration's rubric where the episodes run.

    Args:
        section: ``reward``.
        base_dir: where ``file.py:name`` references start.
    """

    section: RewardConfig
    base_dir: str

    def build(self) -> Rubric:
        """The rubric.

        Raises:
            ConfigError: a reference names nothing, or something that is no function.
        """
        own = self.section
        parts = [(_bound(part, self.base_dir), part.weight) for part in own.functions]
        if own.custom.path is not None:
            parts.append((_custom(own.custom, self.base_dir), own.custom.weight))
        return Rubric(parts, deadline_s=own.deadline_s)


def _bound(part: RewardFunctionConfig, base_dir: str) -> RewardFn:
    broken = partial(part.broken, "function")
    takes = f"({', '.join(['episode', *(f'{key}=' for key in part.args)])})"
    args = dict(part.args)
    reference = built_in(part.function, BUILT_IN, broken) or part.function
    function = load_function(reference, base_dir, broken, takes)
    if part.function in BUILT_IN and "base_dir" in inspect.signature(function).parameters:
        # Files among its settings are named from the configuration's folder.
        args.setdefault("base_dir", base_dir)
    check_takes(function, part.function, broken, takes, "episode", **args)

    def reward(view: EpisodeView) -> float | Score | Awaitable[float | Score]:
        value: float | Score | Awaitable[float | Score] = function(
            view, **private_copy(args)
        )
        return value

    # The marks of the decorators, such as what it scores, must survive.
    reward.__dict__.update(getattr(function, "__dict__", {}))
    # So errors name the line of the user's function and not of this one.
    reward.__dict__["__wrapped__"] = function
    reward.__name__ = str(
        part.name or getattr(function, "__name__", type(function).__name__)
    )
    return reward


def _custom(own: CustomRewardConfig, base_dir: str) -> Callable[..., Any]:
    broken = partial(own.broken, "path")
    takes = "(data_source, solution_str, ground_truth, extra_info) or (prompts, completions, ...)"
    function = load_function(f"{own.path}:{own.name}", base_dir, broken, takes)
    return custom_reward(
        function,
        own.name,
        own.args,
        lambda rule: own.broken("path", f"='{own.path}': {own.name}{rule}"),
        conversational=own.conversational,
    )


def rubric_spec(stage: StageConfig, live: LiveObjects) -> RubricFactory:
    """The stage's rubric: the configuration's functions, or what was given from Python."""
    if isinstance(live.reward, Rubric):
        return live.reward
    if live.reward is not None:
        return Rubric([live.reward] if callable(live.reward) else list(live.reward))
    return RubricSpec(stage.reward, str(stage.base_dir))


def task_sampler(stage: StageConfig, tasks: Sequence[Task]) -> TaskSampler:
    """What chooses among the stage's tasks.

    Raises:
        ConfigError: the user's own raised, or made no sampler.
    """
    own = stage.data.sampler
    sampler: TaskSampler = make_sampler(
        own.name,
        own.settings,
        tasks,
        seed=stage.run.seed,
        shuffle=stage.data.shuffle,
        base_dir=stage.base_dir,
        mixture=tasks.mixture if isinstance(tasks, TaskTable) else (),
    )
    return sampler


def training_loop(stage: StageConfig) -> Callable[[StageRun], TrainState]:
    """The loop that trains the stage: ``train.loop``, or the built-in one.

    Raises:
        ConfigError: ``train.loop`` names nothing that takes a run.
    """
    if stage.train.loop is None:
        return train
    broken = partial(stage.train.broken, "loop")
    function = load_function(stage.train.loop, stage.base_dir, broken, "(run)")
    check_takes(function, stage.train.loop, broken, "(run)", None)
    return UserFunction(function, TrainState, broken, stage.train.loop)


def env_spec(stage: StageConfig, live: LiveObjects, *, with_tools: bool = True) -> EnvSpec:
    """The stage's environment; without its tools for an examination of what they are worth.

    A user's environment is given what ``ToolEnv`` is, as far as its factory has parameters
    of these names.

    Raises:
        ConfigError: a setting of ``env`` that the factory has no parameter for.
    """
    if isinstance(live.env, EnvSpec):
        return live.env
    entry = live.env or stage.env.entry_point or ToolEnv
    base_dir = str(stage.base_dir)
    factory = (
        load_function(entry, base_dir, partial(stage.env.broken, "entry_point"), "(task)")
        if isinstance(entry, str)
        else entry
    )
    taken = _parameters(factory) if callable(factory) else {}
    tools = list(live.tools) if live.tools is not None else list(stage.env.tools)
    resources = check_resources(stage.env.resources, base_dir)
    # What is asked for must have a parameter of the factory: a setting that nobody takes is refused
    # by name below.
    asked: dict[str, Any] = {}
    if tools:
        asked["tools"] = tools if with_tools else []
    if resources:
        asked["resources"] = resources if with_tools else {}
    if stage.env.mcp and with_tools:
        asked["mcp"] = {
            name: server.replace(
                cwd=str(stage.base_dir / Path(server.cwd or "").expanduser())
            )
            for name, server in stage.env.mcp.items()
        }
    if stage.env.endpoints:
        asked["endpoints"] = stage.env.endpoints
    if stage.env.max_tool_seconds is not None:
        asked["max_tool_seconds"] = stage.env.max_tool_seconds
    if stage.env.system_prompt is not None:
        asked["system_prompt"] = stage.env.system_prompt
    # Without tools the setting says nothing, so that a factory need not take it.
    if not stage.env.describe_tools_in_prompt and (
        tools or "describe_tools_in_prompt" in taken
    ):
        asked["describe_tools_in_prompt"] = False
    if lacking := [name for name in asked if name not in taken]:
        raise ConfigError(
            f"env.{lacking[0]} would do nothing, since {getattr(factory, '__qualname__', factory)} "
            "has no parameter "
            f"{lacking[0]!r}; give it one, as agentrl.envs.ToolEnv has, or leave the setting out"
        )
    places = {"tool_deadline_s": stage.rollout.tool_timeout_s, "base_dir": base_dir}
    asked |= {name: value for name, value in places.items() if name in taken}
    needs_sandbox = (
        "sandbox" in taken
        if factory is not ToolEnv
        else with_tools and _needs_sandbox(tools, base_dir, resources)
    )
    return EnvSpec(
        entry,
        kwargs=asked | dict(stage.env.args),
        copied=tuple(stage.env.args),
        base_dir=base_dir,
        sandbox=stage.sandbox if needs_sandbox else None,
        wrappers=_wrappers(stage),
    )


def _wrappers(stage: StageConfig) -> tuple[WrapperReference, ...]:
    """The wrappers of the stage's environment.

    Raises:
        ConfigError: one names nothing.
    """
    for wrapper in stage.env.wrappers:
        wrapper.load(str(stage.base_dir))
    return stage.env.wrappers


def _parameters(factory: Callable[..., Any]) -> Mapping[str, Any]:
    """The parameters of a factory by name; those of ToolEnv where a subclass passes the rest on."""
    own = inspect.signature(factory).parameters
    passes_on = any(one.kind is one.VAR_KEYWORD for one in own.values())
    if passes_on and isinstance(factory, type) and issubclass(factory, ToolEnv):
        return {**inspect.signature(ToolEnv).parameters, **own}
    return own


def player_spec(stage: StageConfig, live: LiveObjects) -> EnvSpec | AgentProgramSpec:
    """Who plays the stage's episodes: its environment, or an agent's own program."""
    if stage.env.agent_command and live.env is None:
        return AgentProgramSpec(
            stage.env.agent_command,
            cwd=str(stage.base_dir),
            strict_keys=stage.env.agent_keys == "strict",
            loose_history=stage.env.history == "loose",
        )
    return env_spec(stage, live)


def _needs_sandbox(tools: Sequence[Any], base_dir: str, resources: Iterable[str]) -> bool:
    """Whether one of the tools runs code; a factory's tools are made once to see it, and closed,
    unless they are made for a task or of a resource.
    """
    needed = False
    for entry in resolve_tools(tools, base_dir, resources):
        if isinstance(entry, ToolFactory) and entry.injected:
            needed = needed or entry.may_need_sandbox
            continue
        made = entry.build() if isinstance(entry, ToolFactory) else (entry,)
        needed = needed or any(tool.needs_sandbox for tool in made)
        if isinstance(entry, ToolFactory):
            close_tools(made)
    return needed


def rollout_spec(stage: StageConfig, live: LiveObjects, model: Path | None) -> RolloutSpec:
    """What the stage's episodes share; without a model they are played by messages alone, on a
    server.
    """
    rollout = stage.rollout
    group_indices = stage.train.batch_prompts * (
        rollout.max_staleness + 1 + rollout.oversample
    )
    episodes = min(
        rollout.max_running,
        math.ceil(group_indices) * stage.rollouts_per_group,
    )
    return RolloutSpec(
        env=_settled(player_spec(stage, live)),
        renderer=None if model is None else renderer_spec(stage, model),
        parser=parser_name(stage),
        rubric=rubric_spec(stage, live),
        episode=rollout,
        max_prompt_tokens=stage.data.max_prompt_tokens,
        root_seed=stage.run.seed,
        step_reward_weight=stage.reward.step_weight,
        save_episode_state=stage.checkpoint.every is not None
        and not stage.run.deterministic,
        states=stage.store.states,
        agents=stage.env.agents,
        num_alternatives=NUM_ALTERNATIVES if stage.store.detail == "full" else 0,
        permits=StagePermits(
            running=episodes,
            sandboxes=stage.sandboxes_a_host,
        ),
    )


def _settled(driver: EnvSpec | AgentProgramSpec) -> EnvSpec | AgentProgramSpec:
    """With the backend that was chosen here: the host of the episodes takes that one or
    refuses.
    """
    if (
        isinstance(driver, AgentProgramSpec)
        or driver.sandbox is None
        or driver.sandbox.backend != "auto"
    ):
        return driver
    return replace(driver, sandbox=driver.sandbox.resolved())


def parser_name(stage: StageConfig) -> str:
    """``model.tool_parser``; the path of a user's file starts at the configuration's folder."""
    source, _, name = stage.model.tool_parser.rpartition(":")
    own_file = source.endswith(".py")
    return (
        f"{stage.base_dir / Path(source).expanduser()}:{name}"
        if own_file
        else stage.model.tool_parser
    )


def renderer_spec(stage: StageConfig, model: Path) -> RendererSpec:
    """The renderer of the stage's model; a template file's path starts at the configuration's
    folder.
    """
    own = stage.model
    template = own.chat_template
    if (
        template is not None
        and "{%" not in template
        and (stage.base_dir / template).is_file()
    ):
        template = str(stage.base_dir / template)
    return RendererSpec(str(model), own.renderer, template, own.enable_thinking)


def reward_model_folder(stage: StageConfig, trained: Mapping[str, Path]) -> Path | None:
    """The folder of the reward model that scores the stage's episodes; None without one. What was
    stored was scored.
    """
    return (
        other_folder(stage, trained, "reward.model", stage.reward.model)
        if stage.plays and not stage.replays
        else None
    )


def other_folder(
    stage: StageConfig,
    trained: Mapping[str, Path],
    key: str,
    own: CriticConfig | ReferenceConfig | RewardModelConfig | RoleConfig,
) -> Path | None:
    """The folder of a model beside the stage's policy; None where its section names none.

    Args:
        stage: whole.
        trained: folders of the model that the run starts from, and of its stages.
        key: of the section.
        own: the section.

    Raises:
        ConfigError: the stage that should have trained it is not of this run.
        DataError: the folder, or the hub's model, does not exist.
    """
    if own.stage is None:
        path = own.path
        return (
            None if path is None else given_model(path, stage.base_dir, key=f"{key}.path")
        )
    if own.stage not in trained:
        raise ConfigError(
            f"{key}.stage={own.stage!r} was not trained here; name its folder: {key}.path=FOLDER"
        )
    return trained[own.stage]


def model_settings(stage: StageConfig) -> dict[str, Any]:
    """How every model of a stage runs, trained or frozen: fields of ``ModelSpec``."""
    train = stage.train
    return {
        "dtype": stage.dtype,
        "backend": absolute(train.backend, stage.base_dir),
        "attention": stage.model.attention,
        "sharding": Sharding(
            train.shard, train.shard_size, train.gradient_sync, train.ep_size
        ),
        "router_aux_loss": train.router_aux_loss,
        "head_dtype": stage.model.head_dtype,
        "offload": train.offload,
        "compile": train.compile,
        "run_folder": str(Path(stage.run.dir or ".").resolve()),
    }


def rollout_evaluator(
    stage: StageConfig, live: LiveObjects, roll_out: RollOut
) -> RolloutEvaluator:
    """Evaluates the stage's policy on every set of ``eval.sets``.

    Args:
        stage: whole.
        live: what was given from Python.
        roll_out: plays groups with the weights served now.
    """
    own = stage.eval
    sets = []
    for name, item in own.sets.items():
        tasks = tuple(DataSet.held_out(stage, name).tasks())
        env = None if item.tools else env_spec(stage, live, with_tools=False)
        sets.append(EvalSet(name, tasks, item.temperature, env, item.baseline_only))
    sampling = replace(
        stage.rollout.sampling, temperature=own.temperature, top_p=own.top_p, top_k=0
    )
    return RolloutEvaluator(
        sets,
        roll_out,
        samples=own.samples,
        sampling=sampling,
        greedy=own.greedy,
        stage=stage.name,
    )
