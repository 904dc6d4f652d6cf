"""GSM8K: writes the data set's problems as tasks: ``python prepare.py [SOURCE] [--out FOLDER]``.

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
    parser.add_argument("source", nargs="?", default="openai/gsm8k")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "data")
    arguments = parser.parse_args()
    config = None if Path(arguments.source).is_dir() else "main"
    arguments.out.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        tasks = list(tasks_of(load_dataset(arguments.source, config, split=split), split))
        Dataset.from_list(tasks).to_parquet(arguments.out / f"{split}.parquet")
        print(f"{arguments.out / split}.parquet: {len(tasks)} tasks")


def tasks_of(rows: Any, split: str) -> Iterator[dict[str, str]]:
    """The tasks of published rows: ``question``, and ``answer`` that ends in ``#### 1,234``."""
    for index, row in enumerate(rows):
        _, mark, number = row["answer"].rpartition("####")
        if not mark:
            raise ValueError(
                f"{split} row {index}: answer must end in '#### NUMBER', got {row}"
            )
        answer = number.strip().replace(",", "")
        yield {
            "id": f"{split}-{index}",
            "question": row["question"],
            "answer": answer,
            "data_source": "gsm8k",
            "solution": f"Answer: {answer}",  # for agentrl check; the policy never sees it
        }


if __name__ == "__main__":
    main()
