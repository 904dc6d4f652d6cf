"""Published data sets: small samples of our own with the columns and types of the real files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from agentrl.training.models.tiny import build_tiny_model

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXTS = pa.list_(pa.string())

GSM8K = pa.schema([("question", pa.string()), ("answer", pa.string())])
MBPP = pa.schema(
    [
        ("task_id", pa.int32()),
        ("text", pa.string()),
        ("code", pa.string()),
        ("test_list", TEXTS),
        ("test_setup_code", pa.string()),
        ("challenge_test_list", TEXTS),
    ]
)
HOTPOTQA = pa.schema(
    [
        ("id", pa.string()),
        ("question", pa.string()),
        ("answer", pa.string()),
        ("type", pa.string()),
        ("level", pa.string()),
        (
            "supporting_facts",
            pa.struct([("title", TEXTS), ("sent_id", pa.list_(pa.int32()))]),
        ),
        ("context", pa.struct([("title", TEXTS), ("sentences", pa.list_(TEXTS))])),
    ]
)

PROBLEMS = [
    {
        "question": f"Ida packs {boxes} boxes of 150 pens and gives 4 away. How many are left?",
        "answer": f"She packs {boxes}*150 = <<{boxes}*150={boxes * 150}>>{boxes * 150} pens.\n"
        f"{boxes * 150} - 4 = <<{boxes * 150}-4={boxes * 150 - 4}>>{boxes * 150 - 4} are left.\n"
        f"#### {boxes * 150 - 4:,}",
    }
    for boxes in (3, 8, 12, 20)
]
PROGRAMS = [
    {
        "task_id": number,
        "text": f"Write a function to find the sum of a list, plus {number}.",
        "code": f"def total(numbers):\r\n    return sum(numbers) + {number}",
        "test_list": [
            f"assert total([1, 2]) == {3 + number}",
            f"assert total([]) == {number}",
        ],
        "test_setup_code": "",
        "challenge_test_list": [],
    }
    for number in (601, 602, 603, 604)
]
QUESTIONS = [
    {
        "id": f"5a7a0693554299{number:010d}",
        "question": f"In which town was the painter of Harbour {number} born?",
        "answer": f"Town {number}",
        "type": ("bridge", "comparison")[number % 2],
        "level": "medium",
        "supporting_facts": {
            "title": [f"Harbour {number}", f"Painter {number}"],
            "sent_id": [0, 0],
        },
        "context": {
            "title": [f"Harbour {number}", f"Painter {number}", "Oil paint"],
            "sentences": [
                [f"Harbour {number} is a picture by Painter {number}.", " It is small."],
                [f"Painter {number} was born in Town {number}."],
                ["Oil paint dries slowly."],
            ],
        },
    }
    for number in range(4)
]
SAMPLES: dict[str, tuple[pa.Schema, list[dict[str, Any]], tuple[str, str]]] = {
    "gsm8k": (GSM8K, PROBLEMS, ("train", "test")),
    "mbpp": (MBPP, PROGRAMS, ("train", "test")),
    "hotpotqa": (HOTPOTQA, QUESTIONS, ("train", "validation")),
}
"""Of each example with a ``prepare.py``: columns, rows, and the splits that are read."""


def prepared(example: str, folder: Path) -> Path:
    """A copy of the example whose ``prepare.py`` has run on the sample; its configuration."""
    schema, rows, splits = SAMPLES[example]
    source = folder / "published"
    source.mkdir(parents=True)
    for split, part in zip(splits, (rows[:3], rows[3:]), strict=True):
        table = pa.Table.from_pylist(part, schema=schema)
        pq.write_table(table, source / f"{split}-00000-of-00001.parquet")
    copy = folder / example
    shutil.copytree(EXAMPLES / example, copy, ignore=shutil.ignore_patterns("data"))
    subprocess.run(
        [sys.executable, str(copy / "prepare.py"), str(source)],
        check=True,
        env={**os.environ, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"},
    )
    return copy / "config.yaml"


def build_model(folder: Path, example: str) -> None:
    """A tiny model in a real one's place, whose tokenizer knows the sample's words."""
    build_tiny_model(
        folder,
        _demonstrations(example),
        num_demonstrations=len(SAMPLES[example][1]),
        vocab_size=400,
        hidden=32,
        layers=2,
        ff=64,
        max_tokens=6000,
    )


def _demonstrations(example: str) -> Iterator[dict[str, Any]]:
    for row in SAMPLES[example][1]:
        text = " ".join(str(value) for value in row.values())
        yield {"messages": [{"role": "user", "content": text}]}
