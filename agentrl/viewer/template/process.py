"""Template process: renders a run's chat template, which nobody trusts, in a process of its own.

jinja2's sandbox keeps the template from Python's objects. The process has no environment, opens no
file, and ends at its limits of memory, CPU and time.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.errors import DataError
from agentrl.guards.bounded_json import parse_json

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
    memory = str(limits.memory_mb << 20)
    # Isolated: no variable and no package of the user's has a say; and nothing is written.
    command = [sys.executable, "-I", "-B", str(_CHILD), memory, str(limits.cpu_s)]
    try:
        ended = subprocess.run(
            command, input=job, capture_output=True, timeout=limits.time_s, env={}, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(
            f"the run's chat template was ended after {limits.time_s:g} s; it may loop without end"
        ) from error
    if ended.returncode == -signal.SIGXCPU or ended.returncode == -signal.SIGKILL:
        raise DataError(
            f"the run's chat template was ended after {limits.cpu_s} s of CPU; it may loop without "
            "end"
        )
    try:
        answer = parse_json(ended.stdout)
    except ValueError as error:
        told = ended.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise DataError(
            f"the process of the run's chat template ended with status {ended.returncode}: "
            f"{''.join(told) or 'no word'}; its limit is {limits.memory_mb} MB of memory"
        ) from error
    if "error" in answer:
        raise DataError(f"the run's chat template cannot render: {answer['error']}")
    return str(answer["text"])
