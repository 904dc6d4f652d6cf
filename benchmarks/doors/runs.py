"""Runs of the doors: a warm-up that all share, and stages of RL from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["SAMPLES_A_STEP", "column", "train", "warm_up"]

CONFIG = Path(__file__).resolve().parent / "config.yaml"
SAMPLES_A_STEP = 8
"""``train.batch_prompts`` times ``rollout.group_size``."""


def warm_up(folder: Path) -> Path:
    """The model that every run starts from, made where it is missing."""
    launch(folder, ("stages.rl.steps=1",))
    return folder / "models" / "warmup"


def train(folder: Path, model: Path, settings: Sequence[str]) -> None:
    """One stage of RL from ``model``, unless it is finished; an interrupted one goes on."""
    launch(folder, (f"model.path={model}", "model.build=null", *settings))


def launch(folder: Path, settings: Sequence[str]) -> None:
    """``agentrl train`` of the configuration, with ``settings`` changed, into ``folder``."""
    if (folder / "summary.json").is_file():
        return
    resume = ["--resume"] if (folder / "run.json").is_file() else []
    command = [sys.executable, "-m", "agentrl", "train", str(CONFIG), f"run.dir={folder}"]
    print(f"--- {folder.name}: {' '.join(settings)}", flush=True)
    subprocess.run(
        [*command, *settings, *resume],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def column(folder: Path, metric: str) -> npt.NDArray[np.float64]:
    """``[steps]`` values of a metric in the stage of RL.

    Raises:
        ValueError: a step lacks it.
    """
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [row for row in map(json.loads, lines) if row.get("stage") == "rl"]
    missing = [row["step"] for row in steps if metric not in row]
    if missing or not steps:
        raise ValueError(
            f"{folder.name} must have {metric} in each step, it lacks {missing}"
        )
    return np.array([row[metric] for row in steps])
