"""Packed model: a Hugging Face trunk over a packed row, the base of every role's model.

Shapes: T packed tokens, D width, R rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.utils import logging as transformers_logging

from agentrl.errors import ConfigError, DataError
from agentrl.render import sees_images
from agentrl.training.data.attention import SEGMENTS, attention_arguments
from agentrl.training.data.prefix_tree import ROOT, Span
from agentrl.training.models.mlp_row_skip import MLP_ROWS, skip_mlp_rows
from agentrl.training.models.patch_rmsnorm import patch_rmsnorm
from agentrl.training.models.safetensors_check import check_safetensors

I64 = npt.NDArray[np.int64]

CPU = torch.device("cpu")
FIRST_ROW: I64 = np.zeros(1, dtype=np.int64)
"""The row of a filler."""

PREFIX = "hf."
"""The wrapper's prefix of every parameter's Hugging Face name."""

DType = Literal["float32", "bfloat16", "float64"]
"""The dtype of a forward pass, and of published weights; float64 is for comparisons."""

BackendName = Literal["fsdp2", "plain"]
"""How a model is held and run."""


def torch_dtype(name: DType) -> torch.dtype:
    """The dtype of that name."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def at_least_float32(tensor: Tensor) -> Tensor:
    """``tensor`` in float32, or as it is where it is float64."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a role's model is built from, in the process that hosts it; picklable.

    Args:
        model_path: a Hugging Face folder.
        dtype: of the forward and of what is published; parameters are at least float32.
        attention: ``segments`` anywhere, ``flash_attention_2`` on a GPU that has it.
        gradient_checkpointing: recompute layers in the backward.
        deterministic: refuse kernels whose result depends on timing.
        backend: ``fsdp2``, or ``plain`` for one process without FSDP.
    """

    setting: ClassVar[str] = "ActorSpec.model_path"
    """The setting that names the folder, for errors."""
    model_path: str
    _: KW_ONLY
    dtype: DType = "float32"
    attention: Literal["segments", "flash_attention_2"] = "segments"
    gradient_checkpointing: bool = False
    deterministic: bool = False
    backend: BackendName = "fsdp2"


class PackedModel(nn.Module):
    """The wrapper that a backend runs, and FSDP shards as its root; a role's subclass defines the
    output of ``forward``.

    Args:
        hf: the model, with attention ``attention``.
        attention: the name of its attention function.
        device: the device that the model will run on.

    Attributes:
        skips_mlp_rows: whether the last MLP computes chosen rows alone (``mlp_row_skip``); on a CPU
            only.
    """

    def __init__(self, hf: nn.Module, attention: str, device: torch.device) -> None:
        super().__init__()
        self.hf = hf
        self.attention = attention
        # other attentions refuse arguments that they do not know
        self.skips_mlp_rows = device.type == "cpu" and self.shares_prefixes
        if self.skips_mlp_rows:
            for block in self.blocks()[-1:]:
                skip_mlp_rows(block)

    @property
    def config(self) -> Any:
        """The Hugging Face configuration."""
        return self.hf.config

    @property
    def head(self) -> nn.Module:
        """The output layer."""
        raise NotImplementedError

    @property
    def shares_prefixes(self) -> bool:
        """Whether a row may hold the common prefix of several samples once."""
        return self.attention == SEGMENTS

    def blocks(self) -> list[nn.Module]:
        """The repeated layers, which FSDP gathers one at a time."""
        names = set(self.hf._no_split_modules or ())  # type: ignore[arg-type]
        return [module for module in self.hf.modules() if type(module).__name__ in names]

    def hidden(
        self,
        token_ids: Tensor,
        positions: Tensor,
        spans: Sequence[Span],
        rows: Tensor,
        host_rows: I64 | None = None,
    ) -> Tensor:
        """``[R, D]`` last hidden states of a packed row.

        Args:
            token_ids, positions: ``[T]`` int64, the row.
            spans: the row's spans.
            rows: ``[R]`` int64 positions in the row, at least one; some may be equal.
            host_rows: the same positions on the host, in any order and number; None reads ``rows``
                where the host asks for them, on a CPU.
        """
        arguments = attention_arguments(self.attention, spans, token_ids.device)
        if self.skips_mlp_rows:  # on a CPU, where both are the host's
            places = rows.numpy() if host_rows is None else host_rows
            arguments[MLP_ROWS] = torch.from_numpy(np.unique(places))
        output = self.hf.base_model(  # type: ignore[operator]
            input_ids=token_ids[None],
            position_ids=positions[None],
            use_cache=False,
            **arguments,
        )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden.index_select(0, rows)

    @torch.no_grad()
    def check(self, ids: Tensor, rows: Tensor, own: Callable[[Tensor], Tensor]) -> bool:
        """Whether trunk and head give the model's own answer on a short sequence.

        It is taken for granted with ``flash_attention_2``, which has no CPU kernel: the family's
        answer is the same.

        Args:
            ids: ``[4]`` int64.
            rows: ``[R]`` int64, the positions to compare.
            own: selects ``[R, ...]`` answers from the ``logits`` of the model's own output.
        """
        if self.attention == "flash_attention_2":
            return True
        spans = [Span(ROOT, 0, 4)]
        positions = torch.arange(4)
        answer = self.hf(
            input_ids=ids[None],
            position_ids=positions[None],
            use_cache=False,
            **attention_arguments(self.attention, spans, ids.device),
        ).logits
        found = self.head(self.hidden(ids, positions, spans, rows))
        return torch.allclose(own(answer), found, rtol=1e-4, atol=1e-4, equal_nan=True)


def load_pretrained(
    auto: Any, spec: ModelSpec, kind: str, device: torch.device, **config_values: object
) -> tuple[nn.Module, frozenset[str]]:
    """Loads a model from a Hugging Face folder on the CPU, in at least float32 and without dropout,
    for packed rows.

    Args:
        auto: the transformers class of the required kind, such as ``AutoModelForCausalLM``.
        spec: the folder, and how its model runs.
        kind: the folder's required content, for errors.
        device: the device that the model will run on; ``patch_rmsnorm`` patches it for a CPU alone.
        config_values: entries of the model's configuration to set.

    Returns:
        The model, and the names of weights that the folder does not hold.

    Raises:
        DataError: the folder holds no loadable model of this kind, or a file of it is cut.
        ConfigError: the family cannot be trained packed.
    """
    folder = Path(spec.model_path)
    named = f"{spec.setting}={spec.model_path!r}"
    if not (folder / "config.json").is_file():
        raise DataError(f"{named} is no Hugging Face folder: it has no config.json")
    if sees_images(folder):
        raise ConfigError(
            f"{named} sees images, and only models of text alone can be trained; "
            f"play it with `agentrl rollout` or `agentrl eval` on an engine that serves it, or "
            f"choose a model of text"
        )
    check_safetensors(folder, named)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, **config_values)
        for name in vars(config):
            if name.endswith(("dropout", "_pdrop")):
                setattr(config, name, 0.0)
        with no_progress_bars(), _no_load_report():  # what is missing is returned
            hf, found = auto.from_pretrained(
                folder,
                config=config,
                dtype=torch.promote_types(torch_dtype(spec.dtype), torch.float32),
                attn_implementation=spec.attention,
                local_files_only=True,
                output_loading_info=True,
            )
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{named} could not be loaded as {kind}: {error}") from error
    if not getattr(hf, "_supports_attention_backend", False):
        raise ConfigError(
            f"{named}: {type(hf).__name__} doesn't use transformers' attention "
            f"interface, which packed rows need; choose another family"
        )
    if spec.gradient_checkpointing:
        # transformers 5.x renamed it on the way to 6
        enable = (
            getattr(hf, "activation_checkpointing_enable", None) or hf.gradient_checkpointing_enable
        )
        enable({"use_reentrant": False})
    if device.type == "cpu":
        patch_rmsnorm(hf)
    hf.train()  # checkpointing is off in eval mode; there is no dropout to switch
    return hf, frozenset(found["missing_keys"])


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Hides transformers' progress bars, because the terminal belongs to the command line."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


@contextmanager
def _no_load_report() -> Iterator[None]:
    """Hides transformers' table of missing weights."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
