"""The app of a simulation: its functions do what the plan says, and each is followed in another queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.rig.simulate import handlers
from timeoutq import functions
from timeoutq.client.shards import AnyAsyncQueue
from timeoutq.functions import App, Calls, FunctionCall
from timeoutq.words import telling
from timeoutq.worker.handlers import Staff

WEIGHTS = {"sim": 3, "second": 1}
"""The queues of workers that have two, and their weights."""
RETURNS = ("ok", "context", "spawn", "block", "long", "turns", "swallow")
"""How a call may have ended that returned something, so that another call follows."""


class Sender(functions.Sender):
    """Puts calls through clients that the world has opened."""

    def __init__(self, opened: Callable[[str], AnyAsyncQueue]) -> None:
        super().__init__()
        self._opened_by = opened

    async def aqueue(self, name: str) -> AnyAsyncQueue:
        return self._opened_by(name)


def shop(place: handlers.Place | None = None) -> App:
    """Make the app; without a place, it is that of callers."""
    app = App("sim", queues=WEIGHTS, keep_result=0)

    async def work() -> Any:
        return await _here(place)

    async def after(found: Any) -> Any:
        return await _here(place)

    for function, queue in ((work, "sim"), (after, "second")):
        app.task(queue=queue, key=True, unique="forever")(function)
    return app


async def _here(place: handlers.Place | None) -> Any:
    running = telling.running.get()
    assert place is not None and running is not None
    return await handlers.work(place, running[1])


def staff(queues: Mapping[Any, int], place: handlers.Place) -> Staff:
    return Staff(queues, Calls(shop(place)))


def call(app: App, queue: str, id: str, delay: float) -> FunctionCall[Any]:
    work, after = (app.functions[name].options(id=id, after=delay or None) for name in ("work", "after"))
    return work.call().then(app.functions["after"]) if queue == "sim" else after.call(None)
