"""Plain backend: a whole model in one process, without FSDP, and with its numbers.

Where the forward is bfloat16, it computes with rounded copies of the float32 parameters. They take
the parameters' place from a forward pass to the end of its backward pass, which recomputes with
them; gradients come back in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn

from agentrl.training.backends.packed_backend import PackedBackend
from agentrl.training.parallel.process_group import DistSpec


class PlainBackend(PackedBackend):
    """``train.backend: plain``.

    Raises:
        ConfigError: there are several ranks.
    """

    name: ClassVar[str] = "plain"

    def _prepare(self, place: DistSpec) -> None:
        self.model.attach_adapters()
        self.model.fill(torch.device(place.device))
        self._owners: list[tuple[nn.Module, str, nn.Parameter]] = [
            (module, name, parameter)
            for module in self.model.modules()
            for name, parameter in module._parameters.items()
            if parameter is not None and parameter.dtype != self.dtype
        ]

    @contextmanager
    def _micro_batch(self, *, is_last: bool) -> Iterator[None]:
        # There is no ``finally``: after a pass that raised, the copies stay, and ``state`` refuses
        # to give them out as weights.
        self._gather()
        yield
        self._release()

    @contextmanager
    def _inference(self) -> Iterator[None]:
        with torch.no_grad():
            self._gather()
            yield
            self._release()

    def _gather(self) -> None:
        """Puts copies in the forward's dtype in the parameters' place; tied ones share theirs."""
        copies: dict[int, Tensor] = {}
        for module, name, parameter in self._owners:
            if id(parameter) not in copies:
                # Autograd sees the cast, and brings the gradient back in the parameter's dtype.
                copies[id(parameter)] = parameter.to(self.dtype)
            module._parameters[name] = copies[id(parameter)]  # type: ignore[assignment]

    def _release(self) -> None:
        for module, name, parameter in self._owners:
            module._parameters[name] = parameter
