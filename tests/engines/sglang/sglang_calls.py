"""SGLang's own reading of completions: run by the interpreter of its environment.

Reads a JSON list of ``{detector, text, tools}``, and prints the calls of each as
``[[name, arguments], ...]``.
"""

from __future__ import annotations

import json
import sys

from sglang.srt.entrypoints.openai.protocol import Tool
from sglang.srt.function_call.function_call_parser import FunctionCallParser


def main() -> None:
    """Reads all of them."""
    read = []
    for asked in json.load(sys.stdin):
        tools = [Tool(**tool) for tool in asked["tools"]]
        parser = FunctionCallParser(tools, asked["detector"])
        _, calls = parser.parse_non_stream(asked["text"])
        read.append([(call.name, json.loads(call.parameters)) for call in calls])
    sys.stdout.write(json.dumps(read) + "\n")


if __name__ == "__main__":
    main()
