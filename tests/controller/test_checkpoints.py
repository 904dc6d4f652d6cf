"""A checkpoint exists when its manifest was renamed into place, and is whole or refused by name."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from agentrl.controller.admission import RolloutState
from agentrl.controller.checkpoints import Checkpoints, Manifest
from agentrl.controller.state import TrainState
from agentrl.errors import ConfigError, DataError
from agentrl.rollouts import GroupState, NotResumable, make_batch
from agentrl.types import Trajectory, Turn
from tests.controller.tiny import made_groups


def manifest(step: int) -> Manifest:
    return Manifest(
        stage="rl",
        state=TrainState(step, {"main": step}, {"kl": 0.1}, without_signal=2),
        rollouts=RolloutState(
            next_group_index=9, outstanding=(4, 6), spent=1, ledger_offset=33
        ),
        results={"code": {"before": {"sampled": 1 / 3}}},
    )


def save(checkpoints: Checkpoints, step: int, text: str = "tensors") -> Path:
    folder = checkpoints.begin(step)
    (folder / "actor").mkdir()
    (folder / "actor" / "model.bin").write_text(text)
    checkpoints.commit(folder, manifest(step))
    return folder


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "rl", keep_last=0)


def test_there_is_none_at_first(checkpoints: Checkpoints) -> None:
    assert checkpoints.latest() is None


def test_the_newest_one_comes_back_as_it_was(checkpoints: Checkpoints) -> None:
    save(checkpoints, 9)
    folder = save(checkpoints, 10)
    found = checkpoints.latest()
    assert found is not None
    assert found[0] == folder
    assert found[1] == Manifest(
        **{**_fields(manifest(10)), "files": {"actor/model.bin": 7}}
    )


def test_groups_that_wait_come_back_token_for_token(checkpoints: Checkpoints) -> None:
    first, second = made_groups(3, 2)
    groups = (replace(first, policy="guard"), second)
    rollouts = RolloutState(
        next_group_index=9, outstanding=(6,), spent=0, ledger_offset=33, groups=groups
    )
    checkpoints.commit(checkpoints.begin(4), replace(manifest(4), rollouts=rollouts))
    found = checkpoints.latest()
    assert found is not None
    restored = found[1].rollouts
    found_groups = [(group.policy, group.group_index) for group in restored.groups]
    assert (restored.outstanding, found_groups) == ((6,), [("guard", 3), ("main", 4)])
    credit = np.zeros(sum(len(group.finished) for group in groups), dtype=np.float32)
    before, after = (make_batch(each, credit=credit) for each in (groups, restored.groups))
    for name in (
        "token_ids",
        "loss_mask",
        "rollout_logprobs",
        "policy_versions",
        "reward",
        "temperature",
    ):
        assert getattr(before, name).tobytes() == getattr(after, name).tobytes()


def test_groups_that_run_come_back_as_they_stood(checkpoints: Checkpoints) -> None:
    (played,) = made_groups(3, 1)
    running = (
        GroupState(
            3, (played.trajectories[0], NotResumable("a lock")), versions={"main": 2}
        ),
    )
    rollouts = RolloutState(
        next_group_index=9, outstanding=(3,), spent=0, ledger_offset=33, running=running
    )
    checkpoints.commit(checkpoints.begin(4), replace(manifest(4), rollouts=rollouts))
    found = checkpoints.latest()
    assert found is not None
    (group,) = found[1].rollouts.running
    finished, unsaved = group.rollouts
    assert isinstance(finished, Trajectory)
    assert finished.sequence(0).tolist() == played.trajectories[0].sequence(0).tolist()
    assert (group.group_index, group.versions, unsaved) == (
        3,
        {"main": 2},
        NotResumable("a lock"),
    )


def test_running_groups_of_another_version_are_refused_with_what_to_delete(
    checkpoints: Checkpoints,
) -> None:
    rollouts = RolloutState(9, (3,), 0, 33, running=(GroupState(3, ()),))
    folder = checkpoints.begin(4)
    checkpoints.commit(folder, replace(manifest(4), rollouts=rollouts))
    path = folder / "running_groups.pickle"
    path.write_bytes(b"?" * path.stat().st_size)
    with pytest.raises(
        DataError,
        match=r"running_groups.pickle cannot be read: .*; delete it to start the stage again",
    ):
        checkpoints.latest()


def test_running_groups_whose_classes_are_gone_are_refused_by_name(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = ModuleType("agentrl.rollouts.standing")
    older.__dict__["Standing"] = type("Standing", (), {"__module__": older.__name__})
    monkeypatch.setitem(sys.modules, older.__name__, older)
    folder = checkpoints.begin(4)
    rollouts = RolloutState(9, (3,), 0, 33, running=(older.Standing(),))
    checkpoints.commit(folder, replace(manifest(4), rollouts=rollouts))
    monkeypatch.delitem(sys.modules, older.__name__)
    with pytest.raises(
        DataError,
        match=r"step=000004 cannot be resumed: .*/running_groups.pickle cannot be read: "
        r"ModuleNotFoundError: No module named 'agentrl.rollouts.standing'; where another version "
        r"of agentrl wrote it, resume with that one; delete it to start the stage again",
    ):
        checkpoints.latest()


def test_running_groups_that_are_none_of_this_version_are_refused_by_name(
    checkpoints: Checkpoints,
) -> None:
    folder = checkpoints.begin(4)
    rollouts = RolloutState(9, (3,), 0, 33, running=("a group of older code",))  # type: ignore[arg-type]
    checkpoints.commit(folder, replace(manifest(4), rollouts=rollouts))
    with pytest.raises(
        DataError, match=r"cannot be read: TypeError: it holds tuple, not groups"
    ):
        checkpoints.latest()


def test_running_groups_without_a_field_of_this_version_are_refused_by_name(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = made_groups(3, 1)[0].trajectories[0]
    rollouts = RolloutState(9, (3,), 0, 33, running=(GroupState(3, (ended,)),))
    folder = checkpoints.begin(4)
    with monkeypatch.context() as older:  # a class that had one field less
        names = Turn.__slots__[:-1]
        older.setattr(
            Turn, "__getstate__", lambda turn: [getattr(turn, name) for name in names]
        )
        checkpoints.commit(folder, replace(manifest(4), rollouts=rollouts))
    with pytest.raises(DataError, match=rf"AttributeError: .*'{Turn.__slots__[-1]}'"):
        checkpoints.latest()


def _fields(value: Manifest) -> dict[str, object]:
    return {name: getattr(value, name) for name in Manifest.__slots__}


def test_one_that_was_not_committed_never_was(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1)
    folder = checkpoints.begin(2)
    (folder / "model.bin").write_text("half")
    found = checkpoints.latest()
    assert found is not None
    assert found[1].state.step == 1


def test_what_an_interrupted_attempt_left_is_not_mixed_with_the_next(
    checkpoints: Checkpoints,
) -> None:
    (checkpoints.begin(2) / "old.bin").write_text("old")
    folder = save(checkpoints, 2)
    assert not (folder / "old.bin").exists()


def test_a_missing_file_is_named_with_its_mend(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1)
    (save(checkpoints, 2) / "actor" / "model.bin").unlink()
    with pytest.raises(
        DataError,
        match=r"step=000002 is corrupt: actor/model.bin should have 7 bytes, found nothing; "
        "delete it to resume from step=000001",
    ):
        checkpoints.latest()


def test_a_file_of_another_size_is_named(checkpoints: Checkpoints) -> None:
    (save(checkpoints, 2) / "actor" / "model.bin").write_text("tens")
    with pytest.raises(
        DataError,
        match="should have 7 bytes, found 4 bytes; delete it to start the stage again",
    ):
        checkpoints.latest()


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "3", '"text"', "[]", "{}", '{"rollouts": 3}', '{"rollouts": {}}'],
)
def test_a_manifest_that_is_none_is_named(checkpoints: Checkpoints, text: str) -> None:
    (save(checkpoints, 2) / "manifest.json").write_text(text)
    with pytest.raises(
        DataError, match=r"step=000002 is corrupt: manifest\.json cannot be read"
    ):
        checkpoints.latest()


def test_a_manifest_with_a_stray_field_is_named(checkpoints: Checkpoints) -> None:
    path = save(checkpoints, 2) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "colour": "red"}))
    with pytest.raises(DataError, match="colour"):
        checkpoints.latest()


def test_a_torn_one_of_the_past_stands_in_nobodys_way(checkpoints: Checkpoints) -> None:
    (save(checkpoints, 1) / "manifest.json").write_text("{")
    save(checkpoints, 2)
    found = checkpoints.latest()
    assert found is not None
    assert found[1].state.step == 2


def test_only_the_last_few_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=2)
    checkpoints.begin(1)  # interrupted, and never begun again
    for step in (2, 3, 4, 5):
        save(checkpoints, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step=000004",
        "step=000005",
    ]


def test_the_best_one_is_kept_besides(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=1, keep_best="eval/code/greedy")
    greedy = {1: 0.5, 2: 0.9, 3: 0.9, 4: None, 5: 0.2}
    for step, value in greedy.items():
        evaluated = (
            {} if value is None else {"eval/code/greedy": value, "eval/code/sampled": 1.0}
        )
        checkpoints.commit(
            checkpoints.begin(step), replace(manifest(step), evaluated=evaluated)
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step=000003",
        "step=000005",
    ]
    assert checkpoints.best() == tmp_path / "step=000003"
    found = checkpoints.latest()
    assert found is not None
    assert found[1].evaluated == {"eval/code/greedy": 0.2, "eval/code/sampled": 1.0}
    with pytest.raises(
        ConfigError, match=r"keep_best='eval/code/greedy'.*gave eval/code/sampled"
    ):
        checkpoints.check_metric({"eval/code/sampled": 0.5})


def test_an_old_one_is_deleted_when_the_new_one_exists_and_not_before(
    tmp_path: Path,
) -> None:
    checkpoints = Checkpoints(tmp_path, keep_last=1)
    save(checkpoints, 1)
    folder = checkpoints.begin(2)
    assert (tmp_path / "step=000001" / "manifest.json").exists()
    checkpoints.commit(folder, manifest(2))
    assert not (tmp_path / "step=000001").exists()


def test_the_size_of_a_step_number_does_not_matter(checkpoints: Checkpoints) -> None:
    for step in (9, 99, 1000, 20):
        save(checkpoints, step)
    found = checkpoints.latest()
    assert found is not None
    assert found[1].state.step == 1000
