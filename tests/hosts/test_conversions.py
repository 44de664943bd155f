"""The politeness of a queue changes, and who changed it dies on the way: anybody goes on."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest

from tests.rig.invariants import check
from timeoutq import AsyncQueue, Cleaner, Politeness, Queue
from timeoutq.server.calls import Call
from timeoutq.verbs import flows, sending
from timeoutq.watch import doctor
from timeoutq.words.errors import AccessDenied

TASKS = [f"http://{i % 7}.example/{i}" for i in range(1500)]


def once(queue: Queue, call: Call[Any]) -> Any:
    return queue.run(sending.answer(queue.talk, call))


def die_on_the_way(url: str, name: str, end: str, rounds: int) -> None:
    """Change the politeness of a queue of 1500 tasks, 20 of them held, and stop after some parts of the conversion."""
    with Queue(name, url, timeout=60) as queue:
        queue.put(TASKS)
        queue.claim(20)
        if end == "off":
            queue.configure(politeness=Politeness(3600, 1))
        assert once(queue, queue.operations.configure({"politeness": b"off" if end == "off" else b"3600000 1"})) == 2
        for _ in range(rounds):
            once(queue, queue.operations.convert())


def is_converted(queue: Queue, url: str, end: str) -> bool:
    """Say whether the conversion has come to its end; if so, check that the queue is right."""
    stats = queue.stats()
    if "converting" in stats.settings:
        return False
    if end == "off":
        assert (stats.todos, stats.waiting, stats.politeness) == (1480, 0, None)
    else:
        # of the seven hosts, one without a task in progress has handed over its first
        assert stats.todos <= 7
        assert stats.todos + stats.waiting == 1480
    assert stats.known == 1500
    check(url, queue.name)
    return True


@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("end", ["polite", "off"])
def test_prune_goes_on_with_a_conversion_whose_client_died(url: str, name: str, rounds: int, end: str) -> None:
    die_on_the_way(url, name, end, rounds)
    with Queue(name, url) as queue:
        (said,) = [finding for finding in doctor.examine(queue) if finding.check == "politeness"]
        assert (said.verdict, "not all tasks are in line with it yet" in said.found) == ("yellow", True)
        assert not queue.drained()
        queue.prune()
        assert is_converted(queue, url, end)
        assert not [finding for finding in doctor.examine(queue) if finding.check == "politeness"]
        queue.purge()


@pytest.mark.parametrize("end", ["polite", "off"])
def test_a_cleaner_goes_on_with_a_conversion_whose_client_died(url: str, name: str, end: str) -> None:
    die_on_the_way(url, name, end, 1)

    async def clean() -> None:
        async with AsyncQueue(name, url) as queue:
            cleaner = asyncio.create_task(Cleaner(queue).run())
            while "converting" in (await queue.stats()).settings:
                await asyncio.sleep(0.01)
            cleaner.cancel()

    asyncio.run(asyncio.wait_for(clean(), 20))
    with Queue(name, url) as queue:
        assert is_converted(queue, url, end)
        queue.purge()


@pytest.mark.parametrize("end", ["polite", "off"])
def test_two_that_go_on_at_once_do_no_harm(url: str, name: str, end: str) -> None:
    die_on_the_way(url, name, end, 1)

    def work() -> None:
        with Queue(name, url) as queue:
            queue.run(flows.convert(queue.talk))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Queue(name, url) as queue:
        assert is_converted(queue, url, end)
        queue.purge()


def test_who_opens_the_queue_with_the_same_politeness_does_not_begin_the_conversion_anew(url: str, name: str) -> None:
    die_on_the_way(url, name, "polite", 2)
    with Queue(name, url) as queue:
        before = queue.stats().settings["converting"]
        assert before != "p0"
        assert once(queue, queue.operations.configure({"politeness": b"3600000 1"})) == 2
        assert queue.stats().settings["converting"] == before
        queue.purge()


@pytest.mark.parametrize("command", ["SMOVE", "ZADD", "HSET", "HDEL", "UNLINK", "SADD", "LPUSH"])
@pytest.mark.parametrize("end", ["polite", "off"])
def test_a_conversion_that_is_refused_half_way_is_gone_on_with(
    url: str, name: str, raw: Any, end: str, command: str
) -> None:
    die_on_the_way(url, name, end, 0)
    raw.execute_command("ACL", "SETUSER", "guest", "reset", "on", ">secret", "~*", "&*", "+@all")
    with Queue(name, re.sub("//[^@/]*@", "//guest:secret@", url)) as guest, Queue(name, url) as queue:
        guest.resume()
        raw.execute_command("ACL", "SETUSER", "guest", f"-{command.lower()}")
        try:
            guest.run(flows.convert(guest.talk))
        except AccessDenied:
            assert not queue.drained()
        for _ in range(12):
            queue.prune()
        stats = queue.stats()
        assert ("converting" in stats.settings, stats.known) == (False, 1500)
        assert stats.waiting + stats.todos == 1480
        check(url, name)
        raw.acl_deluser("guest")
        queue.purge()


def test_a_queue_that_stops_being_polite_is_not_drained_while_tasks_wait(url: str, name: str) -> None:
    with Queue(name, url, politeness=Politeness(60)) as queue:
        queue.put("http://a.example/1", "http://a.example/2")
        queue.hosts.set("a.example", budget=1)
        queue.ack(queue.claim())
        assert queue.drained(), "the budget of the host is used up"
        once(queue, queue.operations.configure({"politeness": b"off"}))
        assert not queue.drained()
        queue.prune()
        assert queue.stats().todos == 1
        queue.purge()
