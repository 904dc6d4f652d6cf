"""`agentrl export html`: what is in the file, what is not, and that it opens from the disk."""

from __future__ import annotations

import base64
import gzip
import json
import re
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Browser
from tokenizers import Tokenizer

from agentrl.cli.main import run as run_command_line
from agentrl.store import EventLog, RunDirectory, TrajectoryWriter, write_json
from agentrl.types import CallRecord, ToolCall
from tests.viewer.server.viewers import TEXTS, make_trajectory


def exported(run: RunDirectory, *options: str) -> str:
    out = run.root.parent / "out.html"
    assert run_command_line(["export", "html", str(run.root), str(out), *options]) == 0
    return out.read_text(encoding="utf-8")


def answers(page: str) -> dict[str, bytes]:
    """What the file holds, unpacked, by what the viewer asks for."""
    [kept] = re.findall(r'id="agentrl-export">(.*?)</script>', page, re.DOTALL)
    packed = json.loads(kept)["answers"]
    return {name: gzip.decompress(base64.b64decode(data)) for name, data in packed.items()}


def answer(page: str, what: str) -> Any:
    [found] = [data for name, data in answers(page).items() if name.endswith(what)]
    return json.loads(found)


def test_a_file_holds_the_latest_trajectories_of_a_query(run: RunDirectory) -> None:
    page = exported(run, "--query", "task:task-0", "--limit", "3")
    ids = [row["id"] for row in answer(page, "/trajectories")["rows"]]
    assert ids == ["6-1-0", "6-0-0", "4-1-0"]
    assert answer(page, "/tokens?id=6-0-0")["num_tokens"] > 0
    assert answer(page, "/trajectory?id=6-0-0")["neighbours"]["siblings"] == ["6-0-0", "6-1-0"]
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
        changed = table.set_column(number_of_it, table.schema.field(column), pa.array(texts))
        pq.write_table(changed, path)

    broken(3, 0, "turns", "[{")
    broken(2, 1, "info", "[[[1")
    page = exported(run, "--query", "step>=2")
    ids = [row["id"] for row in answer(page, "/trajectories")["rows"]]
    assert ids == ["7-1-0", "7-0-0", "6-1-0", "5-1-0", "5-0-0", "4-0-0"]
    assert answer(page, "/trajectory?id=6-1-0")["neighbours"]["siblings"] == ["6-1-0"]
    told = capfd.readouterr().err
    for name, column in (("6-0-0", "turns"), ("4-1-0", "info")):
        assert f"passed over: trajectory {name!r} cannot be read: the column {column!r}" in told


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
            writer.write(replace(one, label=f"code/step={step:06d}/greedy", purpose="eval"), step)
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


@pytest.mark.parametrize("options", [["--limit", "201"], ["--redact", "("], ["--redact", "x*"]])
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
    found = answers(exported(run, "--redact", r"hush-\d+", "--redact", "5512", "--query", "step:5"))
    blobs = {name.rpartition("/")[2]: data for name, data in found.items() if "/blob/" in name}
    assert blobs == {kept: b"nothing to hide", text: "the word is █████.".encode()}
    assert not [name for name, data in found.items() if b"hush" in data or b"5512" in data]
    [view] = [json.loads(data) for name, data in found.items() if name.endswith(key_of(run))]
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


def test_a_match_leaves_before_a_text_is_cut(run: RunDirectory, tokenizer: Tokenizer) -> None:
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


def test_a_match_leaves_before_a_name_is_divided(run: RunDirectory, tokenizer: Tokenizer) -> None:
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
    assert f"..{KEY[:10]}'" in capfd.readouterr().err


def test_a_secret_leaves_with_the_likeliest_tokens(run: RunDirectory, tokenizer: Tokenizer) -> None:
    # sampled nowhere: "It is S" stands where the first alternative takes the place of "4"
    with TrajectoryWriter(run, "other") as writer:
        writer.write(make_trajectory(tokenizer, 50, alternatives="S"), 5)
    tokens = answer(exported(run, "--query", "step:5"), "/tokens?id=50-0-0")
    assert "S" in tokens["alternatives"]["pieces"].values()
    tokens = answer(exported(run, "--query", "step:5", "--redact", "is S"), "/tokens?id=50-0-0")
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
    page.wait_for_function("(text) => document.body.textContent.includes(text)", arg=TEXTS[3])
    page.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.slow
@pytest.mark.browser
def test_each_link_of_a_file_leads_to_what_is_in_it(run: RunDirectory, browser: Browser) -> None:
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
            hrefs = page.eval_on_selector_all("a", "all => all.map((a) => a.getAttribute('href'))")
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
PAGES = ("/group/6", "/task/task-0", "/diff", "/trajectories", "tab=tokens", "tab=state", "tab=raw")


def key_of(run: RunDirectory) -> str:
    from agentrl.viewer.runs.run_folder import run_key

    return run_key(run.root.resolve())
