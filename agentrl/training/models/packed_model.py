"""Packed model: a Hugging Face trunk over a packed row, the base of every role's model.

Shapes: T packed tokens, D width, R rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import AutoConfig
from transformers.models.auto.auto_factory import _get_model_class

from agentrl.engines.torch.model.fixed_shapes import fix_shapes
from agentrl.engines.torch.model.folder_names import FolderNames
from agentrl.engines.torch.model.quiet import quiet_transformers
from agentrl.errors import AgentRLError, ConfigError, DataError
from agentrl.training.data.attention import BY_SPAN, FIXED
from agentrl.training.data.kernel_attention import (
    SHARING,
    AttentionName,
    attention_arguments,
    choose_attention,
)
from agentrl.training.data.packing import counted
from agentrl.training.data.prefix_tree import Span
from agentrl.training.models.computed_buffers import check_buffers, compute_buffers
from agentrl.training.models.folder_weights import FolderWeights, names_of, weight_files
from agentrl.training.models.lora import Lora
from agentrl.training.models.lora_spec import LoraSpec
from agentrl.training.models.mixture import Mixture, check_expert_parallel, use_mixtures
from agentrl.training.models.trunk import MLP_ROWS, Recompute, patch_rmsnorm, skip_mlp_rows
from agentrl.training.names import DType, torch_dtype
from agentrl.training.parallel.process_group import FULL, ExpertMesh, RankMesh, Sharding
from agentrl.training.parallel.sequence_parallel import (
    Ulysses,
    check_sequence_parallel,
    use_ulysses,
)
from agentrl.training.parallel.tensor_parallel import check_tensor_parallel, divide_model
from agentrl.training.vision.vision_tower import (
    VisionMode,
    VisionTower,
    class_and_attention,
)
from agentrl.types.batch import Media

logger = logging.getLogger(__name__)

I64 = npt.NDArray[np.int64]

CPU = torch.device("cpu")

Offload = Literal["none", "optimizer", "all"]
"""What waits in the host's memory while no method needs it."""


def column_dtype(dtype: torch.dtype) -> type[np.float32] | type[np.float64]:
    """Of what a role says of each token: float32, or float64 where the model is."""
    return np.float64 if dtype == torch.float64 else np.float32


def at_least_float32(tensor: Tensor) -> Tensor:
    """``tensor`` in float32, or as it is where it is float64."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a role's model is built from, in the process that hosts it; picklable.

    Args:
        model_path: a Hugging Face folder.
        dtype: of the forward and of what is published; parameters are at least float32, but for
            those that an adapter leaves as they are.
        attention: how a row attends; see ``choose_attention``.
        gradient_checkpointing: recompute layers in the backward; see ``trunk``.
        offload: what waits in the host's memory while no method needs it; see ``Residency``.
        head_dtype: of the output layer's products, beside a forward in bfloat16; None is ``dtype``.
        compile: compile layers, and round rows up to few lengths.
        router_aux_loss: the weight of the loss that evens out the loads of experts.
        deterministic: refuse kernels whose result depends on timing.
        backend: what holds and runs it; see ``find_backend``.
        sharding: how ``fsdp2`` holds it.
        lora: an adapter that is trained in place of the weights; None trains these.
        lora_seed: of the first factors of a new one.
        vision: whether the tower of a model that sees moves.
        run_folder: of the run, whose blobs are the images that batches name; None has none.
        reads_policy: whether its tokens are those of a policy with the same tokenizer, whose
            vocabulary may be padded further: an id that it has no row for has no text, and is read
            as its last one.
    """

    setting: ClassVar[str] = "ActorSpec.model_path"
    """The setting that names the folder, for errors."""
    model_path: str
    _: KW_ONLY
    dtype: DType = "float32"
    attention: AttentionName = "auto"
    gradient_checkpointing: Recompute = False
    compile: bool = False
    router_aux_loss: float = 0.0
    offload: Offload = "none"
    head_dtype: Literal["float32"] | None = None
    deterministic: bool = False
    backend: str = "fsdp2"
    sharding: Sharding = FULL
    lora: LoraSpec | None = None
    lora_seed: int = 0
    vision: VisionMode = "frozen"
    run_folder: str | None = None
    reads_policy: bool = False


class PackedModel(nn.Module):
    """The wrapper that a backend runs, and FSDP shards as its root; a role's subclass defines the
    output of ``forward``.

    Args:
        hf: the model, with attention ``attention``.
        attention: the name of its attention function.
        device: the device that the model will run on.

    Attributes:
        head_dtype: of the output layer's products; None is the forward's.
        skips_mlp_rows: whether the last MLP computes chosen rows alone (``trunk``); on a CPU
            only.
        sequence: the ranks that hold a row together; None for one.
        routing: of mixtures of experts; None for a model without, or of a family whose own forward
            is trained.
        names: of its parameters in its folder.
        weights: what ``fill`` reads; None for a model that has its weights.
        lora: its adapters; None without any.
        tower: what images go through; None for a model of text alone.
    """

    def __init__(self, hf: nn.Module, attention: str, device: torch.device) -> None:
        super().__init__()
        self.hf = hf
        self.sequence: dist.ProcessGroup | None = None
        self.weights: FolderWeights | None = None
        self.routing = use_mixtures(hf)
        self.lora: Lora | None = None
        self.tower: VisionTower | None = None
        self.names = FolderNames(hf)
        self.attention = attention
        self.head_dtype: torch.dtype | None = None
        # other attentions refuse arguments that they do not know
        self.skips_mlp_rows = device.type == "cpu" and attention in BY_SPAN
        if self.skips_mlp_rows:
            for block in self.blocks()[-1:]:
                skip_mlp_rows(block)

    def compile_scores(self) -> None:
        """Compiles what is computed of the head's output; most models compute nothing."""

    def attach_adapters(self) -> None:
        """Makes the adapters, between ``divide`` and whatever shards the model."""
        if self.lora is not None:
            self.lora.attach(self.hf)

    def fill(self, device: torch.device) -> None:
        """Reads the weights of a model that was built on ``meta``, of a sharded one this process's
        shards.

        Raises:
            DataError: the folder does not fit its configuration.
            ConfigError: a buffer has other values than a new model's.
        """
        if self.weights is None:
            return
        self.weights.fill(device)
        for module in self.hf.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = buffer.to(device)
        check_buffers(self.hf, self.weights.named)
        self.weights = None

    @property
    def config(self) -> Any:
        """The Hugging Face configuration."""
        return self.hf.config

    @property
    def head(self) -> nn.Module:
        """The output layer."""
        raise NotImplementedError

    def answers(self, hidden: Tensor) -> Tensor:
        """``[R, ...]`` what the head makes of ``[R, D]`` hidden states, in at least float32."""
        if self.head_dtype is None:
            return at_least_float32(self.head(hidden))
        head, dtype = self.head, self.head_dtype
        assert isinstance(head, nn.Linear), "Role has looked"
        bias = None if head.bias is None else head.bias.to(dtype)
        return linear(hidden.to(dtype), head.weight.to(dtype), bias)

    @property
    def trunk(self) -> Any:
        """What reads tokens: embedding, layers and the last norm."""
        return trunk_of(self.hf)

    @property
    def positions_of(self) -> Callable[[int, Media], I64]:
        """Counts the positions of a sample with images."""
        return counted if self.tower is None else self.tower.positions_of

    @property
    def shares_prefixes(self) -> bool:
        """Whether a row may hold the common prefix of several samples once."""
        return self.attention in SHARING

    def blocks(self) -> list[nn.Module]:
        """The repeated layers of the trunk, which FSDP gathers one at a time."""
        return self._repeated(self.trunk)

    def tower_blocks(self) -> list[nn.Module]:
        """The repeated layers of a tower that is trained."""
        tower = self.tower
        return [] if tower is None or not tower.is_trained else self._repeated(tower.module)

    def _repeated(self, within: nn.Module) -> list[nn.Module]:
        names = set(self.hf._no_split_modules or ())  # type: ignore[arg-type]
        return [module for module in within.modules() if type(module).__name__ in names]

    def input_modules(self) -> list[nn.Module]:
        """What FSDP gathers apart before the layers: the embedding, unless the head shares it."""
        embedding = self.hf.get_input_embeddings()  # type: ignore[operator]
        is_tied = getattr(self.head, "weight", None) is embedding.weight
        return [] if is_tied else [embedding]

    def output_modules(self) -> list[nn.Module]:
        """What FSDP gathers apart behind the layers."""
        return []

    def mixtures(self) -> list[Mixture]:
        """The mixtures of experts that ``routing`` is of."""
        return [module for module in self.hf.modules() if isinstance(module, Mixture)]

    def divide(self, mesh: RankMesh, experts: ExpertMesh | None = None) -> None:
        """Divides layers and rows over ranks.

        Args:
            mesh: the ranks; ``check_layout`` accepts it.
            experts: the ranks of mixtures; None where each layer's experts are with the layer.
        """
        if experts is not None:
            for mixture in self.mixtures():
                mixture.divide(experts, mesh.tensor)
        if mesh.tensor is not None:
            divide_model(self.hf, mesh.tensor)
        if mesh.sequence is not None:
            self.sequence = mesh.sequence
            use_ulysses(self.hf)

    def hidden(
        self,
        token_ids: Tensor,
        positions: Tensor,
        spans: Sequence[Span],
        rows: Tensor,
        host_rows: I64 | None = None,
        experts: Tensor | None = None,
        media: Media | None = None,
    ) -> Tensor:
        """``[R, D]`` last hidden states of a packed row.

        Args:
            token_ids: ``[T]`` int64, the row, or this rank's slice of it.
            positions: ``[P, T]`` int64: one plane, or three for a family that reads images (time,
                height, width). What a token sees follows from ``spans`` alone.
            spans: the whole row's.
            rows: ``[R]`` int64 positions in the row, at least one; some may be equal.
            host_rows: the same positions on the host, in any order and number; None reads ``rows``
                where the host asks for them, on a CPU.
            experts: ``[T, mixtures, K]`` the experts of each token, for ``Routing.begin``; of a
                model with ``routing`` alone.
            media: the row's images; of a model with a ``tower`` alone.
        """
        arguments = attention_arguments(self.attention, spans, token_ids.device)
        if self.routing is not None:
            self.routing.begin(experts)
        # On a CPU both are the host's, so that nothing waits for a copy.
        if self.skips_mlp_rows:
            places = rows.numpy() if host_rows is None else host_rows
            arguments[MLP_ROWS] = torch.from_numpy(np.unique(places))
        if self.sequence is not None:
            arguments["ulysses"] = Ulysses(self.sequence, self.attention)
        if self.tower is None:
            arguments["input_ids"] = token_ids[None]
        else:
            assert media is not None, "a row names its images"
            arguments |= self.tower.inputs(token_ids, media)
        output = self.trunk(
            # transformers has a batch in the place of a single plane
            position_ids=positions if len(positions) == 1 else positions[:, None],
            use_cache=False,
            **arguments,
        )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden.index_select(0, rows)


def open_pretrained(
    auto: Any,
    spec: ModelSpec,
    kind: str,
    device: torch.device,
    *,
    exact: bool = False,
    **config_values: object,
) -> tuple[nn.Module, FolderWeights | None, frozenset[str]]:
    """Builds the model of a Hugging Face folder on ``meta``, in at least float32, for packed rows;
    nothing in it is drawn.

    Weights that are no safetensors are read whole instead, by every process and with a warning.

    Args:
        auto: the transformers class of the required kind, such as ``AutoModelForCausalLM``.
        spec: the folder, and how its model runs.
        kind: the folder's required content, for errors.
        device: the device that the model will run on; ``patch_rmsnorm`` patches it for a CPU alone.
        exact: whether it computes in fixed shapes (``fixed_shapes``), as the engine does.
        config_values: entries of the model's configuration to set.

    Returns:
        The model, what fills it or None where it is filled, and the names of weights that the
        folder does not hold.

    Raises:
        DataError: the folder holds no loadable model of this kind, or a file of it is cut.
        ConfigError: the family cannot be trained packed.
    """
    attention = choose_attention(spec.attention, device, torch_dtype(spec.dtype))
    attention = FIXED if exact else attention
    folder = Path(spec.model_path)
    named = f"{spec.setting}={spec.model_path!r}"
    if not (folder / "config.json").is_file():
        raise DataError(f"{named} is no Hugging Face folder: it has no config.json")
    auto, kinds = class_and_attention(auto, folder, attention, spec.vision, named)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, **config_values)
        _check_family(auto, config, kind, named)
        with torch.device("meta"):
            hf: Any = auto.from_config(
                config, dtype=_kept_dtype(spec), attn_implementation=kinds
            )
        weights: FolderWeights | None = None
        if weight_files(folder):
            weights = FolderWeights(hf, folder, named)
            missing = weights.missing
            compute_buffers(hf)
        else:
            hf, missing = _read_whole(auto, spec, config, kinds, named)
            names_of(hf, named)
    except (
        AgentRLError,
        MemoryError,
        torch.AcceleratorError,
        torch.OutOfMemoryError,
        dist.DistError,
    ):
        # no fault of the folder's
        raise
    except Exception as error:
        # of transformers' and a family's own code, which check each configuration in their own way
        raise DataError(
            f"{named} could not be loaded as {kind} ({type(error).__name__}: {error}); copy or "
            "download the folder again, or choose another family"
        ) from error
    _adapt_layers(hf, device, exact=exact)
    # What is drawn in training, such as dropout or a router's noise, would part logprobs from the
    # sampler's, and a recomputed layer from itself.
    hf.eval()
    return hf, weights, missing


def _check_family(auto: Any, config: Any, kind: str, named: str) -> None:
    """Refuses a family by its class, before a model is built: some look their attention up in a
    table of their own.

    Raises:
        ConfigError: transformers has no model of this kind, or packed rows cannot attend in it.
    """
    mapping = auto._model_mapping
    if type(config) not in mapping:
        raise ConfigError(
            f"{named} must hold {kind}, and transformers has none of model_type="
            f"{config.model_type!r}; choose another family"
        )
    family = _get_model_class(config, mapping)
    if not getattr(family, "_supports_attention_backend", False):
        raise ConfigError(
            f"{named}: {family.__name__} doesn't use transformers' attention "
            f"interface, which packed rows need; choose another family"
        )


def check_layout(model_path: str, named: str, tp: int, sp: int, ep: int) -> None:
    """Refuses a layout that a model's layers or rows do not fit, before anything is loaded.

    Raises:
        ConfigError: as said.
    """
    if tp == sp == ep == 1 or not (Path(model_path) / "config.json").is_file():
        # ``open_pretrained`` refuses a folder without one.
        return
    config = AutoConfig.from_pretrained(model_path, local_files_only=True).get_text_config()
    check_expert_parallel(config, ep, named)
    check_tensor_parallel(config, tp, named)
    check_sequence_parallel(config, tp, sp, named)


def trunk_of(hf: Any) -> Any:
    """What of a transformers model reads tokens: embedding, layers and the last norm."""
    base = hf.base_model
    return getattr(base, "language_model", base)


def attention_of(hf: Any) -> str:
    """The name of the attention function that a loaded model calls."""
    return str(hf.config._attn_implementation)


def _adapt_layers(hf: nn.Module, device: torch.device, *, exact: bool) -> None:
    if exact:
        fix_shapes(hf)
    elif device.type == "cpu":
        patch_rmsnorm(hf)


def _kept_dtype(spec: ModelSpec) -> torch.dtype:
    """Of the parameters that a folder holds: at least float32 where an optimizer updates them."""
    dtype = torch_dtype(spec.dtype)
    return dtype if spec.lora is not None else torch.promote_types(dtype, torch.float32)


def _read_whole(
    auto: Any, spec: ModelSpec, config: Any, attention: Any, named: str
) -> tuple[nn.Module, frozenset[str]]:
    """The model with all its weights on the CPU."""
    with quiet_transformers():
        hf, found = auto.from_pretrained(
            spec.model_path,
            config=config,
            dtype=_kept_dtype(spec),
            attn_implementation=attention,
            local_files_only=True,
            output_loading_info=True,
        )
    for parameter in hf.parameters():
        # What maps a file cannot be freed by ``Residency``.
        parameter.data = parameter.data.clone()
    logger.warning(
        "%s: every rank reads the whole %s, whose files are no safetensors",
        named,
        type(hf).__name__,
        extra={"event": "model_read_whole", "family": type(hf).__name__},
    )
    return hf, frozenset(found["missing_keys"])
