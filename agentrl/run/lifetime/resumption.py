"""What a resumed run may change: settings that differ are compared with those that ran, recorded,
or refused.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.config import RunConfig, StageConfig, load_config, to_yaml
from agentrl.config.dump import SHARED_SECTIONS
from agentrl.errors import ConfigError
from agentrl.run.lifetime.record import command_line, git_state
from agentrl.run.run_setup import data_hashes, last_manifest, whole_stages
from agentrl.store import RunDirectory, write_json, write_text

# What has shaped a run from its first number on.
_RUN_FIXED = ("run.seed", "model.path", "model.build", "model.build_args", "model.dtype")
# What decides a stage's draws, or what its checkpoint holds.
_STAGE_FIXED = (
    "starts_from",
    "data.train",
    "data.args",
    "data.shuffle",
    "algorithm.name",
    "optim.name",
)
# Where a run lies and what it is called: it may move.
_PLACES = ("run.dir", "run.base_dir")


@dataclass(frozen=True, slots=True)
class Changes:
    """How the settings of a resumed run differ from those that ran before.

    Args:
        changed: ``[before, now]`` by dotted key, ``stages.NAME.`` in front of a stage's own.
        without_effect: those of stages that are finished, which stay as they ran.
    """

    changed: Mapping[str, tuple[Any, Any]]
    without_effect: Mapping[str, tuple[Any, Any]]

    def told(self) -> list[str]:
        """A line a setting, for a person."""
        lines = [f"changed: {key} {was!r} -> {now!r}" for key, (was, now) in self.changed.items()]
        finished = "without effect, since its stage is finished"
        return [
            *lines,
            *(
                f"{finished}: {key} {was!r} -> {now!r}"
                for key, (was, now) in self.without_effect.items()
            ),
        ]


def resume_directory(
    config: RunConfig,
    stages: Sequence[StageConfig],
    rollouts: Sequence[StageConfig],
) -> tuple[RunDirectory, Changes]:
    """Opens the run that is to go on, with the settings that it goes on with.

    Where settings changed, ``config.resolved.yaml`` holds the new ones (a finished stage's stay as
    they ran), the file as it was is kept as ``config.resolved.N.yaml``, and ``run.json`` has what
    changed under ``resumed``.

    Args:
        config: the whole configuration as asked for now.
        stages: those that run, with the steps asked for.
        rollouts: those of them that play episodes.

    Raises:
        StoreError: there is no run in ``run.dir``.
        ConfigError: settings or data differ that a run keeps for good; all of them are named.
    """
    directory = RunDirectory.open(config.run.dir or "")
    before = load_config(directory.config_path)
    begun = {stage.name for stage in stages if last_manifest(directory, stage) is not None}
    finished = {name for name in begun if (directory.models_folder / name).is_dir()}
    old = whole_stages(before, ())
    new = whole_stages(config, stages)
    finished -= {stage.name for stage in new if _asks_for_more(stage, directory)}
    problems = list(_fixed(before, config, old, new, begun, finished)) or list(
        _data(directory, rollouts, begun)
    )
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise ConfigError(
            f"the run in {directory.root} cannot go on with these settings:\n{listed}"
        )
    changes = _changes(before, config, old, new, finished)
    _keep(directory, config, old, new, changes, finished)
    return directory, changes


def _asks_for_more(stage: StageConfig, directory: RunDirectory) -> bool:
    manifest = last_manifest(directory, stage)
    return (
        manifest is not None and stage.train.steps is not None and manifest.step < stage.train.steps
    )


def _shared(config: RunConfig) -> dict[str, Any]:
    return dict(_flat(config.model_dump(include=set(SHARED_SECTIONS))))


def _own(stage: StageConfig) -> dict[str, Any]:
    return dict(_flat(stage.model_dump(exclude={*SHARED_SECTIONS, "name"})))


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Values by dotted key; a list is one value, and so are a function's arguments."""
    for name, value in tree.items():
        if isinstance(value, dict) and value and name not in ("args", "build_args"):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _differing(
    before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = ""
) -> dict[str, tuple[Any, Any]]:
    keys = dict.fromkeys([*before, *now])
    return {
        f"{prefix}{key}": (before.get(key), now.get(key))
        for key in keys
        if before.get(key) != now.get(key) and key not in _PLACES
    }


def _fixed(
    before: RunConfig,
    config: RunConfig,
    old: Sequence[StageConfig],
    new: Sequence[StageConfig],
    begun: set[str],
    finished: set[str],
) -> Iterator[str]:
    """What differs and must not."""
    remedy = "; set it back, or start a new run with another run.dir"
    for key, (was, found) in _differing(_shared(before), _shared(config)).items():
        if key in _RUN_FIXED or key.startswith("model.build_args."):
            yield f"{key} must stay {was!r} for the whole run, got {found!r}{remedy}"
    names = [stage.name for stage in old]
    now = [stage.name for stage in new]
    last = max((index for index, name in enumerate(names) if name in begun), default=-1)
    if names[: last + 1] != now[: last + 1]:
        yield f"stages must begin with {', '.join(names[: last + 1])}, which have run, got {', '.join(now)}{remedy}"  # noqa: E501
        return
    for was_stage, stage in zip(old, new, strict=False):
        if stage.name not in begun - finished:
            continue
        for key, (was, found) in _differing(_own(was_stage), _own(stage)).items():
            if key in _STAGE_FIXED:
                yield f"stages.{stage.name}.{key} must stay {was!r} once the stage has begun, got {found!r}{remedy}"  # noqa: E501


def _data(
    directory: RunDirectory, rollouts: Sequence[StageConfig], begun: set[str]
) -> Iterator[str]:
    """Training data that is not what it was: a draw would be another task than its number says."""
    kept = directory.read_record().get("data", {})
    own = [stage for stage in rollouts if stage.name in begun]
    for name, found in data_hashes(own).items():
        if name.endswith("/train") and kept.get(name, found) != found:
            yield (
                f"stages.{name.removesuffix('/train')}.data.train must give the same tasks as when "
                f"the stage began (SHA-256 {kept[name][:12]}), got others ({found[:12]}); bring "
                "them back, or start a new run with another run.dir"
            )


def _changes(
    before: RunConfig,
    config: RunConfig,
    old: Sequence[StageConfig],
    new: Sequence[StageConfig],
    finished: set[str],
) -> Changes:
    changed = _differing(_shared(before), _shared(config))
    without: dict[str, tuple[Any, Any]] = {}
    known = {stage.name: stage for stage in old}
    for stage in new:
        was = _own(known[stage.name]) if stage.name in known else {}
        differing = _differing(was, _own(stage), f"stages.{stage.name}.")
        (without if stage.name in finished else changed).update(differing)
    changed |= {
        f"stages.{stage.name}": (stage.name, None)
        for stage in old
        if stage.name not in {s.name for s in new}
    }
    return Changes(changed, without)


def _keep(
    directory: RunDirectory,
    config: RunConfig,
    old: Sequence[StageConfig],
    new: Sequence[StageConfig],
    changes: Changes,
    finished: set[str],
) -> None:
    """Writes what runs from now on, and how it came about; the record comes last."""
    entry: dict[str, Any] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": command_line(),
        "git": git_state(),
        "changed": {key: list(values) for key, values in changes.changed.items()},
        "without_effect": {key: list(values) for key, values in changes.without_effect.items()},
    }
    record = directory.read_record()
    if "interrupted" in record:
        entry["interrupted"] = record.pop("interrupted")
    resumed = [*record.get("resumed", ()), entry]
    if changes.changed:
        kept = directory.config_path.with_name(f"config.resolved.{len(resumed)}.yaml")
        write_text(kept, directory.config_path.read_text(encoding="utf-8"))
        entry["config_before"] = kept.name
        ran = {stage.name: stage for stage in old if stage.name in finished}
        write_text(
            directory.config_path,
            to_yaml(config, stages=[ran.get(stage.name, stage) for stage in new]),
        )
    write_json(directory.record_path, {**record, "resumed": resumed})
