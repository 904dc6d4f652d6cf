"""Replay: plays the recorded actions of episodes again, and says what comes out otherwise."""

from __future__ import annotations

from agentrl.run.replay.replay import Replayed, Replayer

__all__ = ["Replayed", "Replayer"]
