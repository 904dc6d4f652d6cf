"""MBPP: writes the data set's problems as tasks: ``python prepare.py [SOURCE] [--out FOLDER]``.

``SOURCE`` is the name of the data set on the hub, or a folder with its files.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset


def main() -> None:
    """Write ``train.parquet`` and ``test.parquet``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", nargs="?", default="google-research-datasets/mbpp")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "data")
    arguments = parser.parse_args()
    config = None if Path(arguments.source).is_dir() else "full"
    arguments.out.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        tasks = list(tasks_of(load_dataset(arguments.source, config, split=split)))
        Dataset.from_list(tasks).to_parquet(arguments.out / f"{split}.parquet")
        print(f"{arguments.out / split}.parquet: {len(tasks)} tasks")


def tasks_of(rows: Any) -> Iterator[dict[str, Any]]:
    """The tasks of published rows: ``task_id``, ``text``, ``code``, ``test_list``,
    ``test_setup_code``. The first test shows name and arguments, as in the paper's prompts
    (arXiv:2108.07732); the reward runs all.
    """
    for row in rows:
        yield {
            "id": f"mbpp-{row['task_id']}",
            "question": f"{row['text']}\nYour code must pass: {row['test_list'][0]}",
            "tests": row["test_list"],
            "test_setup": row["test_setup_code"],
            "data_source": "mbpp",
            "solution": f"```python\n{row['code']}\n```",  # for agentrl check
        }


if __name__ == "__main__":
    main()
