"""Export: writes a role's weights as an ordinary Hugging Face folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor

from agentrl.engines.torch.model.quiet import quiet_transformers
from agentrl.errors import StoreError
from agentrl.store import write_failure
from agentrl.training.fsdp.weights import persistent_buffers
from agentrl.training.models.packed_model import PackedModel
from agentrl.training.parallel.process_group import agree

_BESIDE_THE_WEIGHTS = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "chat_template*",
    "generation_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
)


def export_model(
    model: PackedModel, weights: Iterable[tuple[str, Tensor]], source: Path, folder: Path
) -> None:
    """Writes weights, configuration and the tokenizer of ``source``; every rank calls it, rank 0
    writes.

    Args:
        model: whose configuration and buffers are written.
        weights: whole tensors by the folder's names, from a collective.
        source: the folder that the model was loaded from.
        folder: created if missing; files of an earlier export are replaced.

    Raises:
        StoreError: the folder cannot be written, or is the source itself.
        TrainingError: weights are gathered.
    """
    if folder.resolve() == source.resolve():
        raise StoreError(
            f"{folder} is the folder that the model was loaded from; export into another"
        )
    first = dist.get_rank() == 0
    state = {}
    # Every rank runs the loop to its end, since each tensor is a collective.
    for name, tensor in weights:
        if first:
            state[name] = tensor.cpu()
    failed: StoreError | None = None
    if first:
        state |= persistent_buffers(model)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with quiet_transformers():
                hf: Any = model.hf
                # they have the folder's names already
                hf.save_pretrained(folder, state_dict=state, save_original_format=False)
            copy_beside_weights(source, folder)
        except (OSError, SafetensorError) as error:
            failed = write_failure(
                f"the model could not be exported to {folder}", folder, error
            )
            failed.__cause__ = error
    # The others wait here, and would wait for ever for a rank that has raised.
    agree(failed)


def copy_beside_weights(source: Path, folder: Path) -> None:
    """Copies the tokenizer and what else lies beside the weights and ``config.json``.

    Raises:
        OSError: it cannot be written.
    """
    for pattern in _BESIDE_THE_WEIGHTS:
        for path in source.glob(pattern):
            shutil.copy2(path, folder / path.name)
