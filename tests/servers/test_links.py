"""Links: whatever happens to an exchange, the next one reads its own replies, on a connection that works."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest
import redis

from tests.rig.waiting import wait_until
from timeoutq import InvalidInput, Queue
from timeoutq.client import AsyncQueue
from timeoutq.server.calls import Command
from timeoutq.server.link import AsyncLink, AsyncLinks, Link, joined, parted
from timeoutq.server.server import Server

Send = Callable[..., Any]


async def turns() -> None:
    """Let the loop see what has arrived by now, as one does that is not blocked meanwhile."""
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def nobody_else(request: pytest.FixtureRequest) -> None:
    """Let no connection of an earlier test be left: connections are counted here."""
    if "url" in request.fixturenames:
        with redis.Redis.from_url(request.getfixturevalue("url")) as raw:
            raw.client_kill_filter(_type="normal", skipme=True)


@pytest.fixture(params=["sync", "async"])
def send(request: pytest.FixtureRequest, url: str) -> Iterator[Send]:
    """Sends commands through either link, which waits 0.3 s for a reply."""
    server = Server(url, None, 1.0)
    if request.param == "sync":
        link = Link(server)
        yield lambda *commands: link.send(commands)
        link.close()
        return
    with asyncio.Runner() as runner:
        twin = AsyncLink(server)

        async def exchange(*commands: Command) -> list[Any]:
            await turns()
            return await twin.send(commands)

        yield lambda *commands: runner.run(exchange(*commands))
        runner.run(twin.close())


def test_an_error_stands_in_the_place_of_its_reply(send: Send) -> None:
    first, error, last = send(("ECHO", "first"), ("GET",), ("ECHO", "last"))
    assert (first, last) == (b"first", b"last")
    assert isinstance(error, redis.ResponseError)
    (alone,) = send(("GET",))
    assert isinstance(alone, redis.ResponseError)
    assert send(("ECHO", "next")) == [b"next"]


def test_a_reply_that_came_too_late_is_given_to_nobody(send: Send, raw: redis.Redis) -> None:
    with pytest.raises(redis.TimeoutError):
        send(("ECHO", "before"), ("BLPOP", "nothing", 1), ("ECHO", "late"))
    assert send(("ECHO", "mine"), ("ECHO", "too")) == [b"mine", b"too"]
    wait_until(lambda: raw.info("clients")["blocked_clients"] == 0)
    assert send(("ECHO", "again")) == [b"again"]


def test_one_connection_serves_all_exchanges(send: Send) -> None:
    (first,), (second,) = send(("CLIENT", "ID")), send(("CLIENT", "ID"))
    assert first == second


def test_a_connection_that_the_server_closed_meanwhile_is_replaced(send: Send, raw: redis.Redis) -> None:
    (number,) = send(("CLIENT", "ID"))
    raw.client_kill_filter(_id=number)
    assert send(("ECHO", "mine")) == [b"mine"]


@pytest.mark.parametrize("blocking", [True, False])
async def test_all_connections_that_the_server_closed_meanwhile_are_left_at_once(
    url: str, raw: redis.Redis, blocking: bool
) -> None:
    link: Any = Link(Server(url, None, 20.0)) if blocking else AsyncLink(Server(url, None, 20.0))
    link._free.extend([await link._opened() for _ in range(3)])
    raw.client_kill_filter(_type="normal", skipme=True)
    await turns()
    sent = link.send([("ECHO", "mine")])
    assert (sent if blocking else await sent) == [b"mine"]
    assert len(link._all) == len(link._free) == 1
    closed = link.close()
    if not blocking:
        await closed


def test_a_server_that_became_a_replica_is_asked_on_a_new_connection(send: Send, raw: redis.Redis) -> None:
    """It keeps its clients; behind the same address a new connection may reach the new primary."""
    client: Any = raw
    (first,) = send(("CLIENT", "ID"))
    client.execute_command("REPLICAOF", "127.0.0.1", 1)
    try:
        (error,) = send(("SET", "x", "1"))
    finally:
        client.execute_command("REPLICAOF", "NO", "ONE")
    assert isinstance(error, redis.ReadOnlyError)
    (second,) = send(("CLIENT", "ID"))
    assert second != first


def test_replies_of_time_and_info_are_parsed_as_redis_py_does(send: Send) -> None:
    (moment, info) = send(("TIME",), ("INFO", "memory"))
    assert isinstance(moment, tuple)
    assert info["maxmemory_policy"] == "noeviction"


async def test_a_bell_is_heard_after_its_connection_was_closed_and_after_a_cancelled_wait(
    url: str, raw: redis.Redis
) -> None:
    link = AsyncLink(Server(url, None, 5.0))

    async def waiting() -> asyncio.Task[list[Any]]:
        task = asyncio.create_task(link.wait_bell("bell", 10))
        async with asyncio.timeout(10):
            while raw.info("clients")["blocked_clients"] == 0:
                await asyncio.sleep(0.005)
        return task

    assert await link.wait_bell("bell", 0.01) == [None]
    raw.client_kill_filter(_type="normal", skipme=True)
    await turns()
    heard = await waiting()
    raw.rpush("bell", 1)
    assert await heard
    left = await waiting()
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    async with asyncio.timeout(10):
        while raw.info("clients")["blocked_clients"]:
            await asyncio.sleep(0.005)
    again = await waiting()
    raw.rpush("bell", 1)
    assert await again
    await link.close()


async def test_waits_for_the_bell_begin_again_when_a_call_succeeds_after_one_that_failed(
    url: str, raw: redis.Redis
) -> None:
    link = AsyncLink(Server(url, None, 1.0))
    waiting = asyncio.create_task(link.wait_bell("bell", 10))
    async with asyncio.timeout(10):
        while raw.info("clients")["blocked_clients"] == 0:
            await asyncio.sleep(0.005)
    await link.send([("PING",)])
    with pytest.raises(redis.TimeoutError):
        await link.send([("BLPOP", "a server that hangs", 10)])
    await turns()
    assert not waiting.done()
    await link.send([("PING",)])
    with pytest.raises(redis.ConnectionError):
        await asyncio.wait_for(waiting, 5)
    raw.rpush("bell", 1)
    assert await link.wait_bell("bell", 5)
    await link.close()


# ---- calls of one event loop that travel together


async def many(link: AsyncLink, *lists: list[Command]) -> Any:
    """Send lists of commands in one turn of the loop; give the replies of each, or its error."""
    return await asyncio.gather(*(link.send(commands) for commands in lists), return_exceptions=True)


def connections(raw: Any) -> int:
    return len(raw.client_list(_type="normal")) - 1


async def test_what_is_sent_while_a_flush_is_under_way_travels_together_and_each_gets_its_own_replies(
    url: str, raw: redis.Redis
) -> None:
    link = AsyncLink(Server(url, None, 5.0))
    lists: list[list[Command]] = [[("ECHO", str(i)), ("INCRBY", "sum", i)] for i in range(30)]
    lists[7].insert(1, ("NO", "COMMAND"))
    _, *found = await many(link, [("PING",)], *lists)  # the first flush may arrive behind the other
    assert connections(raw) == 2, "one for the first flush, and one for all others"
    assert isinstance(found[7].pop(1), redis.ResponseError), "an error of the server is a reply like others"
    assert [echo for echo, _ in found] == [str(i).encode() for i in range(30)]
    assert [total for _, total in found] == [sum(range(i + 1)) for i in range(30)]
    await asyncio.sleep(0)
    assert not link._tasks, "what has sent them is forgotten"
    await link.close()


async def test_no_more_than_32_calls_travel_together(url: str, raw: redis.Redis) -> None:
    link = AsyncLink(Server(url, None, 5.0))
    lists: list[list[Command]] = [[("ECHO", str(i))] for i in range(65)]
    _, *found = await many(link, [("PING",)], *lists)
    assert (connections(raw), found) == (4, [[str(i).encode()] for i in range(65)])
    await link.close()


@pytest.mark.parametrize(
    "heavy",
    [
        [("ECHO", "x" * 5_000)],
        [("ECHO", b"x" * 5_000)],
        [("ECHO", "x" * 2_500), ("ECHO", b"x" * 2_500)],
        [("MGET", *map(str, range(50)))],
        [("WAIT", 0, 10)],
    ],
    ids=["text", "bytes", "several", "words", "a wait"],
)
async def test_nobody_waits_for_heavy_commands_of_others(url: str, raw: redis.Redis, heavy: list[Command]) -> None:
    link = AsyncLink(Server(url, None, 5.0))
    found = await many(link, [("PING",)], [("PING",)], heavy, [("PING",)])
    assert (connections(raw), [found[at][0] for at in (0, 1, 3)]) == (3, [True] * 3)
    await link.close()


async def test_a_call_with_a_shorter_deadline_waits_for_no_other(url: str, raw: redis.Redis) -> None:
    link = AsyncLink(Server(url, None, 5.0))
    first = asyncio.create_task(link.send([("PING",)]))
    await asyncio.sleep(0)  # it is under way
    short = link.within(1.0)
    found = await asyncio.gather(first, *(short.send([("PING",)]) for _ in range(3)))
    assert (connections(raw), found) == (4, [[True]] * 4)
    await link.close()


async def test_a_call_that_is_cancelled_before_it_departs_is_not_sent(url: str, raw: Any) -> None:
    link = AsyncLink(Server(url, None, 5.0))
    calls = [asyncio.create_task(link.send([("INCRBY", "sum", 10**i)])) for i in range(4)]
    await asyncio.sleep(0)  # the first one is under way, and the others wait for the next turn
    calls[2].cancel()
    with pytest.raises(asyncio.CancelledError):
        await calls[2]
    await asyncio.gather(calls[0], calls[1], calls[3])
    assert raw.get("sum") == "1011"
    await link.close()


async def test_when_nobody_waits_any_more_the_server_does_not_carry_it_out_later(url: str, raw: Any) -> None:
    link = AsyncLink(Server(url, None, 5.0))
    await link.send([("PING",)])
    raw.client_pause(20_000, all=False)  # no write is carried out meanwhile
    calls = [asyncio.create_task(link.send([("INCRBY", "sum", 10**i)])) for i in range(3)]
    await asyncio.to_thread(wait_until, lambda: connections(raw) == 2)  # one for the first, one for the others
    for call in calls[1:]:
        call.cancel()
    await asyncio.wait(calls[1:])
    await asyncio.to_thread(wait_until, lambda: connections(raw) == 1)
    raw.client_unpause()
    await calls[0]
    assert await many(link, [("GET", "sum")], [("PING",)]) == [[b"1"], [True]]
    await link.close()


async def test_calls_go_on_behind_others_that_were_all_cancelled_before_they_departed(url: str) -> None:
    link = AsyncLink(Server(url, None, 5.0))
    calls = [asyncio.create_task(link.send([("PING",)])) for _ in range(3)]
    await asyncio.sleep(0)
    for call in calls[1:]:
        call.cancel()
    await asyncio.wait(calls)
    assert await many(link, [("PING",)], [("PING",)], [("PING",)]) == [[True]] * 3
    await link.close()


async def test_a_flight_that_fails_fails_the_others_behind_one_that_was_cancelled(url: str) -> None:
    link = AsyncLink(Server(url, None, 1.0))
    first = asyncio.create_task(link.send([("PING",)]))
    await asyncio.sleep(0)
    calls = [asyncio.create_task(link.send([("BLPOP", "a server that hangs", 10)])) for _ in range(3)]
    while not link._tasks:
        await asyncio.sleep(0)
    calls[0].cancel()
    async with asyncio.timeout(5):
        found = await asyncio.gather(first, *calls, return_exceptions=True)
    assert [type(one) for one in found] == [list, asyncio.CancelledError, redis.TimeoutError, redis.TimeoutError]
    await link.close()


async def test_lists_for_several_nodes_are_sent_to_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Node(AsyncLink):
        async def send(self, commands: Sequence[Command]) -> list[Any]:
            await asyncio.sleep(0)
            return [command[0] for command in commands]

    nodes = {where: Node(Server(None, None, 5.0)) for where in (("a", 1), ("b", 2))}
    links = AsyncLinks(Server(None, None, 5.0))
    monkeypatch.setattr(links, "at", nodes.get)
    parts: list[list[Command]] = [[("ONE",)], [("TWO",), ("THREE",)], [("FOUR",)]]
    found = await links.send_all(parts, [("a", 1), ("b", 2), ("a", 1)])
    assert found == [["ONE"], ["TWO", "THREE"], ["FOUR"]]


def test_lists_that_travel_together_wait_for_the_most_replicas_and_each_hears_how_many_there_were() -> None:
    parts: list[list[Command]] = [
        [("ECHO", "a"), ("WAIT", 0, 1)], [("ECHO", "b")], [("ECHO", "c"), ("WAIT", 2, 300)],
        [("ECHO", "d"), ("WAIT", 1, 800)],
    ]  # fmt: skip
    assert joined(parts) == [("ECHO", "a"), ("ECHO", "b"), ("ECHO", "c"), ("ECHO", "d"), ("WAIT", 2, 300)]
    assert parted(parts, [b"a", b"b", b"c", b"d", 1]) == [[b"a", 1], [b"b"], [b"c", 1], [b"d", 1]]


async def test_a_call_is_answered_behind_code_that_cancels_all_other_tasks(url: str) -> None:
    link = AsyncLink(Server(url, None, 5.0))
    others = [asyncio.create_task(link.send([("PING",)])) for _ in range(4)]
    for turns in range(6):
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        async with asyncio.timeout(5):
            assert await many(link, [("PING",)], [("PING",)], [("PING",)]) == [[True]] * 3
    await asyncio.gather(*others, return_exceptions=True)
    await link.close()


async def test_calls_whose_flight_somebody_else_cancels_fail_as_by_the_network(url: str) -> None:
    link = AsyncLink(Server(url, None, 5.0))
    calls = [asyncio.create_task(link.send([("PING",)])) for _ in range(3)]
    while not link._tasks:
        await asyncio.sleep(0)
    for flight in link._tasks:
        flight.cancel()
    first, *found = await asyncio.gather(*calls, return_exceptions=True)
    assert (first, [type(one) for one in found]) == ([True], [redis.ConnectionError] * 2)
    assert await many(link, [("PING",)], [("PING",)]) == [[True], [True]]
    await link.close()


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="Python 3.12 has it")
async def test_calls_travel_together_where_tasks_begin_at_once(url: str, raw: Any) -> None:
    asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory", None))
    link = AsyncLink(Server(url, None, 5.0))
    async with asyncio.timeout(5):
        assert await many(link, [("PING",)], [("PING",)], [("PING",)]) == [[True]] * 3
    assert connections(raw) == 2
    await link.close()


async def test_a_network_that_fails_fails_each_call_and_the_next_one_works(url: str) -> None:
    link = AsyncLink(Server(url, None, 1.0))
    found = await many(link, [("PING",)], [("BLPOP", "a server that hangs", 10)], [("PING",)])
    assert [type(one) for one in found] == [list, redis.TimeoutError, redis.TimeoutError]
    assert await many(link, [("PING",)], [("PING",)]) == [[True], [True]]
    await link.close()


async def test_behind_a_flush_that_failed_the_next_call_departs_at_once(url: str, raw: Any) -> None:
    link = AsyncLink(Server(url, None, 1.0))
    (found,) = await many(link, [("BLPOP", "a server that hangs", 10)])
    assert type(found) is redis.TimeoutError
    call = asyncio.create_task(link.send([("PING",)]))
    await asyncio.sleep(0)
    assert link._flushes == 1, "none but its own"
    assert await call == [True]
    assert link._flushes == 0
    await link.close()


@pytest.mark.parametrize("is_sent", [False, True])
async def test_a_call_that_is_cancelled_on_its_way_leaves_the_others_their_replies(
    url: str, raw: Any, is_sent: bool
) -> None:
    link = AsyncLink(Server(url, None, 5.0))
    if is_sent:  # a second connection is there, so nothing waits for one
        await many(link, [("PING",)], [("PING",)])
    calls = [asyncio.create_task(link.send([("INCRBY", "sum", 10**i)])) for i in range(4)]
    while not link._tasks:  # until those behind the first one have departed
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not any(call.done() for call in calls[1:])
    calls[1].cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(*calls, return_exceptions=True)
    assert [call.cancelled() for call in calls] == [False, True, False, False]
    assert raw.get("sum") == ("1111" if is_sent else "1101")
    await link.close()


# ---- kept connections


def test_words_that_nobody_asked_for_are_read_by_nobody(send: Send, url: str) -> None:
    (number,) = send(("CLIENT", "ID"))
    assert send(("SUBSCRIBE", "news"), ("UNSUBSCRIBE", "news"))[0][0] == b"subscribe"
    send(("SUBSCRIBE", "news"))
    with redis.Redis.from_url(url) as raw:
        assert raw.publish("news", "unasked") == 1
        wait_until(lambda: raw.publish("news", "unasked") in (0, 1))
    assert send(("ECHO", "mine")) == [b"mine"]
    assert send(("CLIENT", "ID")) != [number]


def test_a_blocking_bell_is_heard_on_a_new_connection_after_an_error(url: str, raw: redis.Redis) -> None:
    link = Link(Server(url, None, 5.0))
    raw.set("no bell", "x")
    for _ in range(3):
        with pytest.raises(redis.ResponseError):
            link.wait_bell("no bell", 5)
    raw.rpush("bell", 1)
    assert link.wait_bell("bell", 5)
    raw.client_kill_filter(_type="normal", skipme=True)
    raw.rpush("bell", 1)
    assert link.wait_bell("bell", 5)
    assert len([client for client in raw.client_list() if client["cmd"] == "blpop"]) == 1
    link.close()


class Passwords(redis.CredentialProvider):
    """Gives each password once."""

    def __init__(self, *passwords: str) -> None:
        self._left = list(passwords)

    def get_credentials(self) -> tuple[str]:
        return (self._left.pop(0),)


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_password_that_has_changed_is_asked_for_when_the_link_connects_again(
    url: str, raw: redis.Redis, blocking: bool
) -> None:
    there = urlsplit(url)
    passwords = Passwords(there.password or "", "another", there.password or "")
    server = Server(None, redis.Redis(there.hostname or "", there.port or 0, credential_provider=passwords), 5.0)
    link: Any = Link(server) if blocking else AsyncLink(server)

    async def echo() -> Any:
        await turns()
        found = link.send([("ECHO", "x")])
        return found if isinstance(found, list) else await found

    assert await echo() == [b"x"]
    raw.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(redis.AuthenticationError):
        await echo()
    assert await echo() == [b"x"]
    closed = link.close()
    if closed is not None:
        await closed


@pytest.mark.parametrize("blocking", [True, False])
async def test_what_stands_behind_a_bell_is_answered_though_the_bell_is_refused(
    url: str, raw: redis.Redis, blocking: bool
) -> None:
    server = Server(url, None, 5.0)
    raw.set("no bell", "x")
    raw.rpush("bell", 1)

    async def wait(key: str, *then: tuple[str, ...]) -> list[Any]:
        found = link.wait_bell(key, 5, then)
        return found if isinstance(found, list) else await found

    link = Link(server) if blocking else AsyncLink(server)
    refused, echo = await wait("no bell", ("ECHO", "a"))
    assert (type(refused), echo) == (redis.ResponseError, b"a")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        await wait("no bell", ("HGET", "no bell", "a"))
    assert await wait("bell", ("ECHO", "a"), ("ECHO", "b")) == [[b"bell", b"1"], b"a", b"b"]
    if isinstance(link, Link):
        link.close()
    else:
        await link.close()


@contextmanager
def silent_once() -> Iterator[str]:
    """Give the URL of a server that says nothing on its first connection; on each later one, no bell has rung."""
    met: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                met.append(listener.accept()[0])
                if len(met) > 1 and met[-1].recv(65536):
                    met[-1].sendall(b"*-1\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for plug in met:
                plug.close()


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_bell_on_a_silent_connection_is_given_up_when_its_stroke_is_overdue(blocking: bool) -> None:
    with silent_once() as url:
        server = Server(url, None, 1.0)
        link = Link(server) if blocking else AsyncLink(server)

        async def wait() -> list[Any]:
            async with asyncio.timeout(30):
                found = link.wait_bell("bell", 0.1)
                return found if isinstance(found, list) else await found

        began = time.monotonic()
        with pytest.raises((redis.TimeoutError, TimeoutError)):
            await wait()
        assert time.monotonic() - began < 15
        assert await wait() == [None], "nobody waits on the silent connection again"
        if isinstance(link, Link):
            link.close()
        else:
            await link.close()


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_wait_for_which_no_time_is_left_ends_at_once(url: str, name: str, blocking: bool) -> None:
    link = Link(Server(url, None, 5.0)) if blocking else AsyncLink(Server(url, None, 5.0))
    for seconds in (0.0, 0.0001, -1.0):
        found = link.wait_bell(name, seconds)
        assert (found if isinstance(found, list) else await found) == [None]
    if isinstance(link, Link):
        link.close()
    else:
        await link.close()


async def test_an_alarm_that_nobody_sounds_is_no_error(url: str, name: str, raw: redis.Redis) -> None:
    server = Server(url, None, 0.5)
    link, twin = AsyncLink(server), Link(server)
    assert await link.wait_alarm(name, b"0-0", 0.1) == b"0-0"
    assert twin.wait_alarm(name, b"0-0", 0.1) == b"0-0"
    first = str(raw.xadd(name, {"a": 1})).encode()
    second = str(raw.xadd(name, {"a": 2})).encode()
    assert await link.wait_alarm(name, b"0-0", 0.1) == first
    assert twin.wait_alarm(name, first, 0.1) == second
    raw.delete(name)
    await link.close()
    twin.close()


# ---- the name of the server


async def test_a_link_finds_its_server_by_name_though_all_threads_of_the_loop_are_taken(url: str) -> None:
    loop, free = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    hung = loop.run_in_executor(None, free.wait)
    link = AsyncLink(Server(url.replace("127.0.0.1", "localhost"), None, 5.0))
    try:
        async with asyncio.timeout(10):
            assert await link.send([("ECHO", "here")]) == [b"here"]
            assert await link.wait_bell("bell", 0.01) == [None]
    finally:
        free.set()
        await hung
        await link.close()


async def test_all_addresses_of_a_name_are_tried(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = urlsplit(url).port or 0
    real = socket.getaddrinfo
    asked: list[str] = []

    def look(host: str, *words: Any, **settings: Any) -> Any:
        if host != "server.example":
            return real(host, *words, **settings)
        if settings.get("flags"):
            raise socket.gaierror(socket.EAI_NONAME, "not a number")
        asked.append(threading.current_thread().name)
        nobody = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 1, 0, 0))]
        return [*nobody, (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look)
    link = AsyncLink(Server(url.replace("127.0.0.1", "server.example"), None, 5.0))
    assert await link.send([("ECHO", "here")]) == [b"here"]
    await link.close()
    with closing(Link(link.server)) as twin:
        assert twin.send([("ECHO", "here")]) == [b"here"]
    assert asked == ["name-server.example", threading.current_thread().name]


async def test_a_name_that_takes_long_is_looked_up_once_and_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = threading.Event(), list[str]()

    def look(host: str, *words: Any, **settings: Any) -> Any:
        if settings.get("flags"):
            raise socket.gaierror(socket.EAI_NONAME, "not a number")
        asked.append(host)
        found.wait(10)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look)
    link = AsyncLink(Server("redis://slow.example:1/0", None, 3.0))
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(redis.TimeoutError, match="Timeout connecting"):
            await link.send([("ECHO", "nobody")])
    assert time.monotonic() - began < 5
    asyncio.get_running_loop().call_later(0.05, found.set)
    with pytest.raises(redis.ConnectionError, match="Name or service not known"):
        await link.send([("ECHO", "nobody")])
    assert asked == ["slow.example"]
    await link.close()


async def test_an_address_that_does_not_answer_leaves_time_for_the_next(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = urlsplit(url).port or 0
    loop = asyncio.get_running_loop()
    real, reach = socket.getaddrinfo, loop.sock_connect

    def look(host: str, *words: Any, **settings: Any) -> Any:
        if host != "server.example":
            return real(host, *words, **settings)
        if settings.get("flags"):
            raise socket.gaierror(socket.EAI_NONAME, "not a number")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", at)) for at in (1, port)]

    async def connect(sock: socket.socket, address: Any) -> None:
        if address[1] == 1:
            await asyncio.sleep(60)
        await reach(sock, address)

    monkeypatch.setattr(socket, "getaddrinfo", look)
    monkeypatch.setattr(loop, "sock_connect", connect)
    link = AsyncLink(Server(url.replace("127.0.0.1", "server.example"), None, 5.0))
    assert await link.send([("ECHO", "here")]) == [b"here"]
    await link.close()


def test_tls_files_of_a_client_that_cannot_be_used_are_named_at_once() -> None:
    given = redis.Redis("127.0.0.1", 1, ssl=True, ssl_certfile="/nowhere/cert.pem")
    with pytest.raises(InvalidInput, match=r"client certificate '/nowhere/cert.pem' cannot be used: .* is missing"):
        Server(None, given, 5.0)


# ---- a heavy command on a link that leaps


PING = b"*1\r\n$4\r\nPING\r\n"


@pytest.fixture
def slow_reader() -> Iterator[tuple[str, threading.Event]]:
    """Give the URL of a server that reads 64 KiB each 0.3 s until it is told to hurry.

    It answers a PING at once, and the end of a heavy command with OK.
    """
    hurry, listener = threading.Event(), socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    listener.bind(("127.0.0.1", 0))
    listener.listen()

    def serve() -> None:
        with suppress(OSError), listener.accept()[0] as peer:
            tail = b""
            while data := peer.recv(65536):
                tail = (tail + data)[-5:]
                if data.startswith(PING):
                    peer.sendall(b"+PONG\r\n")
                if tail == b"end\r\n":
                    peer.sendall(b"+OK\r\n")
                hurry.wait(0.3)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0", hurry
    hurry.set()
    listener.close()
    thread.join(10)


@pytest.mark.breaking
@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_heavy_command_is_sent_as_long_as_pieces_of_it_get_through(
    slow_reader: tuple[str, threading.Event], face: str
) -> None:
    where, hurry = slow_reader
    threading.Timer(3.0, hurry.set).start()
    assert sent(where, face) == [True]


@pytest.mark.parametrize("face", ["sync", "async"])
def test_the_reply_to_a_light_command_does_not_shorten_the_time_of_a_heavy_one_behind_it(
    slow_reader: tuple[str, threading.Event], face: str
) -> None:
    where, _ = slow_reader
    assert sent(where, face, ("PING",), size=600_000) == [True, True]


@pytest.mark.breaking
@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_heavy_command_of_which_nothing_more_gets_through_says_that_it_could_not_be_written(face: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(redis.TimeoutError, match="Timeout writing to socket"):
            sent(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", face)
        assert 3 < time.monotonic() - began < 6


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_reply_in_pieces_has_its_whole_time_though_an_earlier_one_on_its_connection_came_in_pieces(
    face: str,
) -> None:
    def serve() -> None:
        with suppress(OSError), listener.accept()[0] as peer:
            while peer.recv(65536):
                peer.sendall(b"$4\r\nec")
                time.sleep(0.1)
                peer.sendall(b"ho\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener, asyncio.Runner() as runner:
        thread = threading.Thread(target=serve)
        thread.start()
        server = Server(f"redis://127.0.0.1:{listener.getsockname()[1]}/0", None, 1.0)
        link = Link(server) if face == "sync" else AsyncLink(server)

        async def echo(seconds: float) -> Any:
            await asyncio.sleep(seconds)
            found = link.send([("ECHO", "echo")])
            return found if isinstance(found, list) else await found

        try:
            assert [runner.run(echo(seconds)) for seconds in (0.0, 0.5)] == [[b"echo"]] * 2
        finally:
            closed = link.close()
            if closed is not None:
                runner.run(closed)
            thread.join(10)


def sent(where: str, face: str, *before: Command, size: int = 8_000_000) -> list[Any]:
    """Send commands and so many bytes on a new link of one face, whose patience is 0.3 s; give the replies."""
    heavy = [*before, ("SET", "heavy", b"x" * size + b"end")]
    server = Server(where, None, 1.0)
    if face == "sync":
        link = Link(server)
        try:
            return link.send(heavy)
        finally:
            link.close()

    async def exchange() -> list[Any]:
        twin = AsyncLink(server)
        try:
            return await twin.send(heavy)
        finally:
            await twin.close()

    return asyncio.run(exchange())


def test_a_claim_that_waits_while_another_thread_closes_the_queue_ends_as_it_would(
    url: str, name: str, raw: redis.Redis
) -> None:
    with ThreadPoolExecutor(1) as pool, Queue(name, url) as queue:
        claimed = pool.submit(queue.claim, 1, wait=1.5)
        wait_until(lambda: any(client["cmd"] == "blpop" for client in raw.client_list()))
        queue.close()
        assert claimed.result() == []


# ---- clients that are handed in


class Counted(redis.Connection):
    """A connection of a class of its own."""

    made: ClassVar[int] = 0

    def connect(self) -> None:
        Counted.made += 1
        super().connect()  # type: ignore[no-untyped-call]  # redis-py gives it no types


def test_a_client_with_connections_of_its_own_class_is_asked_through_them(url: str, name: str) -> None:
    there = urlsplit(url)
    pool = redis.ConnectionPool(connection_class=Counted, host=there.hostname, port=there.port, password=there.password)
    with redis.Redis(connection_pool=pool, decode_responses=True) as client, Queue(name, client=client) as queue:
        queue.put({"a": b"payload"})
        (lease,) = queue.claim(wait=1)
        assert (lease.payload, queue.ack(lease)) == (b"payload", "ok")
        assert Counted.made > 0
        client.config_resetstat()
        assert queue.claim(wait=0.7) == []
        calls = {name: found["calls"] for name, found in client.info("commandstats").items()}
        assert 2 <= calls["cmdstat_blpop"] <= 4, "the server waits, and is not asked again and again"
        assert "cmdstat_lpop" not in calls
        queue.purge()


async def test_the_other_face_cannot_use_connections_of_a_class_of_its_own() -> None:
    client = redis.Redis(connection_pool=redis.ConnectionPool(connection_class=Counted))
    with pytest.raises(InvalidInput, match=r"a class of its own \(Counted\), which only a blocking queue can use"):
        await AsyncQueue("q", client=client).stats()


def test_a_client_that_is_handed_in_is_not_changed(url: str, name: str) -> None:
    there = urlsplit(url)
    with redis.Redis(there.hostname or "", there.port or 0, password=there.password, decode_responses=True) as client:
        before = dict(client.connection_pool.connection_kwargs)
        with Queue(name, client=client) as queue:
            queue.put("a")
            queue.purge()
        assert client.connection_pool.connection_kwargs == before
        assert client.echo("x") == "x"


def test_without_hiredis_the_cure_is_said() -> None:
    code = "import sys; sys.modules['hiredis'] = None; import timeoutq; timeoutq.Queue('q').stats()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "timeoutq needs the package hiredis, which is missing: pip install hiredis" in done.stderr


def test_the_name_of_a_client_that_is_handed_in_is_that_of_the_connections(url: str, name: str, raw: Any) -> None:
    there = urlsplit(url)
    with redis.Redis(there.hostname or "", there.port or 0, password=there.password, client_name="me") as client:
        with Queue(name, client=client) as queue:
            queue.put("a")
            assert "me" in {one["name"] for one in raw.client_list()}
            queue.purge()
