"""GC pacing: slows Python's cyclic garbage collector for thousands of episodes in flight."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (50_000, 20, 100)
# Guards ``_usual`` and the collector's settings; taken on entry and exit, from any thread.
_lock = threading.Lock()
# The thresholds before the first holder, and whether it froze anything; once for each holder.
_usual: list[tuple[tuple[int, int, int], bool]] = []


@contextmanager
def paced_collector() -> Iterator[None]:
    """Freezes the process's present objects and collects garbage at higher thresholds meanwhile.

    - An episode in flight holds over a hundred objects for its whole length, without cycles.
    - By default the collector traverses all of them, and every imported module, each time that they
      have grown by a quarter. That takes a third of a turn's time at 4,096 episodes.
    - Cycles are still found: young ones every 50,000 objects, old ones every million and more.
      Older garbage is found after the context ends.
    - A program that froze its objects itself keeps them so, and no others are frozen.

    May be entered several times at once, from any thread.
    """
    with _lock:
        if not _usual:
            freezes = not gc.get_freeze_count()
            if freezes:
                # Garbage that is frozen with the rest would stay.
                gc.collect()
                gc.freeze()
            _usual.append((gc.get_threshold(), freezes))
        else:
            _usual.append(_usual[0])
        gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        with _lock:
            before, freezes = _usual.pop()
            if not _usual:
                gc.set_threshold(*before)
                if freezes:
                    gc.unfreeze()
