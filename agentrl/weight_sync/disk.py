"""Weights by disk: written once into a folder that every server reads."""

from __future__ import annotations

import shutil

from torch import Tensor

from agentrl.engines import UpdateSession
from agentrl.engines.servers.update import ServerUpdate
from agentrl.engines.weights import open_weights, write_weights
from agentrl.weight_sync.tensor_bytes import to_array


class DiskSender:
    """``WeightSender`` for servers that see the same file system. The newest folder alone is
    kept.
    """

    def begin(self, update: ServerUpdate) -> UpdateSession:
        """A session that writes a folder and has it read."""
        return _DiskSession(update)

    def close(self) -> None:
        """Nothing is kept but the folder, with which a server may be started again."""


class _DiskSession:
    def __init__(self, update: ServerUpdate) -> None:
        self._update = update

    def put(self, name: str, tensor: Tensor) -> None:
        self._update.accept(to_array(name, tensor, self._update.dtype))

    def commit(self) -> None:
        update = self._update
        update.require_complete()
        folder = update.folder
        write_weights(folder, update.model, update.arrays.values())
        update.on_all(
            lambda client, _: client.load_folder(
                str(folder.resolve()), label=update.label, flush=update.flush
            )
        )
        update.finish(open_weights(folder, update.dtype))
        for older in folder.parent.iterdir():
            if older.is_dir() and older != folder:
                shutil.rmtree(older)

    def abort(self) -> None:
        """No server heard of it: the old weights go on being served."""
        self._update.give_up()
