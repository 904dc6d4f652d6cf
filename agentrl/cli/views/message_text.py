"""Message text: a chat message on lines for people, its calls as JSON."""

from __future__ import annotations

from agentrl.cli.terminal import say
from agentrl.guards.printable import printable
from agentrl.store.json_text import to_json
from agentrl.types import Message, content_text

_MARGIN = 14


def print_message(message: Message) -> None:
    """Prints role, content and calls; each line behind a margin with the role."""
    text = content_text(message["content"])
    for call in message.get("tool_calls", ()):
        function = call["function"]
        text += f"\ncalls {function['name']} {to_json(function['arguments'])}"
    for number, line in enumerate(printable(text).strip("\n").split("\n")):
        role = message["role"] if number == 0 else ""
        say(f"  {role:>9} | {line}", hang=_MARGIN)
