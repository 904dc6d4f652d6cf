"""Run tokenizer: finds the tokenizer of a run's stage, or says why there is none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import DataError
from agentrl.guards.bounded_json import mapping
from agentrl.store import RunDirectory
from agentrl.viewer.pieces import TokenPieces, load_pieces

_HUB_NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_NAME = "tokenizer.json"


def stage_pieces(run: RunDirectory, config: Mapping[str, Any], stage: str) -> TokenPieces:
    """The pieces of a stage's tokenizer.

    Args:
        run: the run.
        config: its ``config.resolved.yaml``.
        stage: whose; any of the run's where this one has none of its own.

    Raises:
        DataError: there is none here; the message says why.
    """
    for path, sha256 in _candidates(run, config, stage):
        if path.is_file():
            return load_pieces(path, sha256)
    wanted = mapping(config.get("model")).get("path") or "the model that model.build made"
    raise DataError(
        f"the run keeps no tokenizer, and {wanted} is not on this machine: ids are shown; a run of "
        "this agentrl keeps its tokenizer in blobs/"
    )


def _candidates(
    run: RunDirectory, config: Mapping[str, Any], stage: str
) -> Iterator[tuple[Path, str]]:
    """Places of a ``tokenizer.json`` with its hash where that is known, the best first."""
    kept = mapping(run.read_record().get("tokenizers"))
    for name in (stage, *sorted(kept)):
        sha256 = mapping(kept.get(name)).get(_NAME)
        if isinstance(sha256, str) and re.fullmatch("[0-9a-f]{64}", sha256):
            yield run.blobs_folder / sha256, sha256
    made = run.models_folder.glob(f"*/{_NAME}")
    for path in sorted(made, key=lambda path: path.stat().st_mtime, reverse=True):
        yield path, ""
    setting = mapping(config.get("model")).get("path")
    if isinstance(setting, str):
        base = Path(mapping(config.get("run")).get("base_dir") or run.root)
        yield base / Path(setting).expanduser() / _NAME, ""
        if (cached := _cached(setting)) is not None:
            yield cached, ""


def _cached(setting: str) -> Path | None:
    """The file of a model of the hub that this machine holds already; nothing is downloaded."""
    named = _HUB_NAME.fullmatch(setting)
    if named is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(named["repo"], _NAME, revision=named["revision"])
    return Path(found) if isinstance(found, str) else None
