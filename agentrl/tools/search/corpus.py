"""Corpus: the documents of a file or folder, read one by one.

- A ``.jsonl`` or ``.parquet`` file, or a folder that ``datasets.save_to_disk`` wrote.
- A row has a ``text``, and maybe a ``title`` and an ``id``; or ``contents``, whose first line is
  the title, as in Search-R1's corpora.
- A row that is none is named with file and line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import DataError
from agentrl.tools.search.retriever import Document

_BLOCK = 1 << 20


def read_corpus(path: Path) -> Iterator[Document]:
    """The documents in order; one without an id gets the number of its line or row, from 1.

    Raises:
        DataError: it cannot be read, or a line is no document; it is named.
    """
    for number, row in _rows(path):
        yield _document(row, number, path)


def corpus_files(path: Path) -> list[Path]:
    """The files that hold a corpus.

    Raises:
        DataError: there is no such corpus.
    """
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.is_file())
        if any(file.name == "dataset_dict.json" for file in found):
            raise DataError(
                f"documents={str(path)!r} holds several splits; name one of them: {path}/SPLIT"
            )
        if not any(file.suffix == ".arrow" for file in found):
            raise DataError(
                f"documents={str(path)!r} is a folder without a data set; name one of "
                "datasets.save_to_disk, or a .jsonl or .parquet file"
            )
        return found
    if path.suffix not in (".jsonl", ".parquet"):
        raise DataError(
            f"documents={str(path)!r} must be a .jsonl or .parquet file, or a folder of "
            "datasets.save_to_disk"
        )
    if not path.is_file():
        raise DataError(
            f"documents={str(path)!r} does not exist; name a file, from the configuration's "
            "folder on"
        )
    return [path]


def contents_hash(path: Path) -> str:
    """SHA-256 over the names and bytes of a corpus's files, 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for file in corpus_files(path):
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as opened:
            while block := opened.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    corpus_files(path)
    if path.is_dir():
        from datasets import load_from_disk

        yield from enumerate(load_from_disk(str(path)), start=1)
    elif path.suffix == ".parquet":
        yield from _parquet(path)
    else:
        yield from _jsonl(path)


def _jsonl(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                yield number, json.loads(line.decode())
            except UnicodeDecodeError as error:
                raise DataError(f"{path}:{number} is not UTF-8: {error}") from None
            except json.JSONDecodeError as error:
                raise DataError(f"{path}:{number} is not JSON: {error}") from None


def _parquet(path: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        for batch in pq.ParquetFile(path).iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from None


def _document(row: Any, number: int, path: Path) -> Document:
    if isinstance(row, Mapping):
        title, text = row.get("title"), row.get("text")
        contents = row.get("contents")
        if text is None and isinstance(contents, str):
            first, _, text = contents.partition("\n")
            title = first.strip().strip('"') if title is None else title
        if isinstance(text, str):
            own = row.get("id")
            title = "" if title is None else str(title)
            return Document(str(number if own is None else own), title, text)
    raise DataError(
        f"{path}:{number} must be an object with a 'text', and maybe a 'title' and an 'id', or "
        f"with 'contents', got {row!r:.100}"
    )
