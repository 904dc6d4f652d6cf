"""Steps over the API: runs with times and without, torn ones, and one under way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from agentrl.store import write_json
from agentrl.store.heartbeat import Heartbeat
from tests.viewer.server.viewers import Client, viewing
from tests.viewer.timed_run import T, TimedRun

Ask = Callable[..., Any]


@pytest.fixture
def made(tmp_path: Path, tokenizer: Tokenizer) -> TimedRun:
    return TimedRun(tmp_path / "run", tokenizer)


@pytest.fixture
def ask(made: TimedRun) -> Iterator[Ask]:
    """Asks for a step of the run."""
    with viewing(made.directory.root) as address, Client(address) as client:

        def asked(step: object, status: int = 200, **params: object) -> Any:
            answer = client.of_run("/step", step=step, **params)
            assert answer.status_code == status, answer.text
            return answer.json()

        yield asked


def waits(answer: Any) -> list[tuple[str, str, float, str]]:
    return [(w["phase"], w["part"], w["seconds"], w["episode"]) for w in answer["waited"]]


def test_a_step_has_its_groups_by_span_and_what_it_waited_for(
    made: TimedRun, ask: Ask
) -> None:
    made.play(1, 1.0, 1.0, group=3)
    made.play(1, 1.0, 0.0, 0.5, group=4)
    made.step(1)
    made.step(2)

    found = ask(1)

    assert (found["before"], found["after"], found["start"], found["placed"]) == (
        None,
        2,
        T,
        True,
    )
    assert [(one["group"], one["no_spread"]) for one in found["groups"]] == [
        (4, False),
        (3, True),
    ]
    longest, *_ = found["groups"][0]["episodes"]
    assert (longest["id"], longest["start"], longest["end"]) == ("4-2-0", 0.0, 6.0)
    # a call of the first turn took a quarter of a second
    assert longest["parts"] == [
        ["generate", 0.0, 3.0, 4],
        ["tool", 3.0, 3.25, None],
        ["environment", 3.25, 3.5, None],
    ]
    assert waits(found) == [
        ("wait_rollout", "", 4.0, ""),
        ("wait_rollout", "generate", 3.0, "4-2-0"),
        ("wait_rollout", "between", 2.5, "4-2-0"),
        ("wait_rollout", "tool", 0.25, "4-2-0"),
        ("wait_rollout", "environment", 0.25, "4-2-0"),
        ("other", "", 10.0, ""),
    ]


def test_equal_rewards_are_no_lack_of_spread_while_the_others_are_not_there(
    made: TimedRun, ask: Ask
) -> None:
    made.play(1, *[0.0] * 5, group=3, group_size=8)
    made.play(1, *[0.0] * 8, group=4, group_size=8)
    made.step(1)

    assert {one["group"]: one["no_spread"] for one in ask(1)["groups"]} == {
        3: False,
        4: True,
    }


def test_an_older_run_has_sums_alone(made: TimedRun, ask: Ask) -> None:
    made.play(1, 0.0, started_at=0.0, ended_at=0.0)
    made.log(1, **{"time/step_s": 3.0, "time/rollout_s": 2.0, "time/update_s": 9.0})

    found = ask(1)

    assert (found["placed"], found["phases"]) == (False, [])
    assert waits(found) == [
        ("rollout", "", 2.0, ""),
        ("update", "", 1.0, ""),
        ("other", "", 0.0, ""),
    ]
    [episode] = found["groups"][0]["episodes"]
    assert (episode["start"], episode["end"], episode["parts"]) == (None, None, [])


@pytest.mark.parametrize("step_s", [{}, {"time/step_s": None}, {"time/step_s": "fast"}])
def test_a_step_without_its_seconds_says_nothing_of_them(
    made: TimedRun, ask: Ask, step_s: dict[str, Any]
) -> None:
    made.phases(1, ("step", T, T + 5), ("update", T, T + 1))
    made.log(1, **step_s)

    found = ask(1)

    assert (found["step_s"], found["waited"], found["groups"]) == (None, [], [])
    assert found["phases"] == [["update", 0.0, 1.0, 1]]


def test_a_torn_run_shows_what_is_whole(made: TimedRun, ask: Ask) -> None:
    made.play(1, 1.0, 0.0)
    made.step(1)
    made.phases(2, "odd", ["update", 1], ["update", T + 9, T], ["eval", "x", None])
    with made.directory.phases_path.open("a") as lines:
        lines.write('no object\n{"step": "2"}\n{"step": 3, "phases": 7}\n{"step": 4, "pha')
    made.log(2, **{"time/step_s": 1.0})

    assert len(ask(1)["groups"]) == 1
    assert (ask(2)["placed"], ask(2)["phases"], waits(ask(2))) == (
        False,
        [],
        [("other", "", 1.0, "")],
    )
    [shard] = made.directory.sealed_folder.glob("*/*.parquet")
    shard.write_bytes(shard.read_bytes()[:200])
    # what was read of the step before is void with it
    assert ask(2)["total"] == 0


def test_a_step_under_way_shows_what_ended(made: TimedRun, ask: Ask) -> None:
    with Heartbeat(made.directory):
        made.step(1)
        made.play(2, 1.0, seal=False)
        write_json(made.directory.now_path, {"loop": [{"phase": "wait_rollout", "s": 4.0}]})

        found = ask(2)

        assert (found["goes_on"], found["total"], found["waited"]) == (True, 1, [])
        assert found["before"] == 1
        assert ask(3, 404)["error"].endswith("has no step 3")
    assert ask(2)["goes_on"] is False


def test_a_step_of_an_evaluation_alone_and_one_without_episodes(
    made: TimedRun, ask: Ask
) -> None:
    made.play(0, 1.0, purpose="eval", label="sums/before/greedy")
    made.log(0, **{"eval/sums/greedy": 1.0})
    made.step(1)
    made.step(2)

    alone = ask(0)
    assert (alone["step_s"], alone["waited"], alone["after"]) == (None, [], 1)
    assert [one["label"] for one in alone["groups"]] == ["sums/before/greedy"]
    assert alone["groups"][0]["no_spread"] is False
    # its seconds are those of the first step
    assert [one["label"] for one in ask(1)["groups"]] == ["sums/before/greedy"]
    assert (ask(2)["groups"], waits(ask(2))[0]) == ([], ("wait_rollout", "", 10.0, ""))


def test_each_stage_has_its_own_steps(made: TimedRun, ask: Ask) -> None:
    made.step(1, stage="warmup")
    made.step(2, stage="warmup")
    made.play(1, 1.0)
    made.step(1)

    assert (ask(1)["stage"], ask(1)["total"]) == ("rl", 1)
    assert (ask(2)["stage"], ask(2)["total"]) == ("warmup", 0)
    assert (ask(1, stage="warmup")["total"], ask(1, stage="warmup")["after"]) == (0, 2)
    assert "has no step 2 of rl" in ask(2, 404, stage="rl")["error"]
    for bad in ("x", "-1", "1e3", str(2**53)):
        ask(bad, 400)


@pytest.mark.slow
def test_a_step_of_2000_episodes_is_bounded(made: TimedRun, ask: Ask) -> None:
    made.play(1, *([0.0, 1.0] * 1000))
    made.step(1)

    found = ask(1)

    [group] = found["groups"]
    assert (found["total"], len(group["episodes"])) == (2000, 2000)
    assert len(json.dumps(found)) < 1_500_000


@pytest.fixture
def timeline(made: TimedRun) -> Iterator[Ask]:
    """Asks for the run's timeline: its lanes by name, and the rest of the answer."""
    with viewing(made.directory.root) as address, Client(address) as client:

        def asked(status: int = 200, **params: object) -> Any:
            answer = client.of_run("/timeline", **params)
            assert answer.status_code == status, answer.text
            found = answer.json()
            lanes = {one["name"]: one["parts"] for one in found.get("lanes", ())}
            return lanes, found

        yield asked


def test_a_timeline_has_phases_episodes_and_what_processes_logged(
    made: TimedRun, timeline: Ask
) -> None:
    for step in (1, 2, 3):
        made.play(step, 1.0, 0.0, group=step)
        made.play(step, 1.0, group=9, purpose="eval", label=f"sums/{step}")
        made.step(step)
    log = made.directory.log_folder
    log.mkdir()
    (log / "rank-0.jsonl").write_text(
        f'{{"event": "saved", "seconds": 2, "time": {T + 30}}}\n{{"event": "late", "time": 1}}\n'
        f'{{"message": "no event", "time": {T + 30}}}\n[]\n{{"event": "x", "time": "soon"}}\n'
    )
    (log / "odd.jsonl").mkdir()

    lanes, found = timeline()
    assert (found["first"], found["last"], found["steps"]) == (1, 3, [1, 3])
    # the first step's span begins before the stage
    assert (found["start"], found["end"], found["placed"]) == (T - 5, 65.0, True)
    assert lanes["wait_rollout"] == [
        ["wait_rollout", 20 * n - 15, 20 * n - 5, n] for n in (1, 2, 3)
    ]
    assert lanes["episodes"] == [
        ["episodes", 20 * n - 15, 20 * n - 10, n] for n in (1, 2, 3)
    ]
    assert [part[3] for part in lanes["evaluations"]] == [1, 2, 3]
    assert lanes["log of rank-0"] == [["saved", 33.0, 35.0, None]]

    lanes, found = timeline(first=2, last=2)
    assert [part[3] for part in lanes["step"]] == [2]
    assert (found["start"], found["steps"]) == (T + 15, [1, 3])
    assert timeline(first=7, last=9)[0] == {}
    assert timeline(first=9, last=7)[0] == {}
    timeline(400, first="x")


def test_a_timeline_has_what_each_rank_did(made: TimedRun, timeline: Ask) -> None:
    for step in (1, 2):
        at = T + 20 * step - 20
        ranks = [("actor.update", at, at + n, f"rank-{n}") for n in (10, 9, 1)]
        made.phases(
            step, ("step", at, at + 20), *ranks, ("critic.values", at, at + 1, "scorers-0")
        )
        made.log(step)
    made.phases(
        2, ["x", T, T + 1, "a", "b"], ["x", T + 1, T, "rank-1"], ["x", T, T + 1, {}]
    )

    lanes, _ = timeline()
    assert list(lanes) == ["step", "{}", "rank-1", "rank-9", "rank-10", "scorers-0"]
    assert lanes["rank-9"] == [
        ["actor.update", 0.0, 9.0, 1],
        ["actor.update", 20.0, 29.0, 2],
    ]


def test_the_timeline_of_an_older_run_has_its_steps(made: TimedRun, timeline: Ask) -> None:
    made.log(1, "warmup", **{"time/step_s": 3.0})
    made.log(0, **{"eval/sums/greedy": 1.0})
    made.log(1, **{"time/step_s": 5.0})
    made.log(2, **{"time/step_s": None})

    lanes, found = timeline()
    assert (lanes, found["placed"], found["stage"]) == (
        {"step": [["step", 0.0, 5.0, 1]]},
        False,
        "rl",
    )
    assert timeline(stage="warmup")[1]["end"] == 3.0
    assert timeline(stage="none")[1]["steps"] is None


def test_a_run_that_has_just_begun_has_an_empty_timeline(
    made: TimedRun, timeline: Ask
) -> None:
    assert timeline()[0] == {}


@pytest.mark.slow
def test_a_timeline_of_very_many_steps_is_bounded(made: TimedRun, timeline: Ask) -> None:
    rows = []
    for step in range(60_000):
        at = T + step
        phases = [["step", at, at + 1], ["update", at, at + 0.5 + step / 1e6]]
        rows.append(json.dumps({"step": step, "stage": "rl", "phases": phases}))
    made.directory.phases_path.write_text("\n".join(rows) + "\n")
    made.log(0)
    made.log(59_999)

    assert len(timeline()[0]["step"]) == 200
    lanes, _ = timeline(first=0, last=60_000)
    assert sum(map(len, lanes.values())) <= 100_000
    assert len(lanes["step"]) == 60_000
