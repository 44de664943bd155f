"""Limits for callers: places for requests, and bytes of bodies, so that no caller starves the others."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque

from timeoutq.gateway.problems import Problem


class Memory:
    """The bytes of bodies that are in memory at once: of one gateway, and of each caller at most half of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._each = Counter[str]()

    def change(self, caller: str, by: int) -> None:
        """Take so many bytes more, or give them back (less than 0); raises a problem when there are too many."""
        mine, all = self._each[caller], self._each.total()
        if by > 0 and mine + by > self._most // 2:
            detail = f"bodies of {mine:,} bytes of {caller} are being read already: send fewer at once"
            raise Problem(429, "too-many", detail)
        if by > 0 and all + by > self._most:
            detail = f"bodies of {all:,} bytes are in memory, and {self._most:,} are the most here: send it again soon"
            raise Problem(503, "unavailable", detail)
        self._each[caller] += by
        if not self._each[caller]:
            del self._each[caller]


class Places:
    """The places of one gateway. A caller has at most half of them; callers in line take turns."""

    def __init__(self, at_once: int, in_line: int) -> None:
        self._free = max(2, at_once)
        self._each = max(1, self._free // 2)
        self._in_line = in_line
        self._taken = Counter[str]()
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Those that wait, by caller; the caller whose turn is next stands first."""

    def try_take(self, caller: str) -> bool:
        """Take a place if one is free at once."""
        if self._free and self._taken[caller] < self._each and caller not in self._lines:
            self._free -= 1
            self._taken[caller] += 1
            return True
        return False

    async def take(self, caller: str) -> None:
        """Wait for a place; raises a problem if too many of this caller wait already."""
        if self.try_take(caller):
            return
        line = self._lines.setdefault(caller, deque())
        if len(line) >= self._in_line:
            raise Problem(429, "too-many", f"{len(line)} requests of {caller} wait already: send fewer at once")
        turn = asyncio.get_running_loop().create_future()
        line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(caller)
            elif turn in line:
                line.remove(turn)
                if not line:
                    del self._lines[caller]
            raise

    def give(self, caller: str) -> None:
        """Give a place back."""
        self._free += 1
        self._taken[caller] -= 1
        if not self._taken[caller]:
            del self._taken[caller]
        for other in list(self._lines):
            if not self._free:
                return
            line = self._lines[other]
            while line and self._free and self._taken[other] < self._each:
                turn = line.popleft()
                if not turn.done():
                    self._free -= 1
                    self._taken[other] += 1
                    turn.set_result(None)
                    break  # one each: then it is the next caller's turn
            if line:
                self._lines.move_to_end(other)
            else:
                del self._lines[other]
