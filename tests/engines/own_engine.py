"""An engine that is no part of agentrl: a section of its own, and TorchEngine's tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from agentrl.engines import (
    EnginePlace,
    EngineSpec,
    EngineTraits,
    HostedEngine,
    WeightSender,
)
from agentrl.engines.torch import TorchEngine
from agentrl.types.section import Count


class OwnEngine(TorchEngine):
    """Writes what happens to it into its folder."""

    def __init__(self, place: EnginePlace, spec: OwnEngineSpec) -> None:
        super().__init__(place)
        self._log = Path(place.folder) / "own.log"
        self._wrong_version = spec.wrong_version
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._note(f"built {spec.greeting} {spec.repeats}")

    def begin_update(self, version: int) -> Any:
        self._note(f"update {version}")
        return super().begin_update(version)

    def score(self, token_ids: Sequence[int]) -> Mapping[str, npt.NDArray[np.float32]]:
        own = super().score(token_ids)["torch"]
        wrong = self.info().policy_version == self._wrong_version
        return {"own server": own - 1 if wrong else own}

    def close(self) -> None:
        if self.health().state != "closed":
            self._note("closed")
        super().close()

    def _note(self, text: str) -> None:
        with self._log.open("a") as file:
            file.write(f"{text}\n")


class OwnEngineSpec(EngineSpec):
    """Settings of the test's engine."""

    section: ClassVar[str] = "own"

    greeting: str
    """Written when the engine is built."""
    repeats: Count = 1
    """Written beside it."""

    wrong_version: int | None = None
    """Under this version its scores are those of other weights."""

    def traits(self) -> EngineTraits:
        return EngineTraits(deterministic=True)

    def build(self, place: EnginePlace, sender: WeightSender | None = None) -> HostedEngine:
        return OwnEngine(place, self)


def own_engine() -> type[OwnEngineSpec]:
    """The same by a function."""
    return OwnEngineSpec
