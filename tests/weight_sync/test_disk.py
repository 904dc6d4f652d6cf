"""Weights by a folder, of this machine or at a URL: servers load what is whole, and the newest
alone is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from safetensors.torch import load

from agentrl.engines import EnginePlace
from agentrl.engines.sglang import SGLangEngine, SGLangEngineSpec
from agentrl.errors import ConfigError, EngineError, StoreError
from agentrl.store.remote_folder import RemoteFolder
from agentrl.weight_sync import DiskSender, batches
from tests.engines.servers.broken_server import broken_server, says
from tests.engines.servers.test_server_events import DONE, FakeServer, place

__all__ = ["place"]

MOUNT = "/mnt/weights"
NORM = "model.norm.weight"


@pytest.fixture(params=["file", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where weights are written."""
    if request.param == "s3":
        return f"{request.getfixturevalue('s3_bucket')}/weights"
    return f"{request.param}://{tmp_path}/weights"


class Mounted:
    """A server that has the folder mounted, and loads what it is told to load there."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.asked: list[str] = []
        self.finds_nothing = False
        self.tensors: dict[str, torch.Tensor] = {}
        self.routes = FakeServer(update_weights_from_disk=self.load).routes
        self.sick: list[bool] = []
        self.routes["health"] = lambda own: says(b"{}", 500 if self.sick else 200)(own)

    def load(self, handler: Any) -> None:
        path = json.loads(handler.body)["model_path"]
        self.asked.append(path)
        if self.finds_nothing:
            says(b"no such folder", 400)(handler)
            return
        fs, root = fsspec.url_to_fs(path.replace(MOUNT, self.folder))
        fs.invalidate_cache()
        files = {name.rpartition("/")[2]: fs.cat_file(name) for name in fs.find(root)}
        assert json.loads(files.pop("config.json"))
        self.tensors = {}
        for content in files.values():
            self.tensors |= load(content)
        DONE(handler)


@pytest.fixture
def server(folder: str) -> Mounted:
    return Mounted(folder)


@pytest.fixture
def engine(folder: str, server: Mounted, place: EnginePlace) -> Iterator[SGLangEngine]:
    with broken_server(
        {f"/{name}": does for name, does in server.routes.items()}
    ) as running:
        spec = SGLangEngineSpec(
            urls=(running.url,),
            weight_sync="disk",
            weights_folder=folder,
            weights_mount=MOUNT,
            health_interval_s=0.1,
        )
        engine = SGLangEngine(place, spec, DiskSender())
        try:
            yield engine
        finally:
            engine.close()


def publish(engine: SGLangEngine, version: int, *values: float) -> None:
    engine.pause("retract")
    session = engine.begin_update(version)
    session.put(NORM, torch.tensor(values))
    session.commit()
    engine.resume()


def versions(folder: str) -> list[str]:
    """What is there, of the one engine."""
    remote = RemoteFolder(folder, "folder")
    return [name for owner in remote.names() for name in remote.names(owner)]


def test_servers_load_each_version_and_the_newest_alone_is_kept(
    engine: SGLangEngine, server: Mounted, folder: str
) -> None:
    for version in (1, 2):
        publish(engine, version, *[float(version)] * 4)
        assert server.tensors[NORM].tolist() == [version] * 4
        assert versions(folder) == [f"version-{version:06d}"]
    owner = engine.state.labels.owner
    assert server.asked == [f"{MOUNT}/{owner}/version-{number:06d}" for number in (1, 2)]
    engine.close()
    assert versions(folder) == []


def test_a_torn_upload_serves_nobody_and_the_next_replaces_it(
    engine: SGLangEngine, server: Mounted, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(engine, 1, 1, 1, 1, 1)
    fs, _ = fsspec.url_to_fs(folder)
    real = type(fs).open

    def full(own: Any, path: str, *args: Any, **keywords: Any) -> Any:
        opened = real(own, path, *args, **keywords)
        if path.endswith("version-000002/model-00001.safetensors"):
            opened.write(b"torn")
            opened.close()
            raise OSError("no space left")
        return opened

    with monkeypatch.context() as patch:
        patch.setattr(type(fs), "open", full)
        with pytest.raises(
            StoreError, match=r"version-000002/model-00001\.safetensors could not"
        ):
            publish(engine, 2, 2, 2, 2, 2)
    assert versions(folder) == ["version-000001", "version-000002"]
    # what it served before goes on to be served
    assert (engine.health().state, engine.health().policy_version) == ("paused", 1)
    assert len(server.asked) == 1
    engine.resume()
    publish(engine, 2, 3, 3, 3, 3)
    assert server.tensors[NORM].tolist() == [3] * 4
    assert versions(folder) == ["version-000002"]


@pytest.mark.parametrize("folder", ["memory://late/weights"])
def test_a_mount_that_does_not_show_what_was_written_is_named(
    engine: SGLangEngine, server: Mounted
) -> None:
    server.finds_nothing = True
    with pytest.raises(
        EngineError, match=r"no such folder.* weights_mount must show at once"
    ):
        publish(engine, 1, 1, 1, 1, 1)


@pytest.mark.parametrize("folder", ["memory://gone/weights"])
def test_an_engine_ends_also_where_its_weights_cannot_be_removed(
    engine: SGLangEngine, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(engine, 1, 1, 1, 1, 1)

    def refused(*args: Any, **keywords: Any) -> None:
        raise PermissionError("not allowed")

    monkeypatch.setattr(type(fsspec.url_to_fs(folder)[0]), "rm", refused)
    with pytest.raises(StoreError, match="could not be removed: not allowed"):
        engine.close()
    assert engine.health().state == "closed"
    assert not engine.runs


@pytest.mark.parametrize("folder", ["memory://kept/weights"])
def test_an_older_version_that_cannot_be_removed_stays_until_the_next_update(
    engine: SGLangEngine,
    folder: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    publish(engine, 1, 1, 1, 1, 1)
    kind = type(fsspec.url_to_fs(folder)[0])
    real = kind.rm

    def kept(own: Any, path: str, *args: Any, **keywords: Any) -> None:
        if path.endswith("version-000001"):
            raise PermissionError("not allowed")
        real(own, path, *args, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "rm", kept)
        publish(engine, 2, 2, 2, 2, 2)
    assert (engine.health().state, engine.health().policy_version) == ("serving", 2)
    [row] = [
        row for row in caplog.records if getattr(row, "event", "") == "old_weights_stay"
    ]
    assert "version-000001 could not be removed: not allowed" in row.message
    assert versions(folder) == ["version-000001", "version-000002"]
    publish(engine, 3, 3, 3, 3, 3)
    assert versions(folder) == ["version-000003"]


@pytest.mark.parametrize("folder", ["memory://several/weights"])
def test_a_version_may_have_several_files(
    engine: SGLangEngine, server: Mounted, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", 1)
    publish(engine, 1, 1, 1, 1, 1)
    assert server.tensors[NORM].tolist() == [1] * 4


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"weights_folder": "s3://b/w"},
            r"weights_folder='s3://b/w' is a URL, and .* set weights_m",
        ),
        (
            {"weights_folder": "w"},
            "weights_folder must be an absolute path, .* got 'w'; write all of it",
        ),
        (
            {"weights_folder": "/w", "weights_mount": "s3://m"},
            "weights_mount must be an absolute path",
        ),
        (
            {"weights_mount": "/m"},
            "weights_mount needs weights_folder, got '/m' without it",
        ),
        (
            {"weights_folder": "/w", "weight_sync": "http"},
            "weights_folder needs weight_sync=disk, got '/w' without it; set it, or leave",
        ),
    ],
)
def test_a_folder_that_servers_would_not_find_is_named(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        SGLangEngineSpec(**{"weight_sync": "disk", **settings})
