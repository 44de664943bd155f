"""Has pages read by a process that can be killed: so no page takes more than a few seconds and some memory.

Small pages are read at once, since they cannot take long. All others go to a process of `parser.py`, one for each
worker, which is started with the first of them and replaced when a page has cost its life. `crawl.py` calls this.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from demo.links import MOST_BYTES, Page, read, same_site

SMALL = 4 * 1024
"""Pages up to this size are read in the worker itself, bytes: the worst known page of this size takes 15 ms."""

MEMORY = 240 * 1024 * 1024
"""What reading one page may take, bytes."""

CLOCK_TIMES = 3.0
"""How many times its processor time a page may take on the clock: the processor serves other processes, too."""

START = 30.0
"""How long the process may take to start, seconds."""

SLICE = 256 * 1024
"""How much of a page is written at once, bytes."""

HERE = Path(__file__).resolve().parent.parent


class PageRefused(Exception):
    """The page cannot be read within its limits; the message says which."""


class ParserLost(Exception):
    """The process ended for a reason that is not in the page: the page can be read another time."""


class Reader:
    """Reads the pages of one worker; pages that are not small are read one at a time."""

    def __init__(self, site: str, seconds: float, memory: int = MEMORY) -> None:
        """Follow links to the same `site`; let a page take `seconds` of the processor's time and `memory` bytes."""
        self._site = site
        self._seconds = seconds
        self._memory = memory
        self._lock = asyncio.Lock()
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the parser; None while there is none."""
        return self._process.pid if self._process is not None else None

    async def read(self, html: bytes | bytearray, url: str, content_type: str = "") -> Page:
        """Find the title of a page and its links to the site; `content_type` is the header it came with.

        Raises `PageRefused` when it would take too long, too much memory, or has too many links; `ParserLost` when the
        process was ended by somebody else.
        """
        if len(html) <= SMALL:
            wanted = partial(same_site, other=url, site=self._site)
            return read(bytes(html), url, wanted, content_type=content_type)
        head = {"length": len(html), "url": url, "site": self._site, "type": content_type}
        async with self._lock:
            answer = await self._ask(head, html)
        if "refused" in answer:
            raise PageRefused(answer["refused"])
        return Page(answer["title"], tuple(answer["links"]))

    async def close(self) -> None:
        """End the process."""
        await self._end()

    async def _ask(self, head: Mapping[str, Any], html: bytes | bytearray) -> dict[str, Any]:
        process = self._process or await self._start()
        try:
            async with asyncio.timeout(self._seconds * CLOCK_TIMES):
                line = await self._exchange(process, head, html)
        except TimeoutError:
            await self._end()
            raise PageRefused(f"parsing took over {self._seconds * CLOCK_TIMES:g} s on the clock") from None
        except BaseException:
            await self._end()  # it would answer the next page with this one
            raise
        if not line.endswith(b"\n"):
            self._process = None
            raise self._judged(await process.wait())
        answer: dict[str, Any] = json.loads(line)
        if answer["last"]:
            await self._end()
        return answer

    async def _exchange(self, process: Process, head: Mapping[str, Any], html: bytes | bytearray) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(head).encode() + b"\n")
            # in slices, or the whole page would be copied to a buffer
            with memoryview(html) as view:
                for at in range(0, len(view), SLICE):
                    process.stdin.write(bytes(view[at : at + SLICE]))
                    await process.stdin.drain()
        except ConnectionError:
            return b""
        return await process.stdout.readline()

    async def _start(self) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "demo.parser", str(self._seconds), str(self._memory),
            stdin=PIPE, stdout=PIPE, cwd=HERE, limit=2 * MOST_BYTES + 64 * 1024, start_new_session=True,
        )  # fmt: skip
        self._process = process
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START):
                line = await process.stdout.readline()
        except BaseException as error:
            await self._end()
            if isinstance(error, TimeoutError):
                raise ParserLost(f"the parser did not start within {START:g} s") from None
            raise
        if not line:
            self._process = None
            raise ParserLost(f"the parser ended with {await process.wait()} at its start")
        return process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await asyncio.shield(process.wait())

    def _judged(self, code: int) -> Exception:
        if code == -signal.SIGPROF:
            return PageRefused(f"parsing took over {self._seconds:g} s")
        if code in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS):
            return PageRefused(f"the parser died of it: {signal.Signals(-code).name}")
        return ParserLost(f"the parser ended with {code}")
