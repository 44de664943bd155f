"""Queues on fakeredis, in memory, with a clock that the test advances and nothing else does.

These are real queues, which run the same scripts as on a server. Only this module's servers follow the clock: the
`time` of the process, and its other fakeredis servers, are not touched.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from functools import cache
from importlib import import_module
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from timeoutq.client import AsyncQueue, Queue
from timeoutq.client.shards import AsyncShardedQueue, ShardedQueue
from timeoutq.verbs.sending import ServerClock
from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput, MissingExtra
from timeoutq.words.model import MAX_TIME_MS

START = 1_700_000_000.0  # when every clock starts, Unix seconds: 2023-11-14 22:13:20 UTC

_MARK = "timeoutq_clock"


class Clock:
    """The time of a fake server, which stands still until it is advanced. Queues with one clock share a server."""

    def __init__(self, start: float = START, *, replicas: int = 0) -> None:
        """Make a clock, and the fake server that shows it. Raises `MissingExtra` without fakeredis.

        `replicas` is how many replicas, as the server says, have confirmed what was written. A test may change it.
        """
        self.replicas = arguments.count(replicas, "replicas", low=0)
        self._micros = _until_the_end(arguments.seconds(start, "start") * 1e6)
        self.server = _fake_server(self)

    def __repr__(self) -> str:
        return f"Clock({self.now!r})"

    @property
    def now(self) -> float:
        """What the server's clock shows, Unix seconds."""
        return self._micros / 1e6

    @property
    def now_us(self) -> int:
        """The same in whole microseconds, as the command TIME tells it."""
        return self._micros

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass: leases run out, scheduled tasks become due.

        Raises `InvalidInput` below zero, and for a time after the year 9999.
        """
        self._micros = _until_the_end(self._micros + arguments.seconds(seconds, "seconds") * 1e6)


class _Fake:
    """A queue in memory, with a clock."""

    def __init__(self, name: str = "test", clock: Clock | None = None, **settings: Any) -> None:
        self.clock = Clock() if clock is None else clock
        plain: Any = super()
        plain.__init__(name, client=import_module("fakeredis").FakeRedis(server=self.clock.server), **settings)
        queue: Any = self
        for talk in (queue.shards.root, *queue.shards.talks) if hasattr(queue, "shards") else (queue.talk,):
            talk.clock = _ClientClock(self.clock)


class FakeQueue(_Fake, Queue):
    """A queue in memory, empty unless it shares its `clock` with another; `settings` are those of `Queue`.

    Time passes for the queue only by `queue.clock.advance(seconds)`. `claim(wait=5)` waits five real seconds, in which
    the queue's clock stands still: wait for nothing but a put. Raises `MissingExtra` without fakeredis.
    """


class FakeAsyncQueue(_Fake, AsyncQueue):
    """A queue in memory for asyncio; in all else it is like `FakeQueue`."""


class FakeShardedQueue(_Fake, ShardedQueue):
    """A queue over several shards in memory; `settings` are those of `ShardedQueue`, such as `shards=4`.

    In all else it is like `FakeQueue`. All shards are on one fake server, so no shard is ever silent.
    """


class FakeAsyncShardedQueue(_Fake, AsyncShardedQueue):
    """A queue over several shards in memory for asyncio; in all else it is like `FakeShardedQueue`."""


fake_queue = FakeQueue
fake_async_queue = FakeAsyncQueue
fake_sharded_queue = FakeShardedQueue
fake_async_sharded_queue = FakeAsyncShardedQueue


class _ClientClock(ServerClock):
    """What a client knows of the server's time: here the time itself, so that `advance` does not look like a jump."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def another(self) -> ServerClock:
        return _ClientClock(self._clock)

    @property
    def now_ms(self) -> int:
        return self._clock.now_us // 1000

    @property
    def latest_ms(self) -> int:
        return self.now_ms

    @property
    def expected_ms(self) -> int:
        return self.now_ms


def _fake_server(clock: Clock) -> Any:
    try:
        import_module("fakeredis")
        import_module("lupa")
    except ImportError as error:
        raise MissingExtra(
            f"timeoutq.testing needs fakeredis with Lua ({error.name} is missing): pip install 'timeoutq[testing]'"
        ) from error
    _teach()
    return _server_of(clock)


# ---- All that timeoutq changes inside fakeredis stands below: there is no public way. Servers without a clock of this
# ---- module go on as before.

OLDEST, NEWEST = "2.40.0", "2.41.0"  # the versions of fakeredis that have been tried


def _server_of(clock: Any) -> Any:
    server = import_module("fakeredis").FakeServer()
    plain: Any = server.dbs[0].__class__

    class Database(plain):  # type: ignore[misc]  # the class is only known at run time: fakeredis has moved it before
        """A database whose keys expire by the clock; that fakeredis sets `time` before each command has no effect."""

        @property
        def time(self) -> float:
            return float(clock.now)

        @time.setter
        def time(self, now: float) -> None:
            pass

    server.dbs = defaultdict(lambda: Database(server.lock))
    setattr(server, _MARK, clock)
    return server


@cache
def _teach() -> None:
    """Teach fakeredis what the scripts need. Raises `MissingExtra` if this version cannot be taught."""
    try:
        for lesson in (_teach_time, _teach_wait, _teach_sha1hex):
            lesson()
        unmet = ", ".join(_without_effect())
    except Exception as error:
        unmet = repr(error)[:200]
    if unmet:
        raise MissingExtra(
            f"fakeredis {version('fakeredis')} cannot be taught what timeoutq needs ({unmet}). Versions {OLDEST} to "
            f"{NEWEST} work: pip install 'fakeredis[lua]>={OLDEST},<={NEWEST}'"
        )


def _without_effect() -> list[str]:
    """Use a server as the scripts do, and name what does not work: fakeredis may no longer call what was changed."""
    clock = SimpleNamespace(now=START, now_us=round(START * 1e6), replicas=3)
    client: Any = import_module("fakeredis").FakeRedis(server=_server_of(clock))
    client.set("key", "value", px=1000)
    works = {
        "the command TIME": client.time()[0] == START,
        "WAIT": client.execute_command("WAIT", 1, 0) == clock.replicas,
        "redis.sha1hex": client.eval("return redis.sha1hex('')", 0) == _sha1hex(b""),
    }
    clock.now += 1.001
    works["keys that expire"] = client.get("key") is None
    return [what for what, is_right in works.items() if not is_right]


def _teach_time() -> None:
    # TIME asks the server for our clock; on a server without one it works as before
    commands: Any = import_module("fakeredis.commands_mixins.server_mixin").ServerCommandsMixin
    plain = commands.time

    def time(socket: Any) -> Any:
        clock: Clock | None = getattr(socket._server, _MARK, None)
        if clock is None:
            return plain(socket)
        seconds, micros = divmod(clock.now_us, 1_000_000)
        return [b"%d" % seconds, b"%d" % micros]

    commands.time = time


def _teach_wait() -> None:
    # a server without our clock goes on refusing this command by its name
    words = import_module("fakeredis._commands")
    if "wait" in words.SUPPORTED_COMMANDS:
        return
    number = import_module("fakeredis._command_args_parsing").Int
    refusal = import_module("fakeredis._helpers").SimpleError

    @words.command(name="WAIT", fixed=(number, number))  # type: ignore[untyped-decorator]  # fakeredis' own
    def timeoutq_wait(socket: Any, replicas: int, ms: int) -> int:
        clock: Clock | None = getattr(socket._server, _MARK, None)
        if clock is None:
            raise refusal("ERR unknown command 'WAIT', with args beginning with: ")
        return clock.replicas

    import_module("fakeredis.commands_mixins.server_mixin").ServerCommandsMixin.timeoutq_wait = timeoutq_wait


def _teach_sha1hex() -> None:
    # a real server's Lua has redis.sha1hex, fakeredis' Lua for scripts does not: it is added on servers with our clock
    scripting: Any = import_module("fakeredis.commands_mixins.scripting_mixin").ScriptingCommandsMixin
    plain = scripting._get_server_runtime

    def runtime(socket: Any, server: Any) -> Any:
        lua = plain(socket, server)
        if getattr(server, _MARK, None) is not None and lua.globals()[b"redis"][b"sha1hex"] is None:
            lua.globals()[b"redis"][b"sha1hex"] = _sha1hex
        return lua

    scripting._get_server_runtime = runtime


def _sha1hex(text: Any) -> bytes:
    data = text if isinstance(text, bytes) else f"{text:.14g}".encode()
    return hashlib.sha1(data, usedforsecurity=False).hexdigest().encode()


def _until_the_end(micros: float) -> int:
    if micros > MAX_TIME_MS * 1000:
        raise InvalidInput("the clock ends with the year 9999: advance it by fewer seconds")
    return round(micros)
