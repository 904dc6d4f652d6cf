"""What the viewer answers of a run: real requests to a viewer on a free port."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import httpx
import numpy as np
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient
from tokenizers import Tokenizer

from agentrl.store import RunDirectory, TrajectoryWriter, write_json
from agentrl.types import Status
from agentrl.viewer.app import create_app
from tests.viewer.server.viewers import TEXTS, Client, make_trajectory


def array(packed: dict[str, str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed["data"]), packed["dtype"])


def test_the_list_of_runs_tells_how_far_each_is(client: Client, run: RunDirectory) -> None:
    [row] = client.get("/api/runs").json()["runs"]
    assert row["name"] == "first"
    assert row["command"] == "agentrl train c.yaml"
    assert (row["step"], row["steps_total"], row["stage"], row["seed"]) == (3, 9, "rl", 3)
    assert row["trajectories"] == 12
    assert row["sparkline_name"] == "reward/mean"
    assert row["sparkline"] == [[1, 0.25], [2, 0.5], [3, 0.75]]
    assert str(run.root) not in row["key"]


def test_metrics_come_by_stage_and_name(client: Client) -> None:
    answer = client.of_run("/metrics", names=["reward/mean", "none"]).json()
    assert answer["names"] == ["mismatch/logp_abs/max", "policy/loss", "reward/mean"]
    [stage] = answer["stages"]
    assert (stage["stage"], stage["steps"], stage["names"]) == ("rl", 3, answer["names"])
    reward = {"step": [1, 2, 3], "time": [101, 102, 103], "value": [0.25, 0.5, 0.75]}
    assert stage["series"] == {"reward/mean": reward | {"tokens": [None] * 3, "of": 3}}
    [stage] = client.of_run("/metrics", names="policy/loss").json()["stages"]
    assert stage["series"]["policy/loss"]["value"] == [2.5]
    assert (
        client.of_run("/metrics", names="policy/loss", stage="x").json()["stages"][0][
            "series"
        ]
        == {}
    )


def test_metrics_are_a_file_for_other_programs(client: Client) -> None:
    answer = client.of_run("/metrics.csv", names=["policy/loss", "reward/mean"])
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.text.split("\r\n")[:3] == [
        "stage,step,time,policy/loss,reward/mean",
        "rl,1,101,2.5,0.25",
        "rl,2,102,,0.5",
    ]
    assert client.of_run("/metrics.csv", stage="rl").text.startswith(
        "stage,step,time,mismatch/logp_abs/max,policy/loss,reward/mean"
    )


def test_settings_are_those_that_the_run_resolved(client: Client) -> None:
    answer = client.of_run("/settings").json()
    assert answer == {
        "rows": [
            {"path": "stages.rl.train.steps", "value": 9, "source": None},
            {"path": "stages.rl.algorithm.name", "value": "grpo", "source": None},
        ],
        "error": "",
    }


def test_a_list_is_a_page_of_all(client: Client) -> None:
    answer = client.of_run("/trajectories", sort="-step", offset=1, limit=2).json()
    assert answer["total"] == 12
    assert [row["step"] for row in answer["rows"]] == [3, 3]
    assert {"id", "group", "rollout", "note"} <= answer["rows"][0].keys()


@pytest.mark.parametrize(
    ("path", "asked", "remedy"),
    [
        ("/trajectories", {"sort": "-num_tokens"}, "did you mean 'tokens'?"),
        ("/trajectories", {"query": "stalenes>=2"}, "did you mean 'staleness'?"),
        ("/trajectories", {"columns": "anser"}, "columns must name fields, got 'anser'"),
        ("/facets", {"columns": "policy_version_max"}, "did you mean 'newest_version'?"),
    ],
)
def test_a_field_that_is_not_there_is_named(
    client: Client, path: str, asked: dict[str, str], remedy: str
) -> None:
    answer = client.of_run(path, **asked)
    assert answer.status_code == 400
    assert remedy in answer.json()["error"]


def test_a_list_has_texts_that_are_asked_for(client: Client) -> None:
    rows = client.of_run("/trajectories", columns="final", limit=3).json()["rows"]
    assert [row["final"] for row in rows] == [TEXTS[3]] * 3
    assert "prompt" not in rows[0]
    fields = {field["name"]: field for field in client.of_run("/fields").json()["fields"]}
    assert fields["mismatch"]["unit"] == "nats"
    assert fields["final"]["kind"] == "long"
    assert set(rows[0]) - {"final"} <= fields.keys()


@pytest.mark.parametrize(
    "params", [{"offset": "-1"}, {"limit": "9999999"}, {"limit": "many"}]
)
def test_a_page_that_is_none_is_named(client: Client, params: dict[str, str]) -> None:
    answer = client.of_run("/trajectories", **params)
    assert answer.status_code == 400
    assert next(iter(params)) in answer.json()["error"]


def test_a_trajectory_has_its_turns_and_neighbours(client: Client) -> None:
    answer = client.of_run("/trajectory", id="4-0-0").json()
    assert [turn["text"] for turn in answer["turns"]] == [TEXTS[1], TEXTS[3]]
    assert answer["turns"][0]["calls"][0]["result"]["content"] == "42"
    assert [turn["sequence"] for turn in answer["turns"]] == [0, 0]
    assert answer["turns"][0]["versions"] == [4]
    assert answer["neighbours"]["siblings"] == ["4-0-0", "4-1-0"]
    assert answer["neighbours"]["same_task_previous"] == "2-1-0"
    assert "store.states" in answer["missing"]["state"]


def test_a_trajectory_says_what_became_of_it(client: Client, run: RunDirectory) -> None:
    def moved(group: int, to: str, **more: object) -> str:
        return (
            json.dumps({"group_index": group, "rollout_indices": [0], "to": to, **more})
            + "\n"
        )

    run.ledger_path.write_text(
        moved(2, "trained", step=1) + moved(3, "dropped", reason="stale")
    )
    found = [client.of_run("/trajectory", id=f"{group}-0-0").json() for group in (2, 3, 4)]
    fates = [(one["summary"]["trained_step"], one["summary"]["drop"]) for one in found]
    assert fates == [(1, ""), (None, "stale"), (None, "")]


def test_tokens_have_pieces_bytes_and_columns_on_one_axis(client: Client) -> None:
    answer = client.of_run("/tokens", id="2-0-0").json()
    count = answer["num_tokens"]
    assert len(answer["pieces"]) == count == array(answer["ids"]).size
    joined = b"".join(
        bytes.fromhex(answer["bytes"][str(place)])
        if str(place) in answer["bytes"]
        else piece.encode()
        for place, piece in enumerate(answer["pieces"])
    )
    assert joined.decode() == f"{TEXTS[0]}{TEXTS[1]}<end>{TEXTS[2]}{TEXTS[3]}<end>"
    party = len(TEXTS[0]) + len("call ")
    assert [answer["bytes"][str(party + place)] for place in range(4)] == [
        "f0",
        "9f",
        "8e",
        "89",
    ]
    kinds = array(answer["kinds"])
    difference = array(answer["columns"]["difference"]["values"])
    assert np.isnan(difference[kinds != 1]).all()
    # the sixth sampled token, whose trainer says -3 where the sampler said -0.5
    assert np.flatnonzero(np.abs(np.nan_to_num(difference)) > 0).tolist() == [
        len(TEXTS[0]) + 5
    ]
    assert difference[len(TEXTS[0]) + 5] == -2.5
    assert "store.detail: full" in answer["missing"]["entropy"]


def test_the_likeliest_tokens_stand_beside_the_sampled_ones(
    client: Client, run: RunDirectory, tokenizer: Tokenizer
) -> None:
    with TrajectoryWriter(run, "other") as writer:
        writer.write(make_trajectory(tokenizer, 50, alternatives="xy"), 5)
    answer = client.of_run("/tokens", id="50-0-0").json()
    found = answer["alternatives"]
    sampled = np.flatnonzero(array(answer["kinds"]) == 1)
    assert found["width"] == 3
    assert array(found["tokens"]).tolist() == sampled.tolist()
    ids = array(found["ids"]).reshape(-1, 3)
    assert ids[:, 0].tolist() == array(answer["ids"])[sampled].tolist()
    assert [found["pieces"][str(token)] for token in ids[0]] == ["c", "x", "y"]
    party = next(
        at for at, token in enumerate(ids[:, 0].tolist()) if str(token) in found["bytes"]
    )
    assert found["bytes"][str(ids[party, 0])] == "f0"
    assert array(found["logprobs"])[:3].tolist() == [-0.5, -1.5, -2.5]
    assert "alternatives" not in answer["missing"]

    without = client.of_run("/tokens", id="2-0-0").json()
    assert without["alternatives"] is None
    assert "store.detail: full asks" in without["missing"]["alternatives"]


def test_rendered_text_is_the_ids_and_its_spans_cover_it(client: Client) -> None:
    [sequence] = client.of_run("/rendered", id="2-0-0").json()["sequences"]
    assert sequence["text"] == f"{TEXTS[0]}{TEXTS[1]}<end>{TEXTS[2]}{TEXTS[3]}<end>"
    units = sequence["text"].encode("utf-16-le")
    shown = [units[2 * a : 2 * b].decode("utf-16-le") for a, b, _, _ in sequence["spans"]]
    assert shown == [TEXTS[0], f"{TEXTS[1]}<end>", TEXTS[2], f"{TEXTS[3]}<end>"]
    assert [span[2] for span in sequence["spans"]] == [
        "prompt",
        "policy",
        "observation",
        "policy",
    ]


def test_a_run_without_a_tokenizer_says_so_and_shows_ids(
    client: Client, run: RunDirectory
) -> None:
    write_json(run.record_path, {**run.read_record(), "tokenizers": {}})
    answer = client.of_run("/tokens", id="2-0-0").json()
    assert "keeps no tokenizer" in answer["missing"]["pieces"]
    assert answer["pieces"][0] == f"<{array(answer['ids'])[0]}>"
    assert client.of_run("/rendered", id="2-0-0").status_code == 404


def test_what_a_run_lacks_is_named(client: Client) -> None:
    for path, params in (("/trajectory", {"id": "9-9-9"}), ("/tokens", {"id": "x" * 5000})):
        answer = client.of_run(path, **params)
        assert answer.status_code == 404
        assert "has no trajectory" in answer.json()["error"]
    assert client.get("/api/runs/nothing").status_code == 404
    assert client.get("/api/nothing").status_code == 404


def test_an_image_comes_by_its_type_and_all_else_as_a_file(
    client: Client, run: RunDirectory
) -> None:
    png = run.write_blob(b"\x89PNG\r\n\x1a\n0000")
    svg = run.write_blob(b"<svg onload='alert(1)'/>")
    assert client.of_run(f"/blob/{png}").headers["content-type"] == "image/png"
    answer = client.of_run(f"/blob/{svg}")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")


def test_a_run_that_is_moved_says_so_and_comes_back(
    client: Client, run: RunDirectory
) -> None:
    key = client.get("/api/runs").json()["runs"][0]["key"]
    away = run.root.rename(run.root.with_name("away"))
    for path in ("", "/metrics", "/trajectories", "/notes"):
        answer = client.get(f"/api/runs/{key}{path}")
        assert answer.status_code == 404
        assert "moved or deleted" in answer.json()["error"]
    away.rename(run.root)
    assert client.get(f"/api/runs/{key}/trajectories").json()["total"] == 12


def test_a_page_of_another_machine_asks_in_vain(client: Client) -> None:
    answer = httpx.options(
        client.root + "/api/runs", headers={"Origin": "http://evil.example"}
    )
    assert answer.status_code == 401


def test_a_fault_of_the_viewer_is_an_answer_and_a_log_line(
    run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(run.root, token="secret")

    def failing(_: Request) -> Response:
        raise IsADirectoryError("which nobody expects")

    app.router.routes.insert(0, Route("/api/failing", failing))
    asking = TestClient(app, "http://localhost", headers={"Authorization": "Bearer secret"})
    answer = asking.get("/api/failing")
    assert answer.status_code == 500
    assert "IsADirectoryError" in answer.json()["error"]
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    [record] = [
        one for one in caplog.records if getattr(one, "event", "") == "request_failed"
    ]
    assert record.levelname == "ERROR"


def test_an_episode_without_turns_or_without_tokens_is_shown(
    client: Client, run: RunDirectory, tokenizer: Tokenizer
) -> None:
    made = make_trajectory(tokenizer, 80)
    bare = [replace(turn, context=(), completion=()) for turn in made.turns]
    failed = Status("failed", "engine", "it gave up")
    with TrajectoryWriter(run, "other") as writer:
        writer.write(replace(made, turns=(), status=failed, reward=None, rewards={}), 8)
        writer.write(replace(made, group_index=81, turns=tuple(bare)), 8)
    for own, count in (("80-0-0", 0), ("81-0-0", 2)):
        assert len(client.of_run("/trajectory", id=own).json()["turns"]) == count
        assert client.of_run("/tokens", id=own).json()["num_tokens"] == 0
        sequences = client.of_run("/rendered", id=own).json()["sequences"]
        assert [sequence["text"] for sequence in sequences] == [""] * min(count, 1)
        assert client.of_run("/group", group_index=int(own[:2])).status_code == 200
        assert client.of_run("/retokenise", id=own, turn=0).status_code == 400
