"""timeoutq.testing: a queue in memory whose time is the test's, and nobody else's."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import fakeredis
import pytest
from fakeredis._socket import FakeSocket

from timeoutq import AsyncQueue, Lease, LeaseLost
from timeoutq.testing import START, Clock, fake, fake_async_queue, fake_queue, lease, run
from timeoutq.words.errors import InvalidInput, MissingExtra
from timeoutq.words.model import Answer, State

CLIENT: Any = fakeredis.FakeRedis


def test_a_lease_runs_out_when_the_test_says_so() -> None:
    with fake_queue(timeout=30) as queue:
        queue.put("a")
        (lease,) = queue.claim()
        assert lease.deadline == START + 30
        queue.clock.advance(29)
        assert queue.requeue_expired() == 0
        assert queue.claim() == []
        queue.clock.advance(2)
        (again,) = queue.claim()
        assert (again.task, again.crashes) == ("a", 1)
        with pytest.raises(LeaseLost):
            queue.ack(lease)
        assert queue.ack(again) is Answer.OK
        assert queue.drained()


def test_a_scheduled_task_becomes_due_by_the_clock() -> None:
    with fake_queue() as queue:
        queue.schedule("later", after=3600)
        queue.schedule("dated", at=START + 10)
        queue.clock.advance(9.9)
        assert queue.claim() == []
        queue.clock.advance(0.1)
        assert [lease.task for lease in queue.claim(5)] == ["dated"]
        queue.clock.advance(3600)
        assert "later" in {lease.task for lease in queue.claim(5)}


def test_retries_wait_by_the_clock() -> None:
    with fake_queue(retry=[10, 60]) as queue:
        queue.put("a")
        for wait in (10, 60):
            queue.fail(queue.claim()[0], "boom")
            queue.clock.advance(wait - 1)
            assert queue.claim() == []
            queue.clock.advance(1)
        queue.fail(queue.claim()[0], "boom")
        assert queue.inspect("a").state is State.FAILED


def test_the_lock_key_and_the_scripts_follow_the_clock() -> None:
    with fake_queue(timeout=30) as queue:
        client = CLIENT(server=queue.clock.server)
        queue.put("a")
        queue.claim()
        key = queue.operations.key("lock") + "a"
        assert client.pttl(key) == 30_000
        queue.clock.advance(20)
        assert client.pttl(key) == 10_000
        queue.clock.advance(10.001)
        assert client.get(key) is None
        assert queue.stats().now == queue.clock.now == START + 30.001
        assert client.time() == (int(START) + 30, 1000)
        assert client.eval("return redis.call('TIME')", 0) == [b"%d" % (START + 30), b"1000"]


def test_a_fakeredis_of_the_test_keeps_the_time_of_the_machine() -> None:
    with fake_queue() as queue:
        before = int(time.time())
        assert before <= CLIENT().time()[0] <= time.time()
        assert queue.stats().now == START


def test_a_lease_that_the_test_lets_run_out_is_the_handlers_next() -> None:
    seen: list[int] = []

    async def handler(lease: Lease) -> None:
        seen.append(lease.crashes)

    with fake_queue(timeout=30) as queue:
        queue.put("a")
        queue.claim()
        ran = run(handler, queue)
        assert (seen, ran.states) == ([1], {"a": "done"})
        assert 30 <= ran.seconds < 31


async def test_asyncio_has_the_same() -> None:
    async with fake_async_queue(timeout=30) as queue:
        await queue.put("a")
        (lease,) = await queue.claim()
        queue.clock.advance(31)
        (again,) = await queue.claim()
        assert again.crashes == 1
        with pytest.raises(LeaseLost):
            await queue.ack(lease)
        assert isinstance(queue, AsyncQueue)


def test_each_queue_has_a_server_of_its_own() -> None:
    with fake_queue() as one, fake_queue() as two:
        one.put("a")
        one.clock.advance(5)
        assert two.stats().known == 0
        assert two.clock.now == START


def test_a_lease_for_a_handler_has_what_the_test_gives_it() -> None:
    made = lease("a", payload={"n": 1}, attempt=2, crashes=3, deadline=START + 4, fence=5, token="test#6")
    assert made == Lease("a", "test#6", START + 4, 2, 3, 5, {"n": 1})
    assert (made.payload, lease("a").payload) == ({"n": 1}, None)


@pytest.mark.parametrize("bad", [-1, float("nan"), "5"])
def test_time_does_not_go_back_nor_nowhere(bad: Any) -> None:
    clock = Clock()
    with pytest.raises(InvalidInput, match="finite number of seconds"):
        clock.advance(bad)
    assert clock.now == START


def test_many_small_steps_do_not_drift() -> None:
    clock = Clock()
    for _ in range(100_000):
        clock.advance(0.0001)
    assert clock.now == START + 10


@pytest.mark.parametrize("missing", ["fakeredis", "lupa"])
def test_without_fakeredis_the_extra_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtra, match=r"pip install 'timeoutq\[testing\]'"):
        fake_queue()


UNFIT = {
    "without a hook": (
        "from fakeredis.commands_mixins.scripting_mixin import ScriptingCommandsMixin as s; del s._get_server_runtime",
        "cannot be taught what timeoutq needs (AttributeError",
    ),
    "with a hook that nothing calls": (
        "from fakeredis._socket import FakeSocket as s; s.time = lambda socket: [b'1', b'2']",
        "cannot be taught what timeoutq needs (the command TIME)",
    ),
}


@pytest.mark.parametrize("change", UNFIT)
def test_a_fakeredis_that_cannot_be_taught_is_refused_with_the_versions_that_work(change: str) -> None:
    line, refusal = UNFIT[change]
    code = f"{line}; from timeoutq.testing import fake_queue; fake_queue()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = done.stderr.splitlines()[-1]
    assert refusal in said
    assert "pip install 'fakeredis[lua]>=2.40.0,<=2.41.0'" in said


def test_a_fakeredis_whose_lua_does_not_get_our_sha1hex_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_queue()
    runtime: Any = FakeSocket._get_server_runtime

    def another(socket: Any, server: Any) -> Any:
        lua = runtime(socket, server)
        lua.globals()[b"redis"][b"sha1hex"] = lambda text: b"another"
        return lua

    monkeypatch.setattr(FakeSocket, "_get_server_runtime", another)
    assert fake._without_effect() == ["redis.sha1hex"]
