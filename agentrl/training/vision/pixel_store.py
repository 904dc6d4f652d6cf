"""Pixel store: images as a model's tower reads them, prepared once a run and read by the ranks that
train them.

- A batch names an image by its hash; its bytes are a blob of the run.
- Whoever needs an image first prepares it and writes it to ``pixels/`` of the run's folder. Others
  wait meanwhile, and read it.
- Processors that cut images otherwise have folders of their own there.
"""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.errors import ConfigError, DataError, StoreError
from agentrl.render import Pixels, load_image_processor, prepare_pixels
from agentrl.store import RunDirectory, replacing
from agentrl.store.disk import locked
from agentrl.types import Image

KEPT_BYTES = 400_000_000
"""Pixels that a process keeps in memory; an image of a megapixel has 24 MB."""


class PixelStore:
    """The pixels of a run's images, by hash.

    Args:
        model: a Hugging Face folder, whose image processor cuts them.
        run_folder: of the run; None has no images.

    Attributes:
        processor: of the model.
        prepared: how many images this process prepared.
    """

    def __init__(self, model: Path, run_folder: str | None) -> None:
        self.processor: Any = load_image_processor(model)
        self.prepared = 0
        self._run = None if run_folder is None else RunDirectory(Path(run_folder))
        settings: str = self.processor.to_json_string()
        self._name = hashlib.sha256(settings.encode()).hexdigest()[:16]
        # in order of their last use
        self._kept: dict[str, Pixels] = {}
        self._kept_bytes = 0
        self._grids: dict[str, tuple[int, int, int]] = {}

    def pixels(self, sha256: str) -> Pixels:
        """An image.

        Raises:
            DataError: its bytes are missing or damaged, or the processor refuses them.
            ConfigError: there is no run's folder.
            StoreError: its pixels cannot be written.
        """
        found = self._kept.pop(sha256, None)
        if found is None:
            found = self._read(sha256)
            self._grids[sha256] = found.grid
            self._kept_bytes += found.patches.nbytes
        self._kept[sha256] = found
        while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= self._kept.pop(next(iter(self._kept))).patches.nbytes
        return found

    def grid(self, sha256: str) -> tuple[int, int, int]:
        """The ``Pixels.grid`` of an image; raises as ``pixels`` does."""
        return self._grids.get(sha256) or self.pixels(sha256).grid

    def _read(self, sha256: str) -> Pixels:
        if self._run is None:
            raise ConfigError(
                f"ActorSpec.run_folder must be the folder whose blobs/ has image {sha256}, got "
                "None; set it"
            )
        folder = self._run.pixels_folder / self._name
        path = folder / f"{sha256}.npz"
        if not path.exists():
            with locked(folder / f"{sha256[:2]}.lock"):
                if not path.exists():
                    self._prepare(self._run, sha256, path)
        try:
            with np.load(path) as arrays:
                time, height, width = arrays["grid"].tolist()
                return Pixels(arrays["patches"], (time, height, width))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(
                f"the pixels of image {sha256} cannot be read ({error}); delete {path}, so that "
                "they are prepared again"
            ) from error

    def _prepare(self, run: RunDirectory, sha256: str, path: Path) -> None:
        try:
            image = Image.read(run.read_blob(sha256), f"image {sha256}")
        except (DataError, StoreError) as error:
            raise DataError(
                f"an image of the batch cannot be trained: {error}; copy "
                f"{run.blobs_folder / sha256} from a copy of the run, or start a new run"
            ) from error
        made = prepare_pixels(self.processor, image)
        # what a power failure damages is named when it is read
        with replacing(path, durable=False) as temporary, temporary.open("wb") as file:
            np.savez(file, patches=made.patches, grid=np.array(made.grid))
        self.prepared += 1
