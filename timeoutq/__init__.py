"""A work queue on Redis made of sets, with at-least-once delivery and timeouts.

Everything a program needs is imported from here; a name's module is loaded when the name is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timeoutq.cleaner import Cleaner as Cleaner
    from timeoutq.client import AsyncQueue as AsyncQueue
    from timeoutq.client import Queue as Queue
    from timeoutq.errors import AccessDenied as AccessDenied
    from timeoutq.errors import HandlerNotFound as HandlerNotFound
    from timeoutq.errors import InvalidInput as InvalidInput
    from timeoutq.errors import LeaseLost as LeaseLost
    from timeoutq.errors import NotRedis as NotRedis
    from timeoutq.errors import NotReplicated as NotReplicated
    from timeoutq.errors import ReadOnly as ReadOnly
    from timeoutq.errors import SchemaMismatch as SchemaMismatch
    from timeoutq.errors import ServerFull as ServerFull
    from timeoutq.errors import TimeoutqError as TimeoutqError
    from timeoutq.errors import Unavailable as Unavailable
    from timeoutq.errors import UnsafeServer as UnsafeServer
    from timeoutq.model import Ack as Ack
    from timeoutq.model import Answer as Answer
    from timeoutq.model import HostInfo as HostInfo
    from timeoutq.model import Lease as Lease
    from timeoutq.model import Outcome as Outcome
    from timeoutq.model import Politeness as Politeness
    from timeoutq.model import Release as Release
    from timeoutq.model import State as State
    from timeoutq.model import Stats as Stats
    from timeoutq.model import TaskInfo as TaskInfo
    from timeoutq.retry import GiveUp as GiveUp
    from timeoutq.retry import Recrawl as Recrawl
    from timeoutq.retry import Retry as Retry
    from timeoutq.retry import RetryPolicy as RetryPolicy
    from timeoutq.why import Reason as Reason
    from timeoutq.worker import Worker as Worker

_HOMES = {
    "cleaner": "Cleaner",
    "client": "AsyncQueue Queue",
    "errors": "AccessDenied HandlerNotFound InvalidInput LeaseLost NotRedis NotReplicated ReadOnly SchemaMismatch "
    "ServerFull TimeoutqError Unavailable UnsafeServer",
    "model": "Ack Answer HostInfo Lease Outcome Politeness Release State Stats TaskInfo",
    "retry": "GiveUp Recrawl Retry RetryPolicy",
    "why": "Reason",
    "worker": "Worker",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

__version__ = "0.1.0"
__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]  # a test holds it equal to the imports above


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'timeoutq' has no attribute {name!r}")
    found = getattr(import_module(f"timeoutq.{_HOME[name]}"), name)
    globals()[name] = found
    return found
