"""Configuration check: tries a configuration's data, tools, environments and rewards, without a
model, and prints what it finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from agentrl.agent_server import AgentProgramSpec
from agentrl.cli.terminal import counted, say
from agentrl.cli.views.trajectory_text import print_message, print_rendered
from agentrl.config import RunConfig, StageConfig
from agentrl.envs import check_env
from agentrl.errors import ConfigError, DataError, EnvError
from agentrl.render import Renderer
from agentrl.run.build import (
    LiveObjects,
    parser_name,
    player_spec,
    renderer_spec,
    rubric_spec,
    task_sampler,
)
from agentrl.run.data.datasets import DataSet
from agentrl.run.lifetime.outlets import check_outlets
from agentrl.run.rehearsal.episodes import Rehearsed, hostile_faults, rehearse
from agentrl.run.rehearsal.prompt_lengths import (
    Lengths,
    measured,
    spread,
    tokenizer_folder,
)
from agentrl.run.rehearsal.services import ping_services
from agentrl.run.run_setup import check_named
from agentrl.store.json_text import to_json
from agentrl.tools.parsers import load_parser
from agentrl.training.data.demonstrations import assistant_turns, read_demonstration
from agentrl.training.data.preferences import check_pair
from agentrl.types import SegmentKind, Task

_NUM_ROWS = 100
# So many prompts or demonstrations, spread over the data, tell its lengths.
_MEASURED = 2000


def check_config(config: RunConfig, num_tasks: int) -> list[str]:
    """Checks each stage.

    Args:
        config: the configuration.
        num_tasks: of each data set, so many are played.

    Returns:
        Rewards that are wrong, and that no prompt fits.

    Raises:
        AgentRLError: a fault of the configuration, its code or data, a service or the machine.
    """
    check_named(config, config.resolved_stages())
    check_outlets(config, config.resolved_stages())
    print("configuration: ok")
    faults: list[str] = []
    with tokenizer_folder(config) as folder:
        if folder is None:
            say(
                "  the model is not on this machine: no lengths in tokens, no rendered prompt"
            )
        for stage in config.resolved_stages():
            algorithm = stage.make_algorithm()
            how_long = (
                f"{stage.train.steps} steps"
                if stage.train.steps
                else f"{stage.train.epochs or 1} epochs"
            )
            print(
                f"stage {stage.name}: {stage.algorithm.name}, {how_long}, starts from "
                f"{stage.starts_from}"
            )
            renderer = None if folder is None else renderer_spec(stage, folder).build()
            if SegmentKind.POLICY in algorithm.trains:
                faults += _check_rollouts(stage, renderer, num_tasks)
            else:
                _check_demonstrations(stage, renderer)
    return faults


def _check_demonstrations(stage: StageConfig, renderer: Renderer | None) -> None:
    rows = replace(DataSet.of_training(stage), limit=_NUM_ROWS).located_rows()
    pairs = stage.make_algorithm().learns_from == "preferences"
    for number, (where, row) in enumerate(rows):
        try:
            check_pair(row, number) if pairs else read_demonstration(row, number)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
    what = "preference pairs" if pairs else "demonstrations"
    print(f"  {what}: the first {len(rows)} can be read")
    if pairs or renderer is None:
        return
    made = [
        assistant_turns(*read_demonstration(row, number), renderer)
        for number, (_, row) in enumerate(rows)
    ]
    tokens = [
        sum(len(segment) for turn in turns for segment in turn.segments) for turns in made
    ]
    limit = stage.data.max_prompt_tokens + stage.rollout.max_response_tokens
    _print_lengths("demonstrations", Lengths.of(tokens, limit), len(rows))
    say("  the first demonstration as the model reads it:")
    print_rendered(made[0], renderer.text, target=SegmentKind.TARGET)


def _check_rollouts(
    stage: StageConfig, renderer: Renderer | None, num_tasks: int
) -> list[str]:
    """Checks a stage that plays episodes.

    Returns:
        Rewards that are wrong, and that no prompt fits.
    """
    tasks = _tasks(DataSet.of_training(stage))
    first = tasks[0]
    if stage.model.tool_parser != "auto":
        load_parser(parser_name(stage))
    task_sampler(stage, tasks)
    sets = {"data.train": (spread(tasks, num_tasks), True)}
    for name, item in stage.eval.sets.items():
        data = replace(DataSet.held_out(stage, name), setting=f"eval.sets.{name}")
        sets[data.setting] = (spread(_tasks(data), num_tasks), item.tools)
    weights = rubric_spec(stage, LiveObjects()).build().weights
    parts = ", ".join(f"{weight:g} x {name}" for name, weight in weights.items())
    say(f"  reward: {parts or 'step rewards alone'}")
    env = player_spec(stage, LiveObjects())
    if isinstance(env, AgentProgramSpec):
        say(f"  program: {env.check()}, started once an episode")
    else:
        if env.sandbox is not None:
            say(f"  sandbox: {env.sandbox.check()}")
        for service in ping_services(env):
            say(
                f"  {service.kind} {service.name}: {service.told} ({service.seconds:.2f} s)"
            )
        try:
            check_env(env, first, seed=stage.run.seed)
        except EnvError as error:
            broken = ConfigError(f"stage {stage.name}: {error}")
            broken.exit_code = max(error.exit_code, broken.exit_code)
            raise broken from error
        say(f"  environment: keeps its contract on task {first.id!r}")
    faults = [] if renderer is None else _check_prompts(stage, tasks, renderer)
    return faults + _check_rewards(stage, sets, renderer)


def _check_prompts(
    stage: StageConfig, tasks: Sequence[Task], renderer: Renderer
) -> list[str]:
    """Tells how long prompts are.

    Returns:
        That none of them fits, since then no task is played.
    """
    found = measured(stage, spread(tasks, _MEASURED), renderer)
    if found is None:
        say("  prompts of data.train: made by the environment; episodes tell their lengths")
        return []
    # A sample of which nothing fits may mislead, so the whole data is measured.
    if found.too_long == found.count < len(tasks) and not stage.data.stream:
        found = measured(stage, tasks, renderer) or found
    total = "a stream" if stage.data.stream else len(tasks)
    _print_lengths("prompts of data.train", found, total)
    if found.too_long < found.count:
        return []
    return [
        f"stage {stage.name}: data.max_prompt_tokens={found.limit} leaves out every task of "
        f"data.train: of {counted(found.count, 'prompt')} the shortest has {found.shortest} tokens "
        f"and the longest {found.longest}; raise it to at least {found.shortest}"
    ]


def _check_rewards(
    stage: StageConfig,
    sets: Mapping[str, tuple[Sequence[Task], bool]],
    renderer: Renderer | None,
) -> list[str]:
    """Plays and scores episodes of each set, and shows one as the model reads it.

    Returns:
        Rewards that are wrong.
    """
    bools: set[str] = set()
    faults: list[str] = []
    shown_one: Rehearsed | None = None
    most = max(len(tasks) for tasks, _ in sets.values())
    say(f"  a scripted policy plays {counted(most, 'task')} of each set twice:")
    for played in rehearse(stage, sets):
        episode = played.trajectory
        parts = (
            ", ".join(f"{name} {value:g}" for name, value in episode.rewards.items())
            or "no part"
        )
        say(
            f"  {played.setting}: {episode.task.id!r}: the {played.script.kind} is scored "
            f"{played.marks:g} of {played.full_marks:g} ({parts}), {episode.status}"
        )
        if played.changed:
            say(
                f"  environment, tools or rewards change the {', '.join(played.changed)} of this "
                "task; each changes a copy of its own, and no other part sees it"
            )
        bools |= set(played.bools)
        faults += [f"stage {stage.name}: {played.fault}"] if played.fault else []
        if shown_one is None or shown_one.script.kind == "empty answer":
            shown_one = played
    for name in sorted(bools):
        say(
            f"  reward: {name} gives a bool, which counts as 1.0 or 0.0; return a float to say so"
        )
    assert shown_one is not None, "a data set has at least one task"
    if shown_one.trajectory.rewards:
        setting, (tasks, _) = next(iter(sets.items()))
        say(f"  reward: hostile answers to task {tasks[0].id!r} of {setting}")
        faults += hostile_faults(stage, setting, tasks[0])
    _show(shown_one, renderer)
    return faults


def _show(played: Rehearsed, renderer: Renderer | None) -> None:
    """The tools' schemas, and the episode as the model reads it; its messages without a
    tokenizer.
    """
    for tool in played.tools:
        say(f"  tool {tool.name}: {to_json(tool.openai())}")
    episode = played.trajectory
    say(f"  task {episode.task.id!r} with the {played.script.kind}, as the model reads it:")
    messages = [
        message
        for turn in episode.turns
        for message in (*turn.observed, turn.message)
        if message
    ]
    if renderer is None:
        for message in messages:
            print_message(message)
        return
    print_rendered(assistant_turns(messages, played.tools, renderer), renderer.text)


def _print_lengths(what: str, found: Lengths, total: int | str) -> None:
    of = f"{found.count}" if found.count == total else f"{found.count} of {total}"
    say(
        f"  {what}: {of} measured, tokens: min {found.shortest}, median {found.median:g}, "
        f"p95 {found.p95:g}, max {found.longest}; {found.too_long} above the limit of {found.limit}"
    )


def _tasks(data: DataSet) -> Sequence[Task]:
    tasks = data.tasks()
    number = "a stream of" if data.stream else len(tasks)
    say(f"  {data.setting}: {number} tasks, the first is {tasks[0].id!r}")
    return tasks
