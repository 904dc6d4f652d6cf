"""A trajectory for people: every token by its origin, calls with latency and errors, rewards,
status.

Each run of tokens of one origin starts on a line of its own with the origin's name in the margin,
so that origins are told apart without colour too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from rich.cells import chop_cells
from rich.console import Console
from rich.text import Text

from agentrl.cli.terminal import console, counted, fitted
from agentrl.cli.views.token_text import TokenText
from agentrl.guards.printable import printable
from agentrl.store import StoredTrajectory
from agentrl.store.json_text import to_json
from agentrl.types import CallRecord, Image, Segment, SegmentKind, Trajectory, Turn, content_text

_ORIGINS: Mapping[SegmentKind, tuple[str, str, str]] = {
    SegmentKind.PROMPT: ("prompt", "cyan", "the opening context"),
    SegmentKind.POLICY: ("policy", "bold green", "sampled by the policy: trained"),
    SegmentKind.OBSERVATION: ("tool", "yellow", "a tool's or environment's words"),
    SegmentKind.TEMPLATE: ("template", "bright_black", "the chat template's own tokens"),
    SegmentKind.TARGET: ("target", "magenta", "a demonstration to imitate"),
}
_STYLES = {"terminated": "green", "truncated": "yellow"}
_MARGIN = 11  # columns of a line's name
_LONGEST_REASON = 500
_ROLES = {"assistant": SegmentKind.POLICY, "tool": SegmentKind.OBSERVATION}


def print_trajectory(stored: StoredTrajectory, token_text: TokenText | None) -> None:
    """Prints ``stored``.

    Args:
        stored: what to show.
        token_text: decodes ids; without it messages are shown instead of tokens, and template
            tokens are counted.
    """
    out = console()
    trajectory = stored.trajectory
    _print_head(out, stored)
    _print_legend(out, trajectory)
    if token_text is None:
        _print(
            out,
            "no tokenizer of this run is here: messages are shown, template tokens only counted",
        )
    several = len({turn.agent for turn in trajectory.turns}) > 1
    for turn in trajectory.turns:
        out.print()
        _print_turn(out, turn, token_text, agent=turn.agent if several else "")
    if trajectory.last_observed:
        out.print()
        _print(out, "after the last turn", "bold")
        for message in trajectory.last_observed:
            text = f"{message['role']}: {content_text(message['content'])}"
            _print_origin(out, SegmentKind.OBSERVATION, text)
    if stored.annotation.values:
        out.print()
        _print(out, f"learned later: {', '.join(_pairs(stored.annotation.values))}")


def print_rendered(
    turns: Sequence[Turn], token_text: TokenText, *, target: SegmentKind = SegmentKind.POLICY
) -> None:
    """Prints a conversation as the model reads it, each token by its origin, without an episode's
    other facts.

    Args:
        turns: with segments.
        token_text: decodes ids.
        target: how the assistant's messages are shown, which nobody sampled.
    """
    out = console()
    pieces = [
        (target if kind is SegmentKind.TARGET else kind, text)
        for turn in turns
        for kind, text in _by_tokens(turn, token_text)
    ]
    _print_origins(out, {kind for kind, _ in pieces})
    for kind, text in pieces:
        _print_origin(out, kind, text)


def _print_head(out: Console, stored: StoredTrajectory) -> None:
    trajectory = stored.trajectory
    summary = stored.summary
    detail = f": {trajectory.status.detail}" if trajectory.status.detail else ""
    reward = "none" if trajectory.reward is None else f"{trajectory.reward:g}"
    parts = f" = {', '.join(_pairs(trajectory.rewards))}" if trajectory.rewards else ""
    _print(out, f"trajectory {trajectory.id}   step {summary.step}   {trajectory.purpose}", "bold")
    _print(out, f"task       {trajectory.task.id} ({trajectory.task.data_source})")
    if trajectory.task.answer is not None:
        _print(out, f"answer     {trajectory.task.answer}")
    style = _STYLES.get(trajectory.status.kind, "red")
    _print(out, f"status     {trajectory.status}{detail}", style)
    _print(out, f"reward     {reward}{parts}")
    for agent, seat in trajectory.seats.items():
        own = f" = {', '.join(_pairs(seat.rewards))}" if seat.rewards else ""
        rest = "" if seat.train else ", not trained"
        _print(out, f"agent      {agent}: reward {seat.reward:g}{own}{rest}")
    for part, why in trajectory.reasons.items():
        _print(out, f"why        {part}: {_clipped(why)}")
    _print(
        out,
        f"tokens     {summary.num_tokens}, {summary.num_policy_tokens} of them sampled, "
        f"{counted(summary.num_turns, 'turn')}",
    )
    if trajectory.timings:
        _print(out, f"seconds    {', '.join(_pairs(trajectory.timings))}")


def _print(out: Console, text: str, style: str = "") -> None:
    """A line, which goes on right of its name where it is longer than the terminal is wide."""
    text = printable(text)
    fitting = fitted(text, out.width, hang=_MARGIN) if out.is_terminal else text
    out.print(Text(fitting, style=style), soft_wrap=True)


def _print_legend(out: Console, trajectory: Trajectory) -> None:
    _print_origins(out, {segment.kind for turn in trajectory.turns for segment in turn.segments})


def _print_origins(out: Console, used: Collection[SegmentKind]) -> None:
    legend = Text("origins".ljust(_MARGIN))
    between = "\n" + " " * _MARGIN if out.is_terminal else "   "
    found = [origin for kind, origin in _ORIGINS.items() if kind in used]
    for number, (name, style, words) in enumerate(found):
        legend.append(between if number else "").append(name, style=style).append(f" {words}")
    out.print(legend, soft_wrap=True)


def _print_turn(out: Console, turn: Turn, token_text: TokenText | None, *, agent: str = "") -> None:
    """Prints a turn, with ``agent`` where one of several has spoken."""
    sampled = sum(len(segment) for segment in turn.completion)
    versions = sorted({s.policy_version for s in turn.completion if s.policy_version is not None})
    facts = [f"turn {turn.index}", f"{sampled} tokens", turn.finish_reason]
    facts += [f"version {'-'.join(map(str, versions))}"] if versions else []
    facts += [f"agent {agent}"] if agent else []
    facts += ["new sequence"] if turn.parent is None and turn.index else []
    facts += [f"cached {turn.cached_tokens}"] if turn.cached_tokens else []
    facts += [f"reward {', '.join(_pairs(turn.rewards))}"] if turn.rewards else []
    facts += _pairs(turn.timings)
    _print(out, "   ".join(facts), "bold")
    # a turn of an engine without ids has messages alone
    for kind, text in (
        _by_tokens(turn, token_text) if token_text and turn.segments else _by_messages(turn)
    ):
        _print_origin(out, kind, text)
    for call in turn.calls:
        _print_call(out, call)
    for note in _request_notes(turn.info):
        _print(out, note, "yellow")
    if turn.state is not None:
        _print(out, f"{'state':>9} > {turn.state}")
    for path, file in turn.files.items():
        _print(out, f"{'file':>9} > {path}: {'deleted' if file is None else file}")


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


def _with_images_named(segment: Segment, images: Mapping[str, Image], token_text: TokenText) -> str:
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
            SegmentKind.PROMPT if opening else _ROLES.get(message["role"], SegmentKind.OBSERVATION)
        )
        yield kind, f"{message['role']}: {content_text(message['content'])}"
    template = sum(
        len(segment) for segment in turn.segments if segment.kind is SegmentKind.TEMPLATE
    )
    if template:
        yield SegmentKind.TEMPLATE, f"({template} tokens)"
    yield turn.completion[0].kind if turn.completion else SegmentKind.POLICY, turn.text


def _print_origin(out: Console, kind: SegmentKind, text: str) -> None:
    name, style, _ = _ORIGINS[kind]
    for number, line in enumerate(printable(text).split("\n")):
        pieces = chop_cells(line, out.width - _MARGIN - 1) if out.is_terminal and line else [line]
        for piece, words in enumerate(pieces):  # a colon in the margin goes on with the line above
            margin = f"{name if number == piece == 0 else '':>9} {':' if piece else '|'}"
            out.print(Text(f"{margin} {words}", style=style), soft_wrap=True)


def _print_call(out: Console, call: CallRecord) -> None:
    text = f"{'call':>9} > {call.call.name if call.call else '(unreadable call)'}: "
    result = call.result
    if result is None:
        text += "no result"
    else:
        text += f"{'error ' + result.error if result.error else 'ok'} in {result.latency_s:.3f} s"
        text += ", output cut" if result.truncated else ""
    if call.problem:
        text += f" ({call.problem.kind}: {call.problem.detail})"
    _print(out, text.replace("\n", " "), "green" if result and not result.error else "red")


def _clipped(why: object) -> str:
    """A reason on one line, which ``--json`` has whole."""
    text = to_json(why)
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"


def _pairs(values: Mapping[str, object]) -> list[str]:
    return [
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    ]
