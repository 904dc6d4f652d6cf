"""What a resumed run may change: settings that differ are compared with those that ran, recorded,
or refused.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agentrl.config import (
    RunConfig,
    StageConfig,
    flat_settings,
    load_config,
    read_document,
    to_yaml,
)
from agentrl.config.document import value_at
from agentrl.controller.checkpoints import whole_checkpoints
from agentrl.controller.checkpoints.checkpoint_copies import fetch_newest, fetch_run
from agentrl.errors import ConfigError, DataError
from agentrl.guards.parsing import mapping
from agentrl.run.data.datasets import rows_hash
from agentrl.run.lifetime.record import command_line, git_state, utc_time
from agentrl.run.lifetime.retries import RETRY
from agentrl.run.run_setup import (
    data_tables,
    finished_manifest,
    last_manifest,
    whole_stages,
)
from agentrl.store import RunDirectory, write_json, write_text

logger = logging.getLogger(__name__)

# What has shaped a run from its first number on.
_RUN_FIXED = (
    "run.seed",
    "run.replay",
    "model.path",
    "model.build",
    "model.build_args",
    "model.dtype",
)
# What decides a stage's draws, or what its checkpoint holds.
_STAGE_FIXED = (
    "starts_from",
    "data.train",
    "data.args",
    "data.custom.path",
    "data.custom.name",
    "data.custom.args",
    "data.shard",
    "data.stream",
    "data.shuffle",
    "data.sampler.name",
    "algorithm.name",
    "algorithm.kl_target",
    "optim.name",
)
_ROLE_FIXED = re.compile(r"roles\.\w+\.(role|optim\.name)")
# Where a run lies and what it is called: it may move.
_PLACES = ("run.dir", "run.base_dir")
_REMEDY = "; set it back, or start a new run with another run.dir"


def existing_run(config: RunConfig, stages: Sequence[StageConfig]) -> RunDirectory:
    """The run in ``run.dir``; where there is none, its files come from ``checkpoint.copy_to``.

    Raises:
        StoreError: there is no run, or its copy cannot be read.
        DataError: there is no copy of it either.
        ConfigError: the folder holds other files, or the URL cannot be read here.
    """
    run = RunDirectory(Path(config.run.dir or ""))
    urls = _copies(stages)
    # the files beside the copies of the last stage are the newest
    newest = reversed(urls)
    if (
        urls
        and not run.record_path.is_file()
        and not any(fetch_run(urls[name], run, [name]) for name in newest)
    ):
        raise DataError(
            f"RunDirectory.root='{run.root}' has no run.json, and checkpoint.copy_to="
            f"{', '.join(dict.fromkeys(urls.values()))} no copy; name the place of a run, or "
            "start one without --resume"
        )
    return RunDirectory.open(run.root)


def resume_directory(
    directory: RunDirectory,
    config: RunConfig,
    stages: Sequence[StageConfig],
    sources: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Gives a run the settings that it goes on with, and the checkpoints that it lacks.

    Where settings changed, ``config.resolved.yaml`` holds the new ones (a finished stage's stay as
    they ran), and the file as it was is kept as ``config.resolved.N.yaml``. Where the run or the
    user's code has moved, it holds the new places: who plays or replays the run looks there. What
    changed and what moved is in ``run.json`` under ``resumed``.

    Args:
        directory: the run, held by this process.
        config: the whole configuration as asked for now.
        stages: those that run, with the steps asked for.
        sources: ``LoadedConfig.sources``; where a setting changed, ``run.json`` has these.

    Returns:
        A line for a person on each setting that changed or moved.

    Raises:
        StoreError: a copy is corrupt or cannot be read.
        ConfigError: settings or data differ that a run keeps for good; all of them are named.
    """
    _fetch_checkpoints(directory, stages)
    # The user's own code may have moved with the configuration.
    before = load_config(directory.config_path, {"run.base_dir": str(config.base_dir)})
    begun = {stage.name for stage in stages if last_manifest(directory, stage) is not None}
    finished = {
        stage.name for stage in stages if finished_manifest(directory, stage) is not None
    }
    old = whole_stages(before, ())
    new = whole_stages(config, stages)
    asked = flat_settings(config, new)
    differing = list(_differing(flat_settings(before, old), asked))
    adapted = {
        stage for stage, own in asked.items() if own.get("algorithm.kl_target") is not None
    }
    wrong_order = list(_order([s.name for s in old], [s.name for s in new], begun))
    problems = [
        # Where stages have other places, their settings are compared with those of others, and
        # every difference would be told. The order is told alone.
        *_fixed(differing, () if wrong_order else begun - finished, adapted),
        *wrong_order,
    ] or list(_data(directory, [stage for stage in stages if stage.name in begun]))
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise ConfigError(
            f"the run in {directory.root} cannot go on with these settings:\n{listed}"
        )
    changes: dict[str, dict[str, Sequence[Any]]] = {
        "changed": {},
        "without_effect": {},
        "moved": _moved(directory, config),
    }
    for change in differing:
        kind = "without_effect" if change.stage in finished else "changed"
        changes[kind][change.key] = [change.was, change.now]
    now = {stage.name for stage in new}
    changes["changed"] |= {
        f"stages.{stage.name}": [stage.name, None] for stage in old if stage.name not in now
    }
    ran = {stage.name: stage for stage in old if stage.name in finished}
    of_ran = tuple(f"stages.{name}." for name in ran)
    known = mapping(directory.read_record().get("sources"))
    sources = {
        key: place for key, place in sources.items() if not key.startswith(of_ran)
    } | {key: place for key, place in known.items() if key.startswith(of_ran)}
    _keep(
        directory, config, [ran.get(stage.name, stage) for stage in new], changes, sources
    )
    words = {
        "changed": "changed",
        "without_effect": "without effect, since its stage is finished",
        "moved": "moved",
    }
    return [
        f"{words[kind]}: {key} {was!r} -> {found!r}"
        for kind, own in changes.items()
        for key, (was, found) in own.items()
    ]


def _copies(stages: Sequence[StageConfig]) -> dict[str, str]:
    return {one.name: one.checkpoint.copy_to for one in stages if one.checkpoint.copy_to}


def _fetch_checkpoints(run: RunDirectory, stages: Sequence[StageConfig]) -> None:
    """Fetches the newest copy of each stage that has no checkpoint here."""
    for name, url in _copies(stages).items():
        folder = run.checkpoints_folder / name
        if not whole_checkpoints(folder):
            fetched = fetch_newest(url, name, folder)
            if fetched is not None:
                logger.info(
                    "checkpoint %s fetched from %s",
                    fetched,
                    url,
                    extra={"event": "checkpoint_fetched", "path": str(fetched), "url": url},
                )


@dataclass(frozen=True, slots=True)
class _Change:
    """A setting that differs: of a stage, or with no name of the whole run."""

    stage: str
    name: str
    was: Any
    now: Any

    @property
    def key(self) -> str:
        return f"stages.{self.stage}.{self.name}" if self.stage else self.name


def _differing(
    before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]
) -> Iterator[_Change]:
    for stage, own in now.items():
        was = before.get(stage, {})
        for name in dict.fromkeys([*was, *own]):
            if was.get(name) != own.get(name) and name not in _PLACES:
                yield _Change(stage, name, was.get(name), own.get(name))


def _moved(directory: RunDirectory, config: RunConfig) -> dict[str, Sequence[Any]]:
    """The places that are no more what ``config.resolved.yaml`` says."""
    tree = read_document(directory.config_path).tree
    now = {"run.dir": config.run.dir, "run.base_dir": config.run.base_dir}
    was = {key: value_at(tree, key.split(".")) for key in now}
    return {
        key: [was[key], place]
        for key, place in now.items()
        if isinstance(was[key], str)
        and Path(was[key]).resolve() != Path(place or "").resolve()
    }


def _fixed(
    differing: Sequence[_Change], begun: Collection[str], adapted: Collection[str]
) -> Iterator[str]:
    """What differs and must not: of the whole run, and of stages that have started, in the
    ``adapted`` ones of which steps have moved ``kl_coef``."""
    for one in differing:
        of_run = one.name in _RUN_FIXED or one.name.startswith("model.build_args.")
        of_stage = (
            one.name in _STAGE_FIXED
            or _ROLE_FIXED.fullmatch(one.name)
            or (one.name == "algorithm.kl_coef" and one.stage in adapted)
        )
        if of_run if not one.stage else one.stage in begun and of_stage:
            until = "once the stage has begun" if one.stage else "for the whole run"
            yield f"{one.key} must stay {one.was!r} {until}, got {one.now!r}{_REMEDY}"


def _order(old: Sequence[str], new: Sequence[str], begun: Collection[str]) -> Iterator[str]:
    """The stages that have run come first, in their order."""
    ran = old[
        : max((index + 1 for index, name in enumerate(old) if name in begun), default=0)
    ]
    if ran != new[: len(ran)]:
        yield (
            f"stages must begin with {', '.join(ran)}, which have run, got {', '.join(new)}"
            f"{_REMEDY}"
        )


def _data(directory: RunDirectory, stages: Sequence[StageConfig]) -> Iterator[str]:
    """Training data that is not what it was: a draw would be another task than its number says."""
    kept = directory.read_record().get("data", {})
    for name, tasks in data_tables(stages).items():
        found = rows_hash(tasks)
        if name.endswith("/train") and kept.get(name, found) != found:
            yield (
                f"stages.{name.removesuffix('/train')}.data.train must give the same tasks as when "
                f"the stage began (SHA-256 {kept[name][:12]}), got others ({found[:12]}); bring "
                "them back, or start a new run with another run.dir"
            )


def _keep(
    directory: RunDirectory,
    config: RunConfig,
    stages: Sequence[StageConfig],
    changes: Mapping[str, Mapping[str, Any]],
    sources: Mapping[str, str],
) -> None:
    """Writes what runs from now on, and how it came about; the record comes last."""
    entry: dict[str, Any] = {
        "time": utc_time(),
        "command": command_line(),
        "git": git_state(),
        **changes,
    }
    if retry := os.environ.get(RETRY, "").partition("/")[2]:
        entry["retry"] = retry
    record = {"id": secrets.token_hex(8), **directory.read_record()}
    if "interrupted" in record:
        entry["interrupted"] = record.pop("interrupted")
    resumed = [*record.get("resumed", ()), entry]
    if changes["changed"]:
        kept = directory.config_path.with_name(f"config.resolved.{len(resumed)}.yaml")
        write_text(kept, directory.config_path.read_text(encoding="utf-8"))
        entry["config_before"] = kept.name
    if changes["changed"] or changes["moved"]:
        write_text(directory.config_path, to_yaml(config, stages=stages))
        record["sources"] = dict(sources)
    write_json(directory.record_path, {**record, "resumed": resumed})
