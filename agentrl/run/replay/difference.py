"""Difference: the first thing in which a replayed episode is not the recorded one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.guards.secret_mask import SecretMask
from agentrl.store.json_text import to_json
from agentrl.types import Blob, CallRecord, Seat, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class ReplayDifference:
    """What is not as it was recorded.

    Args:
        what: ``observation``, ``observation info``, ``tool result``, ``step reward``,
            ``step info``, ``state``, ``files``, ``end``, ``reward PART``, ``reward``; with several
            agents also ``reward PART of AGENT`` and ``reward of AGENT``.
        turn: the turn after which it was seen; None for what comes from ``reset``, the end and the
            rewards.
        recorded, replayed: the two values, as the store writes them.
    """

    what: str
    turn: int | None
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        where = "" if self.turn is None else f" after turn {self.turn}"
        return f"{self.what}{where}"


def first_difference(
    recorded: Trajectory, replayed: Trajectory, mask: SecretMask
) -> ReplayDifference | None:
    """The first difference in the order of the episode, rewards last; None where there is none.

    What was not recorded is not compared: states that a run did not store, a reward model's score.
    Times are no part of an episode.

    Args:
        recorded: as it was stored.
        replayed: as it was played again.
        mask: of the secrets, as the store applies it.
    """
    for pair in _pairs(recorded, replayed, mask):
        was = _plain(pair.recorded, mask)
        found = _plain(pair.replayed, mask)
        if was != found:
            return ReplayDifference(pair.what, pair.turn, was, found)
    return None


def _pairs(
    recorded: Trajectory, replayed: Trajectory, mask: SecretMask
) -> Iterator[ReplayDifference]:
    """Each thing of both episodes, in the order in which they are compared; most are equal."""
    if recorded.first_state is not None:
        yield _states("state", None, recorded.first_state, replayed.first_state, mask)
    for was, found in zip(recorded.turns, replayed.turns, strict=False):
        before = was.index - 1 if was.index else None
        yield ReplayDifference("observation", before, was.observed, found.observed)
        yield ReplayDifference(
            "observation info", before, was.observed_info, found.observed_info
        )
        yield from _effects(was, found, mask)
    end = (str(recorded.status), len(recorded.turns))
    yield ReplayDifference("end", None, end, (str(replayed.status), len(replayed.turns)))
    if recorded.last_observed or recorded.last_info:
        last = len(recorded.turns) - 1
        yield ReplayDifference(
            "observation", last, recorded.last_observed, replayed.last_observed
        )
        yield ReplayDifference(
            "observation info", last, recorded.last_info, replayed.last_info
        )
    yield from _rewards("", recorded, replayed)
    for agent, seat in recorded.seats.items():
        if agent in replayed.seats:
            yield from _rewards(f" of {agent}", seat, replayed.seats[agent])


def _effects(was: Turn, found: Turn, mask: SecretMask) -> Iterator[ReplayDifference]:
    """What the step of a turn led to."""
    turn = was.index
    yield ReplayDifference("tool result", turn, _results(was), _results(found))
    yield ReplayDifference("step reward", turn, was.rewards, found.rewards)
    yield ReplayDifference("step info", turn, was.info, found.info)
    if was.state is not None:
        yield _states("state", turn, was.state, found.state, mask)
    if was.files:
        yield _states("files", turn, was.files, found.files, mask)


def _rewards(
    whose: str, was: Trajectory | Seat, found: Trajectory | Seat
) -> Iterator[ReplayDifference]:
    for name, value in was.rewards.items():
        if name in found.rewards:
            yield ReplayDifference(
                f"reward {name}{whose}", None, value, found.rewards[name]
            )
    if was.rewards.keys() == found.rewards.keys():
        yield ReplayDifference(f"reward{whose}", None, was.reward, found.reward)


def _states(
    what: str, turn: int | None, was: Any, found: Any, mask: SecretMask
) -> ReplayDifference:
    """A pair of states or files, whose secrets were masked before they were hashed."""
    if isinstance(found, Mapping):
        found = {path: _masked(blob, mask) for path, blob in found.items()}
    return ReplayDifference(
        what, turn, was, found if isinstance(found, Mapping) else _masked(found, mask)
    )


def _masked(blob: Blob | None, mask: SecretMask) -> Blob | None:
    if blob is None or blob.data is None:
        return blob
    return Blob.of(mask.in_bytes(blob.data))


def _results(turn: Turn) -> list[Any]:
    return [_result(record) for record in turn.calls]


def _result(record: CallRecord) -> Any:
    result = record.result
    if result is None:
        return None
    return [result.call_id, result.error, result.content, result.truncated, result.images]


def _plain(value: Any, mask: SecretMask) -> Any:
    """The value as plain JSON; numbers that are none stay marks, which are equal to themselves."""
    return json.loads(mask(to_json(value)))
