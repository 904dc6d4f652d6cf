"""Weights by disk: written once into a folder that every server reads."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from agentrl.engines import UpdateSession
from agentrl.engines.servers.update import ServerUpdate
from agentrl.engines.weights import WeightArray, open_weights, write_weights
from agentrl.weight_sync.plan import BatchSession


class DiskSender:
    """``WeightSender`` for servers that see the same file system. The newest folder alone is
    kept.
    """

    def begin(self, update: ServerUpdate) -> UpdateSession:
        """A session that writes a folder and has it read."""
        return _DiskSession(update)

    def close(self) -> None:
        """Nothing is kept but the folder, with which a server may be started again."""


class _DiskSession(BatchSession):
    """No server hears of an update before the folder is whole."""

    def send(self, batch: Sequence[WeightArray], *, label: str | None, flush: bool) -> None:
        if label is None:
            # all are written with the last of them
            return
        update = self.update
        folder = update.folder
        write_weights(folder, update.model, update.arrays.values())
        update.on_all(
            lambda client, _: client.load_folder(str(folder.resolve()), label=label, flush=flush)
        )
        # no longer in memory
        update.arrays = open_weights(folder, update.dtype)
        for older in folder.parent.iterdir():
            if older.is_dir() and older != folder:
                shutil.rmtree(older)
