"""Carries out the steps of flows: for code that blocks, and for asyncio. Only the drivers call the links."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any, ClassVar, Self, TypeVar

from timeoutq.client.face import Face
from timeoutq.rooms.results import AsyncWaits, Waits
from timeoutq.server.link import AsyncLinks, Links
from timeoutq.server.troubles import LINK_ERRORS
from timeoutq.verbs.sending import BELL_WAIT, Alarm, Bell, Flow, Nodes, Send, Sends, Sleep, Step

T = TypeVar("T")


def _begin(links: Links | AsyncLinks, step: Send | Sends | Bell | Alarm) -> Any:
    """Have a link carry out a step; give what the link gives: the result, or for asyncio what can be awaited for it."""
    if isinstance(step, Send):
        return links.at(step.at).send(step.commands)
    if isinstance(step, Sends):
        lists, places = [part.commands for part in step.parts], [part.at for part in step.parts]
        return links.send_all(lists, places, step.within)
    if isinstance(step, Bell):
        return links.at(step.at).wait_bell(step.key, step.seconds, step.then)
    return links.at(step.at).wait_alarm(step.key, step.last, min(step.seconds, BELL_WAIT))


class Driver(Face):
    """Carries out flows, for code that blocks."""

    asynchronous: ClassVar[type[AsyncDriver]]
    """The same face for asyncio."""

    def _prepare(self) -> None:
        self._held: tuple[int, Links] | None = None  # the process that uses the links, and the links
        self._waits = Waits(self)

    def run(self, flow: Flow[T]) -> T:
        """Carry out a flow; before the first flow, check the server and write the settings of the queue."""
        if not self._opened:
            self._drive(self._opening())
            self._opened, self.met = self._is_open(), True
        return self._drive(flow)

    def _drive(self, flow: Flow[T]) -> T:
        links, steps = self._link(), self._led(flow)
        go_on: Any = steps.send
        result: Any = None
        while True:
            try:
                step = go_on(result)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # the flow's own type
            go_on = steps.send
            try:
                if isinstance(step, Sleep):
                    result = None
                    time.sleep(step.seconds)
                else:
                    result = {} if isinstance(step, Nodes) else _begin(links, step)  # no nodes: the server is alone
            except LINK_ERRORS as error:
                result = error
            except BaseException as error:  # Ctrl-C or another signal: a flow may give back what it has taken
                go_on, result = steps.throw, error

    def _link(self) -> Links:
        pid = os.getpid()
        if self._held is None or self._held[0] != pid:
            self._held = (pid, Links(self.server_at))
        return self._held[1]

    def close(self) -> None:
        """Close the connections, and the keepers; a later call opens new connections."""
        try:
            for keeper in self._keepers.all():
                keeper.close()
        finally:
            if self._held is not None:
                self._held[1].close()
                self._held = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncDriver(Face):
    """Carries out flows, for asyncio. Each event loop that uses the driver has connections of its own."""

    blocking: ClassVar[type[Driver]]
    """The same face for code that blocks."""
    asynchronous: ClassVar[type[AsyncDriver]]
    """This face itself; a class that somebody has made of it may take other arguments."""

    def __init_subclass__(cls) -> None:
        if "blocking" in vars(cls):
            cls.asynchronous = cls.blocking.asynchronous = cls

    def _prepare(self) -> None:
        self._links: dict[asyncio.AbstractEventLoop, AsyncLinks] = {}
        self._background: set[asyncio.Task[Any]] = set()  # calls that were cancelled, and give back what they took
        self._waits = AsyncWaits(self)

    async def run(self, flow: Flow[T]) -> T:
        """Carry out a flow; before the first flow, check the server and write the settings of the queue."""
        if not self._opened:
            await self._drive(self._opening())
            self._opened, self.met = self._is_open(), True
        return await self._drive(flow)

    async def _drive(self, flow: Flow[T], step: Step | None = None) -> T:
        """Carry out a flow, or the rest of one that is led already, from this step on."""
        links, steps = self._link(), self._led(flow) if step is None else flow
        result: Any = None
        while True:
            if step is None:
                try:
                    step = steps.send(result)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]  # the flow's own type
            try:
                if isinstance(step, Sleep):
                    result = None
                    await asyncio.sleep(step.seconds)
                else:
                    result = {} if isinstance(step, Nodes) else await _begin(links, step)
            except LINK_ERRORS as error:
                result = error
            except asyncio.CancelledError as error:
                # most flows end here; one that gives back what it has taken does so while nobody waits for it
                rest = asyncio.create_task(self._give_back(links, steps, steps.throw(error)))
                self._background.add(rest)
                rest.add_done_callback(self._background.discard)
                raise
            step = None

    async def _give_back(self, links: AsyncLinks, steps: Flow[Any], step: Step) -> None:
        # a call that was cancelled may travel with others, and what gives back must not arrive before it
        await links.landed()
        await self._drive(steps, step)

    def _link(self) -> AsyncLinks:
        loop = asyncio.get_running_loop()
        if loop not in self._links:
            # connections belong to their event loop: forget those of event loops that are closed
            self._links = {known: link for known, link in self._links.items() if not known.is_closed()}
            self._links[loop] = AsyncLinks(self.server_at)
        return self._links[loop]

    async def close(self) -> None:
        """Close the connections, and the keepers; a later call opens new connections."""
        loop = asyncio.get_running_loop()
        for keeper in self._keepers.all():
            await keeper.close()
        await self._waits.close()
        await asyncio.gather(*(task for task in self._background if task.get_loop() is loop), return_exceptions=True)
        if (link := self._links.pop(loop, None)) is not None:
            await link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
