"""The table of runs, settings and comparisons of runs: real requests to a viewer on a free port."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentrl.store import JsonlWriter, RunDirectory, write_json
from tests.viewer.server.viewers import Client, viewing

VERSIONS = {"agentrl": "2.0"}


def make(
    root: Path,
    seed: int,
    lr: float,
    *,
    version: str = "2.0",
    stages: tuple[str, ...] = ("rl",),
) -> RunDirectory:
    """A run whose reward is the step times ``lr``, and the seed over ten more; of ten steps."""
    config = {
        "run": {"seed": seed, "dir": str(root)},
        "stages": [{"name": name, "optim": {"lr": lr}} for name in stages],
    }
    record = {
        "seed": seed,
        "versions": {"agentrl": version},
        "sources": {
            "run.seed": "command line: run.seed=1",
            "stages.rl.optim": "c.yaml:3:1",
        },
    }
    made = RunDirectory.create(root, record, json.dumps(config))
    lines = JsonlWriter(made.metrics_path)
    for name in stages:
        for step in range(1, 11):
            value = step * lr + seed / 10
            row = {
                "step": step,
                "stage": name,
                "time": 1000.0 + 3600 * step,
                "reward/mean": value,
            }
            lines.append(row | ({f"odd/{seed}": 1.0} if step == 5 else {}))
    lines.close()
    return made


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """Two runs of each of two rates, one of an older agentrl and other stages, and a broken one."""
    runs = tmp_path / "runs"
    for seed in (0, 1):
        make(runs / f"low{seed}", seed, 0.01)
        make(runs / f"high{seed}", seed, 0.02)
    make(runs / "old", 0, 0.01, version="1.0", stages=("warmup",))
    make(runs / "torn", 0, 0.01).config_path.write_text("{run: [")
    with viewing(runs) as address, Client(address) as made:
        yield made


def keys_of(client: Client) -> dict[str, str]:
    return {run["name"]: run["key"] for run in client.get("/api/runs").json()["runs"]}


def compared(client: Client, *names: str, **asked: Any) -> dict[str, Any]:
    keys = keys_of(client)
    asked = {"runs": [keys[name] for name in names], "names": ["reward/mean"], **asked}
    answer: httpx.Response = client.get("/api/compare", params=asked)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = json.loads(
        answer.text.replace("NaN", "!"), parse_constant=lambda text: pytest.fail(text)
    )
    return found | {"by_name": {name: keys[name] for name in names}}


def test_settings_have_their_values_and_sources(client: Client) -> None:
    keys = keys_of(client)
    answer = client.get(f"/api/runs/{keys['low1']}/settings").json()
    assert answer["error"] == ""
    rows = {row["path"]: (row["value"], row["source"]) for row in answer["rows"]}
    assert rows["run.seed"] == (1, "command line: run.seed=1")
    assert rows["run.dir"][1] == "default"
    # written as a whole, so its parts were written there
    assert rows["stages.rl.optim.lr"] == (0.01, "c.yaml:3:1")


def test_settings_that_do_not_parse_are_told_by_that_run_alone(client: Client) -> None:
    keys = keys_of(client)
    answer = client.get(f"/api/runs/{keys['torn']}/settings").json()
    assert answer["rows"] == []
    assert "config.resolved.yaml cannot be read: it is no YAML" in answer["error"]
    rows = client.get("/api/runs", params={"columns": "setting:run.seed"}).json()["runs"]
    assert {row["name"]: row["columns"]["setting:run.seed"] for row in rows}["high1"] == 1
    assert [row["name"] for row in rows if row["settings_error"]] == ["torn"]
    found = compared(client, "low0", "low1", "torn")
    assert [bool(run["error"]) for run in found["runs"]] == [False, False, True]
    # its curve is drawn, and it is in no group of seeds, nor differs in what nobody knows
    assert [len(own) for own in found["groups"]] == [2, 1]
    assert found["metrics"]["reward/mean"]["groups"][1]["value"][-1] == pytest.approx(0.1)
    assert [row["path"] for row in found["differences"]] == ["run.dir", "run.seed"]


def test_settings_of_a_resumed_run_are_those_that_run_now(
    client: Client, tmp_path: Path
) -> None:
    key = keys_of(client)["low0"]
    assert client.get(f"/api/runs/{key}/settings").json()["rows"][0]["value"] == 0
    (tmp_path / "runs" / "low0" / "config.resolved.yaml").write_text("run: {seed: 5555}")
    [row] = client.get(f"/api/runs/{key}/settings").json()["rows"]
    assert (row["path"], row["value"]) == ("run.seed", 5555)
    (tmp_path / "runs" / "low0" / "config.resolved.yaml").write_text("[1, 2, 3]")
    assert (
        "no mapping, but a list" in client.get(f"/api/runs/{key}/settings").json()["error"]
    )


def test_the_table_of_runs_has_chosen_columns(client: Client) -> None:
    columns = [
        "setting:stages.rl.optim.lr",
        "metric:reward/mean",
        "record:versions.agentrl",
    ]
    rows = client.get("/api/runs", params={"columns": columns}).json()["runs"]
    values = {row["name"]: [row["columns"][name] for name in columns] for row in rows}
    assert values["high1"] == [0.02, pytest.approx(0.3), "2.0"]
    assert values["old"] == [None, pytest.approx(0.1), "1.0"]
    known = client.get("/api/columns").json()["columns"]
    assert {*columns, "metric:odd/1", "setting:stages.warmup.optim.lr"} <= set(known)


def test_tags_of_a_run_are_given_and_taken_back(client: Client) -> None:
    key = keys_of(client)["old"]
    given = client.post(
        f"/api/runs/{key}/notes", json={"trajectory": "", "labels": ["baseline"]}
    ).json()

    def tags() -> dict[str, list[str]]:
        rows = client.get("/api/runs").json()["runs"]
        return {
            row["name"]: label
            for row in rows
            for label in [x["labels"] for x in row["tags"]]
        }

    assert tags() == {"old": ["baseline"]}
    for wrong in ({"labels": ["two words"]}, {"labels": ["a"], "turn": 1}, {}):
        asked = client.post(f"/api/runs/{key}/notes", json={"trajectory": "", **wrong})
        assert asked.status_code == 400
    client.delete(f"/api/runs/{key}/notes/{given['id']}")
    assert tags() == {}


def test_runs_of_other_seeds_are_one_group_with_paired_differences(client: Client) -> None:
    found = compared(client, "low0", "high0", "low1", "high1")
    key = found["by_name"]
    assert found["groups"] == [[key["low0"], key["low1"]], [key["high0"], key["high1"]]]
    low, high = found["metrics"]["reward/mean"]["groups"]
    assert low["value"] == pytest.approx([step / 100 + 0.05 for step in range(1, 11)])
    assert (low["low"][0], low["high"][0], low["runs"][0]) == (0.01, 0.11, 2)
    assert low["time"][:2] == [0, 1]  # hours
    assert high["value"][-1] == pytest.approx(0.25)
    [first, difference] = found["metrics"]["reward/mean"]["differences"]
    assert first is None
    assert difference == {
        "mean": pytest.approx(0.1),
        "half": pytest.approx(0.0, abs=1e-9),
        "num_pairs": 2,
        "first": 10,
        "last": 10,
    }
    assert [row["path"] for row in found["differences"]] == [
        "run.dir",
        "run.seed",
        "stages.rl.optim.lr",
    ]


def test_runs_of_another_agentrl_and_other_stages_are_compared_apart(
    client: Client,
) -> None:
    found = compared(client, "low0", "old")
    assert (found["stages"], found["stage"]) == (["rl", "warmup"], None)
    assert len(found["groups"]) == 2
    rows = {row["path"]: row["values"] for row in found["differences"]}
    assert rows["versions.agentrl"] == ["2.0", "1.0"]
    assert rows["stages.warmup.optim.lr"] == [None, 0.01]
    of_rl = compared(client, "low0", "old", stage="rl")
    [low, old] = of_rl["metrics"]["reward/mean"]["groups"]
    assert (len(low["step"]), old) == (10, None)
    assert of_rl["metrics"]["reward/mean"]["differences"] == [None, None]


def test_a_run_of_another_format_and_one_that_is_gone_are_named(
    client: Client, tmp_path: Path
) -> None:
    record = tmp_path / "runs" / "old" / "run.json"
    write_json(record, {**json.loads(record.read_text()), "format": 1})
    keys = keys_of(client)
    asked = {"runs": [keys["low0"], keys["old"], "nothing"], "names": "reward/mean"}
    found = client.get("/api/compare", params=asked).json()
    assert [bool(run["error"]) for run in found["runs"]] == [False, True, True]
    assert "format" in found["runs"][1]["error"]
    assert found["compared"] == [keys["low0"]]
    assert len(found["metrics"]["reward/mean"]["groups"][0]["step"]) == 10
    assert client.get("/api/compare", params={"runs": ["x"] * 17}).status_code == 400
    none = client.get(
        "/api/compare", params={"runs": "nothing", "names": "reward/mean"}
    ).json()
    assert none["metrics"]["reward/mean"] == {"groups": [], "differences": []}
