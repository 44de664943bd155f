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
    timeoutq.crawlee    crawlers of crawlee on a queue: TimeoutqStorageClient (extra `crawlee`)
    timeoutq.django     Django's TASKS on queues: "BACKEND": "timeoutq.django.Backend"

`help(timeoutq.Queue)` is the reference. The command `timeoutq` does the same from a shell: `timeoutq --help`. Its pages
`timeoutq help` explain both, topic by topic.

The folders, in reading order: each imports only from those above it. The docstring of a folder lists its modules:
`help("timeoutq.worker")`.

    words      Words: values, errors, settings and texts that every other folder uses. No I/O.
    server     The way to a server: its address, connections and links, clusters, and the library of functions that it
               loads.
    verbs      Verbs: what a program asks of a queue, as calls, their replies, and how calls are sent until each has an
               answer.
    rooms      Rooms: what stands behind an attribute of a queue, such as `queue.hosts`. No room imports another.
    client     `Queue` and `AsyncQueue`, the two faces of one queue.
    worker     Claims tasks, runs a handler on each, and acks or fails them: one event loop, handlers in it or in
               threads.
    watch      What people see of a queue: counts and rates at one moment, what is wrong, and the live dashboard.
    testing    For users' own tests: queues in memory with a clock that the test advances, handlers run until they are
               drained.
    urls       URLs for crawlers: one form for each page, hosts and domains, and sitemaps (extra `crawl`).
    scrapy     Scrapy on timeoutq: a project becomes distributed, and loses no request with a killed process, by one
               setting.
    crawlee    crawlee on timeoutq: the request queue of a crawler is a queue that several processes and machines share.
    functions  Functions: a call is a task. `send.delay("a@example.com")` puts a call, and a worker runs the function.
    django     Django on timeoutq: a backend for `TASKS`, a worker command, and the queues in the admin (Django 6.0 or
               newer).
    gateway    The gateway: a queue over HTTP, for programs in any language. `timeoutq web` serves it; any ASGI server
               can mount it.
    cli        The command `timeoutq`: every command opens a queue, calls one thing, and prints it.
    __main__   `python -m timeoutq` is the command `timeoutq`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timeoutq.client import AsyncQueue as AsyncQueue
    from timeoutq.client import Queue as Queue
    from timeoutq.client.shards import AsyncShardedQueue as AsyncShardedQueue
    from timeoutq.client.shards import ShardedQueue as ShardedQueue
    from timeoutq.client.shards import open_async_queue as open_async_queue
    from timeoutq.client.shards import open_queue as open_queue
    from timeoutq.rooms.batches import BatchInfo as BatchInfo
    from timeoutq.rooms.batches import BatchPage as BatchPage
    from timeoutq.rooms.events import Event as Event
    from timeoutq.rooms.events import EventPage as EventPage
    from timeoutq.rooms.events import fold as fold
    from timeoutq.rooms.failures import FailureKind as FailureKind
    from timeoutq.rooms.failures import Moved as Moved
    from timeoutq.rooms.schedules import Schedule as Schedule
    from timeoutq.rooms.schedules import ScheduleInfo as ScheduleInfo
    from timeoutq.rooms.schedules import SchedulePage as SchedulePage
    from timeoutq.verbs.why import Reason as Reason
    from timeoutq.words.counts import Period as Period
    from timeoutq.words.counts import Sample as Sample
    from timeoutq.words.counts import Stats as Stats
    from timeoutq.words.errors import AccessDenied as AccessDenied
    from timeoutq.words.errors import BadSitemap as BadSitemap
    from timeoutq.words.errors import BadUrl as BadUrl
    from timeoutq.words.errors import HandlerNotFound as HandlerNotFound
    from timeoutq.words.errors import InvalidInput as InvalidInput
    from timeoutq.words.errors import LeaseLost as LeaseLost
    from timeoutq.words.errors import MissingExtra as MissingExtra
    from timeoutq.words.errors import NotRedis as NotRedis
    from timeoutq.words.errors import NotReplicated as NotReplicated
    from timeoutq.words.errors import ReadOnly as ReadOnly
    from timeoutq.words.errors import SchemaMismatch as SchemaMismatch
    from timeoutq.words.errors import ServerError as ServerError
    from timeoutq.words.errors import ServerFull as ServerFull
    from timeoutq.words.errors import ShardsUnavailable as ShardsUnavailable
    from timeoutq.words.errors import TimeoutqError as TimeoutqError
    from timeoutq.words.errors import Unavailable as Unavailable
    from timeoutq.words.errors import UnsafeServer as UnsafeServer
    from timeoutq.words.errors import WorkerBroken as WorkerBroken
    from timeoutq.words.errors import WrongResult as WrongResult
    from timeoutq.words.model import Ack as Ack
    from timeoutq.words.model import Answer as Answer
    from timeoutq.words.model import Entry as Entry
    from timeoutq.words.model import Failure as Failure
    from timeoutq.words.model import HostInfo as HostInfo
    from timeoutq.words.model import HostPage as HostPage
    from timeoutq.words.model import Lease as Lease
    from timeoutq.words.model import Outcome as Outcome
    from timeoutq.words.model import Page as Page
    from timeoutq.words.model import Payload as Payload
    from timeoutq.words.model import Politeness as Politeness
    from timeoutq.words.model import Record as Record
    from timeoutq.words.model import Release as Release
    from timeoutq.words.model import State as State
    from timeoutq.words.model import Task as Task
    from timeoutq.words.model import TaskId as TaskId
    from timeoutq.words.model import TaskInfo as TaskInfo
    from timeoutq.words.model import Tasks as Tasks
    from timeoutq.words.model import WorkerInfo as WorkerInfo
    from timeoutq.words.retry import GiveUp as GiveUp
    from timeoutq.words.retry import Recrawl as Recrawl
    from timeoutq.words.retry import Retry as Retry
    from timeoutq.words.retry import RetryPolicy as RetryPolicy
    from timeoutq.worker.cleaner import Cleaner as Cleaner
    from timeoutq.worker.handlers import Handler as Handler
    from timeoutq.worker.handlers import Lifespan as Lifespan
    from timeoutq.worker.leases import Tally as Tally
    from timeoutq.worker.worker import Worker as Worker

_HOMES = {
    "rooms.batches": "BatchInfo BatchPage",
    "worker.cleaner": "Cleaner",
    "client": "AsyncQueue Queue",
    "words.counts": "Period Sample Stats",
    "words.errors": "AccessDenied BadSitemap BadUrl HandlerNotFound InvalidInput LeaseLost MissingExtra NotRedis "
    "NotReplicated ReadOnly SchemaMismatch ServerError ServerFull ShardsUnavailable TimeoutqError Unavailable "
    "UnsafeServer WorkerBroken WrongResult",
    "rooms.events": "Event EventPage fold",
    "rooms.failures": "FailureKind Moved",
    "worker.handlers": "Handler Lifespan",
    "words.model": "Ack Answer Entry Failure HostInfo HostPage Lease Outcome Page Payload Politeness Record "
    "Release State Task TaskId TaskInfo Tasks WorkerInfo",
    "words.retry": "GiveUp Recrawl Retry RetryPolicy",
    "rooms.schedules": "Schedule ScheduleInfo SchedulePage",
    "client.shards": "AsyncShardedQueue ShardedQueue open_async_queue open_queue",
    "verbs.why": "Reason",
    "worker.leases": "Tally",
    "worker.worker": "Worker",
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
