"""Retokenise: a turn's recorded ids against those of its text, encoded and rendered again.

Nothing of this was trained. It shows what a framework that sends histories as text would have
changed, and why.

Axes: N ids of a turn's sequence.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from tokenizers import Tokenizer

from agentrl.errors import DataError
from agentrl.store.json_text import from_json
from agentrl.types import SegmentKind, Trajectory, Turn
from agentrl.viewer.analysis.token_diff import DifferingSpan, differing, plain
from agentrl.viewer.template import ChatTemplateText

Cause = Literal[
    "merge_across_boundary",
    "other_split",
    "special_token_in_text",
    "special_token_lost",
    "invalid_utf8",
    "unknown_id",
    "whitespace",
    "normalisation",
    "text_changed",
    "template_change",
    "rewritten_turn",
]

CAUSES: Mapping[Cause, str] = {
    "merge_across_boundary": "one token of the text spans the end of a segment",
    "other_split": "the policy sampled another split of the same text",
    "special_token_in_text": "a tool, a user or the policy wrote out the text of an added token",
    "special_token_lost": "an added token that its text does not bring back",
    "invalid_utf8": "bytes that are no characters become U+FFFD",
    "unknown_id": "an id outside the tokenizer's vocabulary",
    "whitespace": "white space was changed",
    "normalisation": "the tokenizer writes the characters in another form",
    "text_changed": "the text is another one",
    "template_change": "the template, its variables or the tools on offer are other ones",
    "rewritten_turn": "the template writes an earlier turn of the policy in another way",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """Recorded ids whose text has other ids.

    Args:
        turn: the turn that added the first of them.
        start: its place among all tokens of the trajectory.
        recorded, again: ids.
        recorded_text, again_text: their texts.
        cause: a key of ``CAUSES``.
        why: the cause in words.
    """

    turn: int
    start: int
    recorded: list[int]
    recorded_text: str
    again: list[int]
    again_text: str
    cause: Cause
    why: str


@dataclass(frozen=True, slots=True)
class TemplateComparison:
    """A turn's input against the chat template applied again to its messages.

    Args:
        equal: whether the ids are equal; None where it could not be rendered.
        missing: why not.
        differences: in order.
    """

    equal: bool | None
    missing: str = ""
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class Retokenised:
    """What encoding again would change.

    Args:
        turns: those whose sequences were compared.
        equal: whether ``encode(decode(ids))`` gives the recorded ids.
        differences: in order.
        template: their inputs against the template applied again.
    """

    turns: tuple[int, ...]
    equal: bool
    differences: tuple[Difference, ...]
    template: TemplateComparison


def retokenise(
    trajectory: Trajectory,
    turn: int | None,
    tokenizer: Tokenizer,
    template: ChatTemplateText | None = None,
    tools: Mapping[str, bytes] | None = None,
) -> Retokenised:
    """Compares the sequence of a turn, its completion included.

    Args:
        trajectory: whose turn.
        turn: its index; None for the last turn of each sequence, and so for all tokens.
        tokenizer: the run's.
        template: the run's; None leaves that comparison out.
        tools: what the run keeps under the hashes of ``Turn.offered_tools``.

    Raises:
        DataError: there is no such turn, or no engine with ids generated it.
    """
    if turn is not None and not 0 <= turn < len(trajectory.turns):
        raise DataError(
            f"trajectory {trajectory.id!r} has turns 0 to {len(trajectory.turns) - 1}, got {turn}"
        )
    turns = (
        tuple(one.turns[-1] for one in trajectory.samples()) if turn is None else (turn,)
    )
    differences: dict[int, Difference] = {}
    compared = []
    for own in turns:
        recorded = _Recorded(trajectory, own, tokenizer)
        if not recorded.ids:
            raise DataError(
                f"turn {own} of trajectory {trajectory.id!r} has no token ids; its engine took text"
            )
        again = tokenizer.encode(recorded.text(recorded.ids), add_special_tokens=False).ids
        # Sequences share their beginnings: what differs there is told once.
        for one in recorded.differences(recorded.ids, again):
            differences.setdefault(one.start, one)
        compared.append(_compare_template(recorded, trajectory, own, template, tools or {}))
    ordered = tuple(differences[start] for start in sorted(differences))
    return Retokenised(turns, not ordered, ordered, _all_of(compared))


def _all_of(compared: Sequence[TemplateComparison]) -> TemplateComparison:
    """The comparisons of several turns as one."""
    missing = "; ".join(dict.fromkeys(one.missing for one in compared if one.missing))
    if missing or not compared:
        return TemplateComparison(None, missing or "the episode has no turn with ids")
    found = {
        difference.start: difference for one in compared for difference in one.differences
    }
    return TemplateComparison(not found, "", tuple(found[start] for start in sorted(found)))


class _Recorded:
    """The ids of a turn's sequence, with their origins."""

    def __init__(self, trajectory: Trajectory, turn: int, tokenizer: Tokenizer) -> None:
        path = trajectory.path(turn)
        segments = [(index, s) for index in path for s in trajectory.turns[index].segments]
        self.tokenizer = tokenizer
        self.ids: list[int] = [
            i for _, segment in segments for i in segment.token_ids.tolist()
        ]
        added = [sum(len(segment) for segment in one.segments) for one in trajectory.turns]
        ends = np.cumsum(added).tolist()
        self.places = [
            place for own in path for place in range(ends[own] - added[own], ends[own])
        ]
        """The place of each id among all tokens of the trajectory."""
        sizes = [len(segment) for _, segment in segments]
        self._turns = np.repeat([index for index, _ in segments], sizes).tolist()
        self._segments = np.repeat(np.arange(len(segments)), sizes).tolist()
        self._added = set(tokenizer.get_added_tokens_decoder())
        self._kinds = np.repeat([int(s.kind) for _, s in segments], sizes).tolist()
        completion = trajectory.turns[turn].completion
        self.num_input = len(self.ids) - sum(len(segment) for segment in completion)

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def differences(
        self, ids: Sequence[int], again: Sequence[int]
    ) -> tuple[Difference, ...]:
        return tuple(
            self._difference(ids, again, span) for span in differing(ids, again, self.text)
        )

    def of_template(self, one: Difference) -> Difference:
        """A difference of text, named for what the template did."""
        if plain(one.recorded_text) == plain(one.again_text):
            return one
        first = min(bisect_left(self.places, one.start), len(self.places) - 1)
        kinds = self._kinds[first : first + max(1, len(one.recorded))]
        sampled = SegmentKind.POLICY in kinds
        cause: Cause = "rewritten_turn" if sampled else "template_change"
        return replace(one, cause=cause, why=CAUSES[cause])

    def _difference(
        self, ids: Sequence[int], again: Sequence[int], span: DifferingSpan
    ) -> Difference:
        own = list(ids[span.start : span.end])
        theirs = list(again[span.other_start : span.other_end])
        texts = self.text(own), self.text(theirs)
        place = min(span.start, len(ids) - 1)
        cause = self._cause(own, theirs, *texts) or (
            "merge_across_boundary" if self._crosses(span) else "other_split"
        )
        return Difference(
            turn=self._turns[place],
            start=self.places[place] + span.start - place,
            recorded=own,
            recorded_text=texts[0],
            again=theirs,
            again_text=texts[1],
            cause=cause,
            why=CAUSES[cause],
        )

    def _cause(
        self, own: list[int], theirs: list[int], text: str, other: str
    ) -> Cause | None:
        """Why the ids differ; None where only the split does."""
        if any(self.tokenizer.id_to_token(token) is None for token in own):
            return "unknown_id"
        if self._added.intersection(theirs) - set(own):
            return "special_token_in_text"
        if self._added.intersection(own) - set(theirs):
            return "special_token_lost"
        if "\ufffd" in text:
            return "invalid_utf8"
        if text == other:
            return None
        if text.split() == other.split() or "".join(text.split()) == "".join(other.split()):
            return "whitespace"
        return "normalisation" if plain(text) == plain(other) else "text_changed"

    def _crosses(self, span: DifferingSpan) -> bool:
        """Whether a segment ends within the difference."""
        inside = self._segments[span.start : span.end]
        return bool(inside) and inside[0] != inside[-1]


def _compare_template(
    recorded: _Recorded,
    trajectory: Trajectory,
    turn: int,
    template: ChatTemplateText | None,
    tools: Mapping[str, bytes],
) -> TemplateComparison:
    if template is None:
        return TemplateComparison(None, "the run has no chat template among its blobs")
    if any(
        segment.kind is SegmentKind.TARGET for segment in trajectory.turns[turn].completion
    ):
        return TemplateComparison(
            None, "a demonstration is no turn that an engine was given"
        )
    messages = _conversation(trajectory, turn)
    now = trajectory.turns[turn].started_at
    try:
        offered = _offered_tools(trajectory.turns[turn], tools)
        text = template.render(messages, offered, generation=True, now=now)
    except DataError as error:
        return TemplateComparison(None, str(error))
    again = recorded.tokenizer.encode(text, add_special_tokens=False).ids
    given = recorded.ids[: recorded.num_input]
    differences = tuple(
        recorded.of_template(one) for one in recorded.differences(given, again)
    )
    return TemplateComparison(not differences, "", differences)


def _offered_tools(turn: Turn, kept: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """The tools on offer to a turn, in OpenAI's shape; none where its run recorded none.

    Raises:
        DataError: the run does not keep them, or keeps something else.
    """
    named = turn.offered_tools
    if named is None:
        return []
    if named.sha256 not in kept:
        raise DataError(f"the run does not keep the tools on offer ({named})")
    try:
        tools = from_json(kept[named.sha256])
    except ValueError as error:
        raise DataError(
            f"the run's tools on offer are no JSON ({named}): {error}"
        ) from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise DataError(f"the run's tools on offer are no list of objects ({named})")
    return tools


def _conversation(trajectory: Trajectory, turn: int) -> list[dict[str, Any]]:
    """The messages before a turn's completion, as plain JSON.

    A sequence that began later in the episode is taken to hold the whole conversation so far.
    """
    path = trajectory.path(turn)
    turns = path if path[0] == 0 else range(turn + 1)
    messages: list[dict[str, Any]] = []
    for index in turns:
        one = trajectory.turns[index]
        messages += [_plain(message) for message in one.observed]
        if index != turn:
            messages.append(_plain(one.message))
    return messages


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose images are parts without data."""
    content = message["content"]
    if isinstance(content, list):
        content = [
            {"type": "image"}
            if "image" in part
            else {"type": "text", "text": part.get("text", "")}
            for part in content
        ]
    return {**message, "content": content}
