"""What was planted into the demo's run, with the page that shows each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.viewer.demo import PLANTED


@dataclass(frozen=True, slots=True)
class PlantedFault:
    """One thing to find; its link is ``page`` and the page's parameters."""

    name: str
    text: str
    link: Mapping[str, Any]


def planted_faults() -> list[PlantedFault]:
    """All, in the order of a tour."""
    listed = json.loads(PLANTED.read_text(encoding="utf-8"))
    return [PlantedFault(**fault) for fault in listed["faults"]]
