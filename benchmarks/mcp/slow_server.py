"""An MCP server whose answers take their time: ``slow_server.py LOG SECONDS``; its log survives
it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

LOG, SECONDS = sys.argv[1], float(sys.argv[2])
LOCK = threading.Lock()  # guards standard output, which timers write to
SCHEMA = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}


def say(number: object, result: dict[str, Any]) -> None:
    """Answers a request."""
    with LOCK:
        sys.stdout.write(
            json.dumps({"jsonrpc": "2.0", "id": number, "result": result}) + "\n"
        )
        sys.stdout.flush()


def main() -> None:
    """Serves until it is killed."""
    log = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"start {os.getpid()}\n".encode())
    for line in sys.stdin:
        asked = json.loads(line)
        number = asked.get("id")
        if asked["method"] == "initialize":
            version = asked["params"]["protocolVersion"]
            info = {"name": "slow", "version": "1"}
            capabilities: dict[str, Any] = {"tools": {}}
            answer = {
                "protocolVersion": version,
                "capabilities": capabilities,
                "serverInfo": info,
            }
            say(number, answer)
        elif asked["method"] == "tools/list":
            say(number, {"tools": [{"name": "note", "inputSchema": SCHEMA}]})
        elif asked["method"] == "tools/call":
            key = asked["params"]["arguments"]["key"]
            os.write(log, f"call {key}\n".encode())
            text = {"content": [{"type": "text", "text": f"noted {key}"}]}
            threading.Timer(SECONDS, say, (number, text)).start()
        elif number is not None:
            say(number, {})


main()
