"""Objects that nobody foresaw: whatever is passed where, the error is one of timeoutq's, and nothing is sent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from timeoutq import AsyncQueue, InvalidInput, Politeness, Queue, Task
from timeoutq.testing import fake_queue


class Silent:
    """An object whose repr fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class OddInt(int):
    """An int whose text fails."""

    __repr__ = __str__ = Silent.__repr__


BAD: dict[str, Any] = {
    "no repr": Silent(),
    "a huge int": 10**5000,
    "an odd int": OddInt(-7),
    "a huge negative": -(10**5000),
}

CALLS: dict[str, Callable[[Queue, Any], object]] = {
    "put again=": lambda queue, bad: queue.put("a", again=bad),
    "put durable=": lambda queue, bad: queue.put("a", durable=bad),
    "put": lambda queue, bad: queue.put(bad),
    "put, in a list": lambda queue, bad: queue.put(["a", bad]),
    "put priority=": lambda queue, bad: queue.put("a", priority=bad),
    "put improve=": lambda queue, bad: queue.put("a", priority=1, improve=bad),
    "Task priority=": lambda queue, bad: queue.put(Task("a", priority=bad)),
    "put rerun=": lambda queue, bad: queue.put("a", rerun=bad),
    "Task rerun=": lambda queue, bad: queue.put(Task("a", rerun=bad)),
    "Task improve=": lambda queue, bad: queue.put(Task("a", priority=1, improve=bad)),
    "schedule priority=": lambda queue, bad: queue.schedule("a", after=1, priority=bad),
    "schedule improve=": lambda queue, bad: queue.schedule("a", after=1, priority=1, improve=bad),
    "put group=": lambda queue, bad: queue.put("a", group=bad),
    "schedule at=": lambda queue, bad: queue.schedule("a", at=bad),
    "schedule after=": lambda queue, bad: queue.schedule("a", after=bad),
    "schedule again=": lambda queue, bad: queue.schedule("a", after=1, again=bad),
    "claim": lambda queue, bad: queue.claim(bad),
    "claim timeout=": lambda queue, bad: queue.claim(timeout=bad),
    "claim max_runtime=": lambda queue, bad: queue.claim(max_runtime=bad),
    "ack": lambda queue, bad: queue.ack(bad),
    "list": lambda queue, bad: queue.list(bad),
    "list cursor=": lambda queue, bad: queue.list("todos", cursor=bad),
    "list n=": lambda queue, bad: queue.list("todos", n=bad),
    "each": lambda queue, bad: list(queue.each(bad)),
    "states": lambda queue, bad: queue.states(bad),
    "inspect": lambda queue, bad: queue.inspect(bad),
    "why": lambda queue, bad: queue.why(bad),
    "errors": lambda queue, bad: queue.errors(bad),
    "drained before=": lambda queue, bad: queue.drained(bad),
    "hosts cursor=": lambda queue, bad: queue.hosts.list(bad),
    "host": lambda queue, bad: queue.hosts.inspect(bad),
    "prune": lambda queue, bad: queue.prune(bad),
    "configure keep_done=": lambda queue, bad: queue.configure(keep_done=bad),
    "configure max_crashes=": lambda queue, bad: queue.configure(max_crashes=bad),
    "configure politeness=": lambda queue, bad: queue.configure(politeness=bad),
    "Politeness": lambda queue, bad: queue.configure(politeness=Politeness(1, bad)),
    "Queue": lambda queue, bad: Queue(bad),
    "Queue timeout=": lambda queue, bad: Queue("q", timeout=bad),
    "Queue deadline=": lambda queue, bad: Queue("q", deadline=bad),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("call", CALLS)
def test_what_nobody_foresaw_is_refused_by_name(call: str, bad: str) -> None:
    with fake_queue() as queue:
        with pytest.raises(InvalidInput) as refused:
            CALLS[call](queue, BAD[bad])
        assert 10 < len(str(refused.value)) < 400
        assert queue.stats().known == 0


def test_a_huge_number_for_a_yes_or_no_does_not_end_the_process(url: str) -> None:
    # in a process of its own: the packer of commands in C has ended with a signal over it
    code = "import timeoutq; timeoutq.Queue('big').put('a', again=10**5000)"
    environment = {**os.environ, "TIMEOUTQ_URL": url}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "again must be True or False, not <a huge int>" in done.stderr


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_a_queue_whose_constructor_failed_can_be_shown(kind: Any) -> None:
    made = kind.__new__(kind)
    with pytest.raises(InvalidInput):
        made.__init__("no spaces")
    assert repr(made) == f"{kind.__name__}(None, url=None)"


class Alarm(BaseException):
    """What a signal's handler raises."""


@pytest.mark.parametrize("raised", [KeyboardInterrupt, Alarm, RuntimeError])
def test_a_claim_that_a_signal_ends_gives_back_what_it_had_been_given(
    raised: type[BaseException], queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put("a", "b")
    link = queue._link()
    send = link.send

    def interrupted(commands: Any) -> Any:
        replies = send(commands)
        if any(
            words[0] == b"FCALL" and isinstance(reply, list) and len(reply) == 7
            for words, reply in zip(commands, replies, strict=True)
        ):
            monkeypatch.setattr(link, "send", send)
            raise raised
        return replies

    monkeypatch.setattr(link, "send", interrupted)
    with pytest.raises(raised):
        queue.claim(2, timeout=60)
    stats = queue.stats()
    assert (stats.todos, stats.in_progress) == (2, 0)
    assert stats.counters["released"] == 2
    assert len(queue.claim(5)) == 2


def test_a_claim_that_a_signal_ends_leaves_with_the_signal_where_no_server_answers(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put("a")

    def gone(commands: Any) -> Any:
        monkeypatch.setattr(queue._link(), "send", refused)
        raise KeyboardInterrupt

    def refused(commands: Any) -> Any:
        raise ConnectionError("no server")

    monkeypatch.setattr(queue._link(), "send", gone)
    with pytest.raises(KeyboardInterrupt):
        queue.claim()
    monkeypatch.undo()
