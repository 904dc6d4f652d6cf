"""An episode is in a viewer's index as soon as it has ended, while its group goes on; after a kill
it is there once.
"""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentrl.store import RunDirectory, read_jsonl
from agentrl.viewer.index import RunIndex
from tests.kit.forks import finish
from tests.kit.waiting import until
from tests.run.tiny_run import CONFIG, start, states

pytestmark = pytest.mark.slow

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


@pytest.mark.parametrize(
    "hosts", [(), ("placement.mode=ray", "placement.rollout_workers=1")]
)
def test_an_episode_is_in_the_index_while_others_of_its_group_are_played(
    tmp_path: Path, hosts: tuple[str, ...]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    task = shutil.copy(Path(__file__).with_name("held_task.py"), tmp_path)
    overrides = (*OVERRIDES, *hosts, f'stages.rl.env.entry_point="{task}:Held"')
    run_dir = tmp_path / "run"
    driver = start(config, run_dir, overrides=overrides)
    try:
        _watch_the_half_of_a_group(run_dir, tmp_path / "cache")
    finally:
        driver.kill()
    finish(driver, -signal.SIGKILL)

    (tmp_path / "go").touch()
    again = start(config, run_dir, resume=True, overrides=overrides)
    finish(again)
    assert not states(run_dir).keys() & {"running", "finished", "buffered", "taken"}
    with RunIndex(RunDirectory.open(run_dir), tmp_path / "cache") as index:
        index.refresh()
        rows = index.page("stage:rl", limit=100).rows
        assert max(Counter(row["id"] for row in rows).values()) == 1
        places = Counter((row["group"], row["rollout"]) for row in rows)
        assert set(places.values()) == {1}, (
            "an episode that was played again replaces the first"
        )
        assert all(row["trained_step"] or row["drop"] for row in rows)


def _watch_the_half_of_a_group(run_dir: Path, cache: Path) -> None:
    """Follows a run until a whole group and all but one episode of the held one are in its
    index.
    """
    held = run_dir.parent / "held"
    task, _ = until(lambda: held.exists() and held.read_text()).split()
    with RunIndex(RunDirectory.open(run_dir), cache) as index:

        def rows() -> list[Any]:
            index.refresh()
            return list(index.page("stage:rl", limit=100).rows)

        def there() -> list[Any] | None:
            found = rows()
            sizes = Counter(row["task"] for row in found)
            return found if sizes[task] == GROUP - 1 and GROUP in sizes.values() else None

        found = until(there, lambda: f"{task} is held; in the index {rows()}")
    assert found is not None
    (draw,) = {row["group"] for row in found if row["task"] == task}
    ended = [row for row in read_jsonl(run_dir / "ledger.jsonl") if row["to"] == "finished"]
    assert draw not in {row["group"] for row in ended}
