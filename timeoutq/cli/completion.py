"""What a shell shows when somebody presses Tab: names of queues, and sides of a comparison. Silent and quick.

If the server is away, slow, or closed to this user, the answer is empty and comes within `PATIENCE`.
"""

from __future__ import annotations

import threading
from pathlib import Path

import typer

from timeoutq.words.model import State

PATIENCE = 1.0  # seconds after which the shell gets the names that were found until then


def queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Give the queues whose names begin with what was typed."""
    from timeoutq.client import Queue
    from timeoutq.watch import directory

    found: list[str] = []

    def ask() -> None:
        # a thread can be left behind: so no name server and no network can keep the shell waiting
        try:
            url, file = ctx.params.get("url"), ctx.params.get("url_file")
            address = Path(file).read_text("utf-8").strip() if file else url or None
            with Queue("completion", address, deadline=PATIENCE, allow_eviction=True) as opened:
                found.extend(directory.starting_with(opened, incomplete, PATIENCE / 2))
        except Exception:  # noqa: S110  # whatever it is, a shell cannot use it
            pass

    thread = threading.Thread(target=ask, name="completion", daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return sorted(found)


def sides(ctx: typer.Context, incomplete: str) -> list[str]:
    """Give QUEUE:STATE for what was typed; a shell completes files by itself."""
    name, colon, state = incomplete.partition(":")
    if colon:
        return [f"{name}:{known}" for known in State if known.startswith(state)]
    return [f"{queue}:" for queue in queue_names(ctx, name)]
