"""Wide model: the code example's model at 4.7 million parameters."""

from __future__ import annotations

from agentrl.training.models.tiny import build_tiny_model
from agentrl.types import load_object
from benchmarks.figures import ROOT

__all__ = ["build_model"]


def build_model(folder: str, seed: int = 0, noise: float = 0.75) -> None:
    """``model.build``: as the example's, only wider."""
    rows = load_object("warmup.py:demonstrations", ROOT / "examples" / "code")(seed, noise)
    widths = {
        "hidden": 320,
        "layers": 4,
        "heads": 8,
        "kv_heads": 4,
        "head_dim": 40,
        "ff": 896,
    }
    build_tiny_model(folder, rows, seed=seed, vocab_size=480, **widths)
