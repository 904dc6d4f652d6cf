"""Run tokenizer: finds the tokenizer that a run keeps of a stage, or says that there is none."""

from __future__ import annotations

import re
from pathlib import Path

from agentrl.errors import DataError
from agentrl.guards.parsing import mapping
from agentrl.store import RunDirectory
from agentrl.viewer.pieces import TokenPieces, load_pieces


def tokenizer_file(run: RunDirectory, stage: str) -> Path | None:
    """The ``tokenizer.json`` that a run keeps of a stage, or else of its newest; None where it
    keeps none.
    """
    kept = mapping(run.read_record().get("tokenizers"))
    for name in (stage, *reversed(list(kept))):
        sha256 = mapping(kept.get(name)).get("tokenizer.json")
        if isinstance(sha256, str) and re.fullmatch("[0-9a-f]{64}", sha256):
            path = run.blobs_folder / sha256
            if path.is_file():
                return path
    return None


def stage_pieces(run: RunDirectory, stage: str) -> TokenPieces:
    """The pieces of a stage's tokenizer.

    Args:
        run: the run.
        stage: whose; any of the run's where this one has none of its own.

    Raises:
        DataError: the run keeps none, or what it keeps is none.
    """
    path = tokenizer_file(run, stage)
    if path is None:
        raise DataError(
            "the run keeps no tokenizer in blobs/, so ids are shown; training keeps that of a "
            "model with a tokenizer.json"
        )
    return load_pieces(path)
