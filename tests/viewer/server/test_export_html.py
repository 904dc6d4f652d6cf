"""`agentrl export html`: what is in the file, what is not, and that it opens from the disk."""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any

import pytest
from playwright.sync_api import Browser
from tokenizers import Tokenizer

from agentrl.cli.main import run as run_command_line
from agentrl.store import RunDirectory, TrajectoryWriter, write_json
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
    kept = {"tokenizers": {"rl": {"chat_template.jinja": template}}}
    write_json(run.record_path, {**record, **kept, "note": secret, secret: 1})
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
    (run.models_folder / "start" / "tokenizer.json").unlink()
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


def key_of(run: RunDirectory) -> str:
    from agentrl.viewer.runs.run_folder import run_key

    return run_key(run.root.resolve())
