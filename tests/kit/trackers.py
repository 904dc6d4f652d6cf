"""Trackers: what W&B wrote without network, and a collector of OpenTelemetry's spans."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit.http import Answering, serving
from tests.kit.waiting import until


def leveldb_log(data: bytes) -> Iterator[bytes]:
    """The records of a file of W&B: a log as LevelDB has it, with W&B's own head of 7 bytes."""
    record, at = b"", 7
    while at < len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def wandb_records(root: Path) -> list[list[Any]]:
    """The records of each attempt, as W&B wrote them."""
    from wandb.proto.wandb_internal_pb2 import Record

    def read() -> list[list[Any]]:
        files = sorted(root.glob("wandb/offline-run-*/*.wandb"))
        attempts = [
            [Record.FromString(one) for one in leveldb_log(file.read_bytes())]
            for file in files
        ]
        # its process writes them behind the end of the run
        ended = [own and own[-1].WhichOneof("record_type") == "exit" for own in attempts]
        return attempts if ended and all(ended) else []

    return until(read)


def wandb_rows(records: list[Any]) -> list[dict[str, str]]:
    """The numbers of each row, as JSON."""
    return [
        {
            item.key or "/".join(item.nested_key): item.value_json
            for item in record.history.item
            if not (item.key or item.nested_key[0]).startswith("_")
        }
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]


@dataclass
class Collector:
    """What a collector took.

    Args:
        status: that it answers with; with another than 200 it takes nothing.
    """

    status: int = 200
    url: str = ""
    spans: list[Mapping[str, Any]] = field(default_factory=list)


@contextmanager
def collector(status: int = 200) -> Iterator[Collector]:
    """A server that takes OTLP over HTTP."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceRequest,
    )

    own = Collector(status)

    class Handler(Answering):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            request = ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans if own.status == 200 else ():
                about = {
                    one.key: one.value.string_value for one in resource.resource.attributes
                }
                own.spans.extend(
                    {"span": span, "about": about}
                    for scope in resource.scope_spans
                    for span in scope.spans
                )
            self.answer(b"", own.status)

    with serving(Handler) as address:
        own.url = f"{address}/v1/traces"
        yield own


def steps_of(taken: Mapping[str, Any]) -> int:
    """The step of a span."""
    found = {one.key: one.value.int_value for one in taken["span"].attributes}
    return int(found["agentrl.step"])
