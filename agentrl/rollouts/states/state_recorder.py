"""State recorder: keeps what people may look at of an environment and its sandbox.

- The environment's state (``Env.snapshot``) is asked for after ``reset`` and after each step.
- The files of its sandbox (``env.sandbox``) are compared by hash: after each turn, or at the end.
- What cannot be had is named once, in the trajectory and in the log, and costs no episode.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from agentrl.envs import AsyncEnv, Env
from agentrl.errors import AgentRLError
from agentrl.rollouts.builder import TrajectoryBuilder
from agentrl.rollouts.context import EpisodeContext
from agentrl.sandbox import FileHash, FileRefusedError, Sandbox
from agentrl.types import Blob
from agentrl.types.blob import MAX_BLOB_BYTES

logger = logging.getLogger(__name__)

_MAX_FILES = 1000
"""Changed files of a turn that are listed."""
_MAX_FILE_BYTES = 16 * 2**20
"""Bytes of files that are kept of an episode."""


class StateRecorder:
    """Adds states and files to the turns of one episode.

    All methods are called in the episode's event loop, one at a time.

    Args:
        context: what the episode's host shares.
        builder: of the episode.
    """

    def __init__(self, context: EpisodeContext, builder: TrajectoryBuilder) -> None:
        self._context = context
        self._builder = builder
        self._states = context.spec.states
        self._state: Blob | None = None
        self._files: dict[str, FileHash] = {}
        self._contents: dict[str, Blob] = {}
        self._room = _MAX_FILE_BYTES
        self._failed: set[str] = set()

    async def after_reset(self, env: AsyncEnv) -> None:
        """Keeps the state that the episode begins with."""
        if env.has_snapshot:
            with self._kept("snapshot", env.env):
                self._builder.first_state = self._state = await env.snapshot()

    async def after_step(self, env: AsyncEnv) -> None:
        """Adds the state, and changed files where each turn's are asked for, to the last turn."""
        if env.has_snapshot and "snapshot" not in self._failed:
            start = time.monotonic()
            with self._kept("snapshot", env.env):
                state = await env.snapshot()
                # A state that did not change is held once, and not once a turn.
                self._state = self._state if state == self._state else state
                self._add(state=self._state)
            self._count("snapshot_s", start)
        if self._states == "turn":
            await self._add_files(env.env)

    async def at_end(self, env: Env) -> None:
        """Adds the files to the last turn, where those of the end are asked for."""
        if self._states == "end":
            await self._add_files(env)

    async def _add_files(self, env: Env) -> None:
        sandbox = getattr(env, "sandbox", None)
        if (
            not isinstance(sandbox, Sandbox)
            or not self._builder.turns
            or "files" in self._failed
        ):
            return
        start = time.monotonic()
        with self._kept("files", env):
            if changed := await self._changed(sandbox):
                self._add(files=changed)
        self._count("files_s", start)

    async def _changed(self, sandbox: Sandbox) -> dict[str, Blob | None]:
        found, complete = await sandbox.hash_files(MAX_BLOB_BYTES)
        paths = [path for path, entry in found.items() if self._files.get(path) != entry]
        changed: dict[str, Blob | None] = {}
        for path in paths[:_MAX_FILES]:
            changed[path] = await self._content(sandbox, path, found[path])
        # A list that was cut says nothing of what it lacks, so no file counts as deleted by it.
        if complete:
            changed |= dict.fromkeys(sorted(self._files.keys() - found))
            self._files = dict(found)
        else:
            self._files |= found
        left_out = len(paths) - _MAX_FILES
        if left_out > 0 or not complete:
            turn = self._builder.turns[-1].index
            self._builder.info.setdefault(
                "files_left_out", f"after turn {turn}: more files than are listed"
            )
        return changed

    async def _content(self, sandbox: Sandbox, path: str, entry: FileHash) -> Blob:
        known = self._contents.get(entry.sha256)
        if known is not None:
            return known
        if entry.num_bytes > MAX_BLOB_BYTES:
            return Blob.too_large(entry.num_bytes)
        if entry.num_bytes > self._room:
            why = f"the episode has more than {_MAX_FILE_BYTES} bytes of files"
            return Blob(entry.sha256, entry.num_bytes, why)
        try:
            blob = Blob.of(await sandbox.read_file(path))
        except FileRefusedError as error:
            return Blob(entry.sha256, entry.num_bytes, str(error))
        self._room -= blob.num_bytes
        if blob.data is not None:
            self._contents[blob.sha256] = blob
        return blob

    def _add(self, **fields: Any) -> None:
        turns = self._builder.turns
        turns[-1] = replace(turns[-1], **fields)

    def _count(self, stage: str, start: float) -> None:
        seconds = time.monotonic() - start
        self._builder.count(stage, seconds)
        self._add(timings={**self._builder.turns[-1].timings, stage: seconds})

    @contextmanager
    def _kept(self, what: str, env: Env) -> Iterator[None]:
        """Names a failure once; nothing more of the kind is asked for in this episode."""
        try:
            yield
        except AgentRLError as error:
            self._failed.add(what)
            self._builder.info[f"{what}_error"] = str(error)
            told = f"{what} of {type(env).__name__}"
            if told not in self._context.told:
                self._context.told.add(told)
                logger.warning(
                    "episode %s is stored without its %s: %s",
                    self._builder.key.trajectory_id,
                    what,
                    error,
                    extra={"event": "state_not_stored", "what": what, "error": str(error)},
                )
