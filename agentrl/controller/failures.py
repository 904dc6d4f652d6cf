"""Failures: counts the failed episodes of a step by boundary, and stops a run that has too many."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentrl.config import StageConfig
from agentrl.errors import EpisodesFailedError
from agentrl.types import Trajectory

_CAUSED_BY_POLICY = {"truncated(env_exception)": "env", "truncated(tool_crash)": "tool"}
"""Ends that count at a boundary though they are rewarded and trained."""


@dataclass(frozen=True, slots=True)
class FailureCause:
    """Episodes that failed at one boundary. ``truncated(env_exception)`` counts at ``env`` and
    ``truncated(tool_crash)`` at ``tool``: one such episode is the policy's doing, the same in most
    episodes of a batch is the environment's.

    Args:
        boundary: as in ``failed(boundary)``.
        episodes: in order of their ids.
    """

    boundary: str
    episodes: tuple[Trajectory, ...]

    def __str__(self) -> str:
        """How many, where and why, in a line."""
        kinds = Counter(str(trajectory.status) for trajectory in self.episodes)
        told = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
        return f"{told}: {self.reason}"

    @property
    def reason(self) -> str:
        """The commonest one, with the user's line where there is one."""
        return self._commonest.failure

    @property
    def traceback(self) -> str:
        """The user's traceback of the commonest reason; empty where no user's code took part."""
        return str(self._commonest.info.get("traceback", ""))

    def error(self, what: str) -> EpisodesFailedError:
        """The error of a run that stops for it, with the user's traceback where there is one."""
        told = "\n".join(filter(None, (f"{what}: {self.reason}", self.traceback)))
        made = EpisodesFailedError(f"{told}\nfix that, then continue with --resume")
        made.exit_code = self._commonest.info.get("exit_code", made.exit_code)
        return made

    @property
    def _commonest(self) -> Trajectory:
        keys = [trajectory.failure_kind for trajectory in self.episodes]
        ((common, _),) = Counter(keys).most_common(1)
        return self.episodes[keys.index(common)]


def failure_causes(episodes: Iterable[Trajectory]) -> list[FailureCause]:
    """What went wrong, by boundary, the most frequent first."""
    found: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in episodes:
        status = trajectory.status
        if status.kind == "failed":
            found[status.reason].append(trajectory)
        elif (boundary := _CAUSED_BY_POLICY.get(str(status))) is not None:
            found[boundary].append(trajectory)
    causes = [
        FailureCause(boundary, tuple(sorted(own, key=lambda t: t.id)))
        for boundary, own in found.items()
    ]
    return sorted(causes, key=lambda cause: -len(cause.episodes))


def check_some_finished(episodes: Sequence[Trajectory]) -> None:
    """Refuses episodes, played for their own sake, of which not one finished.

    Raises:
        EpisodesFailedError: with the commonest reason.
    """
    causes = failure_causes(episodes)
    if causes and not any(trajectory.status.finished for trajectory in episodes):
        kind = causes[0].episodes[0].status
        raise causes[0].error(
            f"every one of the {len(episodes)} episodes failed, as {kind}"
        )


def check_failures(episodes: Sequence[Trajectory], stage: StageConfig, step: int) -> None:
    """Holds the episodes that ended before a batch was taken against ``rollout.max_failed_frac``.

    The share is of a batch's episodes where fewer have ended, so that a single failure among a few
    is no reason to stop.

    Raises:
        EpisodesFailedError: more of them failed at one boundary, or every one did: going on would
            repeat it.
    """
    ended = [trajectory for trajectory in episodes if trajectory.status.kind != "cancelled"]
    number = max(len(ended), stage.train.batch_prompts * stage.rollouts_per_group)
    most = stage.rollout.max_failed_frac
    where = f"episodes of step {step} of stage {stage.name!r}"
    causes = failure_causes(ended)
    for cause in causes:
        failed = len(cause.episodes)
        if failed == number:
            kind = cause.episodes[0].status
            raise cause.error(f"every one of the {failed} {where} ended as {kind}")
        if failed > most * number:
            raise cause.error(
                f"{failed} of the {number} {where} failed at one boundary, more than "
                f"RolloutConfig.max_failed_frac={most:g} of them"
            )
    # Each boundary may stay below its share while no episode is left to train.
    if (
        causes
        and len(ended) == number
        and not any(trajectory.status.finished for trajectory in ended)
    ):
        raise causes[0].error(f"every one of the {number} {where} failed")
