"""The network of a simulation: connections to the server that delay, cut, fall silent, and lose replies."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.rig.simulate.clock import Owner, VirtualLoop, owner_of
from tests.rig.simulate.server import Session, SimulatedServer

HIGH = 64 * 1024
"""Bytes in the buffer of a transport above which its writer waits, unless the transport is told otherwise."""
NOBODY = contextvars.Context()
"""The context of the network itself: it goes on whoever dies."""


@dataclass(slots=True)
class Weather:
    """How the network is: all times in seconds."""

    quick: tuple[float, float] = (0.0002, 0.002)
    slow: tuple[float, float] = (0.1, 4.0)
    slow_part: float = 0.0
    rate: float = 0.0
    """Bytes per second of a connection towards the server; 0: no limit."""


class Network:
    def __init__(self, loop: VirtualLoop, server: SimulatedServer, seed: int, note: Callable[[str, str], None]) -> None:
        """Make a network without connections; `note(who, what)` hears what happens."""
        self.loop = loop
        self.server = server
        self.weather = Weather()
        self.note = note
        self.random = random.Random(f"network {seed}")
        self.down = False
        self._silence: dict[str, float] = {}
        self._connections: list[_Connection] = []
        self._made = 0
        loop.network = self

    def delay(self) -> float:
        weather, chance = self.weather, self.random
        if weather.slow_part and chance.random() < weather.slow_part:
            return chance.uniform(*weather.slow)
        return chance.uniform(*weather.quick)

    def silent_until(self, owner: Owner | None) -> float:
        """Say until when nothing of this process gets through; 0 if it does."""
        until = max(self._silence.get("" if owner is None else owner.name, 0.0), self._silence.get("*", 0.0))
        return until if until > self.loop.time() else 0.0

    # ---- faults

    def silence(self, who: str, seconds: float) -> None:
        """Let nothing of a process (`*`: of all) get through for a while."""
        self._silence[who] = self.loop.time() + seconds

    def cut(self, who: str, *, deaf: bool) -> None:
        """Cut the connections of a process (`*`: of all); with `deaf`, requests under way are lost, too."""
        for connection in list(self._connections):
            if who in ("*", connection.who):
                connection.cut(deaf=deaf)

    def hang_up(self, owner: Owner) -> None:
        for connection in list(self._connections):
            if connection.owner is owner:
                connection.leave()

    def heal(self) -> None:
        self.weather.slow_part = 0.0
        self.down = False
        self._silence.clear()

    # ---- connections

    async def connect(self, address: Any) -> None:
        """Wait until the server takes a connection; raises `ConnectionRefusedError` if it does not."""
        owner = owner_of.get()
        while until := self.silent_until(owner):
            await asyncio.sleep(until - self.loop.time() + 0.001)
        await asyncio.sleep(self.delay())
        if self.down:
            raise ConnectionRefusedError(111, "Connection refused")

    def open(self, protocol: Any) -> tuple[Any, Any]:
        self._made += 1
        connection = _Connection(self, protocol, self._made)
        self._connections.append(connection)
        return connection, protocol

    def forget(self, connection: _Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)


class _Way:
    def __init__(self, network: Network, owner: Owner | None, arrive: Callable[[bytes], None], context: Any) -> None:
        self._network = network
        self._owner = owner
        self._arrive = arrive
        self._context = context
        self._pieces: deque[tuple[float, bytes | None]] = deque()
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.at_end: Callable[[], None] | None = None

    def send(self, data: bytes | None, took: float = 0.0) -> None:
        """Send bytes that leave after `took` seconds; None is the end."""
        loop = self._network.loop
        self._last = max(self._last, loop.time() + took + self._network.delay())
        self._pieces.append((self._last, data))
        self._arm()

    def clear(self) -> None:
        self._pieces.clear()

    def _arm(self) -> None:
        if self._timer is None and self._pieces:
            at = max(self._pieces[0][0], self._network.silent_until(self._owner))
            self._timer = self._network.loop.call_at(at, self._fire, context=self._context)

    def _fire(self) -> None:
        self._timer = None
        if self._pieces and not self._network.silent_until(self._owner):
            _, data = self._pieces.popleft()
            if data is not None:
                self._arrive(data)
            elif self.at_end is not None:
                self.at_end()
        self._arm()


class _Connection(asyncio.Transport):
    """One connection; to its client it is the transport."""

    def __init__(self, network: Network, protocol: Any, number: int) -> None:
        super().__init__()
        self._network = network
        self._protocol = protocol
        self.owner = owner_of.get()
        self.who = "" if self.owner is None else self.owner.name
        self._name = f"{self.who}/{number}"
        context = contextvars.copy_context()
        self._context = context
        self._session = Session(network.server, self._reply, self._note)
        self._up = _Way(network, self.owner, self._session.feed, NOBODY)
        self._up.at_end = self._end_session
        self._down = _Way(network, self.owner, self._data, context)
        self._closing = False
        self._lost = False
        self._high, self._low = HIGH, HIGH // 4
        self._unsent = 0
        self._full = False
        self._free_at = 0.0
        protocol.connection_made(self)

    def _note(self, what: str) -> None:
        self._network.note(self._name, what)

    # ---- what a client does with its transport

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def write(self, data: Any) -> None:
        if self._closing or self._lost:
            return
        data = bytes(data)
        rate, now = self._network.weather.rate, self._network.loop.time()
        if not rate or len(data) < 2048:
            self._up.send(data)
            return
        self._free_at = max(self._free_at, now) + len(data) / rate
        self._up.send(data, self._free_at - now)
        self._unsent += len(data)
        self._network.loop.call_at(self._free_at, self._left, len(data), context=self._context)
        if self._unsent > self._high and not self._full:
            self._full = True
            self._protocol.pause_writing()

    def _left(self, size: int) -> None:
        self._unsent -= size
        if self._full and self._unsent <= self._low:
            self._full = False
            self._protocol.resume_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._unsent

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def is_reading(self) -> bool:
        return not self.is_closing()

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        """Close it; what was written still arrives."""
        if not self._closing:
            self._closing = True
            self.leave()
            self._network.loop.call_soon(self._lose, None, context=self._context)

    def abort(self) -> None:
        """Close it, and throw away what has not left; to ask again changes nothing."""
        if not self._closing:
            self._up.clear()
            self.close()

    # ---- what the network does with it

    def _reply(self, data: bytes) -> None:
        if not self._closing and not self._lost:
            self._down.send(data)

    def _data(self, data: bytes) -> None:
        if not self._closing and not self._lost:
            self._protocol.data_received(data)

    def _end_session(self) -> None:
        self._session.close()

    def leave(self) -> None:
        """Tell the server that nothing more comes."""
        self._network.forget(self)
        self._down.clear()
        self._up.send(None)

    def cut(self, *, deaf: bool) -> None:
        """Break it: replies under way are lost, and with `deaf`, requests under way are lost, too."""
        self._note("is cut")
        if deaf:
            self._up.clear()
        self.leave()
        self._network.loop.call_later(
            self._network.delay(), self._lose, ConnectionResetError(104, "Connection reset by peer"),
            context=self._context,
        )  # fmt: skip

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._protocol.connection_lost(error)
