"""The collector's pace while episodes are hosted, and its return."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from agentrl.rollouts import paced_collector


@pytest.fixture(autouse=True, scope="module")
def _nothing_frozen() -> Iterator[None]:
    """The session's objects are frozen (``tests/conftest.py``), as a program's are not."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


class Node:
    """Something that can be part of a cycle."""

    other: Node


def cycle() -> weakref.ref[Node]:
    one, two = Node(), Node()
    one.other, two.other = two, one
    return weakref.ref(one)


def test_what_is_held_already_is_not_walked_through_again() -> None:
    before = gc.get_freeze_count()
    with paced_collector():
        assert gc.get_freeze_count() > before + 1_000


def test_the_usual_pace_is_back_after_the_last_holder() -> None:
    usual = gc.get_threshold()
    with paced_collector():
        with paced_collector():
            paced = gc.get_threshold()
        assert gc.get_threshold() == paced != usual
    assert gc.get_threshold() == usual
    assert gc.get_freeze_count() == 0


def test_what_a_program_froze_itself_stays_frozen() -> None:
    frozen = Node()
    gc.freeze()
    with paced_collector():
        pass
    # The count of frozen objects may fall meanwhile, since one whose last reference goes is freed.
    still_frozen = not any(item is frozen for item in gc.get_objects())
    gc.unfreeze()
    assert still_frozen
    assert any(item is frozen for item in gc.get_objects())


def test_a_cycle_made_meanwhile_is_still_found() -> None:
    with paced_collector():
        made = cycle()
        young = [Node() for _ in range(100_000)]  # the collector comes by itself
        assert len(young) == 100_000
        assert made() is None


@pytest.mark.slow
def test_a_cycle_from_before_is_found_afterwards() -> None:
    node = Node()
    node.other = node
    made = weakref.ref(node)
    with paced_collector():
        del node
        gc.collect()
        assert made() is not None
    gc.collect()
    assert made() is None
