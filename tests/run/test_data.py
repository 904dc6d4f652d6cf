"""A reference in the configuration becomes tasks, or rows to imitate."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import ConfigError, DataError
from agentrl.run.data.datasets import DataSet, rows_hash
from agentrl.types import Task

ROWS = [
    {
        "id": "a",
        "messages": [{"role": "user", "content": "1 + 1?"}],
        "answer": "2",
        "level": 3,
    },
    {
        "id": "b",
        "messages": [{"role": "user", "content": "2 + 2?"}],
        "answer": "4",
        "level": 5,
    },
]
VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "1 + 1?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"split": "train", "index": 7},
}

Load = Callable[..., list[Task]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def loaded(
        reference: str, args: dict[str, Any] | None = None, **more: Any
    ) -> list[Task]:
        return DataSet(
            reference, args or {}, **{"base_dir": tmp_path, "seed": 5} | more
        ).tasks()

    return loaded


def write_jsonl(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_parquet(path: Path, rows: list[Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), path)


def write_folder(path: Path, rows: list[Any]) -> None:
    from datasets import Dataset

    Dataset.from_list(rows).save_to_disk(str(path))


@pytest.mark.parametrize(
    ("name", "write"),
    [("t.jsonl", write_jsonl), ("t.parquet", write_parquet), ("folder", write_folder)],
)
def test_files_of_our_columns(
    load: Load, tmp_path: Path, name: str, write: Callable[[Path, list[Any]], None]
) -> None:
    write(tmp_path / name, ROWS)
    tasks = load(name)
    assert [
        (task.id, task.answer, task.messages, task.info["level"]) for task in tasks
    ] == [
        ("a", "2", ({"role": "user", "content": "1 + 1?"},), 3),
        ("b", "4", ({"role": "user", "content": "2 + 2?"},), 5),
    ]
    assert {task.data_source for task in tasks} == {"default"}


@pytest.mark.parametrize(
    ("name", "write"), [("t.jsonl", write_jsonl), ("t.parquet", write_parquet)]
)
def test_files_of_verls_columns(load: Load, tmp_path: Path, name: str, write: Any) -> None:
    write(tmp_path / name, [VERL, VERL])
    first, second = load(name)
    assert (first.id, second.id) == ("0", "1")  # no id of their own: the row's number
    assert (first.answer, first.data_source) == ("2", "openai/gsm8k")
    assert first.messages == ({"role": "user", "content": "1 + 1?"},)
    ours = {"ability": "math", "split": "train", "index": 7}
    assert dict(first.info) == {**ours, "reward_style": "rule"}


def test_a_question_of_text_is_a_users_message(load: Load, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "q.jsonl", [{"question": "1 + 1?", "answer": "#### 2"}])
    (task,) = load("q.jsonl")
    assert (task.messages, task.answer) == (
        ({"role": "user", "content": "1 + 1?"},),
        "#### 2",
    )


CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        ({"role": "user", "content": None}, "needs a content that is a string, or a list"),
        ({"role": "user"}, "needs a content"),
        ({"role": "user", "content": None, "tool_calls": None}, "needs a content"),
        ({"role": "user", "content": 42}, "needs a content"),
        ({"role": "user", "content": {"a": 1}}, "needs a content"),
        ({"role": "user", "content": ["a"]}, "needs a content"),
        ({"role": "user", "content": [{"text": "a"}]}, "needs a content"),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, "needs a content"),
        ({"role": "user", "content": [{"type": "audio"}]}, "needs a content"),
        (
            {"role": "narrator", "content": "a"},
            "needs a role, one of system, user, assistant, tool",
        ),
        ({"role": "assistant", "tool_calls": 5}, r"tool_calls must be a list, got 5"),
    ],
)
def test_a_message_without_role_or_content_is_named(
    load: Load, tmp_path: Path, message: dict[str, Any], rule: str
) -> None:
    rows = [ROWS[0], {"id": "c", "messages": [ROWS[1]["messages"][0], message]}]
    write_jsonl(tmp_path / "t.jsonl", rows)
    with pytest.raises(DataError, match=rf"t\.jsonl:2: messages\[1\]:? {rule}"):
        load("t.jsonl")
    write_function(
        tmp_path, f"def tasks():\n    yield Task('a')\n    yield Task('b', ({message},))"
    )
    with pytest.raises(
        DataError, match=rf"row 1 of task\.py:tasks: messages\[0\]:? {rule}"
    ):
        load("task.py:tasks")


def test_an_assistants_null_beside_calls_is_an_empty_text(
    load: Load, tmp_path: Path
) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": CALLS}
    write_jsonl(tmp_path / "t.jsonl", [{"messages": [message]}])
    write_function(tmp_path, f"def tasks():\n    yield Task('0', ({message},))")
    function = {"name": "f", "arguments": {}}
    read = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    for reference in ("t.jsonl", "task.py:tasks"):
        (task,) = load(reference)
        assert task.messages == (read,)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ("1.5", "'id' must be a text or an integer, got 1.5"),
        ("'a', 3", "'messages' must be text or a list of messages with a role, got 3"),
        ("'a', data_source=3", "'data_source' must be a text, got 3"),
        ("'a', info=3", "'info' must be a mapping, got 3"),
    ],
)
def test_a_task_of_a_function_has_the_types_of_a_row(
    load: Load, tmp_path: Path, given: str, rule: str
) -> None:
    write_function(tmp_path, f"def tasks():\n    yield Task({given})")
    with pytest.raises(DataError, match=f"row 0 of task.py:tasks: {rule}"):
        load("task.py:tasks")


def test_a_number_of_too_many_digits_is_hashed_and_named_where_a_line_has_it(
    load: Load, tmp_path: Path
) -> None:
    write_function(tmp_path, "def tasks():\n    yield Task('a', answer=10**5000)")
    assert rows_hash(load("task.py:tasks")) == rows_hash(load("task.py:tasks"))
    (tmp_path / "t.jsonl").write_text('{"question": "q", "answer": ' + "9" * 5000 + "}")
    with pytest.raises(DataError, match=r"t\.jsonl:1 is not JSON: Exceeds the limit"):
        load("t.jsonl")


LAZY = """
class Lazy:
    def __init__(self, sound):
        self.calls, self.sound = 0, sound
    def __len__(self):
        return 2
    def __getitem__(self, index):
        self.calls += 1
        if self.calls > self.sound:
            raise OSError(5, "Input/output error")
        return {"question": str(index)}

def tasks(sound):
    return Lazy(sound)
"""


def test_a_row_that_cannot_be_read_is_named_also_where_it_is_drawn(
    load: Load, tmp_path: Path
) -> None:
    fault = r"OSError: .*Input/output error \(.*task\.py:\d+\)"
    told = rf"row 1 of task\.py:tasks cannot be read: {fault}"
    write_function(tmp_path, LAZY)
    with pytest.raises(DataError, match=told):
        load("task.py:tasks", {"sound": 1})
    tasks = load("task.py:tasks", {"sound": 2})
    with pytest.raises(DataError, match=told):
        tasks[1]


@pytest.mark.parametrize(
    "given", ["{'a': {'question': 'q'}}", "pandas.DataFrame([{'question': 'q'}])"]
)
def test_rows_that_have_no_numbers_are_named(
    load: Load, tmp_path: Path, given: str
) -> None:
    write_function(tmp_path, f"import pandas\ndef tasks():\n    return {given}")
    with pytest.raises(
        DataError, match=r"row 0 of task\.py:tasks cannot be read: KeyError: 0"
    ):
        load("task.py:tasks")


def test_a_length_that_cannot_be_had_is_named(load: Load, tmp_path: Path) -> None:
    write_function(tmp_path, LAZY.replace("return 2", "raise OSError('gone')"))
    with pytest.raises(
        DataError, match=r"data\.train='task\.py:tasks' raised OSError: gone"
    ):
        load("task.py:tasks", {"sound": 0})


def test_blank_lines_are_passed_over(load: Load, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("\n" + json.dumps(ROWS[0]) + "\n\n")
    assert len(load("t.jsonl")) == 1


def write_function(tmp_path: Path, body: str) -> None:
    (tmp_path / "task.py").write_text(f"from agentrl.types import Task\n\n{body}\n")


def test_a_function_gets_the_runs_seed_and_its_arguments(
    load: Load, tmp_path: Path
) -> None:
    write_function(
        tmp_path, "def tasks(seed, split):\n    return [Task(f'{split}-{seed}')]"
    )
    assert [task.id for task in load("task.py:tasks", {"split": "train"})] == ["train-5"]
    assert [task.id for task in load("task.py:tasks", {"split": "train", "seed": 9})] == [
        "train-9"
    ]


def test_a_function_may_yield_rows_for_ever_where_there_is_a_limit(
    load: Load, tmp_path: Path
) -> None:
    write_function(
        tmp_path,
        "def tasks():\n    n = 0\n    while True:\n        yield Task(str(n))\n        n += 1",
    )
    assert [task.id for task in load("task.py:tasks", limit=3)] == ["0", "1", "2"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "row", ["{'id': str(n), 'question': 'q', 'info': own}", "Task(str(n), info=own)"]
)
def test_a_function_may_yield_the_same_mapping_again_with_other_values(
    load: Load, tmp_path: Path, row: str, stream: bool
) -> None:
    body = (
        f"    own = {{}}\n    for n in range(3):\n        own['n'] = n\n        yield {row}"
    )
    write_function(tmp_path, f"def tasks():\n{body}")
    tasks = load("task.py:tasks", stream=stream)
    assert [tasks[n].info for n in range(3)] == [{"n": 0}, {"n": 1}, {"n": 2}]
    if not stream:
        tasks[0].info["n"] = 7  # as a sampler might that is given the tasks
        assert tasks[0].info == {"n": 0}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def tasks():\n    return []", r"data\.train='task\.py:tasks' holds no row"),
        ("def tasks():\n    return 3", "must return an iterable of rows, got int"),
        ("def tasks():\n    raise OSError('no disk')", "raised OSError: no disk"),
        (
            "def tasks():\n    return [3]",
            "row 0 of task.py:tasks must be a Task or a mapping, got int",
        ),
        (
            "def tasks():\n    return [{'text': 'x'}]",
            r"has no 'messages', 'prompt' or 'question'; it has \['text'\]",
        ),
        (
            "def tasks():\n    yield Task('a')\n    raise KeyError('b')",
            "raised KeyError: 'b'",
        ),
        (
            "def tasks():\n    return [{'messages': 3}]",
            "row 0 of task.py:tasks: 'messages' must be",
        ),
        (
            "def tasks():\n    return [{'messages': ['x']}]",
            "row 0 of task.py:tasks: 'messages' must be",
        ),
    ],
)
def test_what_is_wrong_with_a_function_is_named(
    load: Load, tmp_path: Path, body: str, message: str
) -> None:
    write_function(tmp_path, body)
    with pytest.raises(DataError, match=message):
        load("task.py:tasks")


def test_a_function_of_other_arguments_is_named(load: Load, tmp_path: Path) -> None:
    write_function(tmp_path, "def tasks(other):\n    return []")
    with pytest.raises(
        ConfigError,
        match=r"^data\.train='task\.py:tasks' must take no arguments, or seed, but has the "
        r"signature \(other\)",
    ):
        load("task.py:tasks")


def test_a_function_that_is_not_there_is_named(load: Load, tmp_path: Path) -> None:
    write_function(tmp_path, "def tasks():\n    return []")
    with pytest.raises(ConfigError, match="did you mean 'tasks'"):
        load("task.py:task")


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
def test_a_file_that_is_not_there_is_named_with_its_setting(load: Load, name: str) -> None:
    with pytest.raises(DataError, match=rf"data\.train='.*{name}' does not exist"):
        load(name)


def test_a_reference_of_no_kind_is_told_the_kinds(load: Load) -> None:
    with pytest.raises(
        DataError,
        match=r"neither file\.py:function, module:function, a \.jsonl or \.parquet file",
    ):
        load("somewhere")


def test_a_line_that_is_no_json_is_named(load: Load, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps(ROWS[0]) + "\n{'single': 1}\n")
    with pytest.raises(DataError, match=r"t\.jsonl:2 is not JSON"):
        load("t.jsonl")


@pytest.mark.parametrize("name", ["t.parquet", "folder"])
def test_a_file_that_is_not_what_its_name_says_is_named(
    load: Load, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
    else:
        path.write_text("not parquet")
    with pytest.raises(DataError, match=rf"data\.train='.*{name}' cannot be read"):
        load(name)


def test_a_folder_of_several_splits_asks_for_one(load: Load, tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    split = Dataset.from_list(ROWS)
    DatasetDict({"train": split, "test": split}).save_to_disk(str(tmp_path / "folder"))
    with pytest.raises(DataError, match="holds the splits train, test; name one of them"):
        load("folder")
    assert len(load("folder/train")) == 2


def test_text_that_is_not_utf8_is_named(load: Load, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b'{"question": "\xff"}\n')
    with pytest.raises(DataError, match=r"t\.jsonl.* is not UTF-8"):
        load("t.jsonl")


def rows(tmp_path: Path, skip: int) -> list[Any]:
    endless = DataSet("d.jsonl", base_dir=tmp_path).endless_rows(skip)
    return [row for _, row in itertools.islice(endless, 5)]


def test_rows_begin_again_and_go_on_from_where_they_were(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "d.jsonl", [1, 2, 3])
    assert rows(tmp_path, 0) == [1, 2, 3, 1, 2]
    assert rows(tmp_path, 4) == [2, 3, 1, 2, 3]


def test_no_rows_at_all_are_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "d.jsonl", [])
    with pytest.raises(DataError, match="holds no row"):
        rows(tmp_path, 0)


def test_equal_data_have_an_equal_hash() -> None:
    first, second = [Task("a", answer=1)], [Task("a", answer=2)]
    assert rows_hash(first) == rows_hash([Task("a", answer=1)]) != rows_hash(second)
