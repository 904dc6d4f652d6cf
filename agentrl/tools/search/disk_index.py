"""Disk index: BM25 over the documents of a file or folder, built once and read through memory maps.

- The folder's name is a hash of the corpus's contents and the index's settings: another corpus, or
  other settings, make another index.
- One process builds, in a folder beside it that takes its place when it is whole; others wait.
- Scores are those of bm25s; what is kept in memory are the pages that searches touch.

What holds the documents:

- A ``.jsonl`` or ``.parquet`` file, or a folder that ``datasets.save_to_disk`` wrote.
- A row has a ``text``, and maybe a ``title`` and an ``id``; or ``contents``, whose first line is
  the title, as in Search-R1's corpora.
- A row that is none is named with file and line.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.errors import DataError
from agentrl.store.disk import locked, os_refusals, replacing_folder, write_json
from agentrl.tools.search.retriever import (
    K1,
    METHOD,
    WORD_RULE,
    B,
    Document,
    WordIndex,
    new_index,
    numbered,
)
from agentrl.types.arrays import I64
from agentrl.types.user_code.values import shown

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
            except ValueError as error:
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
        document = Document.of(row, number)
        if document is not None:
            return document
    raise DataError(
        f"{path}:{number} must be an object with a 'text', and maybe a 'title' and an 'id', or "
        f"with 'contents', got {shown(row, 100)}"
    )


logger = logging.getLogger(__name__)

# Of this process: where a lock file lies on another machine, it may exclude other processes alone.
_threads = threading.Lock()

_FORMAT = 1
_DONE = "index.json"


class DiskIndex(WordIndex):
    """A corpus's index: opened where it was built, and built where it was not.

    Args:
        corpus: a ``.jsonl`` or ``.parquet`` file, or a folder of ``datasets.save_to_disk``.
        folder: where indices lie, each in a folder of its own; by default the user's cache.

    Raises:
        DataError: the corpus cannot be read, has no document, no word, or two documents of one id.
        StoreError: the folder cannot be written.
    """

    def __init__(self, corpus: Path, folder: Path | None = None) -> None:
        self.corpus = corpus.absolute()
        home = folder or cache_folder()
        name = _name(_known_hash(self.corpus, home))
        self.folder = home / name
        if not (self.folder / _DONE).is_file():
            with _threads, locked(home / f".{name}.lock"):
                # Another process built it meanwhile.
                if not (self.folder / _DONE).is_file():
                    _build(self.corpus, self.folder)
        self._open()

    def __len__(self) -> int:
        return self._num_documents

    def __reduce__(self) -> tuple[Any, ...]:
        return DiskIndex, (self.corpus, self.folder.parent)

    def _opened(self) -> tuple[Any, Callable[[str], int | None], Callable[[int], Document]]:
        return self._bm25, self._vocabulary.find, self._document

    def _open(self) -> None:
        # Here, because only what searches needs it.
        from bm25s import BM25

        self._num_documents: int = json.loads((self.folder / _DONE).read_text())[
            "documents"
        ]
        self._bm25 = BM25.load(
            self.folder, mmap=True, load_vocab=False, show_progress=False
        )
        self._vocabulary = _Strings(self.folder, "words")
        self._documents = _Strings(self.folder, "documents")

    def _document(self, position: int) -> Document:
        return Document(*json.loads(self._documents[position]))


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/agentrl/search``."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "agentrl" / "search"


class _Strings:
    """Texts behind each other in a mapped file, by position.

    Args:
        folder: of the index.
        name: of its two files.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._ends: I64 = np.load(folder / f"{name}.ends.npy", mmap_mode="r")
        with (folder / f"{name}.bin").open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, position: int) -> bytes:
        """The text at a position, UTF-8."""
        start = int(self._ends[position - 1]) if position else 0
        return self._bytes[start : int(self._ends[position])]

    def find(self, word: str) -> int | None:
        """The position of a word among sorted ones; None where it is none of them."""
        # JSON can hold half a surrogate pair, which plain UTF-8 refuses.
        wanted = word.encode(errors="surrogatepass")
        position = bisect_left(self, wanted)
        return position if position < len(self) and self[position] == wanted else None


class _StringsWriter:
    """Writes what ``_Strings`` reads."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._file = (folder / f"{name}.bin").open("wb")
        self._ends = array("q")

    def add(self, text: bytes) -> None:
        """Appends a text."""
        self._file.write(text)
        self._ends.append(self._file.tell())

    def close(self) -> None:
        """Writes where the texts end."""
        self._file.close()
        np.save(
            self._folder / f"{self._name}.ends.npy", np.frombuffer(self._ends, np.int64)
        )


def _build(corpus: Path, folder: Path) -> None:
    start = time.monotonic()
    with os_refusals(f"{folder} cannot be written"), replacing_folder(folder) as part:
        vocabulary: dict[str, int] = {}
        texts = _StringsWriter(part, "documents")
        ids: set[str] = set()
        tokens = []
        for document in read_corpus(corpus):
            if document.id in ids:
                raise DataError(
                    f"{corpus}: documents need different ids, got {document.id!r} twice"
                )
            ids.add(document.id)
            texts.add(
                json.dumps(document, ensure_ascii=False).encode(errors="surrogatepass")
            )
            tokens.append(array("i", numbered(document, vocabulary)))
        num_documents = len(ids)
        del ids
        if not vocabulary:
            what = "word" if num_documents else "document"
            raise DataError(f"{corpus}: a search index needs at least one {what}, got none")
        texts.close()
        _sort(vocabulary, tokens, part)
        numbers = {number: number for number in range(len(vocabulary))}
        # The words lie sorted in a file of their own.
        del vocabulary
        index = new_index()
        index.index((tokens, numbers), show_progress=False, create_empty_token=False)
        index.vocab_dict = {}
        index.save(part, show_progress=False)
        write_json(part / _DONE, {"format": _FORMAT, "documents": num_documents})
    logger.info(
        "indexed %d documents of %s in %.1f s",
        num_documents,
        corpus,
        time.monotonic() - start,
        extra={
            "event": "search_index_built",
            "documents": num_documents,
            "path": str(folder),
        },
    )


def _sort(vocabulary: dict[str, int], tokens: list[array[int]], folder: Path) -> None:
    """Numbers the words in the order of their bytes, by which ``_Strings.find`` looks them up."""
    encoded = sorted(
        (word.encode(errors="surrogatepass"), old) for word, old in vocabulary.items()
    )
    writer = _StringsWriter(folder, "words")
    renumbered = np.empty(len(encoded), np.int32)
    for new, (spelled, old) in enumerate(encoded):
        writer.add(spelled)
        renumbered[old] = new
    writer.close()
    for position, own in enumerate(tokens):
        tokens[position] = array("i", renumbered[np.frombuffer(own, np.int32)].tobytes())


def _name(corpus: str) -> str:
    settings = [_FORMAT, METHOD, K1, B, WORD_RULE, corpus]
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:32]


def _known_hash(corpus: Path, home: Path) -> str:
    """The hash of the corpus's contents, which is read again only where a file's size or time
    changed.
    """
    stamp = [
        [str(file), found.st_size, found.st_mtime_ns, found.st_ino]
        for file in corpus_files(corpus)
        for found in (file.stat(),)
    ]
    key = hashlib.sha256(json.dumps(stamp).encode()).hexdigest()[:32]
    note = home / "hashes" / f"{key}.json"
    if note.is_file():
        return str(json.loads(note.read_text())["sha256"])
    found = contents_hash(corpus)
    write_json(note, {"corpus": str(corpus), "sha256": found})
    return found
