"""peft folder: an adapter on disk as peft 0.21 has it, read and written without peft.

``adapter_config.json`` says which layers have an adapter, ``adapter_model.safetensors`` holds the
factors. Beside them, in the file's header, stands the digest of the base that they were trained on.

Shapes: D inputs, O outputs, R rank, E experts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from agentrl.engines.weights import read_config
from agentrl.errors import ConfigError, DataError, StoreError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
RECORD = "adapter.json"
"""What a checkpoint says of its adapter."""

_FORMAT = "peft 0.21"
_PREFIX = "base_model.model."
_EMBEDDING = ".base_layer.weight"
_DIGEST = "base_digest"
_EMPTY: tuple[object, ...] = (None, False, "none", "", 0, 0.0, [], {})
_HEADS = frozenset({"score", "classifier"})
"""What peft trains whole beside the adapter of a sequence classifier."""
_READ = frozenset(
    {"peft_type", "r", "lora_alpha", "target_modules", "target_parameters", "modules_to_save"}
)
# They change no number of an adapter that is trained on: where it came from, how it was trained.
_HARMLESS = frozenset(
    {"auto_mapping", "base_model_name_or_path", "inference_mode", "lora_dropout", "megatron_core"}
    | {"peft_version", "qalora_group_size", "revision", "task_type"}
)
_PLAIN_STARTS = (True, False, "gaussian", "orthogonal")
"""Ways to draw first factors that leave the base as it is."""


@dataclass(frozen=True, slots=True)
class AdapterRecord:
    """Which adapters a model has.

    Args:
        rank: R.
        alpha: what is added counts ``alpha / rank`` times.
        layers: names of linear layers and embeddings, in the model's order.
        embeddings: those of them that are embeddings.
        stacks: names of experts' stacks.
        whole: names of parameters that are trained whole, such as a critic's new head.
        base: the folder of the frozen model.
        base_digest: of its weights; see ``weights_digest``.
    """

    rank: int
    alpha: float
    layers: tuple[str, ...]
    embeddings: tuple[str, ...]
    stacks: tuple[str, ...]
    whole: tuple[str, ...]
    base: str
    base_digest: str

    @property
    def scale(self) -> float:
        """Of the factors' product."""
        return self.alpha / self.rank

    def factors(self) -> dict[str, tuple[str, str]]:
        """The names of A and B of each adapter, by the weight that their product is added to."""
        found = {f"{name}.weight": f"{name}.lora" for name in self.layers}
        for name in self.stacks:
            owner, _, last = name.rpartition(".")
            found[name] = f"{owner}.lora_{last}"
        return {weight: (f"{own}.A", f"{own}.B") for weight, own in found.items()}

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
        lists = {name: tuple(value) for name, value in found.items() if isinstance(value, list)}
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
    if written is None and own is not None:
        raise StoreError(
            f"{checkpoint} holds a whole model, and an adapter of rank {own.rank} is trained; "
            "leave LoraSpec.rank and LoraSpec.path out to go on, or begin a new run from what "
            "`agentrl export model` writes of it"
        )
    if written is not None and own is None:
        raise StoreError(
            f"{checkpoint} holds an adapter of rank {written.rank} alone, and a whole model is "
            "trained; set LoraSpec.rank as in the run that wrote it, or begin a new run from what "
            "`agentrl export model --merge` writes of it"
        )
    if written is None or own is None:
        return
    for name in ("rank", "alpha", "layers", "stacks", "whole"):
        one, other = getattr(written, name), getattr(own, name)
        setting = name if name in ("rank", "alpha") else "targets"
        if one != other:
            raise StoreError(
                f"{checkpoint} holds another adapter: its {name} is {_short(one)}, and "
                f"{_short(other)} is trained; set LoraSpec.{setting} as in the run that wrote it"
            )
    if written.base_digest != own.base_digest:
        raise StoreError(
            f"{checkpoint} holds an adapter of the base {written.base} (digest "
            f"{written.base_digest[:12]}), and {own.base} holds other weights (digest "
            f"{own.base_digest[:12]}); set ActorSpec.model_path to that base"
        )


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def check_unquantised(folder: Path, named: str) -> None:
    """Refuses a base whose numbers are quantised: what an adapter adds could not be added to them.

    Raises:
        ConfigError: as said.
    """
    found = read_config(folder).get("quantization_config")
    if found:
        method = found.get("quant_method", "unknown") if isinstance(found, Mapping) else found
        raise ConfigError(
            f"{named} is quantised ({method}), and an adapter is merged into weights in float32 or "
            "bfloat16, which engines and exports are given; name the model that it was made of"
        )


def write_peft(record: AdapterRecord, tensors: Mapping[str, Tensor], folder: Path) -> int:
    """Writes an adapter as peft does.

    Args:
        record: of it.
        tensors: whole, by the names of ``trained``.
        folder: that exists.

    Returns:
        Bytes of the tensors.
    """
    made = {}
    for name, own in _peft_names(record).items():
        tensor = tensors[name]
        if tensor.ndim == 3 and name.endswith(".A"):
            tensor = tensor.flatten(0, 1)
        elif tensor.ndim == 3:
            tensor = tensor.permute(1, 2, 0).flatten(1)
        made[own] = tensor.contiguous()
    meta = {"format": "pt", _DIGEST: record.base_digest}
    save_file(made, folder / WEIGHTS, metadata=meta)
    heads = sorted({name.rpartition(".")[0] for name in record.whole})
    values = {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS" if heads else "CAUSAL_LM",
        "base_model_name_or_path": record.base,
        "r": record.rank,
        "lora_alpha": record.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(record.layers),
        "target_parameters": list(record.stacks) or None,
        "modules_to_save": heads or None,
        "inference_mode": True,
    }
    (folder / CONFIG).write_text(json.dumps(values, indent=2), encoding="utf-8")
    return sum(tensor.nbytes for tensor in made.values())


def _peft_names(record: AdapterRecord) -> dict[str, str]:
    """What each trained tensor is called by peft."""
    found = {name: f"{_PREFIX}{name}" for name in record.whole}
    for name in record.layers:
        for side in "AB":
            own = f"lora_embedding_{side}" if name in record.embeddings else f"lora_{side}.weight"
            found[f"{name}.lora.{side}"] = f"{_PREFIX}{name}.{own}"
    # peft wraps a module once for each of its stacks, the first one innermost.
    for number, name in enumerate(record.stacks):
        owner, _, last = name.rpartition(".")
        later = sum(one.startswith(f"{owner}.") for one in record.stacks[number + 1 :])
        for side in "AB":
            inner = "base_layer." * later
            found[f"{owner}.lora_{last}.{side}"] = f"{_PREFIX}{owner}.{inner}lora_{side}.weight"
    return found


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """What ``adapter_config.json`` says of an adapter.

    Args:
        rank, alpha: as of ``AdapterRecord``.
        targets: names of layers, whole or their last parts, or a pattern of whole names.
        stacks: names of experts' stacks, whole or their last parts.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...] | str
    stacks: tuple[str, ...]

    def chosen(self, known: Collection[str]) -> list[str]:
        """Those of the names that have an adapter."""
        wanted = (*self.stacks, *(() if isinstance(self.targets, str) else self.targets))
        pattern = self.targets if isinstance(self.targets, str) else None
        return [
            name
            for name in known
            if is_named(name, wanted) or (pattern and re.fullmatch(pattern, name))
        ]


def is_named(name: str, targets: Collection[str]) -> bool:
    """Whether one of the targets is a layer's name, or its last parts."""
    return any(name == one or name.endswith(f".{one}") for one in targets)


def read_peft_config(folder: Path, named: str, *, heads: bool) -> PeftConfig:
    """What an adapter's configuration says.

    Args:
        folder: of peft's format.
        named: the setting that names it, for errors.
        heads: whether the model has a head that is trained whole.

    Raises:
        DataError: there is none, or it asks for what agentrl does not compute.
    """
    try:
        values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        rank, alpha = int(values["r"]), float(values["lora_alpha"])
    except FileNotFoundError:
        raise DataError(f"{named} holds no {CONFIG}, so it is no folder of peft's") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{named}: {CONFIG} cannot be read: {error!r}") from error
    saved = set(values.get("modules_to_save") or ())
    odd = {
        name: value
        for name, value in values.items()
        if name not in _READ | _HARMLESS and value not in _EMPTY
    }
    if odd.get("init_lora_weights") in _PLAIN_STARTS:
        del odd["init_lora_weights"]
    if values.get("peft_type") != "LORA":
        odd["peft_type"] = values.get("peft_type")
    if saved - (_HEADS if heads else set()):
        odd["modules_to_save"] = sorted(saved)
    if odd:
        name, value = next(iter(odd.items()))
        raise DataError(
            f"{named}: {CONFIG} says {name}={value!r}, which agentrl does not compute (it reads "
            f"LoRA as {_FORMAT} writes it; this is of peft {values.get('peft_version', 'unknown')})"
            "; merge it by peft's merge_and_unload, and name the merged model"
        )
    targets = values.get("target_modules") or ()
    stacks = tuple(values.get("target_parameters") or ())
    return PeftConfig(
        rank, alpha, targets if isinstance(targets, str) else tuple(sorted(targets)), stacks
    )


def read_peft(
    record: AdapterRecord,
    folder: Path,
    named: str,
    shapes: Mapping[str, tuple[int, ...]],
    base: Callable[[str], Tensor],
) -> dict[str, Tensor]:
    """The tensors of an adapter, by the names of ``trained``.

    Args:
        record: of it, on the base that shall be trained.
        folder: of peft's format.
        named: the setting that names it, for errors.
        shapes: of the tensors.
        base: gives a weight of the base by its name.

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
    if digest is not None and digest != record.base_digest:
        raise DataError(
            f"{named} was trained on other weights (digest {digest[:12]}) than {record.base} holds "
            f"({record.base_digest[:12]}); set ActorSpec.model_path to the base of the adapter"
        )
    # peft saves embeddings that have an adapter too.
    for key in [key for key in stored if key.endswith(_EMBEDDING)]:
        saved, own = stored.pop(key), base(key.removeprefix(_PREFIX).replace(_EMBEDDING, ".weight"))
        if not torch.equal(saved.to(own.dtype), own):
            raise DataError(f"{named} is of another base: {key} is not that of {record.base}")
    wanted = {own: name for name, own in _peft_names(record).items()}
    for key in sorted(wanted.keys() ^ stored.keys()):
        what = "lacks" if key in wanted else "holds, for no layer that its configuration names,"
        raise DataError(f"{named} {what} {key!r}; save the adapter again")
    found = {}
    for key, name in wanted.items():
        tensor, shape = stored[key], shapes[name]
        flat = tuple(tensor.shape)
        if len(shape) == 3:
            tensor = _stacked(tensor, shape, name)
        if tuple(tensor.shape) != shape:
            raise DataError(
                f"{named} is of another base: {key} has shape {list(flat)}, and the layer of "
                f"{record.base} takes {list(shape)}; set ActorSpec.model_path to the base of the "
                "adapter"
            )
        found[name] = tensor
    return found


def _stacked(tensor: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    """peft's matrix of all experts' factors as a stack; as it is where it is of another size."""
    if tensor.numel() != shape[0] * shape[1] * shape[2]:
        return tensor
    if name.endswith(".A"):
        return tensor.view(shape[0], -1, tensor.shape[-1])
    return tensor.view(tensor.shape[0], -1, shape[0]).permute(2, 0, 1)
