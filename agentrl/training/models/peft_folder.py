"""peft folder: an adapter on disk as peft 0.21 has it, read and written without peft.

``adapter_config.json`` says which layers have an adapter, ``adapter_model.safetensors`` holds the
factors. Beside them, in the file's header, stands the digest of the base that they were trained on.

Shapes: D inputs, O outputs, R rank, E experts of a stack.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from agentrl.engines.weights import read_config
from agentrl.errors import ConfigError, DataError, StoreError
from agentrl.types.user_code.values import shown

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
RECORD = "adapter.json"
"""What a checkpoint says of its adapter."""

_PREFIX = "base_model.model."
_DIGEST = "base_digest"
_EMPTY: tuple[object, ...] = (None, False, "none", "", 0, 0.0, [], {})
# What is not read here changes no number: where the adapter came from, how it was trained.
_READ = frozenset(
    {
        "r",
        "lora_alpha",
        "target_modules",
        "auto_mapping",
        "base_model_name_or_path",
        "task_type",
    }
    | {
        "inference_mode",
        "lora_dropout",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
    }
    | {"revision", "target_parameters"}
)
_ACCEPTED: Mapping[str, Sequence[object]] = {
    "peft_type": ["LORA"],
    # ways to draw first factors that leave the base as it is
    "init_lora_weights": [True, "gaussian", "orthogonal"],
    # what peft trains whole beside the adapter of a sequence classifier
    "modules_to_save": [["score"], ["classifier", "score"]],
}


@dataclass(frozen=True, slots=True)
class AdapterRecord:
    """Which adapters a model has.

    Args:
        rank: R.
        alpha: what is added counts ``alpha / rank`` times.
        layers: names of linear layers and the embedding, in the model's order.
        embedding: which of them is the embedding.
        whole: names of parameters that are trained whole, such as a critic's new head.
        base: the folder of the frozen model.
        base_digest: of its weights; see ``weights_digest``.
        stacks: names of parameters that stack the matrices of experts, each of which has factors of
            its own.
        transposed: whether those matrices are ``[D, O]``.
    """

    rank: int
    alpha: float
    layers: tuple[str, ...]
    embedding: str | None
    whole: tuple[str, ...]
    base: str
    base_digest: str
    stacks: tuple[str, ...] = ()
    transposed: bool = False

    @property
    def scale(self) -> float:
        """Of the factors' product."""
        return self.alpha / self.rank

    def factors(self) -> dict[str, tuple[str, str]]:
        """The names of A and B of each layer and stack, by that of the weight that their product is
        added to."""
        places = {f"{name}.weight": f"{name}.lora" for name in self.layers}
        for name in self.stacks:
            experts, _, kind = name.rpartition(".")
            places[name] = f"{experts}.lora.{kind}"
        return {weight: (f"{place}.A", f"{place}.B") for weight, place in places.items()}

    def is_transposed(self, weight: str) -> bool:
        """Whether a weight is ``[D, O]``."""
        return (
            self.transposed
            if weight in self.stacks
            else weight == f"{self.embedding}.weight"
        )

    def shapes(
        self, weight: str, size: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the whole A and B of a weight of that size: ``[R, D]`` and ``[O, R]``, of a stack
        ``[E, R, D]`` and ``[E, O, R]``."""
        *experts, outputs, inputs = size
        if self.is_transposed(weight):
            outputs, inputs = inputs, outputs
        return (*experts, self.rank, inputs), (*experts, outputs, self.rank)

    def trained(self) -> tuple[str, ...]:
        """The names of all that is trained."""
        return (*(name for pair in self.factors().values() for name in pair), *self.whole)


def write_record(record: AdapterRecord, folder: Path) -> None:
    """Writes what a checkpoint says of its adapter."""
    (folder / RECORD).write_text(json.dumps(asdict(record), indent=1), encoding="utf-8")


def read_record(folder: Path) -> AdapterRecord | None:
    """What a checkpoint says of its adapter; None for one of a whole model.

    Raises:
        StoreError: it cannot be read.
    """
    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        lists = {
            name: tuple(value) for name, value in found.items() if isinstance(value, list)
        }
        return AdapterRecord(**(found | lists))
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"{path} cannot be read ({error}); use the agentrl that wrote it"
        ) from error


def check_goes_on(
    checkpoint: Path, written: AdapterRecord | None, own: AdapterRecord | None
) -> None:
    """Refuses a checkpoint that holds something else than what is trained.

    Args:
        checkpoint: its folder.
        written: what it says of its adapter.
        own: of the model that shall go on from it.

    Raises:
        StoreError: as said.
    """
    if written is None and own is None:
        return
    if written is None or own is None:
        holds, trained = (
            "a whole model" if one is None else f"an adapter of rank {one.rank}"
            for one in (written, own)
        )
        raise StoreError(
            f"{checkpoint} holds {holds}, and {trained} is trained; set LoraSpec.rank as in the "
            "run that wrote it, or begin a new run from what `agentrl export model` writes of it "
            "(with --merge where it is an adapter)"
        )
    # The base may lie elsewhere by now.
    for name in ("rank", "alpha", "layers", "stacks", "whole", "base_digest"):
        one, other = getattr(written, name), getattr(own, name)
        if one != other:
            raise StoreError(
                f"{checkpoint} holds another adapter: its {name} is {shown(one, 80)}, and "
                f"{shown(other, 80)} is trained on {own.base}; set LoraSpec and "
                "ActorSpec.model_path as in the run that wrote it"
            )


def check_unquantised(folder: Path, named: str) -> None:
    """Refuses a base whose numbers are quantised: what an adapter adds could not be added to them.

    Raises:
        ConfigError: as said.
    """
    if found := read_config(folder).get("quantization_config"):
        raise ConfigError(
            f"{named} is quantised ({found.get('quant_method')}), and an adapter is merged into "
            "weights in float32 or bfloat16, which engines and exports are given; name the model "
            "that it was made of"
        )


def write_peft(
    record: AdapterRecord, tensors: Mapping[str, Tensor], folder: Path
) -> tuple[int, Mapping[str, object]]:
    """Writes an adapter's tensors as peft does.

    Args:
        record: of it.
        tensors: whole, by the names of ``trained``.
        folder: that exists.

    Returns:
        Their bytes, and the values of peft's configuration.
    """
    made = {
        own: as_peft(tensors[name], name).contiguous()
        for name, own in peft_names(record).items()
    }
    save_file(
        made, folder / WEIGHTS, metadata={"format": "pt", _DIGEST: record.base_digest}
    )
    heads = sorted({name.rpartition(".")[0] for name in record.whole})
    values: dict[str, object] = {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS" if heads else "CAUSAL_LM",
        "base_model_name_or_path": record.base,
        "r": record.rank,
        "lora_alpha": record.alpha,
        "target_modules": list(record.layers) or None,
        "target_parameters": list(record.stacks) or None,
        "modules_to_save": heads or None,
    }
    return sum(tensor.nbytes for tensor in made.values()), values


def peft_names(record: AdapterRecord) -> dict[str, str]:
    """What each trained tensor is called by peft."""
    found = {name: f"{_PREFIX}{name}" for name in record.whole}
    for layer in record.layers:
        for side in "AB":
            own = (
                f"lora_embedding_{side}"
                if layer == record.embedding
                else f"lora_{side}.weight"
            )
            found[f"{layer}.lora.{side}"] = f"{_PREFIX}{layer}.{own}"
    # Each parameter of a module has a wrapper of its own, around that of the one before.
    depths: Counter[str] = Counter()
    for name, factors in reversed(record.factors().items()):
        if name in record.stacks:
            experts = name.rpartition(".")[0]
            wrapped = ".base_layer" * depths[experts]
            depths[experts] += 1
            for side, factor in zip("AB", factors, strict=True):
                found[factor] = f"{_PREFIX}{experts}{wrapped}.lora_{side}.weight"
    return found


def as_peft(tensor: Tensor, name: str) -> Tensor:
    """A trained tensor in peft's form: of a stack's factors ``[E · R, D]`` and ``[O, R · E]``."""
    if tensor.ndim < 3:
        return tensor
    return (
        tensor.flatten(0, 1) if name.endswith(".A") else tensor.permute(1, 2, 0).flatten(1)
    )


def _from_peft(tensor: Tensor, name: str, shape: Sequence[int]) -> Tensor:
    """What ``as_peft`` was given, of that shape."""
    if len(shape) < 3 or name.endswith(".A"):
        return tensor.reshape(*shape)
    experts, outputs, rank = shape
    return tensor.reshape(outputs, rank, experts).permute(2, 0, 1)


Targets: TypeAlias = re.Pattern[str] | Collection[str]
"""As peft's: a pattern of whole names, or names, whole or their last parts."""


def is_target(name: str, targets: Targets) -> bool:
    """Whether targets choose a layer."""
    if isinstance(targets, re.Pattern):
        return targets.fullmatch(name) is not None
    return any(f".{name}".endswith(f".{one}") for one in targets)


def read_peft_config(
    folder: Path, named: str
) -> tuple[int, float, Targets, tuple[str, ...]]:
    """The rank, alpha, targets and targeted parameters of an adapter.

    Args:
        folder: of peft's format.
        named: the setting that names it, for errors.

    Raises:
        DataError: there is none, or it asks for what agentrl does not compute.
    """
    try:
        values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        targets = values["target_modules"] or ()
        if isinstance(targets, str):
            targets = re.compile(targets)
        stacks = tuple(values.get("target_parameters") or ())
        found = int(values["r"]), float(values["lora_alpha"]), targets, stacks
    except (OSError, ValueError, KeyError, TypeError, re.error) as error:
        raise DataError(
            f"{named} must be a folder that peft wrote, and its {CONFIG} cannot be read: {error!r}"
        ) from error
    for name, value in values.items():
        if name not in _READ and value not in (*_EMPTY, *_ACCEPTED.get(name, ())):
            raise DataError(
                f"{named}: {CONFIG} says {name}={value!r}, which agentrl does not compute (it "
                "reads LoRA as peft 0.21 writes it; this is of peft "
                f"{values.get('peft_version', 'unknown')}); merge it by peft's merge_and_unload, "
                "and name the merged model"
            )
    return found


def read_peft(
    record: AdapterRecord,
    folder: Path,
    named: str,
    shapes: Mapping[str, Sequence[int]],
) -> dict[str, Tensor]:
    """The tensors of an adapter, by the names of ``trained``.

    Args:
        record: of it, on the base that shall be trained.
        folder: of peft's format.
        named: the setting that names it, for errors.
        shapes: of the tensors.

    Raises:
        DataError: a tensor is missing, too much, or has the shape of another base; or the adapter
            was trained on other weights.
    """
    try:
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            digest = (file.metadata() or {}).get(_DIGEST)
            stored = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise DataError(f"{named}: {WEIGHTS} cannot be read: {error}") from error
    remedy = "set ActorSpec.model_path to the base of the adapter"
    if digest is not None and digest != record.base_digest:
        raise DataError(
            f"{named} was trained on other weights (digest {digest[:12]}) than {record.base} holds "
            f"({record.base_digest[:12]}); {remedy}"
        )
    wanted = {own: name for name, own in peft_names(record).items()}
    # peft saves the base's embedding too where it has an adapter.
    stored.pop(f"{_PREFIX}{record.embedding}.base_layer.weight", None)
    for key in sorted(wanted.keys() ^ stored.keys()):
        what = (
            "lacks"
            if key in wanted
            else "holds, for no layer that can have an adapter here,"
        )
        raise DataError(f"{named} {what} {key!r}; save the adapter again, or {remedy}")
    for key, name in wanted.items():
        expected = as_peft(torch.empty(*shapes[name], device="meta"), name).shape
        if stored[key].shape != expected:
            raise DataError(
                f"{named} is of another base: {key} has shape {list(stored[key].shape)}, and the "
                f"layer of {record.base} takes {list(expected)}; {remedy}"
            )
    return {
        name: _from_peft(stored[key], name, shapes[name]) for key, name in wanted.items()
    }
