"""Carries out the steps of flows: for code that blocks, and for asyncio. Only the drivers call the links."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any, ClassVar, Concatenate, ParamSpec, Self, TypeVar

from timeoutq.client.face import Face
from timeoutq.client.keeper import AsyncKeeper, Keeper, Keepers
from timeoutq.client.methods import Claim
from timeoutq.rooms.results import AsyncWaits, Waits
from timeoutq.server.cluster import AsyncNodeLinks, NodeLinks
from timeoutq.server.link import AsyncLink, Link
from timeoutq.server.memory import AsyncMemoryLink, MemoryLink
from timeoutq.server.troubles import LINK_ERRORS
from timeoutq.verbs.faces import like
from timeoutq.verbs.sending import BELL_WAIT, Alarm, Bell, Flow, Nodes, Send, Sends
from timeoutq.words.errors import TimeoutqError
from timeoutq.words.model import Lease

P = ParamSpec("P")
T = TypeVar("T")


def claiming(method: Callable[Concatenate[Any, P], Claim]) -> Callable[Concatenate[Any, P], list[Lease]]:
    """Make the method that claims, for code that blocks; see `verbs/faces.py`."""

    def made(face: Driver, /, *args: P.args, **kwargs: P.kwargs) -> list[Lease]:
        return face._claim(getattr(face.flows, method.__name__)(*args, **kwargs))

    return like(made, method, "list[Lease]")


def aclaiming(
    method: Callable[Concatenate[Any, P], Claim],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, list[Lease]]]:
    """Make the method that claims, for asyncio."""

    async def made(face: AsyncDriver, /, *args: P.args, **kwargs: P.kwargs) -> list[Lease]:
        return await face._claim(getattr(face.flows, method.__name__)(*args, **kwargs))

    return like(made, method, "list[Lease]")


class Driver(Face):
    """Carries out flows, for code that blocks."""

    asynchronous: ClassVar[type[AsyncDriver]]
    """The same face for asyncio."""

    def _prepare(self) -> None:
        self._opened = False
        self._held: tuple[int, Link | NodeLinks] | None = None  # the process that uses the link, and the link
        self._keepers = Keepers[Keeper]()
        self._waits = Waits(self, lambda: self.flows.results)

    def run(self, flow: Flow[T]) -> T:
        """Carry out a flow; before the first flow, check the server and write the settings of the queue."""
        if not self._opened:
            self._drive(self._opening())
            self._opened, self.met = self._is_open(), True
        return self._drive(flow)

    def _drive(self, flow: Flow[T]) -> T:
        link = self._link()
        alone: Any = link  # a guide names the node of each step
        if self._guide is not None:
            flow = self._guide.lead(flow)
        result: Any = None
        try:
            while True:
                try:
                    step = flow.send(result)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]  # the flow's own type
                try:
                    if isinstance(step, Send):
                        result = (alone if step.at is None else link.at(step.at)).send(step.commands)
                    elif isinstance(step, Sends):
                        lists, places = [part.commands for part in step.parts], [part.at for part in step.parts]
                        result = link.within(step.within).send_all(lists, places)
                    elif isinstance(step, Bell):
                        result = link.at(step.at).wait_bell(step.key, step.seconds, step.then)
                    elif isinstance(step, Alarm):
                        result = link.at(step.at).wait_alarm(step.key, step.last, step.seconds)
                    elif isinstance(step, Nodes):
                        result = {}  # the server is alone
                    else:
                        time.sleep(step.seconds)
                        result = None
                except LINK_ERRORS as error:
                    result = error
        except BaseException:
            flow.close()
            raise

    def _link(self) -> Link | NodeLinks:
        pid = os.getpid()
        if self._held is None or self._held[0] != pid:
            server = self.server_at
            plain = Link if server.is_plain else MemoryLink
            kind: type[Link | NodeLinks] = NodeLinks if server.nodes else plain
            self._held = (pid, kind(server, BELL_WAIT))
        return self._held[1]

    def _ending(self, leases: Sequence[Lease]) -> AbstractContextManager[None] | None:
        return self._keepers.ending(leases) if self._keepers else None

    def _claim(self, claim: Claim) -> list[Lease]:
        """Claim; give the leases back if Ctrl-C or a cancel ends the call."""
        try:
            return self.run(claim.flow())
        except TimeoutqError:
            raise
        except BaseException:
            if claim.sent:  # Ctrl-C or another signal has ended a claim that may have run
                with suppress(TimeoutqError, *LINK_ERRORS):  # leases that cannot be given back run out by themselves
                    self._drive(claim.give_back())
            raise

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        self._opened = False
        # the event loop that used the driver last, and its link
        self._held: tuple[asyncio.AbstractEventLoop, AsyncLink | AsyncNodeLinks] | None = None
        self._links: dict[asyncio.AbstractEventLoop, AsyncLink | AsyncNodeLinks] = {}
        self._background: set[asyncio.Future[None]] = set()  # asyncio tasks that give claims back
        self._keepers = Keepers[AsyncKeeper]()
        self._waits = AsyncWaits(self, lambda: self.flows.results)

    async def run(self, flow: Flow[T]) -> T:
        """Carry out a flow; before the first flow, check the server and write the settings of the queue."""
        if not self._opened:
            await self._drive(self._opening())
            self._opened, self.met = self._is_open(), True
        return await self._drive(flow)

    async def _drive(self, flow: Flow[T]) -> T:
        link = self._link()
        alone: Any = link  # a guide names the node of each step
        if self._guide is not None:
            flow = self._guide.lead(flow)
        result: Any = None
        try:
            while True:
                try:
                    step = flow.send(result)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]  # the flow's own type
                try:
                    if isinstance(step, Send):
                        result = await (alone if step.at is None else link.at(step.at)).send(step.commands)
                    elif isinstance(step, Sends):
                        lists, places = [part.commands for part in step.parts], [part.at for part in step.parts]
                        result = await link.within(step.within).send_all(lists, places)
                    elif isinstance(step, Bell):
                        result = await link.at(step.at).wait_bell(step.key, step.seconds, step.then)
                    elif isinstance(step, Alarm):
                        result = await link.at(step.at).wait_alarm(step.key, step.last, step.seconds)
                    elif isinstance(step, Nodes):
                        result = {}  # the server is alone
                    else:
                        await asyncio.sleep(step.seconds)
                        result = None
                except LINK_ERRORS as error:
                    result = error
        except BaseException:
            flow.close()
            raise

    def _link(self) -> AsyncLink | AsyncNodeLinks:
        loop = asyncio.get_running_loop()
        if self._held is None or self._held[0] is not loop:
            # connections belong to their event loop: forget those of event loops that are closed
            self._links = {known: link for known, link in self._links.items() if not known.is_closed()}
            if loop not in self._links:
                kind = (
                    AsyncNodeLinks
                    if self.server_at.nodes
                    else AsyncLink
                    if self.server_at.is_plain
                    else AsyncMemoryLink
                )
                self._links[loop] = kind(self.server_at, BELL_WAIT)
            self._held = (loop, self._links[loop])
        return self._held[1]

    def _ending(self, leases: Sequence[Lease]) -> AbstractContextManager[None] | None:
        return self._keepers.ending(leases) if self._keepers else None

    async def _claim(self, claim: Claim) -> list[Lease]:
        """Claim; give the leases back if Ctrl-C or a cancel ends the call."""
        try:
            return await self.run(claim.flow())
        except asyncio.CancelledError:
            if claim.sent:  # a call of the claim may have run
                task = asyncio.ensure_future(self._drive(claim.give_back()))
                self._background.add(task)
                task.add_done_callback(self._background.discard)
            raise

    async def close(self) -> None:
        """Close the connections, and the keepers; a later call opens new connections."""
        loop = asyncio.get_running_loop()
        for keeper in self._keepers.all():
            await keeper.close()
        await self._waits.close()
        mine = [task for task in self._background if task.get_loop() is loop]
        if mine:
            await asyncio.gather(*mine, return_exceptions=True)
        self._held = None
        link = self._links.pop(loop, None)
        if link is not None:
            await link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
