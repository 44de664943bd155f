"""Leaves behind asyncio tasks that were cancelled and do not end, so that the event loop can end without them.

The worker uses this module for handlers that swallow their cancellation, or wait without end in `finally`.
`asyncio.run` would wait for such a task for ever. A task that is left behind goes on while its event loop runs.
"""

from __future__ import annotations

import asyncio
from typing import Any

_left: set[asyncio.Task[Any]] = set()
"""Tasks are kept: one that is collected runs once more, with GeneratorExit, and may never end."""


def leave(task: asyncio.Task[Any]) -> None:
    """Take a task out of those that asyncio knows of, cancels at the end of the loop and waits for."""
    if task.done():
        return
    _left.add(task)
    task.add_done_callback(_came_back)
    asyncio._unregister_task(task)
    # asyncio would say on standard error that it was destroyed; the worker has logged what happened to it
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is not in the stubs


def _came_back(task: asyncio.Task[Any]) -> None:
    _left.discard(task)
    if not task.cancelled():
        task.exception()  # it is known: the task was given up long ago
