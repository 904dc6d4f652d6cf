"""Trajectory text: a trajectory for people, every token by its origin, and the same as JSON.

Each run of tokens of one origin starts on a line of its own with the origin's name in the margin.
Each line of a text begins with its margin, so that origins and sides are told apart without colour
too. Nothing that is printed can steer the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.cells import chop_cells
from rich.text import Text

from agentrl.cli.terminal import console, counted, say
from agentrl.guards.printable import fitted, printable
from agentrl.guards.secret_mask import SecretMask, beginning
from agentrl.store import RunDirectory, TrajectoryReader
from agentrl.store.annotations.annotation import merged
from agentrl.store.json_text import from_json, to_json
from agentrl.store.trajectories.codec import SegmentReader, fields_of
from agentrl.types import (
    CallRecord,
    Image,
    Message,
    Segment,
    SegmentKind,
    Trajectory,
    Turn,
    content_text,
)
from agentrl.types.arrays import I32
from agentrl.viewer.pieces import HIDDEN_PIECE, REDACTED_ID, load_pieces, tokenizer_file
from agentrl.viewer.runs.stored_row import JSON_COLUMNS, StoredRow

MARGIN = 11
"""Columns of a line's name."""


def print_line(text: str = "", style: str = "", *, name: str = "") -> None:
    """A line, which goes on right of its name where it is longer than the terminal is wide."""
    out = console()
    text = printable(f"{name:<{MARGIN}}{text}" if name else text)
    if out.is_terminal:
        text = fitted(text, out.width, hang=MARGIN)
    # A line in a pipe stays whole, which rich would break at its own width.
    out.print(Text(text, style=style), soft_wrap=True)


def print_text(text: str, style: str, first: str, others: str, goes_on: str) -> None:
    """A text of several lines, cut where the terminal ends.

    Args:
        text: what to print.
        style: of rich.
        first, others: the margin of its first line, and of each other one.
        goes_on: the margin where a line is longer than the terminal is wide.
    """
    out = console()
    margin = first
    for line in printable(text).split("\n"):
        width = out.width - len(margin) - 1
        for piece in chop_cells(line, width) if out.is_terminal and line else [line]:
            out.print(
                Text(f"{margin} {piece}" if margin else piece, style=style), soft_wrap=True
            )
            margin = goes_on
        margin = others


_ROLE_MARGIN = 14


def print_message(message: Message) -> None:
    """Prints role, content and calls; each line behind a margin with the role."""
    text = content_text(message["content"])
    for call in message.get("tool_calls", ()):
        function = call["function"]
        text += f"\ncalls {function['name']} {to_json(function['arguments'])}"
    for number, line in enumerate(printable(text).strip("\n").split("\n")):
        role = message["role"] if number == 0 else ""
        say(f"  {role:>9} | {line}", hang=_ROLE_MARGIN)


TokenText = Callable[[I32], str]


def token_text_of(run: RunDirectory) -> TokenText | None:
    """What decodes a run's ids, markers shown; None where the run keeps no tokenizer."""
    path = tokenizer_file(run, "")
    if path is None:
        return None
    tokenizer = load_pieces(path).tokenizer
    size = tokenizer.get_vocab_size()
    mask = SecretMask()

    def decode(token_ids: I32) -> str:
        text = ""
        for known, tokens in groupby(
            token_ids.tolist(), key=lambda token: 0 <= token < size
        ):
            ids = list(tokens)
            if known:
                text += tokenizer.decode(ids, skip_special_tokens=False)
            else:
                # of a masked secret, or of the model's padded vocabulary
                text += "".join(
                    HIDDEN_PIECE if token == REDACTED_ID else "\N{REPLACEMENT CHARACTER}"
                    for token in ids
                )
        return mask(text)

    return decode


_ORIGINS: Mapping[SegmentKind, tuple[str, str, str]] = {
    SegmentKind.PROMPT: ("prompt", "cyan", "the opening context"),
    SegmentKind.POLICY: ("policy", "bold green", "sampled by the policy: trained"),
    SegmentKind.OBSERVATION: ("tool", "yellow", "a tool's or environment's words"),
    SegmentKind.TEMPLATE: ("template", "bright_black", "the chat template's own tokens"),
    SegmentKind.TARGET: ("target", "magenta", "a demonstration to imitate"),
}
_STYLES = {"terminated": "green", "truncated": "yellow"}
_LONGEST_REASON = 500
_ROLES = {"assistant": SegmentKind.POLICY, "tool": SegmentKind.OBSERVATION}


def print_trajectory(
    row: StoredRow, trajectory: Trajectory, token_text: TokenText | None
) -> None:
    """Prints a trajectory.

    Args:
        row: as it is stored, with what was learned of it.
        trajectory: the same as objects.
        token_text: decodes ids; without it messages are shown instead of tokens, and template
            tokens are counted.
    """
    _print_head(row, trajectory)
    _print_origins({segment.kind for turn in trajectory.turns for segment in turn.segments})
    if token_text is None:
        print_line(
            "no tokenizer of this run is here: messages are shown, template tokens only counted"
        )
    several = len({turn.agent for turn in trajectory.turns}) > 1
    for turn in trajectory.turns:
        print_line()
        _print_turn(turn, token_text, agent=turn.agent if several else "")
    if trajectory.last_observed:
        print_line("\nafter the last turn", "bold")
        for message in trajectory.last_observed:
            _print_origin(SegmentKind.OBSERVATION, _message_text(message))
    if learned := merged(row.annotations, trajectory.id).values:
        print_line(f"\nlearned later: {', '.join(_pairs(learned))}")


def print_rendered(
    turns: Sequence[Turn],
    token_text: TokenText,
    *,
    target: SegmentKind = SegmentKind.POLICY,
) -> None:
    """Prints a conversation as the model reads it, each token by its origin, without an episode's
    other facts.

    Args:
        turns: with segments.
        token_text: decodes ids.
        target: how the assistant's messages are shown, which nobody sampled.
    """
    pieces = [
        (target if kind is SegmentKind.TARGET else kind, text)
        for turn in turns
        for kind, text in _by_tokens(turn, token_text)
    ]
    _print_origins({kind for kind, _ in pieces})
    for kind, text in pieces:
        _print_origin(kind, text)


def _print_head(row: StoredRow, trajectory: Trajectory) -> None:
    columns = row.columns
    task = trajectory.task
    status = trajectory.status
    number = columns["step"]
    print_line(f"trajectory {trajectory.id}   step {number}   {trajectory.purpose}", "bold")
    print_line(f"{task.id} ({task.data_source})", name="task")
    if task.answer is not None:
        print_line(str(task.answer), name="answer")
    detail = f": {status.detail}" if status.detail else ""
    print_line(f"{status}{detail}", _STYLES.get(status.kind, "red"), name="status")
    print_line(_reward(trajectory.reward, trajectory.rewards), name="reward")
    for agent, seat in trajectory.seats.items():
        rest = "" if seat.train else ", not trained"
        print_line(
            f"{agent}: reward {_reward(seat.reward, seat.rewards)}{rest}", name="agent"
        )
    for part, why in trajectory.reasons.items():
        print_line(f"{part}: {_clipped(why)}", name="why")
    sampled = f"{columns['num_tokens']}, {columns['num_policy_tokens']} of them sampled"
    print_line(f"{sampled}, {counted(columns['num_turns'], 'turn')}", name="tokens")
    if trajectory.timings:
        print_line(", ".join(_pairs(trajectory.timings)), name="seconds")


def _reward(value: float | None, parts: Mapping[str, float]) -> str:
    own = "none" if value is None else f"{value:g}"
    return f"{own} = {', '.join(_pairs(parts))}" if parts else own


def _print_origins(used: Collection[SegmentKind]) -> None:
    out = console()
    legend = Text("origins".ljust(MARGIN))
    between = "\n" + " " * MARGIN if out.is_terminal else "   "
    found = [origin for kind, origin in _ORIGINS.items() if kind in used]
    for number, (name, style, words) in enumerate(found):
        legend.append(between if number else "").append(name, style=style).append(
            f" {words}"
        )
    out.print(legend, soft_wrap=True)


def _print_turn(turn: Turn, token_text: TokenText | None, *, agent: str = "") -> None:
    """Prints a turn, with ``agent`` where one of several has spoken."""
    sampled = sum(len(segment) for segment in turn.completion)
    versions = sorted(
        {s.policy_version for s in turn.completion if s.policy_version is not None}
    )
    facts = [f"turn {turn.index}", f"{sampled} tokens", turn.finish_reason]
    facts += [f"version {'-'.join(map(str, versions))}"] if versions else []
    facts += [f"agent {agent}"] if agent else []
    facts += ["new sequence"] if turn.parent is None and turn.index else []
    facts += [f"cached {turn.cached_tokens}"] if turn.cached_tokens else []
    facts += [f"reward {', '.join(_pairs(turn.rewards))}"] if turn.rewards else []
    facts += _pairs(turn.timings)
    print_line("   ".join(facts), "bold")
    # a turn of an engine without ids has messages alone
    for kind, text in (
        _by_tokens(turn, token_text) if token_text and turn.segments else _by_messages(turn)
    ):
        _print_origin(kind, text)
    for call in turn.calls:
        _print_call(call)
    for note in _request_notes(turn.info):
        print_line(note, "yellow")
    if turn.state is not None:
        print_line(f"{'state':>9} > {turn.state}")
    for path, file in turn.files.items():
        print_line(f"{'file':>9} > {path}: {'deleted' if file is None else file}")


def _request_notes(info: Mapping[str, object]) -> Iterator[str]:
    """What became of an agent's request (docs/policy-server.md); an environment may keep anything
    under these names.
    """
    breaches = info.get("breaches")
    ignored = info.get("ignored")
    if isinstance(breaches, list):
        yield from (f"{'breach':>9} > {breach}" for breach in breaches)
    if isinstance(ignored, dict):
        yield f"{'ignored':>9} > {', '.join(_pairs(ignored))}"


def _by_tokens(turn: Turn, token_text: TokenText) -> Iterator[tuple[SegmentKind, str]]:
    images = {image.sha256: image for image in turn.images}
    for segment in turn.segments:
        yield segment.kind, _with_images_named(segment, images, token_text)


def _with_images_named(
    segment: Segment, images: Mapping[str, Image], token_text: TokenText
) -> str:
    """The text of a segment, with what is known of an image instead of its placeholders."""
    parts = []
    done = 0
    for span in segment.media:
        image = images.get(span.sha256, f"image, sha256 {span.sha256}")
        parts += [
            token_text(segment.token_ids[done : span.start]),
            f"[{image}, {span.num_tokens} tokens]",
        ]
        done = span.start + span.num_tokens
    return "".join([*parts, token_text(segment.token_ids[done:])])


def _by_messages(turn: Turn) -> Iterator[tuple[SegmentKind, str]]:
    opening = turn.parent is None
    for message in turn.observed:
        kind = (
            SegmentKind.PROMPT
            if opening
            else _ROLES.get(message["role"], SegmentKind.OBSERVATION)
        )
        yield kind, _message_text(message)
    template = sum(
        len(segment) for segment in turn.segments if segment.kind is SegmentKind.TEMPLATE
    )
    if template:
        yield SegmentKind.TEMPLATE, f"({template} tokens)"
    yield turn.completion[0].kind if turn.completion else SegmentKind.POLICY, turn.text


def _print_origin(kind: SegmentKind, text: str) -> None:
    name, style, _ = _ORIGINS[kind]
    # a colon in the margin goes on with the line above
    print_text(text, style, f"{name:>9} |", f"{'':>9} |", f"{'':>9} :")


def _message_text(message: Message) -> str:
    return f"{message['role']}: {content_text(message['content'])}"


def _print_call(call: CallRecord) -> None:
    text = f"{'call':>9} > {call.call.name if call.call else '(unreadable call)'}: "
    result = call.result
    if result is None:
        text += "no result"
    else:
        text += f"{'error ' + result.error if result.error else 'ok'} in {result.latency_s:.3f} s"
        text += ", output cut" if result.truncated else ""
    if call.problem:
        text += f" ({call.problem.kind}: {call.problem.detail})"
    print_line(text.replace("\n", " "), "green" if result and not result.error else "red")


def _clipped(why: object) -> str:
    """A reason on one line, which ``--json`` has whole."""
    text = to_json(why)
    return beginning(text, _LONGEST_REASON)


def _pairs(values: Mapping[str, object]) -> list[str]:
    return [
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    ]


def trajectory_json(run: RunDirectory, trajectory_id: str) -> dict[str, Any]:
    """The stored row with its JSON columns unfolded, every segment with its token ids and logprobs,
    and annotations.
    """
    reader = TrajectoryReader(run)
    columns, arrays = reader.row(trajectory_id)
    row = {**columns, **{name: from_json(columns[name]) for name in JSON_COLUMNS}}
    tokens = SegmentReader(arrays)
    for turn in row["turns"]:
        for part in ("context", "completion"):
            turn[part] = [_segment(tokens.segment(layout)) for layout in turn[part]]
    learned = merged(reader.learned(trajectory_id, row["recorded_at"]), trajectory_id)
    by_token = {name: array.tolist() for name, array in learned.arrays.items()}
    return {**row, "annotation": {"values": dict(learned.values), "arrays": by_token}}


def _segment(segment: Segment) -> dict[str, Any]:
    media = {"media": [fields_of(span) for span in segment.media]} if segment.media else {}
    return {
        "kind": SegmentKind(segment.kind).name.lower(),
        "policy_version": segment.policy_version,
        "token_ids": segment.token_ids.tolist(),
        "logprobs": None if segment.logprobs is None else segment.logprobs.tolist(),
    } | media
