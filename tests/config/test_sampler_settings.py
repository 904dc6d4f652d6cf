"""``data.sampler``: a name, or a section of a name and the sampler's own settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentrl.config.load import load_config
from agentrl.config.schema import StageConfig
from agentrl.errors import ConfigError
from agentrl.rollouts.samplers.catalog import make_sampler
from agentrl.rollouts.samplers.settings import DifficultyBandSettings
from agentrl.types import Task

OWN = """\
class Counting:
    def __init__(self, tasks, seed, step=1):
        self.size, self.step, self.at = len(tasks), step, seed

    def next(self):
        self.at += self.step
        return self.at % self.size

    def observe(self, task_index, outcome):
        pass

    def state(self):
        return self.at

    def load(self, state):
        self.at = state


class Lacking(Counting):
    state = None


class Narrow(Counting):
    def observe(self, task_index):
        pass


def no_seed(tasks):
    return Counting(tasks, 0)


def failing(tasks, seed):
    return tasks[7]


number = 3
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def last_stage(path: Path, *overrides: str) -> StageConfig:
    return load_config(path, overrides).resolved_stages()[-1]


def test_uniform_is_what_is_drawn_from_by_default(write: Callable[..., Path]) -> None:
    sampler = last_stage(write()).data.sampler
    assert (sampler.name, sampler.settings) == ("uniform", {})


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("data: {train: t.py:t, sampler: difficulty_band}\n", ()),
        ("data: {train: t.py:t, sampler: {name: difficulty_band}}\n", ()),
        ("data: {train: t.py:t}\n", ("data.sampler=difficulty_band",)),
        ("data: {train: t.py:t}\n", ("data.sampler.name=difficulty_band",)),
        ("data: t.py:t\nstages: [{name: rl, data: {sampler: difficulty_band}}]\n", ()),
    ],
)
def test_a_text_is_short_for_the_name(
    write: Callable[..., Path], text: str, overrides: tuple[str, ...]
) -> None:
    path = write(text, head="model: {path: some/model}\n")
    assert last_stage(path, *overrides).data.sampler.checked == DifficultyBandSettings()


def test_settings_stand_beside_the_name(write: Callable[..., Path]) -> None:
    text = "data: {train: t.py:t, sampler: {name: difficulty_band, low: 0.3}}\n"
    path = write(text, head="model: {path: some/model}\n")
    settings = last_stage(path, "data.sampler.window=5").data.sampler.checked
    assert settings == DifficultyBandSettings(low=0.3, window=5)


def test_a_stage_with_another_sampler_takes_none_of_the_settings(
    write: Callable[..., Path],
) -> None:
    text = """\
data: {train: t.py:t, args: {n: 3}, sampler: {name: difficulty_band, low: 0.3}}
stages:
  - {name: first}
  - {name: second, data: {sampler: {name: signal, decay: 0.5}}}
  - {name: third, data: {sampler: {high: 0.7}}}
"""
    config = load_config(write(text, head="model: {path: some/model}\n"))
    first, second, third = (stage.data for stage in config.resolved_stages())
    assert first.sampler.settings == {"low": 0.3}
    assert (second.sampler.name, second.sampler.settings) == ("signal", {"decay": 0.5})
    assert second.args == {"n": 3}
    assert third.sampler.settings == {"low": 0.3, "high": 0.7}


@pytest.mark.parametrize(
    ("sampler", "told"),
    [
        (
            "signl",
            "data.sampler.name='signl' is unknown; did you mean 'signal'?; choose one of",
        ),
        ("{name: signal, low: 0.1}", "unknown key data.sampler.low"),
        ("{name: signal, decay: 1.0}", "data.sampler.decay must be less than 1, got 1.0"),
        (
            "{name: difficulty_band, low: 0.8, high: 0.2}",
            "data.sampler.low must be at most high=0.2, got 0.8; lower it",
        ),
        (
            "none.py:f",
            "data.sampler.name='none.py:f' cannot be loaded: there is no file none.py",
        ),
        (
            "own.py:Cuonting",
            "data.sampler.name='own.py:Cuonting' cannot be loaded: own.py has no",
        ),
        ("no.such:thing", "'no.such:thing' cannot be loaded: there is no module 'no'"),
        (
            "own.py:number",
            "must be a function or class that takes (tasks, seed=), the tasks, run.seed",
        ),
        (
            "own.py:no_seed",
            "data.sampler.name='own.py:no_seed' must take (tasks, seed=), the tasks, run.seed and "
            "the settings beside its name, but has the signature (tasks)",
        ),
        ("{name: 'own.py:Counting', stap: 2}", "got an unexpected keyword argument 'stap'"),
    ],
)
@pytest.mark.usefixtures("own")
def test_a_fault_names_the_setting(
    problems: Callable[..., list[str]], sampler: str, told: str
) -> None:
    text = f"data: {{train: t.py:t, sampler: {sampler}}}\n"
    (problem,) = problems(text, head="model: {path: some/model}\n")
    assert told in problem
    assert "data.sampler" in problem
    assert problem.startswith("config.yaml:2:")


def test_the_order_of_the_data_and_a_sampler_exclude_each_other(
    problems: Callable[..., list[str]],
) -> None:
    text = "data: {train: t.py:t, shuffle: false, sampler: signal}\n"
    (problem,) = problems(text, head="model: {path: some/model}\n")
    assert (
        "data.shuffle=false keeps the order of the data, and data.sampler.name='signal'"
        in problem
    )


@pytest.mark.parametrize("algorithm", ["sft", "reward_model"])
def test_a_stage_that_plays_nothing_has_no_use_for_a_sampler(
    problems: Callable[..., list[str]], algorithm: str
) -> None:
    text = f"data: {{train: t.py:t, sampler: 'none.py:f'}}\nalgorithm: {algorithm}\n"
    (problem,) = problems(text, head="model: {path: some/model}\n")
    assert (
        f"data.sampler does nothing with algorithm.name='{algorithm}' as it is set"
        in problem
    )


def of_file(own: Path, name: str) -> object:
    tasks = [Task(str(n)) for n in range(5)]
    return make_sampler(name, {}, tasks, seed=2, shuffle=True, base_dir=own.parent)


def test_a_users_own_is_made_of_tasks_seed_and_settings(own: Path) -> None:
    tasks = [Task(str(n)) for n in range(5)]
    sampler = make_sampler(
        "own.py:Counting", {"step": 2}, tasks, seed=2, shuffle=True, base_dir=own.parent
    )
    assert [sampler.next() for _ in range(3)] == [4, 1, 3]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Lacking", r"got Lacking: state\(\) cannot be called \(it has no method state\)"),
        (
            "Narrow",
            r"observe\(task_index, outcome\) cannot be called \(too many positional",
        ),
        ("failing", r"raised IndexError: list index out of range \(.*own.py:\d+\)"),
    ],
)
def test_what_is_no_sampler_is_refused(own: Path, name: str, told: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"SamplerSettings\.name='own.py:{name}' .*{told}"
    ):
        of_file(own, f"own.py:{name}")
