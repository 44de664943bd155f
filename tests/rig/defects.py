"""Handlers that break the worker that runs them, each in a way of its own: health checks must see it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from timeoutq import Lease
from timeoutq.worker.exchanges import Exchanges
from timeoutq.worker.pump import Pump


async def _for_ever(*_: Any, **__: Any) -> Any:
    await asyncio.Event().wait()


async def hang_the_pump(lease: Lease) -> None:
    """Have the claim loop wait for what never comes."""
    Pump._rest = _for_ever  # type: ignore[method-assign]  # that is the defect


async def hang_the_exchanges(lease: Lease) -> None:
    """Have each exchange with the server wait for what never comes."""
    Exchanges._send = _for_ever  # type: ignore[method-assign]  # that is the defect


async def block_the_loop(lease: Lease) -> None:
    """Make a call that blocks the event loop, as often as not by mistake."""
    time.sleep(float(os.environ["WORK"]))  # noqa: ASYNC251  # that is the defect


@asynccontextmanager
async def no_lifespan() -> AsyncIterator[None]:
    """Fail before the first claim: a database that is not there, say."""
    raise RuntimeError("there is no database")
    yield
