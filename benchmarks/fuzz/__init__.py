"""Fuzz: hostile trajectories through the real loop, compared with independent records."""

from __future__ import annotations

from benchmarks.fuzz.account import Bookkeeper, mask_errors, token_mismatches
from benchmarks.fuzz.episodes import Outcome, fuzz
from benchmarks.fuzz.renderers import VARIANTS, Variant, Watched, built_variant
from benchmarks.fuzz.restated import INSIDE_A_TURN, forged_structure
from benchmarks.fuzz.talk import STOP, FuzzedEnv, FuzzedModel

__all__ = [
    "INSIDE_A_TURN",
    "STOP",
    "VARIANTS",
    "Bookkeeper",
    "FuzzedEnv",
    "FuzzedModel",
    "Outcome",
    "Variant",
    "Watched",
    "built_variant",
    "forged_structure",
    "fuzz",
    "mask_errors",
    "token_mismatches",
]
