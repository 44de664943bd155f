"""The program of a shop, for worker processes: with SHOP=old it is the program of before, without `bill`."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from timeoutq.functions import App, Calls

app = App(os.environ.get("SHOP_QUEUE", "shop"))


@app.task(keep_result=60)
async def greet(name: str) -> str:
    return f"hello {name}"


@app.task(keep_result=60)
async def process() -> int:
    return os.getpid()


@app.task(keep_result=60)
async def hold(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return os.getpid()


@app.task
async def note(number: int) -> None:
    """Write down when it began, in one step, so that a kill leaves a whole line."""
    with Path(os.environ["HISTORY"]).open("ab", buffering=0) as history:  # noqa: ASYNC230  # it blocks nobody for long
        history.write(b"%d %f\n" % (number, time.time()))
    await asyncio.sleep(0.03)


if os.environ.get("SHOP") != "old":

    @app.task(keep_result=60)
    async def bill(number: int) -> int:
        """Only the new program has this function."""
        return number

    @app.task(keep_result=60)
    async def moved(number: int, *, to: str) -> str:
        """In the old program, this function takes no `to`."""
        return f"{number}{to}"

else:

    @app.task(name="moved", keep_result=60)
    async def old_moved(number: int) -> str:
        """In the new program, this function takes `to` as well."""
        return f"{number}"


calls = Calls(app)
