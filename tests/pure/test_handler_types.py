"""Type checkers know what a handler is, and what a task may be.

mypy and basedpyright refuse the marked lines of this sample, and no others.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.rig.type_checkers import marked, refused_by_basedpyright, refused_by_mypy

SAMPLE = """
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from timeoutq import Ack, AsyncQueue, GiveUp, Handler, Lease, Queue, Release, Retry, Task, Tasks, Worker

q = AsyncQueue("pages")

class Database: ...

@asynccontextmanager
async def opened() -> AsyncIterator[Database]:
    yield Database()

async def nothing(lease: Lease) -> None: ...
async def ack(lease: Lease) -> Ack: return Ack(put=["a"])
async def any_of(lease: Lease) -> Ack | Release | Retry | GiveUp | None: return None
async def with_database(lease: Lease, database: Database) -> None: ...
async def with_any(lease: Lease, state: Any) -> None: ...
async def untyped(lease): ...  # type: ignore[no-untyped-def]  # as many write them
def in_thread(lease: Lease) -> Ack | None: return None
class Crawler:
    async def __call__(self, lease: Lease) -> Ack: return Ack()

Worker(q, nothing)
Worker(q, any_of)
Worker(q, untyped)
Worker(q, in_thread)
Worker(q, lambda lease: None)
Worker(q, partial(nothing))
Worker(q, Crawler())
Worker(q, "pages:fetch")
Worker(q, with_database, lifespan=opened)
Worker(q, with_any, lifespan=opened)
Worker(q, nothing, lifespan=opened)
handler: Handler = nothing
Worker(q, handler)
Worker(q, handler, lifespan=opened)
print(Retry(60, "busy", block_host=60), Release(60), GiveUp("gone"), Ack(again_in=60, payload=1))

p = Queue("pages")
task = Task("a", payload={"page": 1}, group="printer")
some: list[Task] = [task, Task(b"b", 5)]
mixed: list[str | Task] = ["c", task]
p.put("a", b"b", task, some, mixed, ["a"], {"d": 5}, (Task(f"{n}") for n in range(3)), p.pull(5), group="printer")
p.schedule(task, "a", some, mixed, after=5)
p.ack(p.claim()[0], put=some)
p.ack(p.claim()[0], put=task)
print(Ack(put=task), Ack(put=mixed), Ack(put=(task, "a")), Ack(put={"d": 5}), len(task.task.encode()))
tasks: Tasks = task
async def finds() -> None:
    await q.put("a", task, mixed)
    await q.schedule(task, after=5)
    await q.ack((await q.claim())[0], put=mixed)

async def links(lease: Lease) -> list[str]: return []
async def the_class(lease: Lease) -> type[Ack]: return Ack
async def pages(lease: Lease) -> AsyncIterator[str]: yield "a"
async def no_lease() -> None: ...
async def three(lease: Lease, state: Database, more: int) -> None: ...
async def with_text(lease: Lease, state: str) -> None: ...
@asynccontextmanager
async def needs_url(url: str) -> AsyncIterator[Database]:
    yield Database()
async def undecorated() -> AsyncIterator[Database]:
    yield Database()

Worker(q, links)  # refused
Worker(q, the_class)  # refused
Worker(q, pages)  # refused
Worker(q, no_lease)  # refused
Worker(q, three)  # refused
Worker(q, with_text, lifespan=opened)  # refused
Worker(q, with_database, lifespan=needs_url)  # refused
Worker(q, with_database, lifespan=undecorated)  # refused
Worker(q, nothing, max_tasks="many")  # refused
Worker(Queue("pages"), nothing)  # refused
Worker(q, 3)  # refused
wrong: Handler = links  # refused
Ack(put=3)  # refused
Retry(after="soon")  # refused
Task()  # refused
Task(5)  # refused
Task("a", 1, "g", 5)  # refused
Task("a", host="printer")  # refused
task.payload = 5  # refused
p.put(Task)  # refused
p.put([Task("a"), 5])  # refused
p.ack(p.claim()[0], put=5)  # refused
wrong_tasks: Tasks = 5  # refused
"""
REFUSED = marked(SAMPLE)


def test_the_sample_has_both_kinds() -> None:
    assert len(REFUSED) == 23
    compile(SAMPLE, "sample", "exec")


@pytest.mark.breaking
@pytest.mark.timeout(600)
@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
def test_mypy_refuses_wrong_handlers_and_no_right_ones(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    kept = getattr(pytestconfig, "cache", None)  # a second run needs a second
    cache = tmp_path / "cache" if kept is None else kept.mkdir("mypy")
    assert refused_by_mypy(SAMPLE, tmp_path, cache) == REFUSED


@pytest.mark.breaking
@pytest.mark.timeout(600)
@pytest.mark.skipif(find_spec("basedpyright") is None, reason="basedpyright is not installed")
def test_basedpyright_refuses_wrong_handlers_and_no_right_ones(tmp_path: Path) -> None:
    assert refused_by_basedpyright(SAMPLE, tmp_path) == REFUSED
