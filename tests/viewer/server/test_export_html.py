"""`agentrl export html`: what is in the file, what is not, and that it opens from the disk."""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Browser
from tokenizers import Tokenizer

from agentrl.cli.main import run as run_command_line
from agentrl.store import Annotation, EventLog, RunDirectory, TrajectoryWriter, write_json
from agentrl.types import CallRecord, Status, ToolCall
from agentrl.viewer.export import html_file
from agentrl.viewer.index import RunIndex
from tests.kit.waiting import DEADLINE_S
from tests.viewer.server.viewers import TEXTS, make_trajectory, viewing


def exported(run: RunDirectory, *options: str) -> str:
    out = run.root.parent / "out.html"
    assert run_command_line(["export", "html", str(run.root), str(out), *options]) == 0
    return out.read_text(encoding="utf-8")


def answers(page: str) -> dict[str, bytes]:
    """What the file holds, unpacked, by what the viewer asks for."""
    [kept] = re.findall(r'id="agentrl-export">(.*?)</script>', page, re.DOTALL)
    packed = json.loads(kept)["answers"]
    return {name: gzip.decompress(base64.b64decode(data)) for name, data in packed.items()}


ASKING = """
let text = "";
for await (const part of process.stdin) text += part;
const { kept, program, paths } = JSON.parse(text);
globalThis.document = { getElementById: () => ({ textContent: kept }) };
globalThis.HTMLImageElement = class { set src(value) {} };
globalThis.location = { hash: "#/" };
await import(program);
const answers = [];
for (const path of paths) {
  const answer = await fetch(path);
  answers.push([answer.status, await answer.json()]);
}
process.stdout.write(JSON.stringify(answers));
"""


def asked(run: RunDirectory, page: str, *paths: str) -> list[tuple[int, Any]]:
    """What the file's own program answers to the viewer's requests below the run: status, JSON."""
    [kept] = re.findall(r'id="agentrl-export">(.*?)</script>', page, re.DOTALL)
    program = Path(html_file.__file__).with_name("page.js").as_uri()
    wanted = [f"/api/runs/{key_of(run)}{path}" for path in paths]
    done = subprocess.run(
        ["node", "--input-type=module", "-e", ASKING],
        input=json.dumps({"kept": kept, "program": program, "paths": wanted}),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [(status, value) for status, value in json.loads(done.stdout)]


def answer(page: str, what: str) -> Any:
    [found] = [data for name, data in answers(page).items() if name.endswith(what)]
    return json.loads(found)


def test_a_file_holds_the_latest_trajectories_of_a_query(run: RunDirectory) -> None:
    page = exported(run, "--query", "task:task-0", "--limit", "3")
    ids = [row["id"] for row in answer(page, "/trajectories")["rows"]]
    assert ids == ["6-1-0", "6-0-0", "4-1-0"]
    assert answer(page, "/tokens?id=6-0-0")["num_tokens"] > 0
    assert answer(page, "/trajectory?id=6-0-0")["neighbours"]["siblings"] == [
        "6-0-0",
        "6-1-0",
    ]
    assert answer(page, "/trajectory?id=4-1-0")["neighbours"]["previous"] is None


def test_a_trajectory_whose_json_is_broken_hides_itself_alone(
    run: RunDirectory, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(number: int, place: int, column: str, text: str) -> None:
        path = run.shard_path(number, "driver", 1)
        table = pq.read_table(path)
        texts = table[column].to_pylist()
        texts[place] = text
        number_of_it = table.schema.get_field_index(column)
        changed = table.set_column(
            number_of_it, table.schema.field(column), pa.array(texts)
        )
        pq.write_table(changed, path)

    broken(3, 0, "turns", "[{")
    broken(2, 1, "info", "[[[1")
    page = exported(run, "--query", "step>=2")
    ids = [row["id"] for row in answer(page, "/trajectories")["rows"]]
    assert ids == ["7-1-0", "7-0-0", "6-1-0", "5-1-0", "5-0-0", "4-0-0"]
    assert answer(page, "/trajectory?id=6-1-0")["neighbours"]["siblings"] == ["6-1-0"]
    told = capfd.readouterr().err
    for name, column in (("6-0-0", "turns"), ("4-1-0", "info")):
        assert (
            f"passed over: trajectory {name!r} cannot be read: the column {column!r}"
            in told
        )


def test_groups_and_tasks_hold_what_was_exported(run: RunDirectory) -> None:
    page = exported(run, "--query", "task:task-0", "--limit", "3")
    group = answer(page, '/group?["6","",""]')
    assert [row["id"] for row in group["rows"]] == ["6-0-0", "6-1-0"]
    assert [row["id"] for row in answer(page, '/group?["4","",""]')["rows"]] == ["4-1-0"]
    task = answer(page, "/task?id=task-0")
    assert [row["id"] for row in task["rows"]] == ["4-1-0", "6-0-0", "6-1-0"]


def test_groups_of_equal_numbers_are_told_apart_by_their_evaluation(
    run: RunDirectory, tokenizer: Tokenizer
) -> None:
    with TrajectoryWriter(run, "other") as writer:
        for step, rollout in ((4, 0), (5, 1)):
            one = make_trajectory(tokenizer, 50, rollout)
            writer.write(one, step)
            writer.write(
                replace(one, label=f"code/step={step:06d}/greedy", purpose="eval"), step
            )
    page = exported(run, "--query", "group:50")
    groups = {
        name.partition("?")[2]: [row["id"] for row in json.loads(data)["rows"]]
        for name, data in answers(page).items()
        if "/group?" in name
    }
    assert groups == {
        '["50","",""]': ["50-0-0", "50-1-0"],
        '["50","","code/step=000004/greedy"]': ["code/step=000004/greedy/50-0-0"],
        '["50","","code/step=000005/greedy"]': ["code/step=000005/greedy/50-1-0"],
    }


QUERIES = {
    "source:sums": ["50-0-0", "50-3-0", "50-4-0"],
    "source:none": ["50-2-0"],
    'source:"none"': ["50-1-0"],
    "source:any": ["50-0-0", "50-1-0", "50-3-0", "50-4-0"],
    "reward:0..0.5": ["50-0-0", "50-4-0"],
    "reward:0.5..": ["50-1-0", "50-2-0", "50-4-0"],
    "task:1..2": ["50-3-0"],
}


def test_a_query_of_a_file_means_what_it_means_to_the_viewer(
    run: RunDirectory, tokenizer: Tokenizer
) -> None:
    played = [make_trajectory(tokenizer, 50, rollout) for rollout in range(5)]
    for rollout, source in ((1, "none"), (2, "")):
        task = replace(played[rollout].task, data_source=source)
        played[rollout] = replace(played[rollout], task=task, reward=1.0)
    task = replace(played[3].task, id="1..2")
    failed = Status("failed", "engine", "it gave up")
    played[3] = replace(played[3], task=task, reward=None, status=failed)
    played[4] = replace(played[4], reward=0.5)
    with TrajectoryWriter(run, "other") as writer:
        for one in played:
            writer.write(one, 5)
    page = exported(run, "--query", "step:5")
    path = "/trajectories?sort=id&query="
    found = asked(run, page, *[f"{path}{quote(query)}" for query in QUERIES])
    assert [[row["id"] for row in value["rows"]] for _, value in found] == [
        *QUERIES.values()
    ]
    with RunIndex(run) as index:
        index.refresh()
        wanted = [index.ids(f"step:5 {query}", "id") for query in QUERIES]
    assert wanted == [*QUERIES.values()]
    refused = asked(
        run, page, *[f"{path}{one}" for one in ("status:failed,truncated", "task:t*")]
    )
    assert [status for status, _ in refused] == [400, 400]


def test_facets_of_a_file_count_what_its_query_finds(run: RunDirectory) -> None:
    page = exported(run, "--query", "step:3")
    all_, some, chosen = asked(
        run,
        page,
        "/facets",
        "/facets?query=task:task-0",
        "/facets?columns=task&columns=tokens",
    )
    assert all_[1]["columns"]["tool"] == [["python", 4]]
    assert some[1]["columns"]["tool"] == [["python", 2]]
    assert chosen[1]["columns"] == {"task": [["task-1", 2], ["task-0", 2]]}
    assert asked(run, page, "/facets?query=step%3E1")[0][0] == 400


def test_a_file_does_not_give_the_tokens_of_one_learner_for_those_of_another(
    run: RunDirectory,
) -> None:
    page = exported(run, "--query", "group:2")
    paths = ("/tokens?id=2-0-0", "/tokens?id=2-0-0&learner=actor&step=1")
    assert [status for status, _ in asked(run, page, *paths)] == [200, 404]


@pytest.mark.parametrize(
    "options", [["--limit", "201"], ["--redact", "("], ["--redact", "x*"]]
)
def test_an_export_that_cannot_be_is_named(
    run: RunDirectory, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["export", "html", str(run.root), "out.html", *options]) == 2
    assert options[0] in capsys.readouterr().err


def test_a_secret_leaves_texts_ids_blobs_and_configuration(
    run: RunDirectory, tokenizer: Tokenizer
) -> None:
    # a byte a token: once within the prompt, once from its end into the policy's first word
    secret = "7?call"
    record = run.read_record()
    template = run.write_blob(f"{{# {secret} #}}".encode())
    kept = {**record["tokenizers"]["rl"], "chat_template.jinja": template}
    more = {"tokenizers": {"rl": kept}, "note": secret, secret: 1}
    write_json(run.record_path, {**record, **more})
    with TrajectoryWriter(run, "other") as writer:
        writer.write(make_trajectory(tokenizer, 50, prompt=f"What is {secret} or 7?"), 5)
    page = exported(run, "--redact", r"7\?call", "--query", "step:5")
    for name, data in answers(page).items():
        assert secret not in name
        assert secret not in json.dumps(json.loads(data), ensure_ascii=False), name
    tokens = answer(page, "/tokens?id=50-0-0")
    assert secret not in "".join(tokens["pieces"])
    ids = memoryview(base64.b64decode(tokens["ids"]["data"])).cast("i").tolist()
    assert ids.count(-1) == tokens["pieces"].count("█") == 2 * len(secret)
    rendered = answer(page, "/rendered?id=50-0-0")
    assert "".join(rendered["sequences"][0]["text"]).startswith("What is ██████ or ██████ ")


def test_a_secret_leaves_blobs_and_stages_and_what_cannot_be_rewritten_is_left_out(
    run: RunDirectory, tokenizer: Tokenizer
) -> None:
    kept = run.write_blob(b"nothing to hide")
    text = run.write_blob(b"the word is hush-5512.")
    binary = run.write_blob(b"\xff\xfehush-5512")
    config = "stages:\n  - {name: hush-5512, train: {steps: 9}, algorithm: {name: grpo}}\n"
    run.config_path.write_text(config)
    with TrajectoryWriter(run, "other") as writer:
        files = [{"sha256": sha256} for sha256 in (kept, text, binary)]
        one = make_trajectory(tokenizer, 50)
        writer.write(replace(one, info={"files": files, "number": 5512}), 5)
    found = answers(
        exported(run, "--redact", r"hush-\d+", "--redact", "5512", "--query", "step:5")
    )
    blobs = {
        name.rpartition("/")[2]: data for name, data in found.items() if "/blob/" in name
    }
    assert blobs == {kept: b"nothing to hide", text: "the word is █████.".encode()}
    assert not [name for name, data in found.items() if b"hush" in data or b"5512" in data]
    [view] = [
        json.loads(data) for name, data in found.items() if name.endswith(key_of(run))
    ]
    assert [stage["name"] for stage in view["stages"]] == ["█████"]


KEY = "sk-0123456789abcdefghij"


def test_a_mapping_with_the_keys_of_a_packed_array_is_redacted(
    run: RunDirectory, tokenizer: Tokenizer
) -> None:
    played = make_trajectory(tokenizer, 50)
    packed = {"dtype": "<f4", "data": KEY}
    call = ToolCall("c0", "python", packed)
    first = replace(played.turns[0], calls=(CallRecord(call, None, None),))
    turns = (first, played.turns[1])
    with TrajectoryWriter(run, "other") as writer:
        writer.write(replace(played, turns=turns, info=packed, last_info=packed), 5)
    found = answers(exported(run, "--query", "step:5", "--redact", "sk-[a-z0-9]{20}"))
    assert not [name for name, data in found.items() if KEY[:5].encode() in data]
    [tokens] = [json.loads(data) for name, data in found.items() if "/tokens?" in name]
    kinds = base64.b64decode(tokens["kinds"]["data"])
    assert len(kinds) == tokens["num_tokens"]


def test_a_match_leaves_before_a_text_is_cut(
    run: RunDirectory, tokenizer: Tokenizer
) -> None:
    said = "." * 484 + f" {KEY}"
    played = make_trajectory(tokenizer, 50, prompt=said)
    task = replace(played.task, answer={"numbers": [1] * 234, "key": KEY})
    turns = (played.turns[0], replace(played.turns[1], text=said))
    with TrajectoryWriter(run, "other") as writer:
        writer.write(replace(played, task=task, turns=turns), 5)
    page = exported(run, "--query", "step:5", "--redact", "sk-[a-z0-9]{20}")
    assert not [name for name, data in answers(page).items() if KEY[:5].encode() in data]
    [row] = answer(page, "/trajectories")["rows"]
    assert row["prompt"] == row["final"] == "." * 484 + " █████"
    assert row["answer"].endswith('"key":"█████"}')


def test_a_match_leaves_before_a_name_is_divided(
    run: RunDirectory, tokenizer: Tokenizer
) -> None:
    played = make_trajectory(tokenizer, 50)
    with TrajectoryWriter(run, "other") as writer:
        label = "code/before/hush-5512/greedy"
        writer.write(replace(played, label=label, purpose="eval"), 5)
    page = exported(run, "--query", "step:5", "--redact", "hush-5512/greedy")
    assert not [name for name, data in answers(page).items() if b"greedy" in data]
    [row] = answer(page, "/task?id=task-0")["rows"]
    assert (row["label"], row["way"]) == ("code/before/█████", "code █████")


def test_what_is_said_of_damage_is_not_in_a_redacted_file(
    run: RunDirectory, capfd: pytest.CaptureFixture[str]
) -> None:
    live = run.live_folder / "step=000005" / "other-0001.jsonl"
    live.parent.mkdir(parents=True)
    # a sentence has the first 200 characters of an id
    live.write_text(json.dumps({"id": "." * 190 + KEY}) + "\n")
    found = answers(exported(run, "--query", "step:3", "--redact", "sk-[a-z0-9]{20}"))
    assert not [name for name, data in found.items() if KEY[:5].encode() in data]
    assert f"..{KEY[:10]}…" in capfd.readouterr().err


def test_a_secret_leaves_with_the_likeliest_tokens(
    run: RunDirectory, tokenizer: Tokenizer
) -> None:
    # sampled nowhere: "It is S" stands where the first alternative takes the place of "4"
    with TrajectoryWriter(run, "other") as writer:
        writer.write(make_trajectory(tokenizer, 50, alternatives="S"), 5)
    tokens = answer(exported(run, "--query", "step:5"), "/tokens?id=50-0-0")
    assert "S" in tokens["alternatives"]["pieces"].values()
    tokens = answer(
        exported(run, "--query", "step:5", "--redact", "is S"), "/tokens?id=50-0-0"
    )
    assert tokens["alternatives"] is None
    assert "--redact leaves them out" in tokens["missing"]["alternatives"]
    assert tokens["num_tokens"] > 0


def test_ids_that_cannot_be_read_cannot_be_redacted(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(run.record_path, {**run.read_record(), "tokenizers": {}})
    arguments = ["export", "html", str(run.root), "out.html", "--redact", "secret"]
    assert run_command_line(arguments) == 3
    assert "needs the run's tokenizer" in " ".join(capsys.readouterr().err.split())


@pytest.mark.browser
def test_a_file_opens_from_the_disk_with_its_token_view(
    run: RunDirectory, browser: Browser
) -> None:
    exported(run)
    file = (run.root.parent / "out.html").as_uri()
    page = browser.new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda line: said.append(line.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file)
    page.get_by_text("6-0-0", exact=True).first.wait_for()
    page.goto(f"{file}#/run/{key_of(run)}/trajectory/2-0-0?tab=tokens")
    page.get_by_text("What", exact=False).first.wait_for()
    page.wait_for_function(
        "(text) => document.body.textContent.includes(text)", arg=TEXTS[3]
    )
    page.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.browser
def test_a_file_offers_no_choice_of_what_it_does_not_hold(
    run: RunDirectory, browser: Browser
) -> None:
    with TrajectoryWriter(run, "other") as writer:
        values = {"stage": "rl"}
        writer.annotate(Annotation("2-0-0", 2, "critic", values=values, arrays={}))
    exported(run, "--query", "group:2")
    page = browser.new_page()
    offered = []
    shown = f"#/run/{key_of(run)}/trajectory/2-0-0?tab=tokens"
    with viewing(run.root) as address:
        viewer = f"http://127.0.0.1:{address.port}/?token={address.token}"
        for root in (viewer, (run.root.parent / "out.html").as_uri()):
            page.goto(f"{root}{shown}")
            page.locator(".tok-text").first.wait_for()
            offered.append(page.get_by_label("learned by").count())
    page.close()
    assert offered == [1, 0]


@pytest.mark.slow
@pytest.mark.browser
def test_each_link_of_a_file_leads_to_what_is_in_it(
    run: RunDirectory, browser: Browser
) -> None:
    events = EventLog(run)
    events.log("slow", "a slow step", boundary="train", level="warning", step=3)
    events.close()
    exported(run, "--query", "step>=2")
    file = (run.root.parent / "out.html").as_uri()
    home = f"#/run/{key_of(run)}"
    page = browser.new_page()
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    found = {"#/", home, f"{home}/trajectories", f"{home}/diff?a=6-0-0&b=6-1-0"}
    asked = {f"{home}/trajectory/6-0-0?tab=diff&pin=6-1-0"}
    seen: set[str] = set()
    while found | asked != seen:
        for link in sorted((found | asked) - seen):
            page.goto("about:blank")
            page.goto(f"{file}{link}")
            page.wait_for_function(WHOLE)
            told = page.locator("main").inner_text()
            assert "without it" not in told, link
            assert "not compared" not in told, link
            assert page.locator("[role=alert]").all_inner_texts() in ([], [""]), link
            seen.add(link)
            hrefs = page.eval_on_selector_all(
                "a", "all => all.map((a) => a.getAttribute('href'))"
            )
            found |= {
                href
                for href in hrefs
                # of the pages with a name one of each is enough
                if re.search("6-0-0|/group/6|task-0", href) and "pin=" not in href
            }
            page_names = [href for href in hrefs if href.startswith(f"{home}/")]
            assert not [one for one in page_names if "/blame" in one or "/behaviour" in one]
    page.close()
    assert said == []
    assert {name for link in seen for name in PAGES if name in link} == set(PAGES)


WHOLE = """() => {
  const told = document.querySelector("main")?.textContent ?? "";
  return told.length > 20 && !/(Loading|Reading|Decoding|Comparing|Aligning)[^.]{0,40}…/.test(told);
}"""
PAGES = (
    "/group/6",
    "/task/task-0",
    "/diff",
    "/trajectories",
    "tab=tokens",
    "tab=state",
    "tab=raw",
)


def key_of(run: RunDirectory) -> str:
    from agentrl.viewer.runs.run_folder import run_key

    return run_key(run.root.resolve())
