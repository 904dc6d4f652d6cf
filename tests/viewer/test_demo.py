"""The demo: a whole run in the wheel, in which each planted fault is found by the analyses."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from agentrl.errors import DataError
from agentrl.store import RunDirectory, TrajectoryReader
from agentrl.store.jsonl import read_jsonl
from agentrl.viewer import demo
from agentrl.viewer.analysis.behaviour import behaviour
from agentrl.viewer.analysis.blame import Blame, blame, logged_value, trained_tokens
from agentrl.viewer.analysis.findings import Curves, findings
from agentrl.viewer.analysis.retokenise import Retokenised, retokenise
from agentrl.viewer.analysis.side_by_side import group_view
from agentrl.viewer.analysis.stored_rows import read_episodes
from agentrl.viewer.demo import unpack_demo
from agentrl.viewer.index import RunIndex
from agentrl.viewer.runs.metrics_table import MetricsTable
from agentrl.viewer.template import ChatTemplateText
from benchmarks.demo.planted import PlantedFault, planted_faults

NUM_STEPS = 16


@dataclass(frozen=True)
class Demo:
    """The unpacked run."""

    run: RunDirectory
    reader: TrajectoryReader

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [row for row in read_jsonl(self.run.metrics_path) if row["stage"] == "rl"]

    @property
    def curves(self) -> Curves:
        table = MetricsTable(self.run.metrics_path)
        table.refresh()
        own = table.stage("rl")
        series = {name: own.series(name) for name in own.names()}
        return {name: (one.step, one.value) for name, one in series.items()}

    def blame(self, step: int, signal: str) -> Blame:
        tokens = trained_tokens(
            self.run,
            self.reader,
            self.reader.summaries(),
            self.reader.annotations(step=step),
        )
        row = next(row for row in self.metrics if row["step"] == step)
        return blame(tokens, signal, "token", logged=logged_value(row, signal))

    def retokenise(self, fault: PlantedFault) -> Retokenised:
        files = self.run.read_record()["tokenizers"]["rl"]
        blob = self.run.read_blob
        template = ChatTemplateText.of_tokenizer(
            blob(files["chat_template.jinja"]).decode(),
            json.loads(blob(files["tokenizer_config.json"])),
        )
        trajectory = self.reader.get(fault.link["id"]).trajectory
        tokenizer = Tokenizer.from_str(blob(files["tokenizer.json"]).decode())
        return retokenise(trajectory, fault.link["turn"], tokenizer, template)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    run = RunDirectory.open(unpack_demo(tmp_path_factory.mktemp("cache")))
    return Demo(run, TrajectoryReader(run))


def planted(name: str) -> PlantedFault:
    return next(fault for fault in planted_faults() if fault.name == name)


def test_it_is_small_enough_for_the_wheel() -> None:
    assert demo.PACK.stat().st_size <= demo.MAX_BYTES


def test_nothing_of_it_is_damaged(opened: Demo) -> None:
    assert len(opened.reader.summaries()) > 500
    assert opened.reader.damage == []


def test_it_says_nothing_of_the_machine_that_made_it(opened: Demo) -> None:
    texts = [path for path in opened.run.root.glob("*") if path.is_file()]

    for path in texts:
        text = path.read_text(encoding="utf-8")
        assert [
            word for word in ("/work", "/root", "/home", "/tmp") if word in text
        ] == [], path


@pytest.mark.parametrize("signal", ["loss", "mismatch", "entropy"])
def test_the_parts_of_each_step_sum_to_what_was_logged(opened: Demo, signal: str) -> None:
    for step in range(1, NUM_STEPS + 1):
        found = opened.blame(step, signal)
        assert found.total == pytest.approx(found.logged, abs=1e-6), step


def test_the_mismatched_token_is_first(opened: Demo) -> None:
    link = planted("mismatched token").link

    (row, *_) = opened.blame(9, "mismatch").rows

    assert (row.id, row.turn, f"{row.token}-{row.token}") == (
        link["id"],
        link["turn"],
        link["tokens"],
    )
    (first, *_) = findings(opened.curves)
    assert (first.kind, first.step, first.link["signal"]) == ("spike", 9, "mismatch")


def test_the_costly_token_is_first(opened: Demo) -> None:
    link = planted("costly token").link

    (row, *_) = opened.blame(link["step"], "loss").rows

    assert (row.id, row.value) == (link["id"], pytest.approx(3.0))
    second = findings(opened.curves)[1]
    assert (second.step, second.metrics[0].name) == (11, "policy/loss")


def test_the_phrase_that_appears_is_among_the_first_five(opened: Demo) -> None:
    link = planted("appearing phrase").link
    played = opened.reader.summaries(purpose="train")
    sides = []
    for side in ("a", "b"):
        first, last = map(int, link[side].split(".."))
        own = [one for one in played if first <= one.step <= last]
        sides.append(read_episodes(opened.run, opened.reader, own))

    found = behaviour(*sides)

    assert any("let me check that again" in change.text for change in found.phrases[:5])


def test_the_failing_tool_is_told(opened: Demo) -> None:
    third = findings(opened.curves)[2]

    assert (third.step, third.metrics[0].name) == (12, "tool/python/error_frac")
    assert len(findings(opened.curves)) == 3
    assert planted("failing tool").link["query"].split()[0] == "step:12"
    errors = [one.num_tool_errors for one in opened.reader.summaries(step=12)]
    assert sum(number or 0 for number in errors) > 20


def test_the_marker_in_a_tools_output_is_named(opened: Demo) -> None:
    found = opened.retokenise(planted("marker in a tool's output"))

    assert "special_token_in_text" in [one.cause for one in found.differences]


def test_the_other_split_is_named(opened: Demo) -> None:
    found = opened.retokenise(planted("another split"))

    assert [(one.cause, one.recorded_text) for one in found.differences] == [
        ("other_split", "print")
    ]
    # the run's own template gives the same input again
    assert (found.template.equal, found.template.missing) == (True, "")


def test_the_judge_says_why(opened: Demo) -> None:
    trajectory = opened.reader.get(planted("judge's reason").link["id"]).trajectory

    assert "sounds sure" in trajectory.reasons["judge"]["answer"]


def test_the_state_changes(opened: Demo) -> None:
    trajectory = opened.reader.get(planted("changed state").link["id"]).trajectory

    states = [turn.state for turn in trajectory.turns]
    kept = [json.loads(opened.run.read_blob(state.sha256)) for state in states if state]
    assert [one["calls_left"] for one in kept] == list(range(3, 3 - len(kept), -1))
    notes = trajectory.turns[0].files["notes.txt"]
    assert notes is not None
    assert opened.run.read_blob(notes.sha256) == b"half is done\n"
    assert trajectory.turns[-1].files["notes.txt"] is None


def test_the_newest_alert_leads_to_its_episode(opened: Demo) -> None:
    found = {one.kind: one for one in findings({}, read_jsonl(opened.run.events_path))}

    assert found["alert"].link["id"] == planted("alert").link["id"]


def test_the_dropped_group_taught_nothing(opened: Demo, tmp_path: Path) -> None:
    index = planted("dropped group").link["group_index"]
    with RunIndex(opened.run, tmp_path) as found:
        found.refresh()
        rows = found.page(f"group:{index} purpose:train").rows

    view = group_view(rows, {row["id"]: opened.reader.row(row["id"])[1] for row in rows})

    assert len(rows) == 8
    assert view["zero_std"]


def test_notes_lead_to_the_faults_of_single_episodes(opened: Demo) -> None:
    notes = list(read_jsonl(opened.run.root / "notes" / "demo.jsonl"))

    faults = {
        fault.text: fault.link["id"] for fault in planted_faults() if "id" in fault.link
    }
    assert {note["text"]: note["trajectory"] for note in notes} == faults
    assert all("planted" in note["labels"] for note in notes)


def test_it_is_unpacked_once(tmp_path: Path) -> None:
    folder = unpack_demo(tmp_path)
    (folder / "notes" / "mine.jsonl").touch()

    assert unpack_demo(tmp_path) == folder
    assert (folder / "notes" / "mine.jsonl").exists()
    assert folder.name == "demo"
    assert [path.name for path in folder.parent.iterdir()] == ["demo"]


def test_a_cache_that_takes_nothing_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    folder = unpack_demo(tmp_path / "file")

    try:
        assert (folder / "run.json").is_file()
        assert not folder.is_relative_to(tmp_path)
    finally:
        shutil.rmtree(folder.parents[1])


def test_a_damaged_pack_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "run.tar.zst"
    damaged.write_bytes(demo.PACK.read_bytes()[:-1])
    monkeypatch.setattr(demo, "PACK", damaged)

    with pytest.raises(DataError, match="must have the hash"):
        unpack_demo(tmp_path / "cache")


def test_a_missing_pack_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PACK", tmp_path / "none")

    with pytest.raises(DataError, match="cannot be read: No such file"):
        unpack_demo(tmp_path / "cache")
