"""Makes the demo of ``agentrl view --demo``: a real run of ``examples/code`` with planted faults.

Run as ``python -m benchmarks.demo.make``; it trains for some minutes on a CPU, and replaces
``run.tar.zst`` and ``planted.json`` in ``agentrl/viewer/demo``. ``--run DIR`` takes a run that was
made with ``SETTINGS`` instead.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import asdict
from pathlib import Path

import zstandard
from tokenizers import Tokenizer

from agentrl.store import RunDirectory
from agentrl.viewer.demo import FOLDER, MAX_BYTES, PACK, PLANTED
from benchmarks.demo.faults import FAULTS
from benchmarks.demo.planted import PlantedFault
from benchmarks.demo.recorded_run import RecordedRun

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (
    "train.steps=16",
    "train.batch_prompts=6",
    "stages.warmup.steps=300",
    "stages.rl.eval.sets.code.num_tasks=12",
    "stages.rl.eval.sets.code_sharpened.num_tasks=12",
    "stages.rl.eval.sets.code_without_tool.num_tasks=12",
    "store.detail=full",
    "store.states=turn",
)


def main() -> None:
    """Trains, plants, packs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--run", type=Path, help="a run made with these settings; none: train one"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        source = arguments.run or train(work / "source")
        planted = plant(source, work / "demo")
        size = pack(work / "demo", planted)
    print(f"{PACK.relative_to(ROOT)}: {size:,} bytes, {len(planted)} faults")


def train(folder: Path) -> Path:
    """A run of the example in ``folder``."""
    command = [sys.executable, "-m", "agentrl", "train", "examples/code/config.yaml"]
    subprocess.run([*command, f"run.dir={folder}", *SETTINGS], cwd=ROOT, check=True)
    return folder


def plant(source: Path, target: Path) -> list[PlantedFault]:
    """A copy of the run with every fault of ``FAULTS``."""
    run = RunDirectory.open(source)
    recorded = RecordedRun.read(run, ROOT)
    tokenizer = Tokenizer.from_file(str(run.models_folder / "start" / "tokenizer.json"))
    planted = [fault(recorded, tokenizer) for fault in FAULTS]
    recorded.write(target)
    write_notes(target / "notes" / "demo.jsonl", planted, recorded.metrics[-1]["time"])
    return planted


def write_notes(path: Path, planted: list[PlantedFault], time: float) -> None:
    """A note on each trajectory that has a fault, as people leave them."""
    path.parent.mkdir()
    lines = []
    for fault in planted:
        if "id" not in fault.link:
            continue
        first, _, last = fault.link.get("tokens", "").partition("-")
        note = {
            "id": hashlib.sha256(fault.name.encode()).hexdigest()[:16],
            "trajectory": fault.link["id"],
            "turn": fault.link.get("turn"),
            "tokens": [int(first), int(last) + 1] if first else None,
            "labels": ["planted", re.sub(r"\W+", "-", fault.name)],
            "text": fault.text,
            "user": "demo",
            "time": time,
        }
        lines.append(json.dumps(note) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def pack(folder: Path, planted: list[PlantedFault]) -> int:
    """Writes the pack and the list of its faults; the pack's bytes.

    Equal runs give equal packs.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        files = (
            path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"
        )
        for path in sorted(files):
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size = path.stat().st_size
            entry.mtime = 0
            with path.open("rb") as file:
                archive.addfile(entry, file)
    packed = zstandard.ZstdCompressor(level=19).compress(buffer.getvalue())
    if len(packed) > MAX_BYTES:
        raise SystemExit(
            f"the pack must have at most {MAX_BYTES:,} bytes, got {len(packed):,}; take fewer steps"
        )
    FOLDER.mkdir(exist_ok=True)
    PACK.write_bytes(packed)
    listed = {
        "made_by": "python -m benchmarks.demo.make",
        "sha256": hashlib.sha256(packed).hexdigest(),
        "faults": [asdict(fault) for fault in planted],
    }
    PLANTED.write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    return len(packed)


if __name__ == "__main__":
    main()
