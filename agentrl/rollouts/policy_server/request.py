"""A chat completion as it is asked for, and the refusals that a client understands.

The shapes are those of https://platform.openai.com/docs/api-reference/chat/create and its errors. What would change
the answer and is not offered is refused by name, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.llm import WireFault, from_wire, tool_from_wire
from agentrl.types import Message, ToolSpec

__all__ = ["ChatRequest", "Refusal", "parse_request"]

_OF_NO_EFFECT = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
_TAKEN = frozenset(
    {"model", "messages", "tools", "max_tokens", "max_completion_tokens", "stop"}
    | {"stream", "stream_options", "logprobs"}
)
_SAMPLING = frozenset({"temperature", "top_p", "seed"})
_ONLY = {
    "n": (1,),
    "top_logprobs": (0,),
    "tool_choice": ("auto",),
    "parallel_tool_calls": (True,),
    "response_format": ({"type": "text"},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "modalities": (["text"],),
}


class Refusal(Exception):  # noqa: N818 - an answer, in HTTP's terms
    """A request that is not answered with a completion.

    Args:
        status: the HTTP status.
        code: the error's name, as clients compare it.
        message: the rule, the value found and the mend.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def body(self) -> dict[str, Any]:
        """The error in OpenAI's shape."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}


@dataclass(frozen=True, slots=True, eq=False)
class ChatRequest:
    """What a client asks for.

    Args:
        messages: the conversation, which ends with what is to be answered.
        tools: on offer.
        max_tokens: at most so many are sampled; None leaves it to the limits.
        stop: strings that end the completion.
        sampling: what the client would have liked of ``temperature``, ``top_p`` and ``seed``.
        logprobs: name each sampled token with its logprob.
        stream: answer in server-sent events.
        stream_usage: send the token counts there too.
        model: the name that the client used.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sampling: Mapping[str, float] | None = None
    logprobs: bool = False
    stream: bool = False
    stream_usage: bool = False
    model: str = ""


def parse_request(body: Any) -> ChatRequest:
    """Reads a request's JSON.

    Raises:
        Refusal: 400, with the key, the rule and the value found.
    """
    if not isinstance(body, Mapping):
        raise _bad(f"the body must be a JSON object, got {type(body).__name__}")
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        if name in _ONLY:
            if value not in _ONLY[name]:
                raise _bad(f"{name} must be {_ONLY[name][0]!r} here or be left out, got {value!r}")
        elif name not in _TAKEN | _SAMPLING | _OF_NO_EFFECT:
            raise _bad(f"{name} is not supported here, got {value!r}; leave it out")
    try:
        messages = tuple(from_wire(m, f"messages[{n}]") for n, m in enumerate(_listed(given, "messages")))
        tools = tuple(tool_from_wire(tool, f"tools[{n}]") for n, tool in enumerate(_listed(given, "tools")))
    except WireFault as fault:
        raise _bad(str(fault)) from None
    if not messages or messages[-1]["role"] == "assistant":
        raise _bad("messages must end with one that the assistant is to answer, of role user, tool or system")
    stop = given.get("stop", ())
    options = given.get("stream_options", {})
    return ChatRequest(
        messages=messages,
        tools=tools,
        max_tokens=_max_tokens(given),
        stop=_texts("stop", (stop,) if isinstance(stop, str) else tuple(stop)),
        sampling={name: _number(name, given[name]) for name in _SAMPLING & given.keys()},
        logprobs=_flag("logprobs", given.get("logprobs", False)),
        stream=_flag("stream", given.get("stream", False)),
        stream_usage=isinstance(options, Mapping) and options.get("include_usage") is True,
        model=str(given.get("model", "")),
    )


def _listed(given: Mapping[str, Any], name: str) -> list[Any]:
    value = given.get(name, [])
    if not isinstance(value, list):
        raise _bad(f"{name} must be a list, got {type(value).__name__}")
    return value


def _max_tokens(given: Mapping[str, Any]) -> int | None:
    value = given.get("max_completion_tokens", given.get("max_tokens"))
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise _bad(f"max_tokens must be a whole number of at least 1, got {value!r}")
    return value


def _texts(name: str, values: tuple[Any, ...]) -> tuple[str, ...]:
    if not all(isinstance(value, str) and value for value in values):
        raise _bad(f"{name} must be text or a list of texts, got {values!r}")
    return values


def _number(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _bad(f"{name} must be a number, got {value!r}")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _bad(f"{name} must be true or false, got {value!r}")
    return value


def _bad(what: str) -> Refusal:
    return Refusal(400, "invalid_request", what)
