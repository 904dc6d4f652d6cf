"""Search over a corpus on disk: formats, faults with their line, the index that is built once, and
the same answers as in memory.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import DataError
from agentrl.tools import DiskIndex, Hit, Retriever, SearchIndex
from agentrl.tools.search.search_tool import load_index
from tests.kit.waiting import DEADLINE_S

ROWS = [
    {"id": "a", "title": "Ada", "text": "The mother of Ada is Eve."},
    {"id": "e", "title": "Eve", "text": "The mother of Eve is Ida."},
    {"text": "Nothing to see, naïve façade 東京."},
    {"id": 7, "contents": '"Rome"\nThe city of Eve.'},
]


def jsonl(path: Path, rows: Sequence[Mapping[str, Any]] = ROWS) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def found(index: Retriever, query: str, top_k: int = 4) -> list[tuple[str, str]]:
    return [
        (hit.document.id, hit.document.title)
        for hit in index.search_many([query], top_k)[0]
    ]


def as_jsonl(folder: Path) -> Path:
    return jsonl(folder / "corpus.jsonl")


def as_parquet(folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"id": None, "title": None, "text": None, "contents": None, **row} for row in ROWS
    ]
    columns = {
        name: [None if row[name] is None else str(row[name]) for row in rows]
        for name in rows[0]
    }
    pq.write_table(pa.table(columns), folder / "corpus.parquet")
    return folder / "corpus.parquet"


def as_dataset(folder: Path) -> Path:
    from datasets import Dataset

    Dataset.from_parquet(
        str(as_parquet(folder)), cache_dir=str(folder / "hf")
    ).save_to_disk(folder / "set")
    return folder / "set"


@pytest.mark.parametrize("write", [as_jsonl, as_parquet, as_dataset])
def test_each_form_of_a_corpus_is_searched_alike(write: Any, tmp_path: Path) -> None:
    index = DiskIndex(write(tmp_path), tmp_path / "index")
    assert len(index) == 4
    assert found(index, "mother eve", 1) == [("e", "Eve")]
    assert found(index, "CITY") == [("7", "Rome")]
    assert found(index, "NAÏVE 東京") == [("3", "")]
    assert found(index, "unheard ?!") == found(index, "") == []


def test_answers_are_those_in_memory(tmp_path: Path) -> None:
    rng = random.Random(0)
    names = [f"w{n}" for n in range(300)]
    texts = [" ".join(rng.choices(names, k=rng.randrange(3, 30))) for _ in range(500)]
    rows = [{"id": str(n), "title": "", "text": text} for n, text in enumerate(texts)]
    memory = SearchIndex([(str(n), "", text) for n, text in enumerate(texts)])
    disk = DiskIndex(jsonl(tmp_path / "c.jsonl", rows), tmp_path / "index")
    for _ in range(50):
        query = " ".join(rng.choices([*names, "unheard"], k=4))
        here: list[Hit] = memory.search(query, 10)
        there = disk.search(query, 10)
        assert there == here


def test_the_index_is_built_once_and_again_for_other_contents(tmp_path: Path) -> None:
    corpus = as_jsonl(tmp_path)
    first = DiskIndex(corpus, tmp_path / "index").folder
    built = (first / "data.csc.index.npy").stat().st_mtime_ns
    copy = jsonl(tmp_path / "corpus2.jsonl")
    copy.rename(corpus)  # the same contents in another file
    assert DiskIndex(corpus, tmp_path / "index").folder == first
    assert (first / "data.csc.index.npy").stat().st_mtime_ns == built
    jsonl(corpus, [*ROWS, {"text": "one more"}])
    again = DiskIndex(corpus, tmp_path / "index")
    assert again.folder != first
    assert len(again) == 5


BUILD = """
import logging, sys
from pathlib import Path
logging.basicConfig(level="INFO", format="%(message)s")
from agentrl.tools import DiskIndex
print(len(DiskIndex(Path(sys.argv[1]), Path(sys.argv[2]))))
"""


def test_of_several_processes_one_builds_and_the_others_wait(tmp_path: Path) -> None:
    corpus = as_jsonl(tmp_path)
    command = [sys.executable, "-c", BUILD, str(corpus), str(tmp_path / "index")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(2)
    ]
    ended = [process.communicate(timeout=DEADLINE_S) for process in started]
    assert [out for out, _ in ended] == ["4\n", "4\n"], ended
    assert sum(err.count("indexed 4 documents") for _, err in ended) == 1


def test_a_build_is_logged_and_an_opening_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    corpus = as_jsonl(tmp_path)
    for _ in range(2):
        DiskIndex(corpus, tmp_path / "index")
    events = [getattr(record, "event", "") for record in caplog.records]
    assert events.count("search_index_built") == 1


def test_an_index_pickles_as_its_place(tmp_path: Path) -> None:
    index = DiskIndex(as_jsonl(tmp_path), tmp_path / "index")
    assert found(pickle.loads(pickle.dumps(index)), "city") == [("7", "Rome")]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"text": "x"', r"c\.jsonl:3 is not JSON"),
        (b'{"title": "x"}', r"c\.jsonl:3 must be an object with a 'text'"),
        (b'["text"]', r"c\.jsonl:3 must be an object"),
        (b'{"text": "\xff"}', r"c\.jsonl:3 is not UTF-8"),
        (b'{"id": "1", "text": "again"}', "different ids, got '1' twice"),
    ],
)
def test_a_line_that_is_no_document_is_named_with_file_and_line(
    tmp_path: Path, line: bytes, told: str
) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_bytes(b'{"text": "fine"}\n\n' + line + b"\n")
    with pytest.raises(DataError, match=told):
        DiskIndex(corpus, tmp_path / "index")
    assert not list((tmp_path / "index").glob("*/index.json"))  # nothing half built is left


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("none.jsonl", None, "does not exist; name a file"),
        ("c.txt", "x", "must be a .jsonl or .parquet file, or a folder"),
        ("c.jsonl", "", "needs at least one document, got none"),
        ("c.jsonl", '{"text": "?!"}', "needs at least one word, got none"),
        ("c.parquet", "no parquet", "cannot be read as Parquet"),
    ],
)
def test_what_is_no_corpus_is_named(
    tmp_path: Path, name: str, text: str | None, told: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=told):
        DiskIndex(tmp_path / name, tmp_path / "index")


def test_a_folder_of_several_splits_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "dataset_dict.json").write_text("{}")
    with pytest.raises(
        DataError, match=r"holds several splits; name one of them: .*/set/SPLIT"
    ):
        DiskIndex(tmp_path / "set", tmp_path / "index")


DENSE = '''
from agentrl.tools import Document, Hit


class Dense:
    """Finds the document whose length is nearest: a retriever without words."""

    def search_many(self, queries, top_k):
        documents = [Document(str(n), "", "x" * n) for n in range(9)]
        return [
            [Hit(d, -abs(len(q) - len(d.text))) for d in
             sorted(documents, key=lambda d: abs(len(q) - len(d.text)))[:top_k]]
            for q in queries
        ]


dense = Dense()
documents = [("1", "Ada", "x")]
'''


def test_a_retriever_of_ones_own_is_named_by_reference(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(DENSE)
    dense = load_index("own.py:dense", str(tmp_path))
    assert found(dense, "abcd", 2)[0] == ("4", "")
    assert isinstance(load_index("own.py:documents", str(tmp_path)), SearchIndex)
