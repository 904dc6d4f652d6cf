"""A configuration from a file and overrides, with every fault at once."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentrl.config.algorithm_rules import algorithm_faults, idle_faults
from agentrl.config.document import (
    MISSING,
    ConfigDocument,
    Origin,
    dotted,
    parse_document,
    value_at,
)
from agentrl.config.dump import SHARED_SECTIONS, flat
from agentrl.config.engine_section import engine_faults, engine_section_faults
from agentrl.config.foreign_keys import with_our_name
from agentrl.config.key_names import with_keys
from agentrl.config.overrides import apply_overrides, expand_short_forms
from agentrl.config.placement_rules import layout_faults, placement_faults
from agentrl.config.rules import lineage_faults, run_faults, stage_faults
from agentrl.config.schema import RunConfig, StageConfig
from agentrl.config.stage_merge import stage_trees
from agentrl.errors import ConfigError, StoreError
from agentrl.store import RunDirectory
from agentrl.types.section import Fault, Key, Section, section_faults

logger = logging.getLogger(__name__)


class LoadedConfig:
    """A checked configuration, and where each of its values was written."""

    def __init__(self, config: RunConfig, document: ConfigDocument) -> None:
        self.config = config
        self._document = document
        self._stages = stage_trees(document.tree)

    def origin(self, key: Key, stage: int | None = None) -> str:
        """Where the value at ``key`` (of one stage) comes from: a place, ``command line: ...`` or
        ``default``.
        """
        tree = self._document.tree if stage is None else self._stages[stage]
        origins = self._document.origins
        if value_at(tree, key) is not MISSING:
            for written in _written_as(key, stage):
                if written in origins:
                    return origins[written].text
        return "default"

    def sources(self) -> dict[str, str]:
        """Where each value that is no default was written, by its dotted key in
        ``config.resolved.yaml``, in which a stage's name stands for its place.
        """
        shared = self.config.model_dump(include=set(SHARED_SECTIONS))
        found = {".".join(key): self.origin(key) for key, _ in flat(shared)}
        for index, stage in enumerate(self.config.resolved_stages(include_skipped=True)):
            own = stage.model_dump(by_alias=True, exclude={*SHARED_SECTIONS, "name"})
            before = ("stages", stage.name) if self.config.stages else ()
            for key, _ in flat(own):
                shown = ("from",) if key == ("starts_from",) else key
                found[".".join((*before, *shown))] = self.origin(key, index)
        return {key: origin for key, origin in found.items() if origin != "default"}


def load_config(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    trains: bool = True,
) -> RunConfig:
    """Reads and checks a configuration.

    Args:
        source: a YAML 1.2 file, or the same as a mapping (whose references start from the working
            directory).
        overrides: ``key=value`` texts as on the command line, or a mapping of dotted keys to
            values.
        trains: hold it to the rules of training too; not so where a policy is only played.

    Returns:
        The configuration, with ``run.dir`` and ``run.base_dir`` filled in.

    Raises:
        ConfigError: all that is wrong, each with its place, key, rule, value and, where there is
            one, a likely remedy.
    """
    return load_with_origins(source, overrides, trains=trains).config


def load_with_origins(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    trains: bool = True,
) -> LoadedConfig:
    """As ``load_config``, keeping where every value came from."""
    if isinstance(source, Mapping):
        path = None
        name = "run"
        folder = Path.cwd()
        document = ConfigDocument(copy.deepcopy(dict(source)))
        document.place((), document.tree, Origin("the mapping given"))
    else:
        path = Path(source)
        document = read_document(source)
        folder = path.resolve().parent
        name = folder.name if path.stem == "config" else path.stem
    expand_short_forms(document)
    of_a_run = bool(
        path
        and path.name.startswith("config.resolved.")
        and (path.parent / "run.json").is_file()
    )
    if of_a_run:
        try:
            RunDirectory(folder).read_record()
        except StoreError as error:
            # It is of another format, whose keys are other ones too.
            raise ConfigError(str(error)) from error
    apply_overrides(document, overrides)
    config = _check(document, folder, trains, of_a_run)
    document.raise_problems()
    assert config is not None, "what cannot be made has a problem"
    base_dir = str((folder / (config.run.base_dir or ".")).resolve())
    run = config.run.replace(
        dir=config.run.dir or str(Path("runs", name)), base_dir=base_dir
    )
    return LoadedConfig(config.replace(run=run), document)


def read_document(source: str | Path) -> ConfigDocument:
    """A configuration file as it is written; nothing that it names is imported.

    Raises:
        ConfigError: there is no such file, or it is no YAML.
    """
    document = parse_document(_read(Path(source)), str(source))
    document.raise_problems()
    return document


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {path}") from None
    except IsADirectoryError:
        raise ConfigError(
            f"{path} is a folder; name the configuration file in it"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a configuration: {error}") from None


def _check(
    document: ConfigDocument, folder: Path, trains: bool, of_a_run: bool
) -> RunConfig | None:
    """The configuration of a document whose overrides are applied; adds all its problems.

    That of a run has all defaults, and what an override made idle: neither is refused there.
    """
    tree = document.tree
    top: RunConfig | None
    top, top_faults = _validate(RunConfig, tree)
    stages = tree.get("stages") or []
    of_tables = isinstance(stages, list) and all(
        isinstance(stage, dict) for stage in stages
    )
    if top is not None:
        sections = [one.get("roles") for one in (tree, *(stages if of_tables else ()))]
        roles = {name for one in sections if isinstance(one, dict) for name in one}
        top_faults += [
            *run_faults(top, trains=trains),
            *placement_faults(top.placement, roles),
        ]
        folder /= top.run.base_dir or "."
    _tell(document, top_faults)
    if not of_tables:
        return top
    sound = []
    for index, own in enumerate(stage_trees(tree)):
        stage, faults = _validate(StageConfig, own)
        if stage is not None:
            stage = stage.replace(run=stage.run.replace(base_dir=str(folder)))
            faults += engine_section_faults(stage)
            broken = [key for fault in faults for key in fault.keys]
            crossing = [
                *stage_faults(stage, trains=trains),
                *layout_faults(stage),
                *algorithm_faults(stage),
                *engine_faults(stage, trains=trains),
            ]
            faults += [fault for fault in crossing if not _touches(fault, broken)]
        _tell(document, faults, index if stages else None)
        sound.append(stage)
    # Rules between stages read whole stages, and would only repeat the fault of one.
    if not document.problems:
        for index, stage in enumerate(sound):
            _tell(document, lineage_faults(stage, sound[:index]), index if stages else None)
    if not document.problems and not of_a_run:
        _tell_idle(document, sound)
    return top


def _tell_idle(document: ConfigDocument, stages: Sequence[StageConfig]) -> None:
    """Refuses each setting that was given and cannot act where it was given: one of the top may act
    in some stage alone. Where an override took what it acts with, it is told."""
    idle = [{fault.keys[0]: fault for fault in idle_faults(stage)} for stage in stages]
    trees = stage_trees(document.tree)

    def inherited(key: Key, index: int) -> bool:
        """Whether a stage has the top's value, or at least some of it."""
        own = value_at(document.tree, ("stages", index, *key))
        of_the_top = key in document.origins and value_at(trees[index], key) is not MISSING
        return of_the_top and (own is MISSING or isinstance(own, dict))

    for index, faults in enumerate(idle):
        for key, fault in faults.items():
            sharing = [n for n in range(len(stages)) if inherited(key, n)]
            if index in sharing and not all(key in idle[n] for n in sharing):
                continue
            origins = [_placed(document, one, index)[1] for one in fault.keys]
            if not origins[0].overrides and any(origin.overrides for origin in origins):
                origin, message = _told(document, fault, index)
                logger.warning("%s: %s", origin.text, message)
            else:
                _tell(document, [fault], index)


def _validate(model: type[Section], tree: dict[str, Any]) -> tuple[Any, list[Fault]]:
    """The model, made without the faulty values where possible so that other rules can be checked,
    and the faults.
    """
    faults: list[Fault] = []
    repaired = copy.deepcopy(tree)
    while True:
        try:
            return model.model_validate(repaired), faults
        except ValidationError as error:
            found = list(section_faults(error, model))
        broken = [key for fault in faults for key in fault.keys]
        fresh = [with_our_name(fault) for fault in found if not _touches(fault, broken)]
        # Some value cannot be left out, such as one that is required.
        if not fresh:
            return None, faults
        faults += fresh
        for fault in fresh:
            *outer, last = fault.keys[0]
            holder = value_at(repaired, outer)
            if isinstance(holder, dict):
                holder.pop(last, None)


def _touches(fault: Fault, broken: list[Key]) -> bool:
    """Whether a rule reads a value that is faulty itself: what it says would only confuse."""
    return any(
        key[: len(bad)] == bad or bad[: len(key)] == key
        for key in fault.keys
        for bad in broken
    )


def _tell(
    document: ConfigDocument, faults: Iterable[Fault], stage: int | None = None
) -> None:
    """Adds each fault at the place of the innermost written key that it is about."""
    for fault in faults:
        document.broken(*_told(document, fault, stage))


def _told(document: ConfigDocument, fault: Fault, stage: int | None) -> tuple[Origin, str]:
    """A fault's place and its words."""
    shown, origin = _placed(document, fault.keys[0], stage)
    return origin, with_keys(fault.message.replace("{key}", dotted(shown), 1))


def _placed(document: ConfigDocument, key: Key, stage: int | None) -> tuple[Key, Origin]:
    """A key as it was written, and the place of the innermost part of it that was."""
    length, written = next(
        (length, written)
        for length in range(len(key), -1, -1)
        for written in _written_as(key[:length], stage)
        if written in document.origins
    )
    shown = _with_stage_name(document, (*written, *key[length:]))
    return shown, document.origins[written]


def _written_as(key: Key, stage: int | None) -> Iterator[Key]:
    """The keys under which a value of a stage may have been written: in the stage, then at the
    top.
    """
    if stage is not None:
        if key == ("train", "steps"):
            yield ("stages", stage, "steps")
        if key == ("starts_from",):
            yield ("stages", stage, "from")
        yield ("stages", stage, *key)
    yield key


def _with_stage_name(document: ConfigDocument, key: Key) -> Key:
    if len(key) > 2 and key[0] == "stages" and isinstance(key[1], int):
        name = document.tree["stages"][key[1]].get("name")
        if isinstance(name, str) and key[2] != "name":
            return (key[0], name, *key[2:])
    return key
