"""One tree of errors, named for the boundary that a failure crossed.

A message says the setting or thing, the rule, the value found and what to do. ``exit_code`` is what
the command line returns: 2 configuration and tools, 3 data or a user's code that exited, 4 the
machine (no GPU, server or sandbox), 5 a reward that `agentrl check` finds wrong, 143 interrupted by
a signal, 1 otherwise.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self


class AgentRLError(Exception):
    """Root of every error that agentrl raises on purpose; it keeps its attributes when it crosses
    processes.

    Args:
        message: what is wrong and what to do.
        fields: settings that it is about, the first being the one to change, each as
            ``SpecClass.field`` just as the message has it. A command line shows their keys
            (``agentrl.config.with_keys``).
        retryable: whether the same may succeed in another try; None leaves the class's own answer.
    """

    boundary = "agentrl"
    fields: tuple[str, ...] = ()
    exit_code = 1
    retryable = False
    has_own_traceback = True
    """Whether an error of exit code 1 is shown with agentrl's own traceback; its message alone says
    all where not.
    """

    def __init__(
        self, *message: object, fields: Iterable[str] = (), retryable: bool | None = None
    ) -> None:
        super().__init__(*message)
        if fields:
            self.fields = tuple(fields)
        if retryable is not None:
            self.retryable = retryable


IN_LOG = "the traceback is in "
"""How the note of an error begins whose traceback a run's log has."""
CHECKPOINT = "the checkpoint "
"""How the note begins that says how the run goes on."""


def has_traceback(error: BaseException) -> bool:
    """Whether a traceback says more of an error than its message."""
    if isinstance(error, AgentRLError):
        return error.exit_code == 1 and error.has_own_traceback
    return True


class ConfigError(AgentRLError, ValueError):
    """A setting breaks a rule. The message names the setting, the rule, the value and the remedy.

    It is a ValueError, so that a section's validators may raise it and all faults of a file are
    still collected.
    """

    boundary = "config"
    exit_code = 2


class DataError(AgentRLError):
    """A data set, model folder or stored file cannot be used as it is."""

    boundary = "data"
    exit_code = 3


class MachineError(AgentRLError):
    """This machine lacks what the configuration requires: a sandbox, a GPU, a server, a package."""

    boundary = "machine"
    exit_code = 4


class EnvError(AgentRLError):
    """An environment broke its contract or raised."""

    boundary = "env"
    retryable = True


class ToolError(AgentRLError):
    """A tool is declared wrongly, or the executor itself (never a tool's body) failed."""

    boundary = "tool"
    exit_code = 2


class ToolFaultError(ToolError):
    """A service that the configuration names failed under a call.

    Args:
        message: which tool and service, and what happened.
        tool: the tool's name.
        by_call: the service had been sent the call, which may have brought it down.
        alone: no other episode of the process was calling the tool.
        answers: calls of the tool that were answered in this process before.
        call: names the call by its arguments.
    """

    retryable = True

    def __init__(
        self,
        message: str,
        *,
        tool: str = "",
        by_call: bool = False,
        alone: bool = False,
        answers: int = 0,
        call: str = "",
    ) -> None:
        super().__init__(message)
        self.tool = tool
        self.call = call
        self.by_call = by_call
        self.alone = alone
        self.answers = answers


class SandboxError(AgentRLError):
    """The sandbox itself failed; what the CODE in it did is a result, never this error.

    Retryable where another sandbox may succeed.
    """

    boundary = "sandbox"
    retryable = True


class EngineError(AgentRLError):
    """A rollout engine failed.

    Retryable where the same request may succeed on this or another engine.
    """

    boundary = "engine"
    retryable = True


class ServerError(EngineError):
    """An OpenAI-compatible server refused a request, failed, or did not answer.

    Args:
        message: which server, what it said and what to do; keys are masked in it.
        retryable: whether the same request may succeed later.
        status: the HTTP status; None where no answer came.
        code: the server's own name for the error, such as ``context_length_exceeded``; empty where
            it gave none.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = True,
        status: int | None = None,
        code: str = "",
    ) -> None:
        super().__init__(message, retryable=retryable)
        self.status = status
        self.code = code


class TokenMismatchError(EngineError):
    """The recorded tokens differ from what the engine was given or made: never retried, never
    trained.
    """

    retryable = False


class StaleWeightsError(EngineError):
    """The ranks serve newer weights by now."""


class WeightMismatchError(EngineError):
    """An engine computes with other weights than it was sent; the trainer's own are sound, and can
    be kept.
    """

    retryable = False


class EpisodesFailedError(EngineError):
    """More episodes of a batch failed of one cause than a run may go on with; says which, and where
    they raised.
    """

    boundary = "rollout"
    retryable = False
    has_own_traceback = False


class RunInterruptedError(AgentRLError):
    """A run was asked to end, by a signal; it ended with a checkpoint to go on from, where there
    was anything to keep.

    The exit code is a shell's for SIGTERM: 0 would read as a run that is finished.
    """

    boundary = "run"
    exit_code = 143


class RewardError(AgentRLError):
    """A rubric, judge or reward model failed: the trajectory is failed, its reward is never 0."""

    boundary = "reward"
    retryable = True


class CheckError(AgentRLError):
    """A reference solution without full marks, an empty or hostile answer with them, or a hostile
    answer that fails an episode or stalls the event loop.
    """

    boundary = "check"
    exit_code = 5


class StoreError(AgentRLError):
    """A trajectory or checkpoint could not be written or read back."""

    boundary = "store"


class CheckpointError(StoreError):
    """A checkpoint is corrupt; one that is whole but of another model is another StoreError.

    Args:
        message: what is wrong with it.
        folder: of the checkpoint, where a run resumes from it.
    """

    exit_code = DataError.exit_code

    def __init__(self, message: str, folder: Path | None = None) -> None:
        super().__init__(message)
        self.folder = folder


class HeldError(StoreError):
    """Another process writes where one alone may."""

    exit_code = ConfigError.exit_code


class DiskFullError(StoreError):
    """A file system, or a quota on it, took no more."""

    exit_code = MachineError.exit_code


class TrainingError(AgentRLError):
    """A rank of a worker group failed.

    Args:
        message: what failed.
        rank: the global rank that raised first, or None where no rank is to blame.
        host: the host of that rank.
        traceback_text: the rank's own traceback.
    """

    boundary = "training"

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        host: str | None = None,
        traceback_text: str = "",
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.host = host
        self.traceback_text = traceback_text


class RankLostError(TrainingError):
    """A rank died, or does not answer: the ranks are started again from the newest checkpoint."""


class Closing:
    """Context manager that calls ``close`` at its end; where the block failed, a failure of that is
    a note of the block's error.

    Attributes:
        closing: what ``close`` does, for the note.
    """

    closing = "closing"

    def close(self) -> None:
        """Ends what was started; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        close_after(error, self.close, self.closing)


def close_after(error: BaseException | None, close: Callable[[], None], what: str) -> None:
    """Closes what was started; where an error came first, a failure of that is its note."""
    try:
        close()
    except AgentRLError as second:
        if error is None:
            raise
        error.add_note(f"and {what} failed: {second}")


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like ``word``, if one is."""
    # Half of a short word may differ, such as "rl" for "lr".
    cutoff = 0.5 if len(word) <= 3 else 0.6
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return close[0] if close else None


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """``; did you mean 'x'?`` for the nearest known word, or ``; otherwise``, or nothing."""
    near = nearest(word, known)
    if near is not None:
        return f"; did you mean {near!r}?"
    return f"; {otherwise}" if otherwise else ""
