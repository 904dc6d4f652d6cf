"""``model.path`` as a name on the Hugging Face hub: downloaded to the usual cache, from a server of
this machine.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.store import RunDirectory, read_jsonl
from agentrl.store.model_folder import pinned, with_commit

from .hub import NAME, Hub, python, serving
from .tiny_run import CONFIG
from .tiny_task import build_model

GIVE = """
import sys
from pathlib import Path
from agentrl.errors import DataError
from agentrl.store.model_folder import given_model
try:
    print(given_model(sys.argv[1], Path(sys.argv[2])))
except DataError as error:
    sys.exit(f"DataError: {error}")
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with serving() as hub:
        folder = tmp_path / "first"
        (folder / "onnx").mkdir(parents=True)
        for name in (
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "model.bin",
            "onnx/model.safetensors",
        ):
            (folder / name).write_text(f"the first {name}")
        hub.add(folder)
        yield hub


def give(
    hub: Hub, home: Path, setting: str, base_dir: Path | None = None
) -> tuple[int, str, str]:
    done = python(GIVE, endpoint=hub.url, home=home, args=(setting, str(base_dir or home)))
    return done.returncode, done.stdout.strip(), done.stderr


def test_a_name_is_downloaded_to_the_usual_cache(hub: Hub, tmp_path: Path) -> None:
    code, folder, said = give(hub, tmp_path / "home", NAME)
    assert code == 0, said
    (commit,) = hub.commits
    assert (
        Path(folder)
        == tmp_path / "home" / "hub" / "models--someone--tiny-model" / "snapshots" / commit
    )
    assert sorted(path.name for path in Path(folder).iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert "100%" in said  # the progress bar


def test_what_is_in_the_cache_is_not_downloaded_again_and_needs_no_network(
    hub: Hub, tmp_path: Path
) -> None:
    _, first, _ = give(hub, tmp_path / "home", NAME)
    hub.asked.clear()
    assert give(hub, tmp_path / "home", NAME)[1] == first
    assert hub.asked == []
    away = python(
        GIVE, endpoint=nobody(), home=tmp_path / "home", args=(NAME, str(tmp_path))
    )
    assert (away.returncode, away.stdout.strip()) == (0, first), away.stderr


def test_a_folder_goes_first(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir(parents=True)
    assert give(hub, tmp_path / "home", NAME, tmp_path)[1] == str(tmp_path / NAME)
    assert hub.asked == []


@pytest.mark.slow
def test_a_revision_stands_behind_the_name(hub: Hub, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "model.safetensors").write_text("the second")
    first = next(iter(hub.commits))
    newest = hub.add(second)
    assert Path(give(hub, tmp_path / "home", NAME)[1]).name == newest
    assert Path(give(hub, tmp_path / "home", f"{NAME}@{first}")[1]).name == first


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("someone/no-such-model", "does not exist on http"),
        (f"{NAME}@none", "has no revision 'none' on http"),
        ("models/of/mine", "is no folder ("),
    ],
)
def test_a_name_that_the_hub_lacks_is_one_plain_sentence(
    hub: Hub, tmp_path: Path, setting: str, words: str
) -> None:
    code, _, said = give(hub, tmp_path / "home", setting)
    assert code == 1
    assert f"DataError: model.path='{setting}' is no folder" in said
    assert words in said
    assert "Traceback" not in said


def test_where_there_is_no_network_the_error_is_one_plain_sentence(tmp_path: Path) -> None:
    done = python(GIVE, endpoint=nobody(), home=tmp_path, args=(NAME, str(tmp_path)))
    assert done.returncode == 1
    told = done.stderr.splitlines()[-1]
    assert f"DataError: model.path='{NAME}' is no folder ({tmp_path / NAME})" in told
    assert "could not be downloaded from http://127.0.0.1:" in told
    assert f"hf download {NAME} --local-dir FOLDER" in told
    assert "Traceback" not in done.stderr


def test_a_model_without_safetensors_is_refused(hub: Hub, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text("{}")
    hub.add(bare)
    assert "the hub's model has no *.safetensors" in give(hub, tmp_path / "home", NAME)[2]


def test_a_run_names_the_commit_and_goes_on_with_it() -> None:
    commit = "a" * 40
    snapshot = Path("/cache/models--a--b/snapshots") / commit
    assert with_commit("a/b", snapshot) == f"a/b@{commit}"
    assert with_commit("a/b", Path("/data/a/b")) == "a/b"  # a folder of that name
    assert pinned("a/b", f"a/b@{commit}") == f"a/b@{commit}"
    assert pinned("a/c", f"a/b@{commit}") == "a/c"
    assert pinned("a/b", None) == "a/b"


def nobody() -> str:
    """A place where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"http://127.0.0.1:{free.getsockname()[1]}"


TRAIN = "import sys; from agentrl.cli.main import run; sys.exit(run(sys.argv[1:]))"


@pytest.mark.slow
def test_a_run_trains_a_model_of_the_hub_and_goes_on_with_the_same_commit(
    tmp_path: Path,
) -> None:
    build_model(tmp_path / "model", 0)
    config, run_dir = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(CONFIG)
    words = (
        "train",
        str(config),
        f"model.path={NAME}",
        "model.build=null",
        "stages.rl.eval.sets={}",
        "stages.warmup.steps=1",
    )
    with serving() as hub:
        commit = hub.add(tmp_path / "model")
        first = python(
            TRAIN,
            endpoint=hub.url,
            home=tmp_path / "home",
            args=(*words, "train.steps=2", f"run.dir={run_dir}"),
        )
        assert first.returncode == 0, first.stderr
        assert RunDirectory(run_dir).read_record()["parent"] == f"{NAME}@{commit}"

        newer = tmp_path / "newer"
        newer.mkdir()
        (newer / "model.safetensors").write_text("of another kind")
        hub.add(newer)
        again = python(
            TRAIN,
            endpoint=hub.url,
            home=tmp_path / "home",
            args=(*words, "train.steps=3", f"run.dir={run_dir}", "--resume"),
        )
        assert again.returncode == 0, again.stderr
    assert [row["step"] for row in read_jsonl(RunDirectory(run_dir).metrics_path)][-1] == 3
