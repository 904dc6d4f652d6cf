"""An MCP server on standard streams that misbehaves when it is asked to: ``mcp_server.py LOG
[MODE]``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

LOG = sys.argv[1]
MODE = sys.argv[2] if len(sys.argv) > 2 else ""
NAMES = ["echo", "die", "hang", "flood", "spam", "bad", "swap", "ask", "env", "fail"]
ASKED = {
    "sampling/createMessage": {"messages": [], "maxTokens": 1},
    "elicitation/create": {
        "message": "Your name?",
        "requestedSchema": {"type": "object", "properties": {}},
    },
}
swapped = False


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    with open(LOG, "a", encoding="utf-8") as log:
        log.write(f"{os.getpid()} {text}\n")


def tools() -> list[dict[str, Any]]:
    names = ["echo", "new one"] if swapped else NAMES
    if MODE.startswith("names:"):
        names = json.loads(MODE.removeprefix("names:"))
    rule = {"type": "no such type"} if MODE == "badschema" else {"type": "string"}
    schema = {"type": "object", "properties": {"text": rule}, "required": ["text"]}
    return [
        {"name": name, "description": f"To {name}.", "inputSchema": schema}
        for name in names
    ]


def misbehave(name: str) -> None:
    if name == "die":
        sys.stderr.write("x" * 100_000 + "\nOSError: no such index\n")
        sys.stderr.flush()
        os._exit(3)
    if name == "hang":
        time.sleep(1000)
    while name == "flood":
        sys.stdout.write("x" * 65536)
    while name == "spam":
        say(
            {"method": "notifications/message", "params": {"level": "info", "data": "spam"}}
        )


def called(number: object, name: str, text: str) -> None:
    global swapped
    note(f"{name} {text}")
    misbehave(name)
    if name == "env":
        text = " ".join(sorted(os.environ))
    if "swap" in (name, text):
        swapped = not swapped
        say({"method": "notifications/tools/list_changed"})
    if name == "ask":
        say({"id": 999, "method": text, "params": ASKED.get(text, {})})
        text = json.loads(sys.stdin.readline())["error"]["message"]
    content = "no list" if name == "bad" else [{"type": "text", "text": text}]
    say({"id": number, "result": {"content": content, "isError": name == "fail"}})


def main() -> None:
    if MODE == "exit":
        sys.exit("ModuleNotFoundError: No module named 'server_of_mine'")
    if MODE == "mute":
        time.sleep(1000)
    note("start")
    for line in sys.stdin:
        asked = json.loads(line)
        method, number = asked["method"], asked.get("id")
        if method == "initialize":
            answer = {
                "protocolVersion": asked["params"]["protocolVersion"],
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "test", "version": "1"},
            }
            say({"id": number, "result": answer})
        elif method == "tools/list":
            endless = MODE == "pages" or (MODE == "more_pages" and swapped)
            page = (
                {"tools": [], "nextCursor": str(number)} if endless else {"tools": tools()}
            )
            say({"id": number, "result": page})
        elif method == "tools/call":
            called(number, asked["params"]["name"], asked["params"]["arguments"]["text"])
        elif number is not None:
            say({"id": number, "result": {}})


main()
