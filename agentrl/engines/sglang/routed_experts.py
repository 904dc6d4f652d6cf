"""Routed experts: how SGLang tells which experts a request's tokens went through.

A server that is asked for them (``--enable-return-routed-experts``) sends int32 in base64: for each
token from ``routed_experts_start_len`` to the last but one, for each layer of the model, dense ones
included, the experts of the token.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.engines.base import EnginePlace
from agentrl.engines.weights import num_experts, read_config, tensor_shapes
from agentrl.types import Experts, RoutingShape

_EXPERT = re.compile(r"\.layers\.(\d+)\..*\bexperts\.")


@dataclass(frozen=True, slots=True)
class ServedExperts:
    """What a server tells of a mixture.

    Args:
        routing: of the model.
        layers: those with experts.
        num_layers: of the model.
    """

    routing: RoutingShape
    layers: tuple[int, ...]
    num_layers: int

    @classmethod
    def of(cls, place: EnginePlace) -> ServedExperts | None:
        """Of the model of a folder; None where nobody asks, or it has no experts."""
        if not place.routed_experts:
            return None
        config = read_config(place.model)
        config = config.get("text_config") or config
        experts = num_experts(config)
        if not experts:
            return None
        found = filter(None, map(_EXPERT.search, tensor_shapes(Path(place.model))))
        layers = tuple(sorted({int(one[1]) for one in found}))
        routing = RoutingShape(len(layers), experts, int(config["num_experts_per_tok"]))
        return cls(routing, layers, int(config["num_hidden_layers"]))

    def read(self, answer: Mapping[str, Any]) -> Experts | None:
        """``[n, L, k]`` of the ``meta_info`` of an answer; None where it tells none.

        Raises:
            ValueError: it is of another model.
        """
        text = answer.get("routed_experts")
        if text is None:
            return None
        numbers = np.frombuffer(base64.b64decode(text, validate=True), "<i4")
        rows = numbers.reshape(-1, self.num_layers, self.routing.top_k)[:, self.layers]
        low, high = int(rows.min(initial=0)), int(rows.max(initial=0))
        if low < 0 or high >= self.routing.experts:
            raise ValueError(f"experts {low} to {high} of a model of {self.routing}")
        found: Experts = rows.astype(self.routing.dtype)
        return found
