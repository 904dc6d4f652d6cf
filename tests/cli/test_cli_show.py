"""``agentrl ls`` and ``agentrl show``: what a run did, for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from agentrl.store import KeepSpec, RunDirectory, TrajectoryReader, TrajectoryWriter
from agentrl.types import Blob, Seat
from tests.cli.conftest import two_turns

Agentrl = Callable[..., tuple[int, str, str]]


def test_ls_lists_every_trajectory_with_its_status(agentrl: Agentrl, run_dir: Path) -> None:
    code, out, _ = agentrl("ls", run_dir)
    assert code == 0
    assert "5-0-0" in out
    assert "failed(engine)" in out
    assert out.splitlines()[-1] == "2 trajectories: 1 failed, 1 terminated"


def test_ls_filters(agentrl: Agentrl, run_dir: Path) -> None:
    _, out, _ = agentrl("ls", run_dir, "--status", "failed", "--json")
    assert [entry["id"] for entry in json.loads(out)] == ["5-1-0"]


def test_ls_says_how_many_it_left_out(agentrl: Agentrl, run_dir: Path) -> None:
    _, out, _ = agentrl("ls", run_dir, "--limit", "1")
    assert out.splitlines()[-1].endswith("1 earlier ones not shown (--limit 0)")


def test_ls_as_json_has_the_whole_summary(agentrl: Agentrl, run_dir: Path) -> None:
    _, out, _ = agentrl("ls", run_dir, "--json")
    first = json.loads(out)[0]
    assert (first["reward"], first["turns"], first["policy_tokens"]) == (1.0, 2, 6)


def test_a_stored_text_cannot_steer_the_terminal(agentrl: Agentrl, run_dir: Path) -> None:
    _, out, _ = agentrl("ls", run_dir)
    assert "\x1b" not in out
    assert "calc-␛[2J" in out


@pytest.mark.usefixtures("tokenizer")
def test_show_tells_policy_tool_and_template_tokens_apart_without_colour(
    agentrl: Agentrl, run_dir: Path
) -> None:
    code, out, _ = agentrl("show", run_dir, "5-0-0")
    assert code == 0
    lines = [line.strip() for line in out.splitlines()]
    assert "prompt | <start> what is 6*7 <end>" in lines
    assert "policy | call python <end>" in lines
    assert "template | <start>" in lines
    assert "tool | 42" in lines
    assert "policy | answer 42 <end>" in lines
    legend = next(line for line in lines if line.startswith("origins"))
    assert all(name in legend for name in ("prompt", "policy", "tool", "template"))


@pytest.mark.usefixtures("tokenizer")
def test_show_has_reward_status_and_calls(agentrl: Agentrl, run_dir: Path) -> None:
    _, out, _ = agentrl("show", run_dir, "5-0-0")
    assert "reward     1 = correct 1" in out
    assert "status     terminated" in out
    assert "call > python: ok in 0.250 s" in out


def test_show_says_who_spoke_and_what_each_agent_got(
    agentrl: Agentrl, run_dir: Path, tmp_path: Path
) -> None:
    _, alone, _ = agentrl("show", run_dir, "5-0-0")
    assert "agent" not in alone
    seats = {
        "main": asdict(Seat(True, 1.0, {"step": 1.0})),
        "foe": asdict(Seat(False, -1.0, {"step": -1.0})),
    }
    episode = two_turns()
    second = replace(episode.turns[1], agent="foe")
    run = RunDirectory.create(tmp_path / "two", {"seed": 7})
    with TrajectoryWriter(run) as writer:
        turns = (episode.turns[0], second)
        writer.write(replace(episode, turns=turns, info={"seats": seats}), step=1)
    _, out, _ = agentrl("show", tmp_path / "two", "5-0-0")
    lines = out.splitlines()
    assert "agent      main: reward 1 = step 1" in lines
    assert "agent      foe: reward -1 = step -1, not trained" in lines
    heads = [line for line in lines if line.startswith("turn ")]
    assert ["agent main" in heads[0], "agent foe" in heads[1]] == [True, True]


def test_show_needs_no_tokenizer(agentrl: Agentrl, run_dir: Path) -> None:
    code, out, _ = agentrl("show", run_dir, "5-0-0")
    assert code == 0
    assert "no tokenizer of this run is here" in out
    assert "policy | answer 42" in out
    assert "tool | tool: 42" in out
    assert "template | (1 tokens)" in out


def test_show_of_a_failure_says_whose(agentrl: Agentrl, run_dir: Path) -> None:
    _, out, _ = agentrl("show", run_dir, "5-1-0")
    assert "status     failed(engine): no answer" in out


def test_show_as_json_has_ids_logprobs_and_versions(
    agentrl: Agentrl, run_dir: Path
) -> None:
    _, out, _ = agentrl("show", run_dir, "5-0-0", "--json")
    shown = json.loads(out)
    completion = shown["turns"][1]["completion"][0]
    assert completion == {
        "kind": "policy",
        "policy_version": 3,
        "token_ids": [8, 7, 1],
        "logprobs": [-0.5, -0.5, -0.5],
    }
    assert [segment["kind"] for segment in shown["turns"][1]["context"]] == [
        "template",
        "observation",
    ]
    assert shown["turns"][0]["calls"][0]["result"]["latency_s"] == 0.25


def test_show_of_a_run_is_its_overview(agentrl: Agentrl, run_dir: Path) -> None:
    code, out, _ = agentrl("show", run_dir)
    assert code == 0
    assert "2 steps" not in out
    rows = [line.split() for line in out.splitlines()]
    assert ["reward/mean", "0.500"] in rows
    assert ["code", "300", "0.300", "0.800", "0.600", "-"] in rows


def test_show_of_a_run_as_json(agentrl: Agentrl, run_dir: Path) -> None:
    _, out, _ = agentrl("show", run_dir, "--json")
    shown = json.loads(out)
    assert shown["trajectories"] == {"failed": 1, "terminated": 1}
    assert (shown["steps"], shown["record"]["seed"]) == (1, 7)


def test_one_bad_line_hides_itself_alone_and_is_named(
    agentrl: Agentrl, run_dir: Path
) -> None:
    run = RunDirectory.open(run_dir)
    good = run.metrics_path.read_text()
    run.metrics_path.write_text("{no JSON\n" + good)
    run.summary_path.write_text("{")

    code, out, err = agentrl("show", run_dir)

    assert code == 0
    assert ["reward/mean", "0.500"] in [line.split() for line in out.splitlines()]
    assert f"{run.metrics_path}:1 must be a JSON object" in err
    assert f"! passed over: {run.summary_path} cannot be read" in err
    code, out, _ = agentrl("tail", run_dir)
    assert code == 0
    assert f"warning passed over: {run.metrics_path}:1" in out


def test_a_run_tells_how_much_store_keep_dropped(agentrl: Agentrl, run_dir: Path) -> None:
    assert json.loads(agentrl("show", run_dir, "--json")[1])["dropped_by_keep"] == 0
    assert "store.keep" not in agentrl("show", run_dir)[1]
    run = RunDirectory.open(run_dir)
    before = TrajectoryReader(run).summaries()
    with TrajectoryWriter(run, keep=KeepSpec(share=0.0)) as writer:
        for stage in {one.stage for one in before}:
            writer.seal(max(one.step for one in before), stage)
    assert f"dropped  {len(before)} by store.keep" in agentrl("show", run_dir)[1]
    code, _, err = agentrl("show", run_dir, before[0].id)
    assert code == 3
    assert "was dropped by store.keep" in err


@pytest.mark.parametrize("command", ["ls", "show"])
def test_what_is_no_run_is_a_data_error(
    agentrl: Agentrl, tmp_path: Path, command: str
) -> None:
    code, _, err = agentrl(command, tmp_path)
    assert code == 3
    assert err.startswith("error: ")
    assert "is not a run directory" in err


def test_an_unknown_trajectory_is_a_data_error(agentrl: Agentrl, run_dir: Path) -> None:
    code, _, err = agentrl("show", run_dir, "9-9-9")
    assert code == 3
    assert "has no trajectory '9-9-9'" in err


def test_show_says_why_a_reward_is_what_it_is_and_what_came_last(
    agentrl: Agentrl, tmp_path: Path
) -> None:
    run = RunDirectory.create(tmp_path / "run")
    state = Blob.of(b"{}")
    whole = two_turns()
    turns = (
        replace(whole.turns[0], state=state, files={"out.txt": None}),
        *whole.turns[1:],
    )
    with TrajectoryWriter(run) as writer:
        writer.write(
            replace(
                whole,
                turns=turns,
                reasons={"judge": {"prompt": "good?", "answer": "7"}},
                last_observed=({"role": "user", "content": "bye"},),
            ),
            5,
        )
    _, out, _ = agentrl("show", run.root, "5-0-0")
    lines = [line.strip() for line in out.splitlines()]
    assert 'why        judge: {"prompt":"good?","answer":"7"}' in lines
    assert f"state > 2 bytes, sha256 {state.sha256}" in lines
    assert "file > out.txt: deleted" in lines
    assert "tool | user: bye" in lines
    _, out, _ = agentrl("show", run.root, "5-0-0", "--json")
    assert json.loads(out)["reasons"]["judge"]["answer"] == "7"
