from __future__ import annotations

import struct

import pytest

from agentrl.sandbox.host import frames


def test_frames_are_cut_wherever_the_stream_was_cut() -> None:
    stream = frames.encode({"op": "a"}, [b"\x00" * 5, b""]) + frames.encode({"op": "b"})
    decoder = frames.FrameDecoder()
    seen = [frame for byte in stream for frame in decoder.feed(bytes([byte]))]
    assert seen == [({"op": "a"}, [b"\x00" * 5, b""]), ({"op": "b"}, [])]


def test_a_stream_that_is_not_made_of_frames_is_an_error() -> None:
    with pytest.raises(frames.FrameError, match="corrupt"):
        list(frames.FrameDecoder().feed(struct.pack("!IQ", 2**31, 0)))


def test_the_bytes_of_a_link_travel_in_frames_that_name_it() -> None:
    data = b"".join(n.to_bytes(4, "big") for n in range(2**17))
    pieces = list(frames.FrameDecoder().feed(frames.on_link(3, "data", data)))
    assert [header for header, _ in pieces] == [{"link": 3, "op": "data"}] * 2
    assert b"".join(blob for _, (blob,) in pieces) == data
    assert list(frames.FrameDecoder().feed(frames.on_link(3, "end"))) == [
        ({"link": 3, "op": "end"}, [b""])
    ]
