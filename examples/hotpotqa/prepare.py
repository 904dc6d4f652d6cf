"""HotpotQA: writes questions and a corpus: ``python prepare.py [SOURCE] [--out FOLDER]``.

``SOURCE`` is the name of the data set on the hub, or a folder with its files.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset


def main() -> None:
    """Write ``train.parquet``, ``validation.parquet`` and ``corpus.jsonl``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", nargs="?", default="hotpotqa/hotpot_qa")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "data")
    arguments = parser.parse_args()
    config = None if Path(arguments.source).is_dir() else "distractor"
    arguments.out.mkdir(parents=True, exist_ok=True)
    paragraphs: dict[str, str] = {}
    for split in ("train", "validation"):
        rows = load_dataset(arguments.source, config, split=split)
        tasks = [task_of(row) for row in rows]
        for row in rows:
            paragraphs.update(paragraphs_of(row))
        Dataset.from_list(tasks).to_parquet(arguments.out / f"{split}.parquet")
        print(f"{arguments.out / split}.parquet: {len(tasks)} tasks")
    with (arguments.out / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for title, text in paragraphs.items():
            file.write(json.dumps({"title": title, "text": text}) + "\n")
    print(f"{arguments.out / 'corpus.jsonl'}: {len(paragraphs)} paragraphs")


def task_of(row: Any) -> dict[str, str]:
    """The task of a published row; accuracies are told by its type, bridge or comparison."""
    return {
        "id": row["id"],
        "question": row["question"],
        "answer": row["answer"],
        "data_source": row["type"],
        "level": row["level"],
        "solution": f"Answer: {row['answer']}",  # for agentrl check; the policy never sees it
    }


def paragraphs_of(row: Any) -> Iterator[tuple[str, str]]:
    """The row's ten paragraphs by title: two that answer the question, eight that do not."""
    context = row["context"]
    for title, sentences in zip(context["title"], context["sentences"], strict=True):
        yield title, "".join(sentences).strip()


if __name__ == "__main__":
    main()
