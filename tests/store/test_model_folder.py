"""A model at a URL is copied to a cache, and a machine without the copy makes its own."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, DataError
from agentrl.store.model_folder import given_model, model_here
from tests.kit.http import Files, serving


@pytest.fixture
def far(tmp_path: Path) -> Path:
    folder = tmp_path / "far"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "train.parquet"):
        (folder / name).write_text(name)
    return folder


@pytest.fixture(params=["file", pytest.param("http", marks=pytest.mark.s3)])
def url(request: pytest.FixtureRequest, far: Path) -> Iterator[str]:
    if request.param == "file":
        yield far.as_uri()
        return
    if importlib.util.find_spec("aiohttp") is None:
        pytest.skip("needs aiohttp, which s3fs brings")
    with serving(partial(Files, directory=str(far))) as address:
        yield address


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "near"))


def test_a_model_is_fetched_once_and_again_where_it_changed(url: str, far: Path) -> None:
    first = given_model(url, Path("/"))
    assert sorted(path.name for path in first.iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    (first / "mark").touch()
    assert given_model(url, Path("/")) == first
    assert (first / "mark").exists()
    (far / "model.safetensors").write_text("longer than it was")
    second = given_model(url, Path("/"))
    assert second != first
    assert (second / "model.safetensors").read_text() == "longer than it was"
    assert first.is_dir()


def test_another_machine_fetches_the_same_one(
    url: str, far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(given_model(url, Path("/")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    found = model_here(path)
    assert found.startswith(str(tmp_path / "other"))
    assert (Path(found) / "model.safetensors").read_text() == "model.safetensors"
    (far / "model.safetensors").write_text("longer than it was")
    with pytest.raises(
        DataError, match=r"model\.path='.*' holds other files than when the run beg"
    ):
        model_here(path)
    # a folder of that machine alone says nothing of where it came from
    assert model_here("/data/models/small") == "/data/models/small"


def test_what_is_no_model_at_a_url_is_named(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(
        DataError, match=r"critic\.path='file.*' must hold a model in .* no config"
    ):
        given_model((tmp_path / "none").as_uri(), Path("/"), key="critic.path")
    with pytest.raises(
        ConfigError, match=r"model\.path='nowhere://x' cannot be reached from here"
    ):
        given_model("nowhere://x", Path("/"))
