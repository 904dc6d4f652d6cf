"""Sources of ``data.train``: several at once, patterns, folders, the hub, streams, classes of
verl's.
"""

from __future__ import annotations

import itertools
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import StageConfig, load_config
from agentrl.config.sections import CustomDataConfig, DataSourceConfig
from agentrl.controller.ledger import Ledger
from agentrl.errors import ConfigError, DataError
from agentrl.run.build import StageRecipe, task_sampler
from agentrl.run.data.datasets import DataSet
from agentrl.run.data.task_table import TaskTable
from agentrl.run.run_setup import count_steps
from agentrl.run.schedule_factory import conversations
from tests.tiny_vision import write_vision_tokenizer

from .hub import NAME, python, serving
from .test_data import VERL, write_function, write_jsonl, write_parquet

ENDLESS = """
def tasks(start=0):
    n = start
    while True:
        yield {"question": f"{n}?", "answer": n}
        n += 1
"""


def questions(*names: str) -> list[dict[str, str]]:
    return [{"question": name} for name in names]


def asked(tasks: Any) -> list[str]:
    return [task.messages[0]["content"] for task in tasks]


def ids(data: DataSet) -> list[str]:
    return [task.id for task in data.tasks()]


def several(tmp_path: Path, *sources: dict[str, Any], **more: Any) -> DataSet:
    return DataSet(
        tuple(DataSourceConfig(**one) for one in sources), base_dir=tmp_path, **more
    )


def test_a_pattern_joins_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "b.jsonl", questions("3"))
    write_parquet(tmp_path / "a.parquet", questions("1", "2"))
    tasks = DataSet("*.*", base_dir=tmp_path).tasks()
    assert (asked(tasks), [task.id for task in tasks]) == (["1", "2", "3"], ["0", "1", "2"])


def test_a_pattern_that_matches_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.train='.*\*\.parquet' matches no file"):
        DataSet("*.parquet", base_dir=tmp_path).tasks()


def test_a_folder_of_files_is_read(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    write_jsonl(tmp_path / "rows" / "a.jsonl", questions("1"))
    write_jsonl(tmp_path / "rows" / "b.jsonl", questions("2"))
    assert asked(DataSet("rows", base_dir=tmp_path).tasks()) == ["1", "2"]


@pytest.mark.parametrize("reference", ["~/a.jsonl", "~/*.jsonl", "~"])
def test_rows_may_lie_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    write_jsonl(tmp_path / "home" / "a.jsonl", questions("1"))
    assert asked(DataSet(reference, base_dir=tmp_path).tasks()) == ["1"]


def test_ids_of_several_sources_begin_with_their_names(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", questions("1", "2"))
    write_jsonl(tmp_path / "b.jsonl", [{"question": "3", "id": "0"}])
    data = several(tmp_path, {"data": "a.jsonl"}, {"data": "b.jsonl", "name": "b"})
    assert ids(data) == ["a.jsonl/0", "a.jsonl/1", "b/0"]


def test_two_rows_of_one_id_are_named_with_their_lines(tmp_path: Path) -> None:
    rows = [{"question": "1", "id": "x"}, {"question": "2", "id": "x"}]
    write_jsonl(tmp_path / "a.jsonl", rows)
    with pytest.raises(
        DataError, match=r"a\.jsonl:2 and .*a\.jsonl:1 have the same id 'x'"
    ):
        DataSet("a.jsonl", base_dir=tmp_path).tasks()


@pytest.mark.parametrize(
    ("column", "value", "rule"),
    [
        ("id", 1.5, "'id' must be a text or an integer, got 1.5"),
        ("data_source", 3, "'data_source' must be a text, got 3"),
        ("info", "x", "'info' must be a mapping, got 'x'"),
        ("extra_info", [1], r"'extra_info' must be a mapping, got \[1\]"),
        ("reward_model", "rule", "'reward_model' must be a mapping, got 'rule'"),
        ("reward_model", {"style": "both"}, "reward_model.style must be 'rule' or 'model'"),
        ("tools_kwargs", 3, "'tools_kwargs' must be a mapping, got 3"),
        ("question", 3, "'messages' must be text or a list of messages"),
    ],
)
def test_a_column_of_another_type_is_named_with_file_and_line(
    tmp_path: Path, column: str, value: Any, rule: str
) -> None:
    write_jsonl(tmp_path / "a.jsonl", [*questions("1"), {"question": "2", column: value}])
    with pytest.raises(DataError, match=rf"a\.jsonl:2: {rule}"):
        DataSet("a.jsonl", base_dir=tmp_path).tasks()


def test_a_missing_column_of_parquet_is_named_with_file_and_row(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", [{"text": "x"}])
    with pytest.raises(
        DataError, match=r"row 0 of .*a\.parquet has no 'messages', 'prompt'"
    ):
        DataSet("a.parquet", base_dir=tmp_path).tasks()


def test_a_task_that_asks_for_a_reward_model_in_vain_is_named(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [VERL, {**VERL, "reward_model": {"style": "model"}}])
    with pytest.raises(
        DataError, match=r"a\.jsonl:2: reward_model\.style='model' needs a reward"
    ):
        DataSet("a.jsonl", base_dir=tmp_path, has_reward_model=False).tasks()


def test_verls_arguments_of_tools_come_without_arrows_nulls(tmp_path: Path) -> None:
    own = [
        {"search": {"create_kwargs": {"k": 3}}},
        {"shell": {"create_kwargs": {"cwd": "/x"}}},
    ]
    rows = [{**VERL, "extra_info": {"tools_kwargs": kwargs}} for kwargs in own]
    rows[0]["extra_info"]["interaction_kwargs"] = {"name": "gsm8k"}
    write_parquet(tmp_path / "a.parquet", rows)
    first, second = DataSet("a.parquet", base_dir=tmp_path).tasks()
    assert (first.info["tools_kwargs"], second.info["tools_kwargs"]) == tuple(own)
    assert first.info["interaction_kwargs"] == {"name": "gsm8k"}


def test_a_placeholder_in_a_text_takes_the_next_image(tmp_path: Path) -> None:
    row = {"prompt": "<image>What is this?", "images": ["a.png"]}
    write_jsonl(tmp_path / "a.jsonl", [row])
    (task,) = DataSet("a.jsonl", base_dir=tmp_path).tasks()
    first, second = task.messages[0]["content"]
    assert first == {"type": "image", "image": str(tmp_path / "a.png")}
    assert second == {"type": "text", "text": "What is this?"}


def test_fewer_images_than_placeholders_are_named(tmp_path: Path) -> None:
    write_jsonl(
        tmp_path / "a.jsonl", [{"prompt": "<image> and <image>", "images": ["a.png"]}]
    )
    with pytest.raises(DataError, match=r"a\.jsonl:1: .*'images' has none left"):
        DataSet("a.jsonl", base_dir=tmp_path).tasks()


def mixture(tmp_path: Path, *, seed: int = 3) -> tuple[Any, TaskTable]:
    """A sampler over 3 tasks of weight 2 and 5 of weight 1."""
    write_jsonl(tmp_path / "a.jsonl", questions(*"abc"))
    write_jsonl(tmp_path / "b.jsonl", questions(*"vwxyz"))
    sources = [{"data": "a.jsonl", "weight": 2.0}, {"data": "b.jsonl"}]
    run = {"dir": str(tmp_path), "base_dir": str(tmp_path), "seed": seed}
    config = load_config(
        {
            "run": run,
            "model": {"path": "m"},
            "data": {"train": sources},
            "train": {"steps": 1},
        }
    )
    (stage,) = config.resolved_stages()
    tasks = DataSet.of_training(stage).tasks()
    assert isinstance(tasks, TaskTable)
    return task_sampler(stage, tasks), tasks


def test_weights_decide_the_sources_and_every_source_has_whole_epochs(
    tmp_path: Path,
) -> None:
    sampler, tasks = mixture(tmp_path)
    drawn = asked(tasks[sampler.next()] for _ in range(15))
    # weights 2 : 1: the second draw of a and the first of b have one deadline, 3
    assert "".join("ab"[name in "vwxyz"] for name in drawn) == "aab" * 5
    of_a = [name for name in drawn if name in "abc"]
    of_b = [name for name in drawn if name not in "abc"]
    assert [sorted(of_a[n : n + 3]) for n in (0, 3, 6)] == [["a", "b", "c"]] * 3
    assert sorted(of_b) == ["v", "w", "x", "y", "z"]


@pytest.mark.parametrize("stop", [0, 1, 3, 8, 14])
def test_a_mixture_goes_on_as_if_it_had_never_stopped(tmp_path: Path, stop: int) -> None:
    first, _ = mixture(tmp_path)
    whole = [first.next() for _ in range(15)]
    before, _ = mixture(tmp_path)
    begun = [before.next() for _ in range(stop)]
    after, _ = mixture(tmp_path)
    after.load(json.loads(json.dumps(before.state())))
    assert begun + [after.next() for _ in range(15 - stop)] == whole


def test_another_seed_gives_another_order(tmp_path: Path) -> None:
    orders = [[mixture(tmp_path, seed=seed)[0].at(n) for n in range(15)] for seed in (3, 4)]
    assert orders[0] != orders[1]


def test_shards_are_disjoint_and_make_up_the_whole(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", questions(*"abcde"))
    parts = [ids(DataSet("a.jsonl", base_dir=tmp_path, part=(n, 2))) for n in range(2)]
    assert parts == [["0", "2", "4"], ["1", "3"]]


def test_a_stream_reads_no_more_than_is_drawn(tmp_path: Path) -> None:
    write_function(tmp_path, ENDLESS)
    stream = DataSet("task.py:tasks", base_dir=tmp_path, stream=True).tasks()
    assert [stream[n].id for n in (0, 7)] == ["0", "7"]
    again = DataSet("task.py:tasks", base_dir=tmp_path, stream=True).tasks()
    assert again[7].answer == 7  # as a resumed run asks
    assert again[2].answer == 2


def test_streams_are_mixed_by_their_weights(tmp_path: Path) -> None:
    write_function(tmp_path, ENDLESS)
    far = {"data": "task.py:tasks", "args": {"start": 100}, "name": "far", "weight": 1.0}
    near = {"data": "task.py:tasks", "name": "near", "weight": 2.0}
    stream = several(tmp_path, near, far, stream=True).tasks()
    assert [stream[n].answer for n in range(6)] == [0, 1, 100, 2, 3, 101]


def test_a_stream_that_ends_begins_again(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", questions(*"ab"))
    stream = DataSet("a.jsonl", base_dir=tmp_path, stream=True).tasks()
    assert asked(stream[n] for n in range(5)) == ["a", "b", "a", "b", "a"]


def test_a_function_without_end_is_told_to_be_a_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.run.data.row_tables.MOST_HELD_ROWS", 100)
    write_function(tmp_path, ENDLESS)
    with pytest.raises(DataError, match=r"more than 100 rows.*set data\.stream=true"):
        DataSet("task.py:tasks", base_dir=tmp_path).tasks()


def drawn(data: DataSet, start: int, count: int) -> list[Any]:
    return [row for _, row in itertools.islice(data.endless_rows(start), count)]


def test_rows_to_imitate_come_in_another_order_each_epoch(tmp_path: Path) -> None:
    """All rows of all sources once an epoch, from any row on."""
    write_jsonl(tmp_path / "a.jsonl", [1, 2, 3, 4])
    write_jsonl(tmp_path / "b.jsonl", [5, 6, 7, 8])
    data = several(tmp_path, {"data": "a.jsonl"}, {"data": "b.jsonl"}, seed=1, shuffle=True)
    rows = drawn(data, 0, 16)
    assert sorted(rows[:8]) == sorted(rows[8:]) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert rows[:8] != rows[8:]
    # not one source behind the other
    assert sorted(rows[:4]) != [1, 2, 3, 4]
    assert drawn(data, 5, 11) == rows[5:]
    assert drawn(replace(data, shuffle=False), 0, 8) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_rows_that_a_function_yields_keep_their_order(tmp_path: Path) -> None:
    write_function(
        tmp_path,
        "def tasks():\n    yield from range(5)\n\ndef listed():\n    return list(tasks())\n",
    )
    data = DataSet("task.py:tasks", base_dir=tmp_path, shuffle=True)
    assert drawn(data, 3, 4) == [3, 4, 0, 1]
    assert data.counted() is None
    listed = replace(data, reference="task.py:listed")
    assert sorted(drawn(listed, 0, 5)) == [0, 1, 2, 3, 4] != drawn(listed, 0, 5)


def imitating(tmp_path: Path, train: str, **settings: Any) -> StageConfig:
    """A stage whose model is a tokenizer alone."""
    write_vision_tokenizer(tmp_path)
    given = {
        "run": {"base_dir": str(tmp_path)},
        "model": {"path": str(tmp_path), "chat_template": "chatml"},
        "data": {"train": train, "shuffle": False},
        "algorithm": {"name": "sft"},
        "train": settings,
    }
    (stage,) = load_config(given).resolved_stages()
    return stage


def test_a_later_stage_begins_at_the_first_row_of_its_data(tmp_path: Path) -> None:
    said = [{"messages": [{"role": "assistant", "content": word}]} for word in "abc"]
    write_jsonl(tmp_path / "rows.jsonl", said)
    stage = imitating(tmp_path, "rows.jsonl", steps=1, batch_prompts=2)
    recipe = StageRecipe(stage, stage.make_algorithm(), tmp_path, None, 1)
    with closing(Ledger(tmp_path / "ledger")) as ledger:
        # draws 0 to 6 were an earlier stage's; a resume goes on at its own row
        for start, words in ((7, "ab"), (9, "ca")):
            schedule = conversations(recipe, ledger, first_group_index=7, start=start)
            groups = schedule.next_groups(0)
            assert [group.group_index for group in groups] == [start, start + 1]
            turns = [group.trajectories[0].turns[0] for group in groups]
            assert [turn.message["content"] for turn in turns] == list(words)


def test_a_demonstration_ends_where_its_model_has_no_more_positions(tmp_path: Path) -> None:
    said = [
        {"role": "assistant", "content": "short"},
        {"role": "user", "content": "go on " * 40},
    ]
    write_jsonl(tmp_path / "rows.jsonl", [{"messages": [*said, said[0]]}])
    stage = imitating(tmp_path, "rows.jsonl", steps=1, batch_prompts=1)
    config = json.loads((tmp_path / "config.json").read_text())
    recipe = StageRecipe(stage, stage.make_algorithm(), tmp_path, None, 1)
    turns = []
    for positions in (5000, 100):
        (tmp_path / "config.json").write_text(
            json.dumps(config | {"max_position_embeddings": positions})
        )
        with closing(Ledger(tmp_path / f"ledger-{positions}")) as ledger:
            (group,) = conversations(
                recipe, ledger, first_group_index=0, start=0
            ).next_groups(0)
        turns.append(len(group.trajectories[0].turns))
    assert turns == [2, 1]


def test_epochs_of_rows_to_imitate_are_counted(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [1, 2, 3, 4, 5])
    write_function(tmp_path, ENDLESS)
    # 2 x 5 rows, 4 a step
    assert (
        count_steps(imitating(tmp_path, "rows.jsonl", epochs=2, batch_prompts=4), ()) == 3
    )
    with pytest.raises(ConfigError, match=r"train\.steps of stage .* rows may be endless"):
        count_steps(imitating(tmp_path, "task.py:tasks", epochs=2), ())


def test_rows_to_imitate_are_mixed_by_weight_and_resumed_in_the_middle(
    tmp_path: Path,
) -> None:
    write_jsonl(tmp_path / "a.jsonl", [1, 2, 3])
    write_jsonl(tmp_path / "b.jsonl", [10, 20])
    data = several(tmp_path, {"data": "a.jsonl", "weight": 3.0}, {"data": "b.jsonl"})
    rows = [row for _, row in itertools.islice(data.endless_rows(0), 12)]
    assert rows == [1, 2, 3, 10, 1, 2, 3, 20, 1, 2, 3, 10]
    assert [row for _, row in itertools.islice(data.endless_rows(5), 7)] == rows[5:]


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        ({"train": []}, "data.train must name at least one source"),
        (
            {"train": [{"data": "a.jsonl", "weight": 0}]},
            "data.train.0.weight must be more than 0",
        ),
        ({"train": [{"date": "a.jsonl"}]}, "did you mean data.train.0.data"),
        ({"train": ["a.jsonl", "a.jsonl"]}, "got 'a.jsonl' twice"),
        ({"train": ["a.jsonl"], "args": {"x": 1}}, "give each source its own args"),
        ({"train": "a.jsonl", "shard": "4/4"}, "data.shard must be K/N with K below N"),
        ({"train": "a.jsonl", "shard": "1"}, "data.shard must be K/N"),
        (
            {"train": "a.jsonl", "stream": True},
            "data.stream=true .* needs data.shuffle=false",
        ),
        (
            {"train": [{"data": "a.jsonl", "weight": 2.0}], "sampler": "signal"},
            "data.train gives its sources weights, and data.sampler.name='signal'",
        ),
    ],
)
def test_settings_of_sources_that_do_not_fit_are_named(
    data: dict[str, Any], rule: str
) -> None:
    with pytest.raises(ConfigError, match=rule):
        load_config({"model": {"path": "m"}, "data": data})


CUSTOM = """
class CustomDataset:
    def __init__(self, data_files, tokenizer, config, processor=None, max_samples=-1):
        lines = open(data_files[0]).read().split()
        self.rows = [(config.get("prompt_key"), config.suffix, line) for line in lines]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        key, suffix, line = self.rows[index]
        return {
            "raw_prompt": [{"role": "user", "content": line + suffix}],
            "input_ids": object(),
            "reward_model": {"style": "rule", "ground_truth": key},
            "index": index,
        }
"""


def test_a_class_of_verls_reads_the_file_as_it_does_there(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(CUSTOM)
    (tmp_path / "rows.txt").write_text("one two")
    custom = CustomDataConfig(path="own.py", args={"suffix": "?"})
    first, second = DataSet("rows.txt", base_dir=tmp_path, custom=custom).tasks()
    assert (asked([first, second]), first.answer) == (["one?", "two?"], "prompt")
    assert "input_ids" not in first.info


def test_a_key_that_verls_class_misses_in_its_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(CUSTOM)
    (tmp_path / "rows.txt").write_text("one two")
    with pytest.raises(DataError, match=r"data\.custom has no 'suffix'.*own\.py:5"):
        DataSet(
            "rows.txt", base_dir=tmp_path, custom=CustomDataConfig(path="own.py")
        ).tasks()


MEMORY = """
import re, sys
from pathlib import Path
from agentrl.run.data.datasets import DataSet

def private():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

warm = DataSet("small.parquet", base_dir=Path(sys.argv[1])).tasks()[0]
before, most = private(), 0
tasks = DataSet("large.parquet", base_dir=Path(sys.argv[1])).tasks()
for index in range(0, len(tasks), 997):
    assert tasks[index].answer == index
    most = max(most, private())
print(len(tasks), most - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_a_large_parquet_file_is_not_held(tmp_path: Path) -> None:
    import os

    import pyarrow as pa
    import pyarrow.parquet as pq

    # 160 MB in one row group, which cannot be read in part
    texts = [os.urandom(4000).hex() for _ in range(20_000)]
    table = pa.table({"question": texts, "answer": list(range(20_000))})
    pq.write_table(
        table, tmp_path / "large.parquet", compression="none", row_group_size=20_000
    )
    write_parquet(tmp_path / "small.parquet", questions("1"))
    ran = python(
        MEMORY, endpoint="http://none.invalid", home=tmp_path, args=(str(tmp_path),)
    )
    assert ran.returncode == 0, ran.stderr
    num_tasks, kilobytes = map(int, ran.stdout.split())
    assert num_tasks == 20_000
    assert kilobytes < 60_000


OF_HUB = """
import sys
from agentrl.errors import DataError
from agentrl.run.data.datasets import DataSet
try:
    print([task.answer for task in DataSet(sys.argv[1]).tasks()])
except DataError as error:
    sys.exit(f"DataError: {error}")
"""


@pytest.mark.slow
def test_a_data_set_of_the_hub_is_downloaded_and_read(tmp_path: Path) -> None:
    (tmp_path / "set" / "data").mkdir(parents=True)
    rows = [{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 2?", "answer": "4"}]
    write_parquet(tmp_path / "set" / "data" / "train-00000-of-00001.parquet", rows)
    with serving() as hub:
        hub.add(tmp_path / "set")
        home = tmp_path / "home"
        ran = python(OF_HUB, endpoint=hub.url, home=home, args=(f"hf://{NAME}/train",))
        assert (ran.returncode, ran.stdout) == (0, "['2', '4']\n"), ran.stderr
        missing = python(OF_HUB, endpoint=hub.url, home=home, args=("hf://no/such/train",))
    assert "DataError: data.train='hf://no/such/train' cannot be loaded" in missing.stderr


def test_a_name_of_the_hub_without_a_split_is_told_the_form(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must be hf://ORG/NAME/SPLIT"):
        DataSet("hf://openai/gsm8k", base_dir=tmp_path).tasks()
