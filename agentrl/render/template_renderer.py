"""Template renderer: renders with a model's own chat template, and finds new text by difference."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from agentrl.errors import ConfigError, DataError
from agentrl.render.chat_template import ChatTemplate, num_shared
from agentrl.render.encode import Piece, Provenance, Source, unmarked
from agentrl.render.families.family import Family
from agentrl.render.families.probe_messages import (
    ANSWER,
    CALL,
    QUESTION,
    RESULT,
    THOUGHT,
    TOOL,
)
from agentrl.render.renderer import Renderer, call_arguments, text_content
from agentrl.render.vision import Vision
from agentrl.types import Message, Segment, SegmentKind, ToolSpec, images_in
from agentrl.types.arrays import I32
from agentrl.types.messages import THOUGHTS_CLOSE, THOUGHTS_OPEN


class TemplateRenderer(Renderer):
    """A ``Renderer`` over any chat template.

    - The text of a conversation is the template's own, with the author of each character known
      (``Provenance``).
    - The tokens after a completion are the difference of two renderings, of the history with and
      without the new messages.
    - The difference is used only if the template keeps the history: the shorter rendering must be a
      prefix of the longer one, and must begin with the model's prompt.

    Args:
        template: the template and its tokenizer.
        family: the specifics of the template's family.
        vision: the model's image format; None for a model of text alone.

    Raises:
        DataError: the tokenizer is of an unsupported kind.
        ConfigError: the template's end of an assistant's turn cannot be found.
    """

    def __init__(
        self, template: ChatTemplate, family: Family, vision: Vision | None = None
    ) -> None:
        super().__init__(template.tokenizer, (), vision)
        self.family = family.name
        self._template = template
        self._family = family
        added = self._encoder.added_ids
        bodies = self._probe_bodies()
        tail = bodies[0].rpartition(str(ANSWER["content"]))[2]
        ends = sorted((token for token in added if token in tail), key=tail.index)
        stops = [
            token
            for token in (*ends, *family.stops, template.tokenizer.eos_token)
            if token in added
        ]
        if not ends and family.turn_end is None:
            raise ConfigError(
                f"the chat template of {template.where} does not end an assistant's turn with an "
                f"added token: it writes {bodies[0]!r}, so the end of the turn is unknown; set "
                f"RendererSpec.chat_template to one that does, or to chatml"
            )
        self.stop_token_ids = tuple(dict.fromkeys(added[token] for token in stops))
        any_stop = "|".join(map(re.escape, sorted(stops, key=len, reverse=True)))
        self._ending = re.compile(rf"({any_stop})(?:\s*(?:{any_stop}))*\s*\Z")
        around = self._around_turns(bodies)
        inside = {
            token
            for token in added
            if token not in around and any(token in body for body in bodies)
        }
        self._provenance = Provenance(
            added, {THOUGHTS_OPEN, THOUGHTS_CLOSE, *inside} - set(stops)
        )
        try:
            probe = template.render([dict(QUESTION)], [TOOL.openai()], generation=True)
            self._writes_tools = TOOL.name in probe
        except DataError:
            self._writes_tools = False

    def extend(
        self,
        completion: I32,
        messages: Sequence[Message],
        history: Sequence[Message] = (),
        tools: Sequence[ToolSpec] = (),
    ) -> tuple[Segment, ...] | None:
        """See ``Renderer.extend``.

        None if the new messages change how the template writes the earlier ones, or if it leaves
        out text, reasoning or calls of the assistant's last turn.

        Raises:
            DataError: the history does not end with the assistant's turn, or as for ``prompt``.
        """
        if not history or history[-1]["role"] != "assistant":
            raise DataError(
                "extend needs the history, whose last message is the assistant's that is completed"
            )
        given = self._marked(history[:-1], tools, generation=True)
        spoken = self._marked(history, tools, generation=False)
        whole = self._marked([*history, *messages], tools, generation=True)
        ending = self._ending.search(spoken, len(given))
        if ending is not None and not whole.startswith(spoken):
            # some templates write one more token after the last turn
            spoken = spoken[: ending.end(1)]
        keeps = spoken.startswith(given) and whole.startswith(spoken)
        if not keeps or not self._says(spoken[len(given) :], history[-1]):
            return None
        more = whole[ending.start() if ending else len(spoken) :]
        ids, content = self._encoder.encode(self._provenance.pieces(more))
        # the sampled stop token is in the sequence already
        sampled = completion.size > 0 and int(completion[-1]) in self.stop_token_ids
        skip = int(sampled and ids.size > 0 and int(ids[0]) == int(completion[-1]))
        return self._context((ids[skip:], content[skip:]), messages)

    def target(self, message: Message) -> Segment:
        """See ``Renderer.target``.

        Raises:
            DataError: the template does not continue its own generation prompt with this message.
        """
        given = self._marked([QUESTION], (), generation=True)
        spoken = self._marked([QUESTION, message], (), generation=False)
        body, dropped = _spoken_after(given, spoken)
        if body is None:
            raise DataError(
                f"the generation prompt of {self._template.where} ends with {given[-40:]!r}, and "
                f"its template writes a past turn otherwise, {spoken[-80:]!r}: such a message "
                f"cannot be imitated"
            )
        if dropped:
            thoughts = self._provenance.assistant(message.get("reasoning_content") or "")
            body = f"{thoughts}\n{THOUGHTS_CLOSE}\n\n{body}"
        ending = self._ending.search(body)
        end = ending.group(1) if ending else ""
        if ending:
            body = body[: ending.start()]
        elif self._family.turn_end is not None:
            end = self._family.turn_end(message)
        ids, _ = self._encoder.encode(
            [*self._provenance.pieces(body), Piece(end, Source.TEMPLATE)]
        )
        return Segment(SegmentKind.TARGET, ids)

    def prompt_text(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        """The prompt as the template writes it with marked authors, after the marks are removed."""
        return unmarked(self._prompt_pieces(messages, tools))

    def _prompt_pieces(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> list[Piece]:
        return self._provenance.pieces(self._marked(messages, tools, generation=True))

    def _marked(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation: bool
    ) -> str:
        if tools and not self._writes_tools:
            raise DataError(
                f"the chat template of {self._template.where} does not tell the model of its "
                "tools; describe them in the system prompt and set "
                "ToolEnv.describe_tools_in_prompt: "
                f"false, or set RendererSpec.chat_template to one that does"
            )
        checked = [_checked(message) for message in messages]
        return self._template.render(
            [self._mark(message) for message in self._family.adapt(checked)],
            [self._provenance.outsider(tool.openai()) for tool in tools],
            generation=generation,
        )

    def _mark(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message with its authors marked, and each image as a part without data."""
        marks = self._provenance
        if message["role"] == "assistant":
            return dict(marks.assistant(message))
        content: str | list[dict[str, Any]] = message["content"]
        marked = (
            marks.content(content)
            if isinstance(content, str)
            else [
                {"type": "image"}
                if "image" in part
                else {"type": "text", "text": marks.content(part["text"])}
                for part in content
            ]
        )
        # a tool's name is the model's text
        return {**marks.outsider(message), "content": marked}

    def _says(self, body: str, message: Message) -> bool:
        """Whether the template writes all of an assistant's message."""
        plain = unmarked(self._provenance.pieces(body))
        said = [message["content"] or "", message.get("reasoning_content") or ""]
        said += [
            call.get("function", call)["name"] for call in message.get("tool_calls") or ()
        ]
        return all(text.strip() in plain for text in said)

    def _probe_bodies(self) -> list[str]:
        """An assistant's turns as the template writes them: an answer, and if possible, reasoning
        and a call.
        """
        given = self._plain(QUESTION, generation=True)
        bodies: list[str] = []
        for message in (ANSWER, THOUGHT, CALL):
            try:
                spoken = self._plain(QUESTION, message)
            except DataError:
                if message is ANSWER:
                    raise
                # A template without tools may refuse a call.
                continue
            bodies.append(_spoken_after(given, spoken)[0] or spoken)
        if QUESTION["content"] not in given or ANSWER["content"] not in bodies[0]:
            raise ConfigError(
                f"the chat template of {self._template.where} leaves out what is said: a user's "
                f"Hello renders as {given[-200:]!r}; it may want a list of parts as content, "
                f"which is not supported: set RendererSpec.chat_template to one for text"
            )
        return bodies

    def _around_turns(self, bodies: Sequence[str]) -> str:
        """The template's text around an assistant's turn: other roles' turns, and how turns begin
        and end.

        A marker in it is structure. It is never allowed in an assistant's text; otherwise a policy
        that spells it would speak in another role.
        """
        around = self._plain(QUESTION, generation=True)
        try:
            called = self._plain(QUESTION, CALL)
            answered = self._plain(QUESTION, CALL, RESULT, generation=True)
            around += answered[num_shared(called, answered) :]
        except DataError:
            # The template takes no tool messages.
            pass
        # the last marker of each turn ends it; after a call it may be another one
        if self._family.turn_end is None:
            for body in bodies:
                last = max(self._encoder.added_ids, key=body.rfind)
                around += last if last in body else ""
        return around

    def _plain(self, *messages: Message, generation: bool = False) -> str:
        """A test conversation as the template writes it."""
        return self._template.render(self._family.adapt(messages), generation=generation)


def _spoken_after(given: str, spoken: str) -> tuple[str | None, bool]:
    """The text of ``spoken`` after the prompt; None if it does not continue the prompt.

    Returns:
        The turn, and whether the prompt opens a reasoning block that the template does not write.
    """
    if spoken.startswith(given):
        return spoken[len(given) :], False
    base, opened, rest = given.rpartition(THOUGHTS_OPEN)
    if not opened or rest.strip() or not spoken.startswith(base):
        return None, False
    body = spoken[len(base) :]
    # as the prompt does, except for the white space after it
    begins = body.startswith(THOUGHTS_OPEN)
    return (body[len(THOUGHTS_OPEN) :] if begins else body), not begins


def _checked(message: Message) -> Message:
    has_images = message["role"] != "assistant" and any(images_in((message,)))
    content = message["content"] if has_images else text_content(message)
    calls: list[dict[str, Any]] = [
        call if "function" in call else {"type": "function", "function": call}
        for call in message.get("tool_calls") or ()
    ]
    for call in calls:
        call_arguments(call["function"])
    checked: Message = {**message, "content": content}
    return {**checked, "tool_calls": calls} if calls else checked
