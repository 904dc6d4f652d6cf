"""An episode is in a viewer's index as soon as it has ended, while its group goes on; after a kill
it is there once.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from agentrl.store import RunDirectory, read_jsonl
from agentrl.viewer.index import RunIndex
from tests.run.tiny_run import CONFIG, start, states

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DEADLINE_S = 200.0
GROUP = 4
OVERRIDES = (
    "run.deterministic=false",
    f"rollout.group_size={GROUP}",
    "rollout.max_turn_tokens=8",
    "stages.rl.steps=2",
    "stages.rl.eval.sets={}",
    "stages.rl.env.tools=[]",
    "stages.rl.train.batch_prompts=2",
    "checkpoint.every=1",
)


@pytest.mark.parametrize("hosts", [(), ("placement.mode=ray", "placement.rollout_workers=1")])
def test_an_episode_is_in_the_index_within_two_seconds_of_its_end(
    tmp_path: Path, hosts: tuple[str, ...]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    task = shutil.copy(Path(__file__).with_name("held_task.py"), tmp_path)
    overrides = (*OVERRIDES, *hosts, f'stages.rl.env.entry_point="{task}:Held"')
    run_dir = tmp_path / "run"
    driver = start(config, run_dir, overrides=overrides)
    try:
        late = _watch_the_half_of_a_group(run_dir, tmp_path / "cache")
    finally:
        driver.kill()
        driver.join(DEADLINE_S)
    assert driver.exitcode == -signal.SIGKILL
    assert late <= 2.0

    (tmp_path / "go").touch()
    again = start(config, run_dir, resume=True, overrides=overrides)
    try:
        again.join(DEADLINE_S)
        assert again.exitcode == 0
    finally:
        again.kill()
    assert not states(run_dir).keys() & {"running", "finished", "buffered", "taken"}
    with RunIndex(RunDirectory.open(run_dir), tmp_path / "cache") as index:
        index.refresh()
        rows = index.page("stage:rl", limit=100).rows
        assert max(Counter(row["id"] for row in rows).values()) == 1
        places = Counter((row["group_index"], row["rollout_index"]) for row in rows)
        assert set(places.values()) == {1}, "an episode that was played again replaces the first"
        assert all(row["trained_step"] or row["drop_reason"] for row in rows)


def _watch_the_half_of_a_group(run_dir: Path, cache: Path) -> float:
    """Follows a run until a whole group and all but one episode of the held one are in its index;
    the longest time from the end of one to its row.
    """
    held = run_dir.parent / "held"
    end = time.monotonic() + DEADLINE_S
    while not (held.exists() and held.read_text()):
        assert time.monotonic() < end
        time.sleep(0.05)
    task = held.read_text()
    late: dict[str, float] = {}
    with RunIndex(RunDirectory.open(run_dir), cache) as index:
        while time.monotonic() < end:
            index.refresh()
            rows = index.page("stage:rl", limit=100).rows
            for row in rows:
                late.setdefault(row["id"], time.time() - row["ended_at"])
            sizes = Counter(row["task_id"] for row in rows)
            if sizes[task] == GROUP - 1 and GROUP in sizes.values():
                break
            time.sleep(0.05)
        else:
            pytest.fail(f"after {DEADLINE_S:g} s: {task} is held; in the index {dict(sizes)}")
    (draw,) = {row["group_index"] for row in rows if row["task_id"] == task}
    ended = [row for row in read_jsonl(run_dir / "ledger.jsonl") if row["to"] == "finished"]
    assert draw not in {row["draw"] for row in ended}
    return max(late.values())
