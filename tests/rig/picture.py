"""The picture of the page in the README: `python -m tests.rig.picture` makes `.github/page.png`, in a real Chromium."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.rig.browsers import browser, tab
from tests.rig.pages import Served, settings
from tests.rig.waiting import wait_until
from timeoutq import AsyncQueue, GiveUp, Lease, Politeness, Queue, Worker
from timeoutq.server.embedded import EmbeddedServer

PICTURE = Path(__file__).resolve().parent.parent.parent / ".github" / "page.png"
ERRORS = (
    "HTTP 503: Service Unavailable", "TimeoutError: no answer for 30 s", "ValueError: no price on page {}",
)  # fmt: skip


def fill(queue: Queue) -> None:
    queue.configure(politeness=Politeness(0.2, 2), events="10MB")
    queue.put(*(f"https://shop{i % 23}.example/item/{i}" for i in range(12_000)), priority=1)
    queue.schedule(*(f"https://news{i}.example/feed" for i in range(40)), after=1_500)


@contextmanager
def worked_on(queue: Queue) -> Iterator[None]:
    chance, stops = random.Random(7), list[Callable[[], object]]()

    async def handle(lease: Lease) -> None:
        await asyncio.sleep(chance.uniform(0.05, 0.6))
        if chance.random() < 0.1:
            raise GiveUp(chance.choice(ERRORS).format(chance.randrange(1000)))

    async def work() -> None:
        async with AsyncQueue(queue.name, queue.url, timeout=60) as mine:
            worker = Worker(mine, handle, concurrency=16, signals=False)
            stops.append(worker.stop)
            await worker.run()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(work(),))
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stops[0])
        thread.join()
        loop.close()


def main() -> int:
    with EmbeddedServer() as server, Queue("crawl", server.url) as queue, Queue("mail", server.url) as mail:
        fill(queue)
        mail.put(*(f"mail-{i}" for i in range(42)))
        mail.pause()
        with worked_on(queue), Served(settings(server.url)) as served, browser() as started:
            noted = partial(queue.history, by="minute")
            wait_until(lambda: sum(one.acked is not None for one in noted()) >= 4, 300)
            with tab(started, height=900) as seen:
                seen.page.goto(f"{served.base}/q/{queue.name}")
                seen.page.wait_for_selector("#alive.on")
                time.sleep(2)
                seen.page.screenshot(path=str(PICTURE))
    print(f"{PICTURE} {PICTURE.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
