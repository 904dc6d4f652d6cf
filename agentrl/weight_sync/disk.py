"""Weights by disk: written once into a folder that every server reads, here or at a URL."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from agentrl.engines import UpdateSession
from agentrl.engines.servers.client import NamedTensors, NewVersion
from agentrl.engines.servers.http_client import RefusedError
from agentrl.engines.servers.update import ServerUpdate
from agentrl.engines.weights import model_files, write_weights
from agentrl.errors import StoreError
from agentrl.store.remote_folder import RemoteFolder, is_url
from agentrl.weight_sync.batches import BatchSender, arrays_of

logger = logging.getLogger(__name__)


class DiskSender(BatchSender):
    """``WeightSender`` for servers that see the same folder, which has one of its own for each
    version. The newest that was loaded is kept: a server that was started again reads it too.
    """

    _folder: RemoteFolder | None = None
    _written = 0

    def begin(self, update: ServerUpdate) -> UpdateSession:
        """A session that fills a folder.

        Raises:
            ConfigError: nothing that is installed writes to such a URL.
            StoreError: it cannot be written.
        """
        url = update.folder if is_url(update.folder) else f"file://{update.folder}"
        self._folder = RemoteFolder(url, "weights_folder")
        self._written = 0
        name = _name(update)
        # of an attempt that broke off
        self._folder.remove(name)
        for file in model_files(update.model):
            self._folder.put(file, f"{name}/{file.name}")
        return super().begin(update)

    def catch_up(self, update: ServerUpdate) -> None:
        """See ``WeightSender.catch_up``."""
        _load(update)

    def send(
        self,
        update: ServerUpdate,
        by_rank: Sequence[NamedTensors],
        new: NewVersion | None,
    ) -> None:
        """See ``BatchSender.send``; no server hears of an update before the folder is whole."""
        assert self._folder is not None, "begin() was called"
        self._written += 1
        name = _name(update)
        with self._folder.writing(f"{name}/model-{self._written:05d}.safetensors") as file:
            write_weights(file, arrays_of(by_rank[0]))
        if new is None:
            # more files follow
            return
        _load(update)
        try:
            for other in self._folder.names():
                if other != name:
                    self._folder.remove(other)
        except StoreError as error:
            # The servers have the new one by now; the next update tries again.
            logger.warning(
                "weights of an older version stay: %s",
                error,
                extra={"event": "old_weights_stay"},
            )

    def close(self) -> None:
        """Removes the folder."""
        super().close()
        if self._folder is not None:
            self._folder.remove("")


def _name(update: ServerUpdate) -> str:
    return f"version-{update.version:06d}"


def _load(update: ServerUpdate) -> None:
    folder = f"{update.seen}/{_name(update)}"
    try:
        update.on_all(lambda client, _: client.load_folder(folder, update.new))
    except RefusedError as error:
        if update.seen == update.folder:
            raise
        raise RefusedError(
            f"{error} Its weights_mount must show at once what is written to {update.folder}; "
            "have the mount keep no list of files (with rclone: --dir-cache-time 0s)"
        ) from error
