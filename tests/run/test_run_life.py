"""What a run leaves for who reads it later: that it lived and ended, its tokenizers, its index."""

from __future__ import annotations

from pathlib import Path

from agentrl.config import load_config
from agentrl.run.trainer import Trainer
from agentrl.store import RunDirectory, RunWatch
from agentrl.viewer.index import RunIndex
from tests.run.tiny_run import CONFIG

SHORT = ("stages.rl.steps=1", "stages.warmup.steps=1", "stages.rl.eval.every=null")


def test_a_run_says_that_it_ended_and_keeps_the_tokenizer_of_each_stage(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG, encoding="utf-8")
    run = RunDirectory(tmp_path / "run")
    config = load_config(tmp_path / "config.yaml", [f"run.dir={run.root}", *SHORT])
    with Trainer(config) as trainer:
        trainer.train()
    state = RunWatch(run).look()
    assert state.kind == "finished"
    assert state.heartbeat is not None
    assert (state.heartbeat["stage"], state.heartbeat["step"]) == ("rl", 1)
    kept = run.read_record()["tokenizers"]
    assert set(kept) == {"warmup", "rl"}
    start = run.models_folder / "start" / "tokenizer.json"
    assert run.read_blob(kept["rl"]["tokenizer.json"]) == start.read_bytes()
    with RunIndex(run, tmp_path / "cache") as index:
        index.refresh()
        trained = index.page("trained_step:1")
        assert trained.total > 0
        assert all(row["stage"] == "rl" and not row["drop_reason"] for row in trained.rows)
