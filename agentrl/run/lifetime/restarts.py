"""Restarts: the ranks of a run that were lost, and what is left of its stage meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.config import StageConfig
from agentrl.controller.checkpoints import set_aside, set_unreadable_aside
from agentrl.controller.rollout_service import HandOver
from agentrl.errors import CheckpointError, RankLostError
from agentrl.run.lifetime.record import utc_time
from agentrl.store import EventLog, RunDirectory, write_json

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Restarts:
    """Of one run.

    Args:
        most: times that its ranks may be started again (``placement.rank_restarts``).
        directory: the run's.
        stages: those that run, in order.
        events: what a person should know later.

    Attributes:
        spent: times that they were.
        left: the stage whose rollout workers go on, and what its service left; None where they are
            to be set up.
    """

    most: int
    directory: RunDirectory
    stages: Sequence[StageConfig]
    events: EventLog
    spent: int = 0
    left: tuple[str, HandOver] | None = None

    def begin(self, error: RankLostError | CheckpointError) -> None:
        """A rank was lost, or the ranks that were started again found a checkpoint corrupt: tells
        and records it, and leaves the newest checkpoint that can be read.

        Raises:
            AgentRLError: the error, where nothing was started again before that could not load, or
                one restart more would be than may be; the run can be resumed.
        """
        folder = error.folder if isinstance(error, CheckpointError) else None
        if self.spent >= self.most or (folder is not None and not self.spent):
            if self.spent:
                error.add_note(
                    f"the ranks were started again {self.spent} times, and "
                    f"placement.rank_restarts={self.most} allows {self.most}"
                )
            raise error
        self.spent += 1
        if folder is not None:
            set_aside(folder)
        for stage in self.stages:
            # One that was finished was read to its end.
            if not (self.directory.models_folder / stage.name).is_dir():
                problems = set_unreadable_aside(
                    self.directory.checkpoints_folder / stage.name
                )
                for problem in problems:
                    self._tell(
                        "checkpoint_unreadable", f"{problem}; the one before is taken"
                    )
        why = str(error).rstrip(".")
        self._tell(
            "ranks_restarted",
            f"{why}; all ranks are started again, and go on from the newest checkpoint "
            f"({self.spent} of {self.most})",
        )
        entry = {"time": utc_time(), "why": why, "rank": getattr(error, "rank", None)}
        record = self.directory.read_record()
        restarts = [*record.get("restarts", ()), entry]
        write_json(self.directory.record_path, {**record, "restarts": restarts})

    def _tell(self, event: str, text: str) -> None:
        logger.warning("%s", text, extra={"event": event})
        self.events.log(event, text, boundary="training", level="warning")
