"""Weights by disk: written once into a folder that every server reads."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from agentrl.engines import UpdateSession
from agentrl.engines.servers.client import NewVersion
from agentrl.engines.servers.update import ServerUpdate
from agentrl.engines.weights import WeightArray, new_folder, write_weights
from agentrl.weight_sync.batches import BatchSender


class DiskSender(BatchSender):
    """``WeightSender`` for servers that see the same file system. The newest folder alone is kept:
    a server that was started again reads it too.
    """

    _folders: Path | None = None
    _written = 0

    def begin(self, update: ServerUpdate) -> UpdateSession:
        """A session that fills a folder."""
        self._folders = update.folder.parent
        self._written = 0
        new_folder(update.folder, update.model)
        return super().begin(update)

    def catch_up(self, update: ServerUpdate) -> None:
        """See ``WeightSender.catch_up``."""
        _load(update)

    def send(
        self,
        update: ServerUpdate,
        by_rank: Sequence[Sequence[WeightArray]],
        new: NewVersion | None,
    ) -> None:
        """See ``BatchSender.send``; no server hears of an update before the folder is whole."""
        self._written += 1
        folder = update.folder
        write_weights(folder / f"model-{self._written:05d}.safetensors", by_rank[0])
        if new is None:
            # more files follow
            return
        _load(update)
        for older in folder.parent.iterdir():
            if older.is_dir() and older != folder:
                shutil.rmtree(older)

    def close(self) -> None:
        """Removes the folder."""
        super().close()
        if self._folders is not None and self._folders.exists():
            shutil.rmtree(self._folders)


def _load(update: ServerUpdate) -> None:
    folder = str(update.folder.resolve())
    update.on_all(lambda client, _: client.load_folder(folder, update.new))
