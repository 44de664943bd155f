"""Carries out calls as a worker does, one claim after another, for tests of what callers see."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, cast

from timeoutq import Lease
from timeoutq.functions import App, outcomes
from timeoutq.server.calls import Kept
from timeoutq.verbs import sending

HOUR_MS = 3_600_000


def carry_out(app: App, queue: Any, n: int = 500) -> list[str]:
    """Claim calls, run them, and end them with what they gave; give the ids."""
    return [_end(app, queue, lease) for lease in queue.claim(n)]


def _end(app: App, queue: Any, lease: Lease) -> str:
    id = lease.task.encode()
    opened = app.open(json.dumps(lease.payload, separators=(",", ":")).encode(), queue.name, id)
    try:
        value = opened.definition.function(*opened.args, **opened.kwargs)
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
    except ValueError as error:
        kept = Kept(outcomes.failure(error), HOUR_MS)
        _run(queue, queue.operations.fail([lease], [-1], [f"ValueError: {error}".encode()], results={0: kept}))
        return lease.task
    following = app.follow(opened, queue.name, id, outcomes.encode(value, opened.definition.returns), lease.deadline)
    if following is not None:
        app.sender.do(app.sender.putting([following]))
        _run(queue, queue.operations.ack([lease], bare=[0]))
        return lease.task
    results = {0: Kept(outcomes.encode(value, opened.definition.returns), round(opened.settings.keep_result * 1000))}
    if not opened.settings.keep_result or (value is None and not opened.settings.keep_none):
        results = {}
    _run(queue, queue.operations.ack([lease], results=results, bare=[0]))
    return lease.task


async def _awaited(value: Any) -> Any:
    return await value


def _run(queue: Any, calls: Sequence[Any]) -> None:
    queue.run(sending.answers(queue.talk, calls))


def work(app: App, **options: Any) -> Any:
    """Have a real worker run the calls of an app until there are none; give its tally."""

    async def burst() -> Any:
        async with asyncio.timeout(60):
            tally = await app.worker(timeout=5, burst=True, **options).run()
        await app.aclose()
        return tally

    return asyncio.run(burst())


@contextmanager
def at_work(app: App, **options: Any) -> Iterator[None]:
    """Have a real worker run the calls of an app in a thread, until the block ends."""
    begun: Future[Callable[[], None]] = Future()

    async def run() -> None:
        worker, loop = app.worker(timeout=5, signals=False, **options), asyncio.get_running_loop()
        begun.set_result(lambda: cast("None", loop.call_soon_threadsafe(worker.stop)))
        await worker.run()
        await app.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield
    finally:
        begun.result(30)()
        thread.join(30)


def twice_failing(app: App, work: Callable[..., object] = work) -> Any:
    """Have two workers run a call that fails twice, and then returns; give its result."""
    runs: list[int] = []

    @app.task(retry=[0, 0], keep_result=50)
    async def flaky(number: int) -> int:
        runs.append(number)
        if len(runs) < 3:
            raise ValueError(f"boom {len(runs)}\nand more")
        return number

    call = flaky.delay(5)
    work(app, max_tasks=1)
    work(app)
    assert call.wait(5) == 5
    return call
