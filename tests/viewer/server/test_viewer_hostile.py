"""What models, tools and people write is data to the viewer, whatever it says."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from agentrl.store import RunDirectory, TrajectoryWriter
from tests.viewer.server.viewers import Client, make_trajectory

HOSTILE = (
    "<script>alert(1)</script>\x1b[31m\x00\u202e\ud800 ]]> --> </script> javascript:alert(1) "
    + "\N{PARTY POPPER}" * 3
)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@pytest.fixture
def hostile(run: RunDirectory, tokenizer: Tokenizer) -> str:
    """A trajectory whose every text is hostile."""
    made = make_trajectory(tokenizer, 90)
    first = replace(
        made.turns[0],
        text=HOSTILE + "x" * 10_000_000,
        message={"role": "assistant", "content": HOSTILE},
        info={"__proto__": {"polluted": True}, "nan": math.nan, "constructor": HOSTILE},
    )
    task = replace(made.task, id=HOSTILE, data_source=HOSTILE)
    rewards = {HOSTILE: math.nan, "__proto__": math.inf}
    with TrajectoryWriter(run, "other") as writer:
        writer.write(
            replace(
                made, turns=(first, made.turns[1]), task=task, rewards=rewards, reward=0.5
            ),
            9,
        )
    return made.id


def test_every_answer_about_it_is_plain_json(client: Client, hostile: str) -> None:
    for path, params in (
        ("/trajectories", {"query": "step:9"}),
        ("/facets", {"query": "step:9"}),
        ("/trajectory", {"id": hostile}),
        ("/tokens", {"id": hostile}),
        ("/rendered", {"id": hostile}),
        ("/group", {"group_index": 90}),
        ("/diff", {"a": hostile, "b": "2-0-0"}),
        ("/behaviour", {"a": "1..3", "b": "9"}),
        ("/tasks", {"a": "1..3", "b": "9"}),
    ):
        answer = client.of_run(path, **params)
        assert answer.status_code == 200, (path, answer.text[:300])
        assert answer.headers["content-type"] == "application/json"
        json.loads(answer.content, parse_constant=refuse)
    turn = client.of_run("/trajectory", id=hostile).json()["turns"][0]
    assert turn["message"]["content"] == HOSTILE
    assert turn["info"]["__proto__"] == {"polluted": True}


def test_its_task_is_found_by_its_own_name(client: Client, hostile: str) -> None:
    [row] = client.of_run("/trajectories", query="step:9").json()["rows"]
    answer = client.of_run("/task", task_id=row["task"]).json()
    assert [one["id"] for one in answer["rows"]] == [hostile]


def test_a_refusal_repeats_nothing_as_html(client: Client) -> None:
    for path in ("/<script>alert(1)</script>", "/api/<img src=x onerror=alert(1)>"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/json"
