"""One class for each thing that a caller would do differently.

The message of each error names the task or the server, the cause and the cure. No message holds a password.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class TimeoutqError(Exception):
    """The base of all errors of timeoutq."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it whole: a pool of processes hands errors over that way."""
        return _made, (type(self), self.args, self.__dict__)


def _made(kind: type[TimeoutqError], args: tuple[Any, ...], fields: Mapping[str, Any]) -> TimeoutqError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class InvalidInput(TimeoutqError, ValueError):
    """An argument cannot be used as it is: mend the call. Nothing was written."""


class BadUrl(InvalidInput):
    """This is no URL of a page on http or https: leave it out, or mend it.

    `url` is what was given, `reason` says what is wrong with it.
    """

    def __init__(self, message: str, *, url: str, reason: str) -> None:
        super().__init__(message)
        self.url = url
        self.reason = reason

    @property
    def words(self) -> str:
        """The URL, cut to a length that fits into a line, and what is wrong with it."""
        return f"{self.url[:200]!r} is refused: {self.reason}"


class BadSitemap(InvalidInput):
    """A sitemap cannot be had, cannot be read, or is beyond a limit: the message names the sitemap and the cause."""


class LeaseLost(TimeoutqError):
    """The lease is not this holder's any more: stop working on the task, somebody else has it or ended it.

    `task` is the id, `holder` the worker that holds it now (None if nobody does), `state` where the task is now
    (None if it is in no state, because it was forgotten, purged or not kept).
    """

    def __init__(self, message: str, *, task: str, holder: str | None = None, state: str | None = None) -> None:
        super().__init__(message)
        self.task = task
        self.holder = holder
        self.state = state


class Unavailable(TimeoutqError):
    """The server could not be asked, or could not answer, within the deadline: try again later."""


class ServerFull(Unavailable):
    """The server has no memory or disk left for new tasks: free some. Acks that put nothing still work."""


class ShardsUnavailable(Unavailable):
    """Some shards of a queue did not answer, or their replicas did not confirm it: call again, as often as you like.

    `shards` has the number of each such shard, and its error. If the call was about ids, `outcome` has the answers for
    all ids, which are `UNANSWERED` for those of such shards. If the call was `stats`, `outcome` has the stats of the
    other shards. Else it is None.
    """

    def __init__(self, message: str, *, shards: Mapping[int, TimeoutqError], outcome: Any = None) -> None:
        super().__init__(message)
        self.shards = dict(shards)
        self.outcome = outcome


class ReadOnly(Unavailable):
    """The server is a replica: connect to the primary."""


class NotReplicated(Unavailable):
    """What was asked for is done, but fewer replicas than asked for have confirmed it: make the same call again.

    Until then a failover may undo it. The same call again does nothing twice. Tasks that a claim took have been given
    back. A setting `durable` for which the server has too few replicas is not written at all. `verb` is what was done:
    `put`, `claim`, `ack`, and so on; it is empty for a setting.
    """

    verb = ""


class AccessDenied(TimeoutqError):
    """The server refuses the user, the password, a command or the certificate, or shows one that is not trusted.

    Mend the credentials, the ACL or the certificates.
    """


class NotRedis(TimeoutqError):
    """What answers at the address does not speak the Redis protocol: mend the address."""


class UnsafeServer(TimeoutqError):
    """The server may throw tasks away (eviction policy: set `maxmemory-policy noeviction`), or has lost a queue."""


class SchemaMismatch(TimeoutqError):
    """The queue was written by another major version of timeoutq: upgrade this one."""


class WrongResult(TimeoutqError, TypeError):
    """A handler returned what has no meaning: mend the handler. Its task fails with this error."""


class HandlerNotFound(TimeoutqError, ImportError):
    """A handler given as `module:function` cannot be imported."""


class WorkerBroken(TimeoutqError):
    """A part of a worker is gone, without which it must not go on: the message says which, and what ended it.

    A handler cancelled the pump or ended the event loop, the heartbeat's thread ended, no thread can be started for
    handlers, the lifespan ended before the worker, or the lifespan raised what is no `Exception`, such as `SystemExit`.
    """


class MissingExtra(TimeoutqError, ImportError):
    """A feature needs a package that is not installed: the message says which."""


class ServerError(TimeoutqError):
    """The server answered with an error that timeoutq does not know; the message quotes it."""


for _found in [*globals().values()]:
    if isinstance(_found, type) and issubclass(_found, TimeoutqError):
        _found.__module__ = "timeoutq"  # from where programs import it: tracebacks name the class so
