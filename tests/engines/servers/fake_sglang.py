"""A server's program that answers as a sound SGLang 0.5.18 does, started with its arguments.

Its score of a prompt is what the file of its first argument says when it starts, which stands for
the weights that it loaded. It tells the labels that its weights had, and ``asleep`` for each
release of memory, at ``/labels``. In a release it dies where a file ``dies`` lies beside the first.
Standard library alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

parser = argparse.ArgumentParser()
parser.add_argument("score")
parser.add_argument("--port", type=int)
parser.add_argument("--host")
parser.add_argument("--dtype")
options, _ = parser.parse_known_args(sys.argv[1:])
score = float(Path(options.score).read_text())
labels: list[str] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.answer(200, answers(self.path, json.loads(body or b"{}")))

    def do_POST(self) -> None:
        self.do_GET()

    def do_OPTIONS(self) -> None:
        self.answer(404, {})

    def answer(self, status: int, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


def answers(route: str, body: Any) -> Any:
    if route == "/labels":
        return labels
    if label := body.get("weight_version") or body.get("new_version"):
        labels.append(label)
    if route == "/release_memory_occupation":
        if Path(options.score).with_name("dies").exists():
            os._exit(1)
        labels.append("asleep")
    if route == "/server_info":
        return {"version": "0.5.18", "dtype": options.dtype, "device": "cpu"}
    if route == "/generate":
        triples = [[score, token, None] for token in body["input_ids"]]
        return {"meta_info": {"input_token_logprobs": triples}}
    return {"success": True}


ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()
