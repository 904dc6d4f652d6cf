"""Computed buffers: what a model's constructor computes and no file holds, such as rotary
frequencies.

A model that is built on ``meta`` has none of their values, and one that runs with wrong ones gives
wrong numbers without a word.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.errors import ConfigError

_NEVER = 123456789.0
"""No frequency, position or mask."""


@torch.no_grad()
def compute_buffers(hf: nn.Module) -> None:
    """Gives the buffers that no file holds their values on the CPU, by transformers' own
    initialisation; parameters stay as they are.

    Args:
        hf: a transformers model on ``meta``.
    """
    model: Any = hf
    for module, name, buffer in _computed(hf):
        # By this value ``check_buffers`` finds a buffer that transformers leaves uninitialised.
        module._buffers[name] = torch.full(buffer.shape, _NEVER, dtype=torch.float64).to(
            buffer.dtype
        )
    for tensor in (*model.parameters(), *model.buffers()):
        # transformers initialises what lacks the flag: the buffers above, and nothing on ``meta``.
        tensor._is_hf_initialized = tensor.is_meta
    model.initialize_weights()


@torch.no_grad()
def check_buffers(hf: nn.Module, named: str) -> None:
    """Compares the buffers that no file holds with those of rebuilt modules, where a module is
    built from a configuration alone.

    Args:
        hf: filled, on any device.
        named: the setting that names its folder, for errors.

    Raises:
        ConfigError: one differs, or was never computed.
    """
    fresh: dict[nn.Module, nn.Module | None] = {}
    for module, name, buffer in _computed(hf):
        if module not in fresh:
            fresh[module] = _rebuilt(module)
        rebuilt = fresh[module]
        found = buffer.cpu()
        same = not bool((found == torch.tensor(_NEVER).to(found.dtype)).any())
        if rebuilt is not None:
            expected = rebuilt._buffers[name]
            same = expected is not None and torch.equal(found, expected)
        if not same:
            raise ConfigError(
                f"{named}: the buffer {name!r} of {type(module).__name__} is not what a new "
                f"{type(module).__name__} has, so the model would give wrong numbers; choose "
                "another family"
            )


def _computed(hf: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    for module in hf.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name in module._non_persistent_buffers_set:
                yield module, name, buffer


def _rebuilt(module: nn.Module) -> nn.Module | None:
    config = getattr(module, "config", None)
    needed = [
        name
        for name, parameter in inspect.signature(type(module)).parameters.items()
        if parameter.default is inspect.Parameter.empty
    ]
    if config is None or needed != ["config"] or any(True for _ in module.parameters()):
        return None
    built: nn.Module = type(module)(config=config)
    return built
