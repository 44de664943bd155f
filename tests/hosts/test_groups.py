"""Groups on a queue that is not polite: they are kept with their tasks, and politeness that begins later uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fakeredis
import pytest

from tests.rig.invariants import check
from timeoutq import Politeness, Queue, ServerError
from timeoutq.testing import FakeQueue, fake_queue
from timeoutq.verbs import sending

A = "http://a.example/"


def groups(queue: FakeQueue) -> dict[bytes, bytes]:
    raw: Any = fakeredis.FakeRedis(server=queue.clock.server)
    found: dict[bytes, bytes] = raw.hgetall(queue.operations.key("groups"))
    return found


def test_a_group_is_kept_until_the_queue_becomes_polite(face: Any) -> None:
    face.put(f"{A}1", f"{A}2", group="printer")
    face.put({f"{A}3": {"page": 3}}, group="printer")
    face.schedule("later", after=0, group="printer")
    face.put(f"{A}own")
    face.configure(politeness=Politeness(3600))
    face.promote_due()
    printer = face.hosts.inspect("printer")
    assert (printer.waiting, len(printer.in_flight)) == (3, 1)
    assert face.inspect("later").host == "printer"
    assert face.inspect(f"{A}own").host == "a.example"


def test_a_group_outlives_politeness_that_ends_and_begins_again(face: Any) -> None:
    face.configure(politeness=Politeness(3600))
    face.put(f"{A}1", f"{A}2", group="printer")
    face.configure(politeness="off")
    face.configure(politeness=Politeness(3600))
    assert face.hosts.inspect("printer").waiting + len(face.hosts.inspect("printer").in_flight) == 2


def test_a_task_that_is_put_again_takes_its_new_group(face: Any) -> None:
    face.put("a", group="one")
    (lease,) = face.claim()
    face.ack(lease)
    face.put("a", again=True, group="two")
    face.configure(politeness=Politeness(3600))
    assert face.inspect("a").host == "two"


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


def test_a_group_stays_with_a_task_that_comes_again() -> None:
    with fake_queue(retry=[1.0]) as queue:
        queue.put("again", "released", "failed", "given up", group="g")
        for lease in queue.claim(10):
            if lease.task == "again":
                queue.ack(lease, again_in=5)
            elif lease.task == "released":
                queue.release(lease)
            else:
                queue.fail(lease, "no", give_up=lease.task == "given up")
        assert len(groups(queue)) == 4


def test_a_client_does_not_begin_to_put_where_a_groups_key_is_of_a_foreign_type(name: str, raw: Any, url: str) -> None:
    raw.set(f"timeoutq:{{{name}}}:groups", "mine")
    with Queue(name, url) as queue:
        puts: list[Callable[[], object]] = [lambda: queue.put("a"), lambda: queue.schedule("a", after=5, group="g")]
        for put in puts:
            with pytest.raises(ServerError, match=r"a key of the queue .* is of a foreign type.*:groups"):
                put()
        assert queue.stats().known == 0
        raw.delete(queue.operations.key("groups"))
        assert queue.put("a", group="g").added == 1
    check(url, name)


def test_an_export_and_an_import_keep_groups(queue: Queue) -> None:
    queue.put("a", group="g")
    _, records = queue.run(sending.answer(queue.talk, queue.operations.describe([b"a"])))
    assert [record.group for record in records] == ["g"]
    queue.forget("a")
    queue.run(sending.answer(queue.talk, queue.operations.restore(records, queue.token)))
    queue.configure(politeness=Politeness(3600))
    assert queue.inspect("a").host == "g"
