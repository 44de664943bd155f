"""Groups on a queue that is not polite: they are kept with their tasks, and politeness that begins later uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fakeredis
import pytest

from timeoutq import Politeness
from timeoutq.testing import FakeQueue, fake_queue

A = "http://a.example/"


def groups(queue: FakeQueue) -> dict[bytes, bytes]:
    raw: Any = fakeredis.FakeRedis(server=queue.clock.server)
    found: dict[bytes, bytes] = raw.hgetall(queue.operations.key("groups"))
    return found


def test_a_group_is_kept_until_the_queue_becomes_polite(queue: Any) -> None:
    queue.put(f"{A}1", f"{A}2", group="printer")
    queue.put({f"{A}3": {"page": 3}}, group="printer")
    queue.schedule("later", after=0, group="printer")
    queue.put(f"{A}own")
    queue.configure(politeness=Politeness(3600))
    queue.promote_due()
    printer = queue.hosts.inspect("printer")
    assert (printer.waiting, len(printer.in_flight)) == (3, 1)
    assert queue.inspect("later").host == "printer"
    assert queue.inspect(f"{A}own").host == "a.example"


def test_a_task_that_is_put_again_takes_its_new_group(queue: Any) -> None:
    queue.put("a", group="one")
    (lease,) = queue.claim()
    queue.ack(lease)
    queue.put("a", again=True, group="two")
    queue.configure(politeness=Politeness(3600))
    assert queue.inspect("a").host == "two"


ENDS: dict[str, Callable[[FakeQueue], object]] = {
    "ack": lambda queue: queue.ack(queue.claim(10)),
    "ack of one": lambda queue: [queue.ack(lease) for lease in queue.claim(10)],
    "pull": lambda queue: queue.pull(10),
    "forget": lambda queue: queue.forget("a", "b"),
    "purge": lambda queue: queue.purge(),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("keep_done", ["forever", 0, 100])
def test_a_group_goes_when_its_task_is_done_or_forgotten(end: str, keep_done: int | str) -> None:
    with fake_queue(keep_done=keep_done) as queue:
        queue.put("a", "b", group="g")
        assert groups(queue) == {b"a": b"g", b"b": b"g"}
        ENDS[end](queue)
        assert groups(queue) == {}
