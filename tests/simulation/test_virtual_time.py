"""Virtual time: waits cost nothing, threads end as they would, and a deadlock is found."""

from __future__ import annotations

import queue

import pytest

from tests.simulation.virtual import DeadlockError, Process, VirtualTime


def test_a_wait_ends_by_a_notice_or_in_time() -> None:
    time = VirtualTime(1)
    process = Process(time)
    changed = process.threads.condition()
    seen = []

    def waits() -> None:
        with changed:
            for _ in range(3):
                seen.append((changed.wait(1.0), time.now_s))

    def notifies() -> None:
        process.sleep(0.5)
        with changed:
            changed.notify_all()

    thread = process.begin(waits, "waits")
    process.begin(notifies, "notifies")
    time.run(lambda: not thread.is_alive(), 10)
    assert seen == [(True, 0.5), (False, 1.5), (False, 2.5)]


def test_a_mailbox_gives_in_order_and_in_time() -> None:
    time = VirtualTime(1)
    process = Process(time)
    mailbox = process.threads.mailbox()
    got: list[object] = []

    def reads() -> None:
        got.extend((mailbox.get(timeout=5), mailbox.get(timeout=5)))
        with pytest.raises(queue.Empty):
            mailbox.get(timeout=5)

    thread = process.begin(reads, "reads")
    time.at(1.0, lambda: mailbox.put("a"), process)
    time.at(2.0, lambda: mailbox.put("b"), process)
    time.run(lambda: not thread.is_alive(), 100)
    assert process.error is None
    assert (got, time.now_s) == (["a", "b"], 7.0)


def test_the_shortest_wait_is_over_some_time() -> None:
    """One that is less than the rounding of the time that it is added to."""
    time = VirtualTime(1)
    process = Process(time)
    mailbox = process.threads.mailbox()

    def reads() -> None:
        process.sleep(1000.0)
        with pytest.raises(queue.Empty):
            mailbox.get(timeout=1e-14)
        assert time.now_s > 1000.0

    thread = process.begin(reads, "reads")
    time.run(lambda: not thread.is_alive(), 2000)
    assert process.error is None


def test_threads_that_take_turns_for_ever_are_found() -> None:
    time = VirtualTime(1)
    process = Process(time)

    def turns() -> None:
        while True:
            process.sleep(0.0)

    process.begin(turns, "turns")
    with pytest.raises(DeadlockError, match=r"at 0\.0 s the clock moves on no more"):
        time.run(lambda: False, 10)
    time.exhume()


def test_who_holds_a_lock_keeps_others_out() -> None:
    time = VirtualTime(3)
    process = Process(time)
    lock = process.threads.condition()
    order = []

    def work(name: str) -> None:
        with lock, lock:  # it may be held twice by one thread
            order.append(f"{name} in")
            process.sleep(1.0)
            order.append(f"{name} out")

    threads = [process.begin(lambda name=name: work(name), name) for name in ("a", "b")]  # type: ignore[misc]
    time.run(lambda: not any(one.is_alive() for one in threads), 10)
    first, second = order[0][0], order[2][0]
    assert order == [f"{first} in", f"{first} out", f"{second} in", f"{second} out"]
    assert first != second


def test_a_deadlock_is_found() -> None:
    time = VirtualTime(1)
    process = Process(time)
    one, other = process.threads.condition(), process.threads.condition()

    def takes(first: object, second: object) -> None:
        with first:  # type: ignore[attr-defined]
            process.sleep(1.0)
            with second:  # type: ignore[attr-defined]
                pass

    process.begin(lambda: takes(one, other), "a")
    thread = process.begin(lambda: takes(other, one), "b")
    with pytest.raises(DeadlockError, match="nothing is left to happen"):
        time.run(lambda: not thread.is_alive(), 10)


def test_a_killed_process_does_nothing_more() -> None:
    time = VirtualTime(1)
    process, alive = Process(time), Process(time)
    done = []

    def work() -> None:
        try:
            process.sleep(2.0)
            done.append("work")
        finally:
            done.append("finally")

    process.begin(work, "work")
    time.at(1.0, process.kill, alive)
    time.at(9.0, lambda: None, alive)
    time.run(lambda: time.now_s >= 9.0, 10)
    assert done == []
    time.exhume()


def test_an_error_of_a_thread_is_kept() -> None:
    time = VirtualTime(1)
    process = Process(time)

    def breaks() -> None:
        raise ValueError("broken")

    thread = process.begin(breaks, "breaks")
    time.run(lambda: not thread.is_alive(), 10)
    assert str(process.error) == "broken"
