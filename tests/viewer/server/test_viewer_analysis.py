"""Overview, groups, tasks, pairs, behaviour, blame and encoding anew, as they are answered."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from agentrl.store import (
    EventLog,
    JsonlWriter,
    KeepSpec,
    RunDirectory,
    TrajectoryWriter,
    write_json,
)
from agentrl.types import Blob
from tests.kit.waiting import until
from tests.viewer.server.viewers import TEXTS, Client, make_trajectory

WORST = len(TEXTS[0]) + 5
"""The token of 2-0-0 whose two logprobs differ most."""


def test_what_store_keep_dropped_is_told(client: Client, run: RunDirectory) -> None:
    assert client.of_run("/overview").json()["kept"] == []
    assert client.get("/api/runs").json()["runs"][0]["trajectories"] == 12
    # as if the run went on from there
    writer_of_step_2 = KeepSpec(last_steps=1, reward_above=0.5)
    with TrajectoryWriter(run, keep=writer_of_step_2) as writer:
        writer.seal(2)
    kept = [{"stage": "", "kept": 2, "of": 4, "steps": [1, 1]}]
    assert client.of_run("/overview").json()["kept"] == kept
    until(lambda: client.get("/api/runs").json()["runs"][0]["trajectories"] == 10)
    blame = client.of_run("/blame", step=1, signal="loss", level="trajectory").json()
    assert blame["kept"] == [2, 4]
    other = client.of_run(
        "/blame", step=1, signal="loss", level="trajectory", stage="rl"
    ).json()
    assert other["kept"] is None  # a step of this number of another stage
    assert sorted(row["id"] for row in blame["rows"]) == ["2-1-0", "3-1-0"]
    assert client.of_run("/trajectory", id="2-1-0").status_code == 200
    dropped = client.of_run("/trajectory", id="2-0-0")
    assert dropped.status_code == 404
    assert (
        "'2-0-0' any more: it was dropped by store.keep, which left 2 of 4" in dropped.text
    )
    assert str(run.root) not in dropped.text
    with TrajectoryWriter(run, keep=KeepSpec(last_steps=1, share=0.0)) as writer:
        writer.seal(2)
    nothing = client.of_run("/blame", step=1, signal="loss", level="trajectory")
    assert "store.keep left 0 of 4 trajectories of step 1" in nothing.text


def test_an_overview_says_where_to_look_first(client: Client, run: RunDirectory) -> None:
    log = EventLog(run)
    log.log("note", "all is well", boundary="run")
    log.log("spike", "the gradient grew", boundary="train", level="warning", step=2)
    log.close()
    answer = client.of_run("/overview").json()
    first, second = answer["findings"][:2]
    assert (first["kind"], first["episodes"]) == ("change", ["2-0-0", "2-1-0", "3-0-0"])
    assert first["link"]["id"] == "2-0-0"
    assert first["link"]["tokens"] == f"{WORST}-{WORST}"
    assert second["kind"] == "alert"
    assert "the gradient grew" in second["text"]
    assert [alert["text"] for alert in answer["alerts"]] == ["the gradient grew"]
    assert answer["alerts"][0]["link"] == {"page": "trajectories", "query": "step:2"}
    assert answer["headlines"] == ["reward/mean", "policy/loss"]
    for finding in answer["findings"]:
        query = finding["link"].get("query", "")
        assert client.of_run("/trajectories", query=query).status_code == 200


def test_what_leads_to_a_step_names_its_stage_where_there_are_several(
    client: Client, run: RunDirectory
) -> None:
    lines = JsonlWriter(run.metrics_path)
    for step in range(1, 9):
        logged = {
            "policy/nll": 9.0,
            "policy/loss": 8.0 * (step == 5),
            "eval/sums/greedy": 0.5,
        }
        lines.append({"step": step, "stage": "sft", "time": 200.0 + step, **logged})
    lines.close()
    log = EventLog(run)
    log.log("spike", "it grew", boundary="train", level="warning", step=2, stage="sft")
    log.close()

    answer = client.of_run("/overview").json()
    links = {one["kind"]: one["link"] for one in answer["findings"]}

    # sft is newer, rl is what logs rewards: 8 / 1 is no spike of its three steps
    assert links == {
        "change": {**links["change"], "id": "2-0-0"},
        "alert": {"page": "trajectories", "query": 'step:2 stage:"sft"'},
    }
    measured = {"name": "sums/greedy", "values": {"step 8 of sft": 0.5}, "query": None}
    assert answer["evaluations"] == [measured]
    behaviour = client.of_run("/behaviour", a="1..1", b="2..2", stage="sft").json()
    assert (behaviour["num_a"], behaviour["num_b"]) == (0, 0)


@pytest.mark.parametrize(
    ("blame", "link"),
    [
        ("", {"page": "trajectories", "query": "step:1 purpose:train calls=0"}),
        ("mismatch", {"page": "blame", "step": 1, "signal": "mismatch", "level": "token"}),
    ],
)
def test_an_alert_of_health_leads_to_its_evidence(
    client: Client, run: RunDirectory, blame: str, link: dict[str, object]
) -> None:
    log = EventLog(run)
    log.log(
        "health_alert",
        "step 1: tool collapse",
        boundary="training",
        level="warning",
        step=1,
        trajectories=["2-0-0"],
        query="step:1 purpose:train calls=0",
        blame=blame,
    )
    log.close()
    (alert,) = client.of_run("/overview").json()["alerts"]
    assert alert["link"] == link
    assert alert["trajectories"] == ["2-0-0"]
    query = "step:1 purpose:train calls=0"
    assert client.of_run("/trajectories", query=query).status_code == 200


def test_evaluations_of_a_run_that_ended_are_those_of_its_summary(
    client: Client, run: RunDirectory, tokenizer: Tokenizer
) -> None:
    own = {"greedy": 0.5, "sampled": None, "excluded": 2}
    write_json(run.summary_path, {"eval": {"sums": {"before": own, "num_tasks": 3}}})
    judged = replace(
        make_trajectory(tokenizer, 0), label="sums/before/greedy", purpose="eval"
    )
    with TrajectoryWriter(run, "evaluation") as writer:
        writer.write(judged, 0)
    greedy, sampled, excluded = client.of_run("/overview").json()["evaluations"]
    assert (greedy["name"], greedy["values"]) == ("sums/before/greedy", {"score": 0.5})
    rows = client.of_run("/trajectories", query=greedy["query"]).json()["rows"]
    assert [row["id"] for row in rows] == [judged.id]
    # nothing was played for these, or no label names what was
    assert [sampled["query"], excluded["query"]] == [None, None]


@pytest.mark.parametrize("name", ["code", "my code", "a/b"])
def test_evaluations_of_a_run_under_way_lead_to_their_trajectories(
    client: Client, run: RunDirectory, tokenizer: Tokenizer, name: str
) -> None:
    lines = JsonlWriter(run.metrics_path)
    with TrajectoryWriter(run, "evaluation") as writer:
        for step in (10, 20):
            for stage in ("sft", "rl"):
                logged = {f"eval/{name}/greedy": step / 100, f"eval/{name}/excluded": 1.0}
                lines.append({"step": step, "stage": stage, "time": 200.0 + step, **logged})
                one = make_trajectory(tokenizer, 0)
                label = f"{name}/step={step:06d}/greedy"
                writer.write(replace(one, stage=stage, label=label, purpose="eval"), step)
    lines.close()
    found = client.of_run("/overview").json()["evaluations"]
    assert [(one["name"], one["values"]) for one in found if one["query"]] == [
        (f"{name}/greedy", {"step 20 of rl": 0.2}),
        (f"{name}/greedy", {"step 20 of sft": 0.2}),
    ]
    for one, stage in zip(
        [one for one in found if one["query"]], ("rl", "sft"), strict=True
    ):
        rows = client.of_run("/trajectories", query=one["query"]).json()["rows"]
        assert [row["id"] for row in rows] == [f"{stage}/{name}/step=000020/greedy/0-0-0"]


def test_a_group_has_its_rollouts_with_advantages_and_tokens(client: Client) -> None:
    answer = client.of_run("/group", group_index=2, stage="").json()
    assert [row["id"] for row in answer["rows"]] == ["2-0-0", "2-1-0"]
    assert answer["advantages"] == {"2-0-0": {"main": -0.5}, "2-1-0": {"main": 0.5}}
    assert answer["task"]["id"] == "task-0"
    assert "".join(answer["tokens"]["2-1-0"]["pieces"]).startswith(TEXTS[0])
    assert client.of_run("/group", group_index=99).status_code == 404
    assert client.of_run("/group", group_index=2, label="other").status_code == 404


def test_a_group_is_of_training_where_no_evaluation_is_named(
    client: Client, run: RunDirectory, tokenizer: Tokenizer
) -> None:
    judged = replace(
        make_trajectory(tokenizer, 2), label="sums/after/greedy", purpose="eval"
    )
    with TrajectoryWriter(run, "evaluation") as writer:
        writer.write(judged, 3)
    answer = client.of_run("/group", group_index=2).json()
    assert [row["id"] for row in answer["rows"]] == ["2-0-0", "2-1-0"]
    answer = client.of_run("/group", group_index=2, label=judged.label).json()
    assert [row["id"] for row in answer["rows"]] == [judged.id]


def test_a_group_is_whole_beside_evaluations_that_count_from_0_too(
    client: Client, run: RunDirectory, tokenizer: Tokenizer
) -> None:
    with TrajectoryWriter(run, "evaluation") as writer:
        for rollout in range(8):
            writer.write(replace(make_trajectory(tokenizer, 0, rollout), stage="rl"), 1)
        for step in range(12):
            played = f"code/step={step:06d}/sampled"
            for rollout in range(5):
                one = make_trajectory(tokenizer, 0, rollout)
                writer.write(replace(one, stage="rl", label=played, purpose="eval"), step)
    answer = client.of_run("/group", group_index=0, stage="rl").json()
    assert [row["id"] for row in answer["rows"]] == [
        f"0-{rollout}-0" for rollout in range(8)
    ]
    answer = client.of_run("/group", group_index=0, stage="rl", label=played).json()
    assert [row["id"] for row in answer["rows"]] == [
        f"rl/{played}/0-{n}-0" for n in range(5)
    ]


def test_the_rewards_of_a_large_group_are_those_of_all_its_rollouts(
    client: Client, run: RunDirectory, tokenizer: Tokenizer
) -> None:
    with TrajectoryWriter(run, "other") as writer:
        for rollout in range(65):
            one = make_trajectory(tokenizer, 50, rollout)
            writer.write(replace(one, reward=float(rollout == 64), group_size=65), 5)
    answer = client.of_run("/group", group_index=50).json()
    assert (answer["reward_mean"], answer["zero_std"]) == (1 / 65, False)
    assert (len(answer["rows"]), len(answer["tokens"])) == (65, 64)


def test_a_group_that_ended_in_two_steps_is_whole(
    client: Client, run: RunDirectory, tokenizer: Tokenizer
) -> None:
    with TrajectoryWriter(run, "other") as writer:
        for rollout in range(8):
            late = rollout > 4
            one = make_trajectory(tokenizer, 50, rollout)
            one = replace(one, stage="rl", reward=float(late), group_size=8)
            writer.write(one, 2 if late else 1)
    ids = [f"50-{rollout}-0" for rollout in range(8)]
    answer = client.of_run("/trajectory", id="50-0-0").json()
    assert answer["neighbours"]["siblings"] == ids
    own = answer["summary"]
    named = {
        "group_index": own["group_index"],
        "stage": own["stage"],
        "label": own["label"],
    }
    group = client.of_run("/group", **named).json()
    assert [row["id"] for row in group["rows"]] == ids
    assert (group["reward_mean"], group["zero_std"]) == (0.375, False)
    assert group["reward_std"] == pytest.approx(0.484, abs=1e-3)


def test_a_task_is_followed_over_versions(client: Client) -> None:
    answer = client.of_run("/task", task_id="task-1").json()
    [course] = answer["courses"]
    assert course["version"] == [3, 5, 7]
    assert course["ways"]["train"]["reward"] == [0.5, 0.5, 0.5]
    assert (course["first"], course["last"]) == ("3-1-0", "7-1-0")
    for unknown in ("none", "", "x" * 5000, 'a" or step>0'):
        assert client.of_run("/task", task_id=unknown).status_code == 404


def test_two_trajectories_are_compared_by_turns(client: Client) -> None:
    answer = client.of_run("/diff", a="2-0-0", b="2-1-0").json()
    assert answer["first_divergence"] is None
    assert answer["result"]["reward"] == {"a": 0.0, "b": 1.0}
    assert client.of_run("/diff", a="2-0-0", b="none").status_code == 404


def test_tasks_are_compared_between_ranges_of_steps(client: Client) -> None:
    answer = client.of_run("/tasks", a="1..1", b="2..3").json()
    assert (answer["tasks"], answer["episodes"]) == (2, 8)
    never = client.of_run(
        "/tasks", a="1", b="2..3", solved="reward>5", query="task:task-0"
    ).json()
    assert [row["task"] for row in never["never"]["rows"]] == ["task-0"]
    for params, why in (
        ({"a": "2..3", "b": "1"}, "must come after"),
        ({"a": "x", "b": "1"}, "a must be a step"),
        ({"a": "1", "b": "2", "solved": "rewrd>1"}, "did you mean 'reward'"),
    ):
        refused = client.of_run("/tasks", **params)
        assert (refused.status_code, why in refused.text) == (400, True)


def test_a_task_that_is_solved_at_last_tells_by_what(client: Client) -> None:
    # what finds one trajectory alone solved its task, and none before did
    (row,) = client.of_run("/tasks", a="1", b="2..3", solved="id:4-1-0").json()["new"][
        "rows"
    ]
    assert (row["id"], row["calls"], row["new_calls"]) == ("4-1-0", "python ok", False)
    assert client.of_run("/tasks", a="1", b="2..3", solved="").json()["new"]["rows"] == []


def test_behaviour_is_compared_between_ranges_of_steps(client: Client) -> None:
    answer = client.of_run("/behaviour", a="1..1", b="2..3", query="task:task-0").json()
    assert (answer["num_a"], answer["num_b"], answer["complete"]) == (2, 4, True)
    assert client.of_run("/reading").json() == {"read": 6, "of": 6}
    for params in (
        {"a": "3..1", "b": "2"},
        {"a": "x", "b": "2"},
        {"a": "1", "b": "2", "query": "("},
    ):
        assert client.of_run("/behaviour", **params).status_code == 400


def test_blame_sums_to_the_logged_loss_and_ranks_the_worst_token(client: Client) -> None:
    loss = client.of_run("/blame", step=1, signal="loss", level="trajectory").json()
    # four trajectories of weight 1/4 each, two of token loss 2 and two of 3
    assert loss["total"] == pytest.approx(2.5, abs=1e-6)
    assert loss["logged"] == 2.5
    assert sorted(row["value"] for row in loss["rows"]) == pytest.approx(
        [0.5, 0.5, 0.75, 0.75]
    )
    mismatch = client.of_run("/blame", step=1, signal="mismatch").json()
    assert (mismatch["rows"][0]["id"], mismatch["rows"][0]["token"]) == ("2-0-0", WORST)
    assert (loss["missing"], mismatch["missing"]) == ("", "")
    # an ordinary answer without rows: that a run keeps less is no mistake of the request
    missing = client.of_run("/blame", step=2)
    assert (missing.status_code, missing.json()["rows"]) == (200, [])
    assert "store.detail: tokens" in missing.json()["missing"]
    assert client.of_run("/blame", step=1, signal="luck").status_code == 400


def keep_template(run: RunDirectory, template: bytes) -> None:
    """Adds a chat template to what the run keeps of its stage's tokenizer."""
    record = run.read_record()
    kept = {**record["tokenizers"]["rl"], "chat_template.jinja": run.write_blob(template)}
    write_json(run.record_path, {**record, "tokenizers": {"rl": kept}})


def test_a_turn_is_encoded_anew_and_its_template_rendered(
    client: Client, run: RunDirectory, tokenizer: Tokenizer
) -> None:
    keep_template(run, b"{{ messages[0].content }}")
    answer = client.of_run("/retokenise", id="2-0-0", turn=0).json()
    assert answer["equal"]
    assert answer["template"]["equal"]
    # without a turn, every token is: the last turn of the one sequence has all
    assert client.of_run("/retokenise", id="2-0-0").json()["turns"] == [1]
    assert client.of_run("/retokenise", id="2-0-0", turn=7).status_code == 400


def test_the_tools_of_the_run_stand_in_its_template(
    client: Client, run: RunDirectory, tokenizer: Tokenizer
) -> None:
    text = "{{ tools[0].function.name }}: {{ messages[0].content }}"
    keep_template(run, text.encode())
    made = make_trajectory(tokenizer, 50, prompt=f"python: {TEXTS[0]}")
    named = Blob.of(b'[{"type":"function","function":{"name":"python"}}]')
    asked = ({"role": "user", "content": TEXTS[0]},)
    first = replace(made.turns[0], offered_tools=named, observed=asked)
    with TrajectoryWriter(run, "other") as writer:
        writer.write(replace(made, turns=(first, made.turns[1])), 5)

    template = client.of_run("/retokenise", id="50-0-0", turn=0).json()["template"]
    assert (template["equal"], template["missing"]) == (True, "")
    (run.blobs_folder / named.sha256).unlink()
    template = client.of_run("/retokenise", id="50-0-0", turn=0).json()["template"]
    assert template["equal"] is None
    assert named.sha256 in template["missing"]


def test_a_template_that_reaches_out_says_so(client: Client, run: RunDirectory) -> None:
    keep_template(run, b"{{ messages.__class__.__mro__ }}")
    answer = client.of_run("/retokenise", id="2-0-0", turn=0).json()
    assert answer["template"]["equal"] is None
    assert "no template may" in answer["template"]["missing"]
    assert json.dumps(answer)
