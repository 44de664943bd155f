"""Requests that belong to no visit: all of them are put, whatever happens meanwhile. No server, no crawler."""

from __future__ import annotations

import asyncio

import pytest

from timeoutq import Task
from timeoutq.words.errors import InvalidInput, Unavailable

pytest.importorskip("scrapy")

A, B, C = Task("https://a.example/"), Task("https://b.example/"), Task("https://c.example/")


class Scene:
    """Strays, and a queue that is away at first, refuses a task, or answers only when it is told to."""

    def __init__(self, *, away: int = 0, refused: Task | None = None, answers: bool = True) -> None:
        from timeoutq.scrapy.strays import Strays

        self.queued: list[Task] = []
        self.said: list[str] = []
        self.away, self.refused = away, refused
        self.asked, self.answer = asyncio.Event(), asyncio.Event()
        if answers:
            self.answer.set()
        self.strays = Strays(self.put, self.said_of, self.said_of, lambda: self.said.append("all are put"))

    def said_of(self, error: Exception) -> None:
        self.said.append(str(error))

    async def put(self, tasks: list[Task]) -> None:
        self.asked.set()
        await self.answer.wait()
        if self.away:
            self.away -= 1
            raise Unavailable("no answer")
        if self.refused in tasks:
            raise InvalidInput("one is refused")
        self.queued += tasks

    async def until_none_is_left(self) -> None:
        async with asyncio.timeout(10):
            while self.strays.are_left:
                await asyncio.sleep(0.01)


async def test_strays_are_put_soon() -> None:
    scene = Scene()
    assert not scene.strays.are_left
    scene.strays.add(A)
    scene.strays.add(B)
    assert scene.strays.are_left
    await scene.until_none_is_left()
    scene.strays.add(C)
    await scene.until_none_is_left()
    assert scene.queued == [A, B, C]
    assert scene.said == ["all are put"] * 2


async def test_strays_wait_for_a_server_that_is_away() -> None:
    scene = Scene(away=2)
    scene.strays.add(A)
    await scene.until_none_is_left()
    assert scene.queued == [A]
    assert scene.said == ["no answer", "no answer", "all are put"]


async def test_a_stray_that_the_queue_refuses_does_not_hold_up_the_others() -> None:
    scene = Scene(refused=B)
    for task in (A, B, C):
        scene.strays.add(task)
    await scene.until_none_is_left()
    assert scene.queued == [A, C]
    assert scene.said == ["one is refused", "all are put"]


async def test_a_close_in_the_middle_of_a_put_puts_every_stray() -> None:
    scene = Scene(answers=False)
    many = [Task(f"https://a.example/{number}") for number in range(1_200)]
    for task in many:
        scene.strays.add(task)
    await scene.asked.wait()
    closing = asyncio.create_task(scene.strays.close())
    await asyncio.sleep(0)
    scene.strays.add(B)
    scene.answer.set()
    await closing
    assert scene.queued == [*many, B]
    assert not scene.strays.are_left
    assert scene.said == []


async def test_strays_that_are_closed_at_once_are_put_by_the_close() -> None:
    scene = Scene()
    scene.strays.add(A)
    await scene.strays.close()
    assert scene.queued == [A]
    assert not scene.strays.are_left


async def test_a_close_tells_that_the_server_is_away() -> None:
    scene = Scene(away=1)
    scene.strays.add(A)
    with pytest.raises(Unavailable):
        await scene.strays.close()
    assert scene.strays.are_left
