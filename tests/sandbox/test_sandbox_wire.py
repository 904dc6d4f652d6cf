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
