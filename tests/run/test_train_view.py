"""`agentrl train --view`: the run is shown while it trains, and no longer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.kit.waiting import DEADLINE_S
from tests.run.tiny_run import CONFIG


@pytest.mark.slow
def test_a_run_is_watched_while_it_trains(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    task = shutil.copy(Path(__file__).with_name("held_task.py"), tmp_path)
    words = (
        *("train", "config.yaml", "run.dir=runs/a", "--view"),
        *("stages.warmup.steps=1", "stages.rl.steps=1", "stages.rl.eval={}"),
        *(f'stages.rl.env.entry_point="{task}:Held"', "stages.rl.env.args={after: runs/a}"),
        *("stages.rl.env.tools=[]", "run.deterministic=false"),
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "agentrl", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        told = "watch the run at "
        link = next(line for line in process.stdout if line.startswith(told))
        link = link.removeprefix(told).strip()
        with httpx.Client(follow_redirects=True) as browser:
            browser.get(link)
            [row] = browser.get(link.partition("/?")[0] + "/api/runs").json()["runs"]
        assert (row["name"], row["state"]) == ("a", "alive")
        (tmp_path / "go").touch()
        *_, last = process.stdout
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
    assert last.strip() == "show it in the browser: agentrl view runs/a"
    with pytest.raises(httpx.TransportError):
        httpx.get(link)
