"""An image is prepared once a run, and one that cannot be is named with what to do."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image as Pictures

from agentrl.errors import ConfigError, DataError
from agentrl.render import load_image_processor, prepare_pixels
from agentrl.store import RunDirectory
from agentrl.training.vision import pixel_store
from agentrl.training.vision.pixel_store import PixelStore
from agentrl.types import Image
from tests.kit.waiting import DEADLINE_S
from tests.tiny_vision import picture, write_vision_tokenizer

WIDE = Image.read(picture(84, 56))
SMALL = Image.read(picture(28, 28))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_vision_tokenizer(folder)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = RunDirectory(tmp_path)
    for image in (WIDE, SMALL):
        directory.write_blob(image.bytes())
    return tmp_path


def store_of(model: Path, run: Path) -> PixelStore:
    return PixelStore(model, str(run))


def test_pixels_are_the_processors_and_are_kept(model: Path, run: Path) -> None:
    first, second = store_of(model, run), store_of(model, run)
    expected = prepare_pixels(load_image_processor(model), WIDE)
    for store in (first, first, second):
        found = store.pixels(WIDE.sha256)
        assert found.grid == store.grid(WIDE.sha256) == expected.grid == (1, 4, 6)
        assert (found.patches == expected.patches).all()
    assert (first.prepared, second.prepared) == (1, 0)
    assert second.grid(SMALL.sha256) == (1, 2, 2)
    assert (first.prepared, second.prepared) == (1, 1)


def test_what_is_kept_in_memory_is_bounded_and_read_again(
    model: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(model, run)
    monkeypatch.setattr(pixel_store, "KEPT_BYTES", store.pixels(WIDE.sha256).patches.nbytes)
    first = store.pixels(WIDE.sha256)
    assert store.pixels(WIDE.sha256) is first
    store.pixels(SMALL.sha256)
    again = store.pixels(WIDE.sha256)
    assert again is not first
    assert (again.patches == first.patches).all()
    assert store.prepared == 2


def test_those_who_need_an_image_at_once_prepare_it_once(model: Path, run: Path) -> None:
    stores = [store_of(model, run) for _ in range(6)]
    together = threading.Barrier(len(stores))

    def read(store: PixelStore) -> None:
        together.wait(DEADLINE_S)
        store.pixels(WIDE.sha256)

    threads = [threading.Thread(target=read, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sum(store.prepared for store in stores) == 1
    assert [store.grid(WIDE.sha256) for store in stores] == [(1, 4, 6)] * len(stores)


def test_another_processor_has_pixels_of_its_own(
    model: Path, run: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_vision_tokenizer(other)
    path = other / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_pixels": 4 * 28 * 28}))
    assert store_of(model, run).grid(WIDE.sha256) == (1, 4, 6)
    smaller = store_of(other, run)
    assert smaller.grid(WIDE.sha256) == (1, 2, 4)
    assert smaller.prepared == 1


def of_pixels(width: int, height: int) -> bytes:
    """An encoded picture of one colour."""
    encoded = io.BytesIO()
    Pictures.new("L", (width, height)).save(encoded, "PNG", compress_level=1)
    return encoded.getvalue()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Image size.*decompression bomb")
def test_a_hundred_megapixels_are_cut_to_what_the_model_takes(
    model: Path, run: Path
) -> None:
    sha256 = RunDirectory(run).write_blob(of_pixels(10_000, 10_000))
    assert store_of(model, run).grid(sha256) == (1, 6, 6)


def damaged(run: Path) -> str:
    path = RunDirectory(run).blobs_folder / WIDE.sha256
    path.write_bytes(path.read_bytes()[:-9])
    return WIDE.sha256


def missing(run: Path) -> str:
    (RunDirectory(run).blobs_folder / WIDE.sha256).unlink()
    return WIDE.sha256


def no_image(run: Path) -> str:
    return RunDirectory(run).write_blob(b"text")


def a_bomb(run: Path) -> str:
    return RunDirectory(run).write_blob(of_pixels(20_000, 10_000))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (damaged, "is damaged: its bytes have another hash"),
        (missing, "cannot be read: No such file"),
        (no_image, "4 bytes that cannot be read as an image"),
        (a_bomb, r"Image size \(200000000 pixels\) exceeds limit"),
    ],
)
def test_an_image_that_cannot_be_read_is_named(
    spoil: Callable[[Path], str], told: str, model: Path, run: Path
) -> None:
    sha256 = spoil(run)
    with pytest.raises(DataError, match=told) as error:
        store_of(model, run).pixels(sha256)
    assert f"copy {RunDirectory(run).blobs_folder / sha256} from a copy of the run" in str(
        error.value
    )
    assert not list(run.rglob("*.npz"))


def test_pixels_that_were_cut_off_are_named(model: Path, run: Path) -> None:
    store_of(model, run).pixels(WIDE.sha256)
    (path,) = run.rglob("*.npz")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(
        DataError, match=r"cannot be read .* delete .*npz, so that they are prepared"
    ):
        store_of(model, run).pixels(WIDE.sha256)
    path.unlink()
    assert store_of(model, run).grid(WIDE.sha256) == (1, 4, 6)


def test_images_without_a_run_are_named(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"ActorSpec\.run_folder must be the folder"):
        PixelStore(model, None).pixels(WIDE.sha256)
