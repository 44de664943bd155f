"""Connections of asyncio: whatever comes, in whatever pieces, each exchange gets its own replies or an error.

Each link here has made an exchange before, so that it has a connection.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest
import redis
from redis.exceptions import InvalidResponse

from tests.rig.waiting import wait_until
from timeoutq.server import connections
from timeoutq.server.connections import AsyncConnection
from timeoutq.server.link import AsyncLink
from timeoutq.server.server import Server

HANG_UP = b""
Answer = Sequence[bytes | float]
"""What a server sends, with pauses in seconds."""


@pytest.fixture(params=[0.0, 0.05], ids=["the loop sleeps", "the loop stays awake"])
def awake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """For how many seconds the event loop looks for a reply before it sleeps."""
    seconds: float = request.param
    monkeypatch.setattr(AsyncConnection, "awake", seconds)
    return seconds


@pytest.fixture
async def link(url: str) -> AsyncIterator[AsyncLink]:
    """A link that waits 6 s for a reply."""
    found = AsyncLink(Server(url, None, 20.0))
    assert await found.send([("ECHO", "first")]) == [b"first"]
    yield found
    await found.close()


@asynccontextmanager
async def link_to(*answers: Answer) -> AsyncIterator[AsyncLink]:
    """Give a link that waits 1.5 s for a reply, to a server that has these answers; a new connection gets the next."""
    left = [[b"+first\r\n"], *answers]
    tasks: list[asyncio.Task[None]] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        try:
            while left and await reader.read(65536):
                for piece in left.pop(0):
                    if not isinstance(piece, bytes):
                        await asyncio.sleep(piece)
                    elif piece == HANG_UP:
                        return
                    else:
                        writer.write(piece)
                        await asyncio.sleep(0.01)  # each piece is a packet
            await reader.read()
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    found = AsyncLink(Server(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0", None, 5.0))
    try:
        assert await found.send([("ECHO", "first")]) == [b"first"]
        yield found
    finally:
        await found.close()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# ---- whatever comes


async def test_a_reply_in_two_packets_is_one_reply() -> None:
    async with link_to([b"$5\r\nhe", b"llo\r\n"], [b"+next\r\n"]) as link:
        assert await link.send([("GET", "x")]) == [b"hello"]
        assert await link.send([("GET", "x")]) == [b"next"]


async def test_replies_in_several_packets_stand_in_their_order() -> None:
    async with link_to([b"+one\r\n-ERR two\r\n$5\r", b"\nthree\r\n", b"+four\r\n"], [b"+next\r\n"]) as link:
        one, two, three, four = await link.send([("GET", "x")] * 4)
        assert (one, str(two), three, four) == (b"one", "two", b"three", b"four")
        assert await link.send([("GET", "x")]) == [b"next"]


async def test_the_rest_of_a_reply_that_has_begun_late_may_take_its_time() -> None:
    """The first bytes have 1.5 s, and from then on the rest has as long."""
    async with link_to([0.8, b"$5\r\nhe", 0.8, b"llo\r\n"]) as link:
        assert await link.send([("GET", "x")]) == [b"hello"]


async def test_a_reply_of_which_no_more_comes_is_given_up() -> None:
    async with link_to([b"$5\r\nhe"], [b"+next\r\n"]) as link:
        began = time.monotonic()
        with pytest.raises(redis.TimeoutError):
            await link.send([("GET", "x")])
        assert time.monotonic() - began > 1.4
        assert await link.send([("GET", "x")]) == [b"next"]


async def test_what_travels_together_has_the_time_of_one_reply() -> None:
    async with link_to([b"+alone\r\n"], [0.9, b"+one\r\n", 0.9, b"+two\r\n"]) as link:
        await asyncio.sleep(0.1)  # the first connection is read again
        calls = [link.send([("GET", "x")]) for _ in range(3)]
        alone, *together = await asyncio.gather(*calls, return_exceptions=True)
        assert (alone, [type(one) for one in together]) == ([b"alone"], [redis.TimeoutError] * 2)


async def test_a_server_that_hangs_up_and_reads_on_while_a_heavy_command_is_on_its_way_is_an_error() -> None:
    serving: list[Any] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        await reader.readexactly(100_000)
        writer.write_eof()
        with suppress(OSError):
            while await reader.read(65536):
                pass
            writer.close()
            await writer.wait_closed()

    plug = socket.socket()
    plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
    plug.bind(("127.0.0.1", 0))
    async with await asyncio.start_server(connected, sock=plug):
        link = AsyncLink(Server(f"redis://127.0.0.1:{plug.getsockname()[1]}/0", None, 5.0))
        for _ in range(3):
            with pytest.raises(redis.ConnectionError):
                await link.send([("SET", "x", b"x" * 3_000_000)])
        await link.close()
        await asyncio.gather(*serving)


@pytest.mark.parametrize("begun", [b"", b"$5\r\nhe", b"+whole\r\n"])
async def test_a_server_that_hangs_up_before_its_last_reply_is_an_error(begun: bytes) -> None:
    async with link_to([begun, HANG_UP] if begun else [HANG_UP], [b"+next\r\n"]) as link:
        with pytest.raises(redis.ConnectionError, match="Connection closed by server"):
            await link.send([("GET", "x"), ("GET", "y")])
        assert await link.send([("GET", "x")]) == [b"next"]


async def test_what_is_no_reply_is_said_to_be_none() -> None:
    async with link_to([b"+good\r\nHTTP/1.1 400\r\n"], [b"+next\r\n"]) as link:
        with pytest.raises(InvalidResponse):
            await link.send([("GET", "x"), ("GET", "y")])
        assert await link.send([("GET", "x")]) == [b"next"]


async def test_an_error_that_cannot_be_read_is_an_error_of_the_link() -> None:
    async with link_to([b"-MOVED 3999\r\n"], [b"+next\r\n"]) as link:
        with pytest.raises(InvalidResponse, match="a reply cannot be read"):
            await link.send([("GET", "x")])
        assert await link.send([("GET", "x")]) == [b"next"]


async def test_a_reply_of_more_than_a_server_can_hold_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST", 4000)
    async with link_to([b"$600000000\r\n" + b"x" * 3000, b"x" * 3000], [b"+next\r\n"]) as link:
        with pytest.raises(InvalidResponse, match="a reply has more than 4,000 bytes"):
            await link.send([("GET", "x")])
        assert await link.send([("GET", "x")]) == [b"next"]


async def test_a_reply_too_many_is_given_to_nobody() -> None:
    too_many = [[b"+mine\r\n+unasked\r\n"], [b"+next\r\n", b"+unasked\r\n"]]
    async with link_to(*too_many, [b"$4\r\nla", b"st\r\n"]) as link:
        assert await link.send([("GET", "x")]) == [b"mine"]
        assert await link.send([("GET", "x")]) == [b"next"]
        async with asyncio.timeout(10):
            while not link._free[-1].is_stale():
                await asyncio.sleep(0.005)  # until it has come
        assert await link.send([("GET", "x")]) == [b"last"]


# ---- whoever leaves


async def test_a_cancelled_exchange_leaves_no_reply_to_the_next(link: AsyncLink, raw: redis.Redis) -> None:
    exchange = asyncio.create_task(link.send([("BLPOP", "nothing", 5), ("ECHO", "late")]))
    async with asyncio.timeout(10):
        while raw.info("clients")["blocked_clients"] == 0:
            await asyncio.sleep(0.005)
    exchange.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exchange
    raw.rpush("nothing", "x")
    assert await link.send([("ECHO", "mine"), ("ECHO", "too")]) == [b"mine", b"too"]
    raw.delete("nothing")


async def test_an_exchange_that_is_cancelled_as_its_reply_arrives_is_cancelled(
    link: AsyncLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = AsyncConnection.data_received

    def cancelling(road: AsyncConnection, data: bytes) -> None:
        received(road, data)
        exchange.cancel()

    monkeypatch.setattr(AsyncConnection, "data_received", cancelling)
    exchange = asyncio.create_task(link.send([("ECHO", "mine")]))
    with pytest.raises(asyncio.CancelledError):
        await exchange
    monkeypatch.undo()
    assert await link.send([("ECHO", "next")]) == [b"next"]


async def test_closing_in_the_middle_of_an_exchange_ends_it(link: AsyncLink, raw: redis.Redis) -> None:
    exchange = asyncio.create_task(link.send([("BLPOP", "nothing", 5)]))
    async with asyncio.timeout(10):
        while raw.info("clients")["blocked_clients"] == 0:
            await asyncio.sleep(0.005)
    began = time.monotonic()
    await link.close()
    with pytest.raises(redis.ConnectionError):
        await exchange
    assert time.monotonic() - began < 1.5
    wait_until(lambda: raw.info("clients")["blocked_clients"] == 0)


# ---- a loop that stays awake


@asynccontextmanager
async def counted_looks() -> AsyncIterator[list[bool]]:
    """Note for each time that the event loop looks for what has come whether it is ready to sleep."""
    selector: Any = cast("Any", asyncio.get_running_loop())._selector
    real, found = selector.select, list[bool]()

    def select(timeout: float | None = None) -> Any:
        found.append(timeout is None or timeout > 0)
        return real(timeout)

    selector.select = select
    try:
        yield found
    finally:
        del selector.select


async def test_the_loop_does_not_sleep_while_a_reply_is_due_at_once(link: AsyncLink, awake: float) -> None:
    await link.send([("ECHO", "near")])
    async with counted_looks() as sleeps:
        assert await link.send([("ECHO", "x")]) == [b"x"]
    assert any(sleeps) == (awake == 0)


async def test_the_loop_sleeps_when_replies_take_longer(awake: float) -> None:
    slowly: Answer = [0.15, b"+slow\r\n"]
    async with link_to([b"+soon\r\n"], slowly, slowly) as link:
        await link.send([("ECHO", "soon")])
        async with counted_looks() as sleeps:
            await link.send([("ECHO", "slow")])
        assert any(sleeps)
        # the time of this machine says how often a loop looks that stays awake
        assert (len(sleeps) > 50) == (awake > 0)
        async with counted_looks() as sleeps:
            await link.send([("ECHO", "slow")])
        assert len(sleeps) < 20


async def test_a_server_that_has_no_connection_left_is_asked_again_on_another() -> None:
    async with link_to([b"-ERR max number of clients reached\r\n", HANG_UP], [b"+next\r\n"]) as link:
        with pytest.raises(redis.ConnectionError, match="max number of clients"):
            await link.send([("GET", "x")])
        assert await link.send([("GET", "x")]) == [b"next"]
