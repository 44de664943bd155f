"""Limits for callers: places for requests, and bytes of bodies, so that no caller starves the others."""

from __future__ import annotations

import asyncio
from collections import Counter

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
    """The places of one gateway. A caller has at most half of them, so that in line others are soon served."""

    def __init__(self, at_once: int, in_line: int) -> None:
        self._all = asyncio.Semaphore(max(2, at_once))
        self._half = max(1, at_once // 2)
        self._in_line = in_line
        self._own: dict[str, asyncio.Semaphore] = {}
        self._there = Counter[str]()  # how many requests of each caller have a place, or wait for one

    async def take(self, caller: str) -> None:
        """Wait for a place; raises a problem if too many of this caller wait already."""
        waiting = self._there[caller] - self._half
        if waiting >= self._in_line:
            raise Problem(429, "too-many", f"{waiting} requests of {caller} wait already: send fewer at once")
        own = self._own.setdefault(caller, asyncio.Semaphore(self._half))
        self._there[caller] += 1
        try:
            await own.acquire()
            try:
                await self._all.acquire()
            except BaseException:
                own.release()
                raise
        except BaseException:
            self._leave(caller)
            raise

    def give(self, caller: str) -> None:
        self._all.release()
        self._own[caller].release()
        self._leave(caller)

    def _leave(self, caller: str) -> None:
        self._there[caller] -= 1
        if not self._there[caller]:
            del self._there[caller], self._own[caller]
