"""health.webhook: alerts and the end of a run are posted; nothing of it stops or slows a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentrl import EpisodeView
from agentrl.config import StageConfig
from agentrl.config.load import load_config
from agentrl.errors import ConfigError
from agentrl.run.lifetime.webhooks import Webhooks, webhook_urls
from agentrl.store import read_jsonl
from tests.kit.waiting import DEADLINE_S
from tests.kit.webhook import webhook
from tests.run.test_no_signal import QUICK, constant
from tests.run.tiny_run import CONFIG, train

QUIET = (*QUICK, "stages.warmup.steps=1", "stages.rl.steps=1")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No deadline decides, but where a test sets one."""
    monkeypatch.setattr(Webhooks, "deadline_s", DEADLINE_S)
    monkeypatch.setattr(Webhooks, "close_s", DEADLINE_S)


def stages(tmp_path: Path, *overrides: str) -> list[StageConfig]:
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    return load_config(tmp_path / "config.yaml", list(overrides)).resolved_stages()


def event(name: str, level: str = "warning", **fields: Any) -> Mapping[str, Any]:
    head = {"time": time.time(), "level": level, "event": name, "boundary": "engine"}
    return {**fields, **head, "message": f"{name} happened"}


def test_a_health_alert_is_posted_with_its_evidence_and_so_is_the_end(
    tmp_path: Path,
) -> None:
    settings = (*QUICK, "stages.rl.algorithm.filter_zero_variance=false", "health.window=2")
    with webhook() as hook:
        run = train(tmp_path, *settings, f"health.webhook={hook.url}", reward=constant)
    alert = next(post for post in hook.posts if post["alert"] == "no_signal")
    (event,) = (
        one for one in read_jsonl(run / "events.jsonl") if one["event"] == "health_alert"
    )
    same = (
        "stage",
        "step",
        "metric",
        "value",
        "reference",
        "trajectories",
        "query",
        "time",
    )
    assert {key: alert[key] for key in same} == {key: event[key] for key in same}
    assert (alert["run"], alert["level"]) == ("run", "warning")
    assert alert["text"].startswith("run: step 2: no signal: 100% of the groups")
    assert hook.alerts()[-1] == "run_completed"
    assert hook.posts[-1]["text"].startswith("run: the run is complete after ")
    # the post's own URL may be a secret: no event and no log tells it
    told = (run / "events.jsonl").read_text() + (run / "logs/driver.jsonl").read_text()
    assert "very-secret" not in told


def raising(episode: EpisodeView) -> float:
    raise ZeroDivisionError("no reward today")


def test_a_run_that_fails_posts_the_name_of_its_error(tmp_path: Path) -> None:
    with webhook() as hook, pytest.raises(Exception, match="no reward today") as caught:
        train(tmp_path, *QUIET, f"health.webhook={hook.url}", reward=raising)
    last = hook.posts[-1]
    assert (last["alert"], last["level"]) == ("run_failed", "error")
    assert last["error"] == type(caught.value).__name__
    assert "no reward today" in last["text"]


def test_a_webhook_that_hangs_stops_no_run_and_is_told_by_its_host_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Webhooks, "deadline_s", 0.05)
    settings = (*QUICK, "stages.rl.algorithm.filter_zero_variance=false", "health.window=2")
    with webhook(hangs=True) as hook:
        run = train(tmp_path, *settings, f"health.webhook={hook.url}", reward=constant)
        assert hook.asked.is_set()
        assert hook.posts == []
    assert (run / "summary.json").is_file()
    (text,) = (r.getMessage() for r in caplog.records if "health.webhook" in r.getMessage())
    assert text.startswith(
        "health.webhook (127.0.0.1) failed, and is tried again with what comes"
    )
    assert "ReadTimeout: timed out" in text
    assert "very-secret" not in caplog.text


def test_a_webhook_that_never_returns_is_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Webhooks, "close_s", 0.0)
    own = stages(tmp_path)
    with webhook(hangs=True) as hook:
        named = [one.replace(health=one.health.replace(webhook=hook.url)) for one in own]
        with closing(Webhooks("run", named)) as hooks:
            for number in range(3):
                hooks.tell(event("worker_lost", step=number))
                assert hook.asked.wait(DEADLINE_S)
    (text,) = (record.getMessage() for record in caplog.records)
    told = (
        "health.webhook (127.0.0.1) does not end, and is given up: 2 deliveries are lost; "
    )
    assert text.startswith(told)
    for thread in threading.enumerate():
        if thread.name.startswith("health.webhook"):
            thread.join(DEADLINE_S)


def test_a_webhook_that_refuses_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with webhook(status=410) as hook:
        named = [
            one.replace(health=one.health.replace(webhook=hook.url))
            for one in stages(tmp_path)
        ]
        with closing(Webhooks("run", named)) as hooks:
            for number in range(3):
                hooks.tell(event("worker_lost", step=number))
    assert [post["step"] for post in hook.posts] == [0, 1, 2]
    (text,) = (record.getMessage() for record in caplog.records)
    assert "MachineError: it answered 410 Gone" in text


def test_warnings_are_posted_and_what_a_step_sums_up_is_not(tmp_path: Path) -> None:
    with webhook() as hook:
        named = [
            one.replace(health=one.health.replace(webhook=hook.url))
            for one in stages(tmp_path)
        ]
        with closing(Webhooks("a", named)) as hooks:
            hooks.tell(event("worker_lost", stage="rl"))
            hooks.tell(event("checkpoint_written", "info", stage="rl"))
            hooks.tell(event("trajectory_failed", stage="rl", trajectory="0-0-0"))
            hooks.tell(event("run_failed", "error", error="EngineError"))
    assert hook.alerts() == ["worker_lost", "run_failed"]
    assert hook.posts[0].pop("time") > 0
    assert hook.posts[0] == {
        "run": "a", "stage": "rl", "alert": "worker_lost", "event": "worker_lost",
        "level": "warning", "boundary": "engine", "message": "worker_lost happened",
        "text": "a: worker_lost happened",
    }  # fmt: skip


def test_where_stages_name_several_each_gets_everything(tmp_path: Path) -> None:
    with webhook() as first, webhook() as second:
        own = stages(tmp_path, f"health.webhook={first.url}")
        own[1] = own[1].replace(health=own[1].health.replace(webhook=second.url))
        with closing(Webhooks("a", own)) as hooks:
            hooks.tell(event("a", stage="warmup"))
            hooks.tell(event("b"))
    assert (first.alerts(), second.alerts()) == (["a", "b"], ["a", "b"])


def test_secrets_of_the_environment_are_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "hunter2-hunter2")
    with webhook() as hook:
        named = stages(tmp_path, f"health.webhook={hook.url}")
        with closing(Webhooks("a", named)) as hooks:
            hooks.tell(event("worker_lost", error="401 for hunter2-hunter2"))
    assert hook.posts[0]["error"] == "401 for <masked:SERVICE_TOKEN>"


def test_a_healthy_run_posts_its_end_alone_to_a_url_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with webhook() as hook:
        monkeypatch.setenv("ALERTS_TO", hook.url)
        run = train(tmp_path, *QUIET, "health.webhook=$ALERTS_TO")
    assert hook.alerts() == ["run_completed"]
    kept = [path for path in run.rglob("*") if path.is_file()]
    assert not [path for path in kept if b"very-secret" in path.read_bytes()]
    assert "webhook: $ALERTS_TO" in (run / "config.resolved.yaml").read_text()


@pytest.mark.parametrize(
    ("value", "found"), [(None, "is not set"), ("me", "holds another text")]
)
def test_a_variable_that_holds_no_url_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None, found: str
) -> None:
    monkeypatch.delenv("ALERTS_TO", raising=False)
    if value:
        monkeypatch.setenv("ALERTS_TO", value)
    with pytest.raises(
        ConfigError, match=r"health.webhook='\$ALERTS_TO' must name .* " + found
    ):
        train(tmp_path, *QUIET, "health.webhook=$ALERTS_TO")
    assert not (tmp_path / "run").exists()


def test_without_one_nothing_is_posted(tmp_path: Path) -> None:
    assert webhook_urls(stages(tmp_path)) == set()
    before = set(threading.enumerate())
    with closing(Webhooks("a", stages(tmp_path))) as hooks:
        hooks.tell(event("worker_lost"))
        assert set(threading.enumerate()) <= before
