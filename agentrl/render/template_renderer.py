"""The renderer that asks a model's own chat template, and takes from it what is new by difference."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.errors import ConfigError, DataError
from agentrl.render.char_provenance import Provenance, unmarked
from agentrl.render.chat_template import ChatTemplate
from agentrl.render.encode import Piece, PieceEncoder, Source
from agentrl.render.families.family import Family
from agentrl.render.families.probe_messages import ANSWER, CALL, QUESTION, RESULT, THOUGHT, TOOL
from agentrl.render.vision import Vision, shown_images
from agentrl.render.vocabulary import Vocabulary, context_segments
from agentrl.types import Message, Segment, SegmentKind, ToolSpec, images_in

__all__ = ["TemplateRenderer"]

_OPEN_THINKING, _CLOSE_THINKING = "<think>", "</think>"


class TemplateRenderer:
    """A ``Renderer`` over any chat template.

    The text of a conversation is the template's own, with the author of each character known (``Provenance``). What
    follows a completion is the difference of two renderings, of the history with and without the new messages; it
    is used only where the first is the beginning of the second, and itself begins with the prompt that the model
    was given: then the template keeps the history.

    Args:
        template: the template and its tokenizer.
        family: what the template's family has of its own.
        vision: how the model is shown images; None for one that sees none.

    Raises:
        DataError: the tokenizer is of a kind that cannot be used.
        ConfigError: it cannot be found out how the template ends an assistant's turn.
    """

    def __init__(
        self, template: ChatTemplate, family: Family, vision: Vision | None = None
    ) -> None:
        backend = template.tokenizer.backend_tokenizer
        self._template = template
        self._family = family
        self._vision = vision
        self._vocabulary = Vocabulary(backend)
        self._encoder = PieceEncoder(backend, ())
        added = self._encoder.added_ids
        bodies = self._probe_bodies()
        ends = self._find_ends(bodies[0])
        stops = [
            token
            for token in (*ends, *family.stops, template.tokenizer.eos_token)
            if token in added
        ]
        if not ends and family.turn_end is None:
            raise ConfigError(
                f"the chat template of {template.where} does not end an assistant's turn with an added token: it "
                f"writes {bodies[0]!r}, so what belongs to the turn cannot be told; set RendererSpec.chat_template to one "
                "that does, or to chatml"
            )
        self._stop_token_ids = tuple(dict.fromkeys(added[token] for token in stops))
        any_stop = "|".join(map(re.escape, sorted(stops, key=len, reverse=True)))
        self._ending = re.compile(rf"({any_stop})(?:\s*(?:{any_stop}))*\s*\Z")
        around = self._around_turns(bodies)
        inside = {
            token
            for token in added
            if token not in around and any(token in body for body in bodies)
        }
        self._provenance = Provenance(
            added, {_OPEN_THINKING, _CLOSE_THINKING, *inside} - set(stops)
        )
        self._writes_tools = self._can_write_tools()

    @property
    def family(self) -> str:
        """See ``Renderer.family``."""
        return self._family.name

    @property
    def vocab_size(self) -> int:
        """See ``Renderer.vocab_size``."""
        return self._vocabulary.size

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """What the template ends a turn with, the family's others, and the tokenizer's ``eos_token``."""
        return self._stop_token_ids

    @property
    def image_token_ids(self) -> frozenset[int]:
        """See ``Renderer.image_token_ids``."""
        return self._vision.reserved_ids if self._vision else frozenset()

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
    ) -> tuple[Segment, ...]:
        """See ``Renderer.prompt``.

        Raises:
            DataError: the template refuses the conversation, cuts a message or writes an image otherwise than once, a
                content is neither text nor parts of text and images, the model sees no images, or there are tools and
                the template does not write them.
        """
        pieces = self._provenance.pieces(self._marked(messages, tools, generation=True))
        ids, _, media = shown_images(self._vision, *self._encoder.encode(pieces), messages)
        return (Segment(SegmentKind.PROMPT, ids, media=media),)

    def extend(
        self,
        completion: npt.NDArray[np.int32],
        messages: Sequence[Message],
        history: Sequence[Message] = (),
        tools: Sequence[ToolSpec] = (),
    ) -> tuple[Segment, ...] | None:
        """See ``Renderer.extend``.

        None where the template, given the new messages, writes anything before them otherwise, or leaves out what
        the assistant said, thought or called in its last turn.

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
            spoken = spoken[
                : ending.end(1)
            ]  # some templates write one more token behind the last turn of all
        keeps = spoken.startswith(given) and whole.startswith(spoken)
        if not keeps or not self._says(spoken[len(given) :], history[-1]):
            return None
        more = whole[ending.start() if ending else len(spoken) :]
        ids, content = self._encoder.encode(self._provenance.pieces(more))
        # What the model sampled is not written once more.
        sampled = completion.size > 0 and int(completion[-1]) in self.stop_token_ids
        skip = int(sampled and ids.size > 0 and int(ids[0]) == int(completion[-1]))
        return context_segments(*shown_images(self._vision, ids[skip:], content[skip:], messages))

    def target(self, message: Message) -> Segment:
        """See ``Renderer.target``.

        Raises:
            DataError: the template does not go on from its own generation prompt with this message.
        """
        given = self._marked([QUESTION], (), generation=True)
        spoken = self._marked([QUESTION, message], (), generation=False)
        body, dropped = _spoken_after(given, spoken)
        if body is None:
            raise DataError(
                f"the generation prompt of {self._template.where} ends with {given[-40:]!r}, and its template writes a "
                f"past turn otherwise, {spoken[-80:]!r}: such a message cannot be imitated"
            )
        if dropped:
            thoughts = self._provenance.assistant(message.get("reasoning_content") or "")
            body = f"{thoughts}\n{_CLOSE_THINKING}\n\n{body}"
        ending = self._ending.search(body)
        end = ending.group(1) if ending else ""
        if ending:
            body = body[: ending.start()]
        elif self._family.turn_end is not None:
            end = self._family.turn_end(message)
        ids, _ = self._encoder.encode([*self._provenance.pieces(body), Piece(end, Source.TEMPLATE)])
        return Segment(SegmentKind.TARGET, ids)

    def decode(self, token_ids: npt.NDArray[np.int32]) -> str:
        """See ``Renderer.decode``."""
        return self._vocabulary.decode(token_ids, self.stop_token_ids)

    def tokenize(self, text: str) -> npt.NDArray[np.int32]:
        """See ``Renderer.tokenize``."""
        return self._vocabulary.tokenize(text)

    def text(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        *,
        generation: bool = False,
    ) -> str:
        """The conversation as the template writes it with its authors known, without the marks."""
        return unmarked(
            self._provenance.pieces(self._marked(messages, tools, generation=generation))
        )

    def _marked(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation: bool
    ) -> str:
        if tools and not self._writes_tools:
            raise DataError(
                f"the chat template of {self._template.where} does not tell the model of its tools; describe them in "
                "the system prompt and set ToolEnv.describe_tools_in_prompt: false, or set RendererSpec.chat_template to one that does"
            )
        marks = self._provenance
        return self._template.render(
            [
                self._mark(message)
                for message in self._family.adapt([_checked(message) for message in messages])
            ],
            [marks.outsider(tool.openai()) for tool in tools],
            generation=generation,
        )

    def _mark(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["role"] == "assistant":
            marked: dict[str, Any] = self._provenance.assistant(message)
            return marked
        named: dict[str, Any] = self._provenance.outsider(
            message
        )  # a tool's name is as the model wrote it
        return {**named, "content": self._content(message["content"])}

    def _content(self, content: str | list[dict[str, Any]]) -> Any:
        """Text with its author marked; of an image, that there is one."""
        if isinstance(content, str):
            return self._provenance.content(content)
        return [
            {"type": "image"}
            if "image" in part
            else {"type": "text", "text": self._provenance.content(part["text"])}
            for part in content
        ]

    def _says(self, body: str, message: Message) -> bool:
        """Whether the template writes all of an assistant's message."""
        plain = unmarked(self._provenance.pieces(body))
        said = [message["content"] or "", message.get("reasoning_content") or ""]
        said += [call.get("function", call)["name"] for call in message.get("tool_calls") or ()]
        return all(text.strip() in plain for text in said)

    def _probe_bodies(self) -> list[str]:
        """An assistant's turns as the template writes them: an answer, and where it can, thinking and a call."""
        given = self._template.render([dict(QUESTION)], generation=True)
        bodies: list[str] = []
        for message in (ANSWER, THOUGHT, CALL):
            try:
                spoken = self._template.render(
                    self._family.adapt([QUESTION, message]), generation=False
                )
            except DataError:
                if message is ANSWER:
                    raise
                continue  # a template without tools may refuse a call, and is not asked for one then
            bodies.append(_spoken_after(given, spoken)[0] or spoken)
        if QUESTION["content"] not in given or ANSWER["content"] not in bodies[0]:
            raise ConfigError(
                f"the chat template of {self._template.where} leaves out what is said: a user's Hello renders as "
                f"{given[-200:]!r}; it may want a list of parts as content, which is not supported: set "
                "RendererSpec.chat_template to one for text"
            )
        return bodies

    def _around_turns(self, bodies: Sequence[str]) -> str:
        """What the template writes around an assistant's turn: what others say, and how turns begin and end. A marker
        in it is structure, and never counts in what an assistant wrote, or a policy that spells it would speak as
        someone else."""
        around = self._template.render([dict(QUESTION)], generation=True)
        try:
            called = self._template.render(self._family.adapt([QUESTION, CALL]), generation=False)
            answered = self._template.render(
                self._family.adapt([QUESTION, CALL, RESULT]), generation=True
            )
            same = takewhile(lambda pair: pair[0] == pair[1], zip(called, answered, strict=False))
            around += answered[sum(1 for _ in same) :]
        except DataError:  # there is no place for a tool's answer
            pass
        if (
            self._family.turn_end is None
        ):  # the last marker of each turn ends it, and may be another one after a call
            last = (max(self._encoder.added_ids, key=body.rfind) for body in bodies)
            around += "".join(
                token for token, body in zip(last, bodies, strict=True) if token in body
            )
        return around

    def _find_ends(self, answer: str) -> list[str]:
        """The added tokens that follow an answer."""
        tail = answer.rpartition(str(ANSWER["content"]))[2]
        return sorted((token for token in self._encoder.added_ids if token in tail), key=tail.index)

    def _can_write_tools(self) -> bool:
        try:
            return TOOL.name in self._template.render(
                [dict(QUESTION)], [TOOL.openai()], generation=True
            )
        except DataError:
            return False


def _spoken_after(given: str, spoken: str) -> tuple[str | None, bool]:
    """What ``spoken`` has after the prompt; None where it does not go on from it.

    Returns:
        The turn, and whether the prompt opens a block of thoughts of which the template writes nothing.
    """
    if spoken.startswith(given):
        return spoken[len(given) :], False
    base, opened, rest = given.rpartition(_OPEN_THINKING)
    if not opened or rest.strip() or not spoken.startswith(base):
        return None, False
    body = spoken[len(base) :]
    begins = body.startswith(
        _OPEN_THINKING
    )  # as the prompt does, but for the white space behind it
    return (body[len(_OPEN_THINKING) :] if begins else body), not begins


def _has_images(message: Message) -> bool:
    return message["role"] != "assistant" and any(images_in((message,)))


def _checked(message: Message) -> Message:
    content = message.get("content")
    if content is None:
        content = ""
    if not isinstance(content, str) and not _has_images(message):
        raise DataError(
            f"the content of a {message['role']} message must be text here, got {type(content).__name__}; parts of "
            "text and images are for users and tools, and go through agentrl.types.with_images first"
        )
    calls: list[dict[str, Any]] = [
        call if "function" in call else {"type": "function", "function": call}
        for call in message.get("tool_calls") or ()
    ]
    for call in calls:
        function = call["function"]
        if not isinstance(function["arguments"], Mapping):
            raise DataError(
                f"a tool call's arguments must be a mapping, got {type(function['arguments']).__name__} for "
                f"{function['name']!r}; parse them with json.loads before they become a message"
            )
    return (
        {**message, "content": content, "tool_calls": calls}
        if calls
        else {**message, "content": content}
    )
