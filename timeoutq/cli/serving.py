"""The commands that stay: worker, cleaner and a private server.

`app.py` runs them.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from timeoutq.cli.app import SERVER, Name, Url, UrlFile, app, server_address, stop
from timeoutq.cli.reading import Duration, seconds
from timeoutq.errors import InvalidInput

LogLevel = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log lines of JSON.")]


def _log(level: str, as_json: bool) -> None:
    from timeoutq import logs

    logs.configure(level, as_json=as_json)


@app.command(rich_help_panel="Processes")
def worker(
    queue: Name,
    handler: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="Called with each lease.")],
    concurrency: Annotated[int, typer.Option("-c", "--concurrency", min=1, help="Handlers at once, a process.")] = 100,
    prefetch: Annotated[int | None, typer.Option(min=0, help="Tasks waiting here; else as needed.")] = None,
    timeout: Annotated[float, typer.Option(parser=seconds, metavar="TIME", help="Length of a lease.")] = "30s",  # type: ignore[assignment]  # typer parses the default
    max_runtime: Duration = None,
    retry: Annotated[str | None, typer.Option(help="Delays before new attempts, like 10,30,60; then failed.")] = None,
    max_attempts: Annotated[int | None, typer.Option(min=1, help="Attempts, with growing delays; else 5.")] = None,
    processes: Annotated[int, typer.Option("-p", "--processes", min=1, max=256, help="Worker processes.")] = 1,
    supervise: Annotated[bool, typer.Option(help="Watch over the processes and start dead ones again.")] = True,
    burst: Annotated[bool, typer.Option("--burst", help="End when the queue is drained.")] = False,
    drain_deadline: Annotated[float, typer.Option(parser=seconds, metavar="TIME", help="On SIGTERM.")] = "25s",  # type: ignore[assignment]  # same
    url: Url = None, url_file: UrlFile = None, log_level: LogLevel = "info", log_json: LogJson = False,
) -> None:  # fmt: skip
    """Work on a queue: claim tasks, call the handler on each, ack it or fail it.

    SIGTERM: claim no more, finish until the deadline, give the rest back. SIGINT or a second SIGTERM: give back and
    leave now.
    """
    from tenacity import stop_after_attempt

    from timeoutq.client import AsyncQueue
    from timeoutq.retry import RetryPolicy
    from timeoutq.supervisor import SharedLedger, run_workers
    from timeoutq.worker import Worker, load_handler

    _log(log_level, log_json)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if retry is not None and max_attempts is not None:
        raise InvalidInput("give --retry or --max-attempts, not both")
    policy = RetryPolicy.of(None)
    if retry is not None:
        policy = RetryPolicy.of([seconds(part) for part in retry.split(",")])
    elif max_attempts is not None:
        policy = RetryPolicy.of(stop_after_attempt(max_attempts))
    address = server_address(url, url_file)
    loaded = load_handler(handler)

    def make(ledger: SharedLedger | None) -> Worker:
        opened = AsyncQueue(queue, address, timeout=timeout, max_runtime=max_runtime, retry=policy)
        return Worker(
            opened, loaded, concurrency=concurrency, prefetch=prefetch, burst=burst,
            drain_deadline=drain_deadline, ledger=ledger,
        )  # fmt: skip

    make(None)  # what is wrong with the arguments is said here, once
    raise typer.Exit(run_workers(make, processes, supervise=supervise))


@app.command(rich_help_panel="Processes")
def cleaner(
    queues: Annotated[list[str], typer.Argument(metavar="QUEUE...", help="Names of queues.")],
    url: Url = None, url_file: UrlFile = None, log_level: LogLevel = "info", log_json: LogJson = False,
) -> None:  # fmt: skip
    """Take back expired leases and make due tasks ready. Workers do it too; any number may run."""
    import asyncio
    import signal

    from timeoutq.cleaner import Cleaner
    from timeoutq.client import AsyncQueue

    _log(log_level, log_json)
    address = server_address(url, url_file)
    opened = [AsyncQueue(name, address) for name in queues]

    async def body() -> None:
        tasks = [asyncio.create_task(Cleaner(one).run()) for one in opened]
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: [task.cancel() for task in tasks])
        try:
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            pass
        finally:
            for one in opened:
                await one.close()

    asyncio.run(body())


@app.command(rich_help_panel="Processes")
def server(
    port: Annotated[int | None, typer.Option(help="Port on 127.0.0.1; a free one if not given.")] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="Keep the data here; else they go with it.")] = None,
) -> None:
    """Run a private Valkey server in the foreground, for a laptop: Ctrl-C ends it."""
    import signal

    from timeoutq.embedded import EmbeddedServer

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, leave)
    with EmbeddedServer(directory, port) as running:
        typer.echo(running.url)
        kept = f"data kept in {running.directory}" if directory else "data gone when it ends"
        typer.echo(f"timeoutq: Valkey listens at {running.url}, {kept}; Ctrl-C ends it", err=True)
        with suppress(KeyboardInterrupt):
            while running.pid:
                _, status = os.waitpid(running.pid, 0)
                stop(SERVER, f"the server ended with status {status}; its log is in {running.directory}")
