"""The server of a simulation: it runs each command when the command arrives, one after the other, in no time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import hiredis

from tests.rig.simulate.clock import VirtualClock
from timeoutq.server import scripts

Reply = Callable[[bytes], None]
Heard = Callable[[str, list[bytes], Any, int], None]
"""Takes a verb, the words of the call, its reply, and the time in ms."""
RINGS = (b"LPUSH", b"RPUSH", b"XADD")
"""The commands that give a waiter something to take."""
CALLS = (b"FCALL", b"FCALL_RO")
SEEN = (b"timeoutq:{sim}:", b"timeoutq:{sim:")
"""The beginnings of the keys of the queue `sim`, and of its shards."""
INFO = b"# Memory\r\nmaxmemory_policy:noeviction\r\n"
"""The reply to INFO: fakeredis knows nothing of memory."""


@dataclass(slots=True, eq=False)
class _Waiter:
    session: Session
    take: list[bytes]
    nothing: bytes
    timer: Any = None


class Session:
    """One connection as the server sees it: commands come in pieces, and are run in their order."""

    def __init__(self, server: SimulatedServer, reply: Reply, note: Callable[[str], None]) -> None:
        self._server = server
        self._reader = hiredis.Reader()
        self._waiting: _Waiter | None = None
        self._queued: list[list[bytes]] = []
        self.reply = reply
        self.note = note
        self.open = True

    def feed(self, data: bytes) -> None:
        """Take bytes, and run the commands that are whole; what comes after the end of the connection is lost."""
        if not self.open:
            return
        self._reader.feed(data)
        while (command := self._reader.gets()) is not False:
            self._queued.append(command)
        self.go_on()

    def go_on(self) -> None:
        while self._queued and self._waiting is None and self.open:
            self._waiting = self._server.run(self, self._queued.pop(0))

    def answer(self, reply: bytes) -> None:
        """Answer the command that waits, or one that need not wait after all."""
        was_waiting, self._waiting = self._waiting is not None, None
        self.reply(reply)
        if was_waiting:
            self.go_on()

    def close(self) -> None:
        """Forget the client; what it waits for goes to others."""
        self.open = False
        if self._waiting is not None:
            self._server.forget(self._waiting)
            self._waiting = None


class SimulatedServer:
    """A server with one database, whose clock is virtual."""

    def __init__(self, clock: VirtualClock, later: Callable[..., Any], heard: Heard) -> None:
        """Make an empty server.

        `later(seconds, function)` calls a function later; `heard` hears of each call on `sim` or a shard of it.
        """
        self._clock = clock
        self._heard = heard
        self.raw: Any = import_module("fakeredis").FakeRedis(server=clock.server)
        plug: Any = self.raw.connection_pool.get_connection()
        plug.connect()
        self._socket: Any = plug._sock
        self._plug = plug  # its end would close the socket
        self._replies: list[Any] = []
        self._rang = False
        self._hurry()
        self._later = later
        self._waiters: list[_Waiter] = []
        self.calls = 0

    def _hurry(self) -> None:
        """Leave out what fakeredis does for others: locks, notifications, a look at the flags of a function."""
        socket = self._socket
        socket.put_response = self._replies.append
        socket._keyspace_notifications = socket._subkey_notifications = lambda *_: None
        known: dict[bytes, Any] = {}
        written = import_module("fakeredis.commands_mixins.scripting_mixin")._convert_redis_arg

        def call(lua: Any, _: bool, name: bytes, *words: Any) -> Any:
            if name == b"PSETEX":  # fakeredis cuts the time of this command off to whole seconds
                name, words = b"SET", (words[0], words[2], b"PX", words[1])
            if name not in known:
                known[name] = socket._name_to_func(name.decode().lower())
            if name in RINGS:
                self._rang = True
            args = [word if type(word) is bytes else written(word) for word in words]
            result = socket._run_command(*known[name], args, True)
            kind = type(result)
            return result if kind is int or kind is bytes else socket._convert_redis_result(lua, result)

        socket._function_redis_call = call

    def run(self, session: Session, command: list[bytes]) -> _Waiter | None:
        """Run a command and answer it, or give who waits."""
        name = command[0].upper()
        if name == b"BLPOP":
            return self._wait(session, command, [b"LPOP", command[1]], b"*-1\r\n", float(command[2]))
        if name == b"XREAD" and b"BLOCK" in command:
            at = command.index(b"BLOCK")
            seconds = int(command[at + 1]) / 1000
            return self._wait(session, command, command[:at] + command[at + 2 :], b"*-1\r\n", seconds)
        reply: Any = INFO if name == b"INFO" else self.execute(command)
        session.note(f"{_told(command)} -> {_short(reply)}")
        session.reply(encoded(reply))
        if name == b"FCALL" and command[3].startswith(SEEN):
            self._heard(verb_of(command), command[3 + int(command[2]) :], reply, self._clock.now_us // 1000)
        if self._rang or name in RINGS:
            self._rang = False
            self._serve()
        return None

    def execute(self, command: list[bytes]) -> Any:
        """Run a command at once; errors come as values."""
        if command[0] in CALLS:
            self.calls += 1
        self._socket._process_command(command)
        return self._replies.pop()

    # ---- who waits

    def _wait(
        self, session: Session, command: list[bytes], take: list[bytes], none: bytes, seconds: float
    ) -> _Waiter | None:
        waiter = _Waiter(session, take, none)
        session.note(f"{_told(command)} waits")
        if self._try(waiter):
            return None
        waiter.timer = self._later(seconds, self._expire, waiter)
        self._waiters.append(waiter)
        return waiter

    def _try(self, waiter: _Waiter) -> bool:
        found = self.execute(waiter.take)
        if not found:
            return False
        if waiter.take[0] == b"LPOP":
            found = [waiter.take[1], found]
        waiter.session.note(
            f"{waiter.take[0].decode()} {waiter.take[-2 if len(waiter.take) > 2 else 1].decode()} wakes"
        )
        waiter.session.answer(encoded(found))
        return True

    def _serve(self) -> None:
        for waiter in list(self._waiters):
            if waiter in self._waiters and self._try(waiter):
                self.forget(waiter)

    def _expire(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            waiter.session.answer(waiter.nothing)

    def forget(self, waiter: _Waiter) -> None:
        if waiter.timer is not None:
            waiter.timer.cancel()
        if waiter in self._waiters:
            self._waiters.remove(waiter)


def encoded(value: Any) -> bytes:
    """Write a reply as a server does (RESP2)."""
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, Exception):
        said = " ".join(str(value).split())
        kind = getattr(value, "status_code", None)
        return f"-{_code(value, said, kind)}\r\n".encode()
    if isinstance(value, bool | int):
        return b":%d\r\n" % int(value)
    if isinstance(value, float):
        value = f"{value:.17g}".encode()
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, bytes):
        return b"$%d\r\n%s\r\n" % (len(value), value)
    if isinstance(value, dict):
        value = [[key, one] for key, one in value.items()]
    return b"*%d\r\n" % len(value) + b"".join(encoded(one) for one in value)


_CODES = {"BusyLoadingError": "LOADING", "ReadOnlyError": "READONLY"}


def _code(error: Exception, said: str, kind: object) -> str:
    # redis-py cuts the first word off errors that it knows
    word = _CODES.get(type(error).__name__)
    if word is not None and not said.startswith(word):
        return f"{word} {said}"
    if said.split(" ", 1)[0].isupper():
        return said
    return f"ERR {said}"


@cache
def _verbs() -> dict[bytes, str]:
    return {scripts.function(f"{verb}{end}").encode(): verb for verb in scripts.verbs() for end in ("", "_if_room")}


def verb_of(command: list[bytes]) -> str:
    if command[0] in CALLS:
        return _verbs().get(command[1], "?")
    return command[0].decode()


def _told(command: list[bytes]) -> str:
    if command[0] in CALLS:
        words = command[3 + int(command[2]) :]
        return f"{verb_of(command)}({' '.join(_word(word) for word in words[:9])}{' …' * (len(words) > 9)})"
    if command[0] == b"FUNCTION":
        return f"FUNCTION {command[1].decode()}"
    return " ".join(_word(word) for word in command[:5])


def _word(word: bytes) -> str:
    return ascii(word.decode("utf-8", "replace"))[1:-1][:40] or "''"


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_short(one) for one in value[:8]) + (", …]" if len(value) > 8 else "]")
    if isinstance(value, bytes):
        return _word(value)
    return ascii(value)[:80]
