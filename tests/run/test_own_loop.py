"""``train.loop``: a loop of the user's, and what is told of one that breaks the contract."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agentrl.config.key_names import with_keys
from agentrl.errors import AgentRLError
from tests.run import tiny_run

PAGE = Path(__file__).parents[2] / "docs/controller.md"


def play(folder: Path, loop: str) -> Path:
    (folder / "loop.py").write_text(loop, encoding="utf-8")
    text = tiny_run.CONFIG.replace("train: {", 'train: {loop: "loop.py:train", ', 1)
    settings = (
        "stages.warmup.steps=1",
        "stages.warmup.train.loop=null",
        "stages.rl.eval.sets={}",
        "stages.rl.algorithm.filter_zero_variance=false",
    )
    return tiny_run.train(folder, *settings, text=text, reward=lambda episode: 1.0)


def test_the_loop_of_the_docs_trains_and_stops_early(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    (loop,) = re.findall(
        r"```python\n(from agentrl.types import Stats\n.*?)```", page, re.DOTALL
    )
    run = play(tmp_path, loop)
    rows = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    assert {row["step"] for row in rows if row["to"] == "trained"} == {1}
    assert [row["step"] for row in tiny_run.metrics(run) if row["stage"] == "rl"] == [1]
    assert (run / "models/rl/config.json").is_file()


@pytest.mark.parametrize(
    ("loop", "told"),
    [
        (
            "def other(): ...",
            "train.loop='loop.py:train' cannot be loaded: loop.py has no",
        ),
        (
            "def train(): ...",
            "train.loop='loop.py:train' must take (run), but has the signature ()",
        ),
        (
            "def train(run): return 7",
            "train.loop='loop.py:train' must return a TrainState",
        ),
        ("def train(run): raise KeyError('x')", "KeyError: 'x'"),
        (
            "def train(run): return run.restore()",
            "train.loop='loop.py:train' must train, and returned at step 0 of 5, where it began",
        ),
    ],
)
def test_a_loop_that_breaks_its_contract_is_named(
    tmp_path: Path, loop: str, told: str
) -> None:
    with pytest.raises(AgentRLError) as caught:
        play(tmp_path, loop)
    assert told in with_keys(str(caught.value))
    # what can be told beforehand is
    assert (tmp_path / "run").exists() == ("(run)" in loop)
