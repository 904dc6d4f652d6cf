"""Examples of real size: what their ``prepare.py`` makes of the published files, and that it can be
played.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.cli.main import run as run_command_line
from agentrl.run.data.datasets import DataSet
from agentrl.types import Task, load_object
from tests.examples.published import EXAMPLES, SAMPLES, build_model, prepared


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        example: prepared(example, tmp_path_factory.mktemp(example)) for example in SAMPLES
    }


@pytest.fixture(params=SAMPLES)
def config(request: pytest.FixtureRequest, configs: dict[str, Path]) -> Path:
    return configs[request.param]


def first_task(config: Path) -> Task:
    return next(iter(DataSet("data/train.parquet", base_dir=config.parent).tasks()))


@pytest.mark.slow
def test_rows_become_tasks_with_their_answers(config: Path) -> None:
    task = first_task(config)
    prompt = str(task.messages[0]["content"])
    if config.parent.name == "gsm8k":
        assert prompt.startswith("Ida packs 3 boxes")
        assert (task.id, task.answer, task.data_source) == ("train-0", "446", "gsm8k")
    elif config.parent.name == "mbpp":
        assert prompt.endswith(
            "plus 601.\nYour code must pass: assert total([1, 2]) == 604"
        )
        assert task.info["tests"] == [
            "assert total([1, 2]) == 604",
            "assert total([]) == 601",
        ]
    else:
        assert prompt == "In which town was the painter of Harbour 0 born?"
        assert (task.answer, task.data_source) == ("Town 0", "bridge")


@pytest.mark.slow
def test_its_reference_solutions_get_full_marks(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build_model(tmp_path / "model", config.parent.name)
    code = run_command_line(["check", str(config), f"model.path={tmp_path / 'model'}"])
    told = capsys.readouterr()
    assert code == 0, told.err
    assert told.out.count("the reference solution is scored 1 of 1") >= 3


def test_the_corpus_has_every_paragraph_once(configs: dict[str, Path]) -> None:
    path = configs["hotpotqa"].with_name("data") / "corpus.jsonl"
    corpus = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(corpus) == len({row["title"] for row in corpus}) == 4 * 2 + 1
    assert corpus[0] == {
        "title": "Harbour 0",
        "text": "Harbour 0 is a picture by Painter 0. It is small.",
    }


def test_an_answer_without_its_mark_is_named() -> None:
    tasks_of = load_object("prepare.py:tasks_of", EXAMPLES / "gsm8k")
    with pytest.raises(ValueError, match="train row 1: answer must end in '#### NUMBER'"):
        list(tasks_of([SAMPLES["gsm8k"][1][0], {"question": "?", "answer": "4"}], "train"))
