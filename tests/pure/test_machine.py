"""What a worker gets from its machine."""

from __future__ import annotations

import time

from timeoutq.worker.threads import THIS


def test_who_takes_from_a_pipe_waits_until_something_is_there() -> None:
    pipe, taken = THIS.pipe(), list[tuple[int, float]]()
    thread = THIS.thread(lambda: taken.append((pipe.get(), time.monotonic())), "taker")
    thread.start()
    time.sleep(0.05)
    put_at = time.monotonic()
    pipe.put(7)
    thread.join(5)
    assert taken[0][0] == 7
    assert taken[0][1] >= put_at
