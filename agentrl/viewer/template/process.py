"""Template process: renders a run's chat template, which nobody trusts, in a process of its own.

jinja2's sandbox keeps the template from Python's objects. The process has no environment, opens no
file, and ends at its limits of memory, CPU and time.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.errors import DataError
from agentrl.guards.child_process import ChildEndedError, ChildLimits, ask_child
from agentrl.guards.parsing import parse_json

_CHILD = Path(__file__).with_name("child.py")


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """What a rendering may cost.

    Args:
        memory_mb: address space of the process.
        cpu_s: seconds of CPU.
        time_s: seconds until it is ended, whatever it does.
        characters: the longest text.
    """

    memory_mb: int = 512
    cpu_s: int = 4
    time_s: float = 10.0
    characters: int = 8_000_000


@dataclass(frozen=True, slots=True)
class ChatTemplateText:
    """A run's chat template.

    Args:
        text: Jinja.
        variables: such as ``bos_token`` and ``enable_thinking``.
    """

    text: str
    variables: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_tokenizer(cls, text: str, config: Mapping[str, Any]) -> ChatTemplateText:
        """A template with the special tokens of its ``tokenizer_config.json``."""
        tokens = {}
        for name, value in config.items():
            if name.endswith("_token"):
                token = value.get("content") if isinstance(value, Mapping) else value
                if isinstance(token, str):
                    tokens[name] = token
        return cls(text, tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        generation: bool,
        now: float = 0.0,
        limits: TemplateLimits | None = None,
    ) -> str:
        """The conversation as text.

        Args:
            messages: plain JSON, in the template's shape.
            tools: in OpenAI's shape.
            generation: whether to add the prompt of the assistant's next turn.
            now: epoch seconds that ``strftime_now`` tells, in UTC.
            limits: what it may cost.

        Raises:
            DataError: the template is wrong, refuses the conversation, or passes a limit.
        """
        limits = limits or TemplateLimits()
        variables = {
            **self.variables,
            "messages": list(messages),
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": generation,
        }
        job = {
            "template": self.text,
            "variables": variables,
            "now": now,
            "max_characters": limits.characters,
        }
        return _answer(json.dumps(job).encode(), limits)


def _answer(job: bytes, limits: TemplateLimits) -> str:
    own = ChildLimits(
        limits.time_s, limits.cpu_s, limits.memory_mb << 20, opens_files=False
    )
    try:
        answer = parse_json(ask_child(_CHILD, job, own))
    except ChildEndedError as error:
        if error.is_late or error.status in (-signal.SIGXCPU, -signal.SIGKILL):
            spent = f"{limits.time_s:g} s" if error.is_late else f"{limits.cpu_s} s of CPU"
            raise DataError(
                f"the run's chat template was ended after {spent}; it may loop without end"
            ) from error
        raise _broken(limits, error) from error
    except ValueError as error:
        raise _broken(limits, error) from error
    if "error" in answer:
        raise DataError(f"the run's chat template cannot render: {answer['error']}")
    return str(answer["text"])


def _broken(limits: TemplateLimits, error: Exception) -> DataError:
    return DataError(
        f"the process of the run's chat template broke: {error}; its limit is "
        f"{limits.memory_mb} MB of memory"
    )
