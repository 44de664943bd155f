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

The map of the house: its modules in reading order, which is the order in which they import each other. Each module
begins with what it is for.

    words        errors exit_codes model counts standing arguments text telling retry tracebacks durations
    a verb       scripts calls replies operations confirming rights
    the server   address troubles deadlines patience names connection wire link memory cluster embedded
                 embedded_cluster
    a call       sending flows reads division repairs why rooms hosts results schedules batches events failures
                 methods heartbeat keeper client
    the worker   machine handlers found lifespan files signals unending forks loopwatch cleaner refusals health
                 worker
    processes    endings roster ledger responder process supervisor
    on top       shards directory watch testing transfer carrying urls scrapy functions protocol gateway page push
                 bench logs cli
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
