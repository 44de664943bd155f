"""`Queue` and `AsyncQueue`, the two faces of one queue, side by side. They are the only caller of the links.

What a method does is in `operations.py` (one exchange) or `flows.py` (several); `_run` drives it. The twins carry the
same names, signatures and docstrings, which a test holds equal.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from timeoutq import arguments, flows, replies, sending, tracebacks, why
from timeoutq.calls import BATCH, Call
from timeoutq.connection import Server
from timeoutq.errors import InvalidInput, TimeoutqError
from timeoutq.link import AsyncLink, Link
from timeoutq.model import (
    Answer,
    Entry,
    Failure,
    HostInfo,
    HostPage,
    Lease,
    Outcome,
    Page,
    Payload,
    Politeness,
    Sample,
    State,
    Stats,
    Task,
    TaskId,
    TaskInfo,
    Tasks,
    WorkerInfo,
)
from timeoutq.operations import Operations
from timeoutq.retry import Retries, RetryPolicy
from timeoutq.sending import BELL_WAIT, Bell, Flow, Send, ServerClock, Talk
from timeoutq.troubles import LINK_ERRORS
from timeoutq.why import Reason

T = TypeVar("T")
CONVERTS = 20
"""How many parts of a conversion that was left unfinished one prune does: 250 tasks each."""
Found = list
"""`list` is a method of the faces: below it, the type goes by this name."""


class _Face:
    """What both faces hold: the settings, the name of this client, and its tokens."""

    def __init__(
        self,
        name: str,
        url: str | None = None,
        *,
        client: Any = None,
        timeout: float = 30.0,
        max_runtime: float | None = None,
        retry: Retries = None,
        keep_done: int | str | timedelta | None = None,
        max_crashes: int | None = None,
        politeness: Politeness | None = None,
        deadline: float = 5.0,
        allow_eviction: bool = False,
    ) -> None:
        """Describe a queue; the first operation connects.

        `name` is 1 to 64 of `A-Z a-z 0-9 . _ -`. The server is `url` (`redis://`, `rediss://`, `unix://`, `valkey://`),
        else `TIMEOUTQ_URL`, else `REDIS_URL`, else `redis://localhost:6379/0`. Or pass `client`, a redis-py client: the
        queue takes its address and credentials, and opens connections of its own. TLS is `rediss://`, with
        `?ssl_ca_certs=`, `ssl_certfile=` and `ssl_keyfile=` in the URL, or `TIMEOUTQ_CA`, `TIMEOUTQ_CERT` and
        `TIMEOUTQ_KEY`.

        `timeout` is the length of a lease and `max_runtime` the longest that a task may be held in all, both in
        seconds. `retry` says when a failed task is tried again: tenacity's `wait_*` and `stop_*` objects or a list of
        delays in seconds.

        Three settings belong to the queue, and passing one changes it for all clients: `keep_done` ("forever", 0, a
        count or a timedelta), `max_crashes` (the number of lost leases after which a task goes to failed, 5 at first)
        and `politeness` (how often hosts may be visited, see `Politeness`).

        A call takes `deadline` seconds at most, and one second more for each 128 KiB that the call carries; the time
        for which `claim` is told to wait does not count. A call that was first sent more than 50 s ago is not sent
        again, whatever the deadline, because the queue remembers only the calls of the last minute. `allow_eviction`
        accepts a server that may throw tasks away.

        Raises `InvalidInput` for an argument that cannot be used.
        """
        self.operations = Operations(name)
        self.name = name
        self.timeout = arguments.timeout_ms(timeout) / 1000
        self.max_runtime = None if max_runtime is None else arguments.timeout_ms(max_runtime, "max_runtime") / 1000
        self.retry = RetryPolicy.of(retry)
        self.allow_eviction = allow_eviction
        given, deadline = deadline, arguments.seconds(deadline, "deadline")
        if not 0.05 <= deadline <= 3600:
            raise InvalidInput(f"deadline={arguments.shown(given)} is out of range: 0.05 s to 1 hour")
        self.server_at = Server(url, client, deadline)
        self.url = self.server_at.url
        self._settings: dict[str, bytes] = {}
        if keep_done is not None:
            self._settings["keep_done"] = arguments.keep_done(keep_done)
        if max_crashes is not None:
            self._settings["max_crashes"] = b"%d" % arguments.count(max_crashes, "max_crashes")
        if politeness is not None:
            self._settings["politeness"] = arguments.politeness(politeness)
        self.given = (url, client, deadline)
        self._opened = False
        self._identify()
        self._background: set[asyncio.Future[None]] = set()
        self._links: dict[asyncio.AbstractEventLoop, AsyncLink] = {}
        self.talk = Talk(self.operations, self.server_at, ServerClock(), deadline, self.token)

    def __repr__(self) -> str:
        # also of one whose constructor has raised, which a debugger or a traceback may show
        name, url = getattr(self, "name", None), getattr(self, "url", None)
        return f"{type(self).__name__}({name!r}, url={url!r})"

    def _identify(self) -> None:
        self._pid = os.getpid()
        host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:24]
        self.worker = f"{host}:{self._pid}:{secrets.token_hex(4)}"
        self._numbers = count(1)

    def token(self) -> bytes:
        """Make a new token: this client's name and a number; another name in a forked process."""
        if os.getpid() != self._pid:
            self._identify()
        return b"%s#%x" % (self.worker.encode(), next(self._numbers))

    def _timeout_ms(self, timeout: float | None) -> int:
        return round(self.timeout * 1000) if timeout is None else arguments.timeout_ms(timeout)

    def _claim(self, n: int, timeout: float | None, max_runtime: float | None, wait: float) -> tuple[Any, ...]:
        runtime = self.max_runtime if max_runtime is None else max_runtime
        return (
            arguments.count(n, high=BATCH),
            self._timeout_ms(timeout),
            0 if runtime is None else arguments.timeout_ms(runtime, "max_runtime"),
            arguments.seconds(wait, "wait"),
        )

    def _fail(
        self, leases: Sequence[Lease], error: BaseException | str, retry_in: float | None, give_up: bool
    ) -> list[Call[Outcome]]:
        give_up = bool(arguments.flag(give_up, "give_up"))
        if give_up and retry_in is not None:
            raise InvalidInput("fail() takes retry_in= or give_up=True, not both")
        if retry_in is not None:
            retries = [arguments.delay_ms(retry_in, "retry_in")] * len(leases)
        elif give_up:
            retries = [-1] * len(leases)
        else:
            waits = [self.retry.decide(lease.attempt, error) for lease in leases]
            retries = [-1 if wait is None else arguments.delay_ms(wait, "retry") for wait in waits]
        text, trace = arguments.error_text(error), tracebacks.trace(error)
        return self.operations.fail(leases, retries, [text] * len(leases), [trace] * len(leases))

    def _configured(
        self,
        keep_done: int | str | timedelta | None,
        max_crashes: int | None,
        politeness: Politeness | Literal["off"] | None,
    ) -> Flow[None]:
        settings: dict[str, bytes] = {}
        if keep_done is not None:
            settings["keep_done"] = arguments.keep_done(keep_done)
        if max_crashes is not None:
            settings["max_crashes"] = b"%d" % arguments.count(max_crashes, "max_crashes")
        if politeness is not None:
            settings["politeness"] = arguments.politeness(politeness)
        return flows.configure(self.talk, settings)

    def _ack(
        self, lease: Lease | Iterable[Lease], put: Tasks | None, again_in: float | None, payload: Payload
    ) -> Flow[Answer | Outcome]:
        leases = arguments.leases(lease)
        again_ms, body = arguments.again(again_in, payload, leases[0].task if leases else "")
        if put is not None or body is not None:
            if not isinstance(lease, Lease):
                raise InvalidInput("put= and payload= work with one lease only: ack such leases one by one")
            return flows.ack_put(self.talk, lease, arguments.tasks((() if put is None else put,)), again_ms, body)
        return self._end(lease, leases, self.operations.ack(leases, again_ms))

    def _release(self, lease: Lease | Iterable[Lease], delay: float, block_host: float) -> Flow[Answer | Outcome]:
        leases = arguments.leases(lease)
        delay_ms, block_ms = arguments.delay_ms(delay, "delay"), arguments.delay_ms(block_host, "block_host")
        return self._end(lease, leases, self.operations.release(leases, delay_ms, block_ms))

    def _end(self, given: object, leases: Sequence[Lease], calls: Sequence[Call[Outcome]]) -> Flow[Answer | Outcome]:
        if isinstance(given, Lease):
            return flows.end_one(self.talk, leases[0], calls)
        return sending.answers(self.talk, calls)

    def _extend(self, lease: Lease | Iterable[Lease], timeout: float | None) -> Flow[Lease | Outcome]:
        if isinstance(lease, Lease):
            return flows.extend_one(self.talk, lease, self._timeout_ms(timeout))
        return self._extend_many(arguments.leases(lease), self._timeout_ms(timeout))

    def _extend_many(self, leases: Sequence[Lease], timeout_ms: int) -> Flow[Outcome]:
        return (yield from flows.extend(self.talk, leases, timeout_ms))[1]

    def _requeued(self, n: int) -> Flow[int]:
        asked = time.monotonic()
        swept = yield from sending.answer(self.talk, self.operations.requeue_expired(arguments.count(n, high=BATCH)))
        self.talk.clock.swept(swept.now_ms, asked)
        flows.tell_given_up(self.name, swept)
        return swept.moved

    def _promoted(self, n: int) -> Flow[int]:
        asked = time.monotonic()
        swept = yield from sending.answer(self.talk, self.operations.promote_due(arguments.count(n, high=BATCH)))
        self.talk.clock.seen(swept.now_ms, asked)
        return swept.moved

    def _page(self, state: State | str, cursor: str | None, n: int) -> Flow[Page]:
        found = arguments.state(state)
        entries, following = yield from flows.page(
            self.talk, found.value, self._cursor(cursor), arguments.count(n, high=1000)
        )
        return Page(found, entries, following)

    def _workers(self) -> Flow[list[WorkerInfo]]:
        key = self.operations.key
        (found,) = yield from sending.ask(self.talk, [("ZREVRANGE", key("workers"), 0, 499, "WITHSCORES")])
        flat = [word for pair in found for word in pair] if found and isinstance(found[0], list | tuple) else found
        names, beats = flat[::2], flat[1::2]
        if not names:
            return []
        (about,) = yield from sending.ask(self.talk, [("HMGET", key("worker_info"), *names)])
        return [
            replies.read_worker(name, info or b"{}", beat) for name, beat, info in zip(names, beats, about, strict=True)
        ]

    def _history(self) -> Flow[list[Sample]]:
        (lines,) = yield from sending.ask(self.talk, [("LRANGE", self.operations.key("history"), 0, 119)])
        samples = [replies.read_sample(line) for line in reversed(lines)]
        return [sample for sample in samples if sample.at]

    def _errors(self, n: int) -> Flow[list[Failure]]:
        high = arguments.count(n, high=50)
        (lines,) = yield from sending.ask(self.talk, [("LRANGE", self.operations.key("error_log"), 0, high - 1)])
        return [replies.read_failure(line) for line in lines]

    def _prune(self, n: int) -> Flow[int]:
        found = yield from sending.answer(self.talk, self.operations.prune(arguments.count(n, high=BATCH)))
        if found.converting:
            yield from flows.convert(self.talk, calls=CONVERTS)
        yield from sending.answer(self.talk, self.operations.repair())
        return found.pruned

    def _server(self) -> Flow[dict[str, Any]]:
        (info,) = yield from sending.ask(self.talk, [("INFO",)])
        return dict(info) if isinstance(info, dict) else {"raw": info}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  # a reply

    def _wait_drained(self, timeout: float | None, before: float | datetime | None) -> Flow[bool]:
        return flows.wait_drained(
            self.talk,
            None if timeout is None else arguments.seconds(timeout, "timeout"),
            lambda: self._drained(before),
        )

    def _why(self, task: TaskId) -> Flow[Reason]:
        return why.explain(self.talk, task)

    def _host(self, host: str, *rules: tuple[str, Any]) -> Flow[HostInfo]:
        found = yield from sending.answer(self.talk, self.operations.host(host, rules))
        while found is not None and found.recalling and rules:
            # if the host has many ready tasks, one step takes back only a part of them
            found = yield from sending.answer(self.talk, self.operations.host(host, [("recall", "")]))
        if found is None:
            raise InvalidInput(self._not_polite())
        return found

    def _hosts(self, cursor: str | None, n: int) -> Flow[HostPage]:
        start = int(self._cursor(cursor) or 0)
        found = yield from sending.answer(self.talk, self.operations.hosts(start, arguments.count(n, high=500)))
        if found is None:
            raise InvalidInput(self._not_polite())
        return HostPage(found, str(start + n) if len(found) == n else None)

    def _not_polite(self) -> str:
        return (
            f"queue {self.name!r} is not polite, and knows no hosts: give it politeness=Politeness(delay=, per_host=), "
            f"or run 'timeoutq configure {self.name} --delay 1s'"
        )

    def _set_host(
        self,
        host: str,
        delay: float | Literal["usual"] | None,
        per_host: int | Literal["usual"] | None,
        budget: int | Literal["none"] | None,
    ) -> Flow[HostInfo]:
        rules: list[tuple[str, Any]] = []
        if delay is not None:
            rules.append(("delay", "" if arguments.is_word(delay, "usual") else arguments.delay_ms(delay, "delay")))
        if per_host is not None:
            most = "" if arguments.is_word(per_host, "usual") else arguments.count(per_host, "per_host", high=10_000)
            rules.append(("per_host", most))
        if budget is not None:
            rules.append(
                ("budget", "" if arguments.is_word(budget, "none") else arguments.count(budget, "budget", low=0))
            )
        return self._host(host, *rules)

    def _block_host(
        self, host: str, until: float | datetime | None, for_: float | None, reason: str | None
    ) -> Flow[HostInfo]:
        if (until is None) == (for_ is None):
            raise InvalidInput("say for how long: either until= (Unix seconds or an aware datetime) or for_= (seconds)")
        if for_ is not None:
            end: object = arguments.delay_ms(for_, "for_")
        else:
            end = b"@" + arguments.due(until, None)
        said = self.worker if reason is None else reason
        return self._host(host, ("block", end), ("by", arguments.reason(said)))

    def _cursor(self, cursor: str | None) -> str | None:
        if cursor is not None and not (isinstance(cursor, str) and re.fullmatch(r"[0-9]{1,18}", cursor)):
            raise InvalidInput(f"{arguments.shown(cursor)} is not a cursor that a page ended with")
        return cursor

    def _drained(self, before: float | datetime | None) -> Flow[bool]:
        if before is None:
            return flows.drained(self.talk)
        return flows.drained(self.talk, int(arguments.due(before, None)))


class Queue(_Face):
    """A queue, for code that blocks. Safe to share between threads; in a forked process it becomes a new client."""

    def run(self, flow: Flow[T]) -> T:
        """Carry out a flow of `flows.py`; the first one also meets the server."""
        if not self._opened:
            self._drive(flows.opening(self.talk, self._settings, self.allow_eviction))
            self._opened = True
        return self._drive(flow)

    def _drive(self, flow: Flow[T]) -> T:
        link = self._link()
        result: Any = None
        while True:
            try:
                step = flow.send(result)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # the flow's own type
            try:
                if isinstance(step, Send):
                    result = link.send(step.commands)
                elif isinstance(step, Bell):
                    result = link.wait_bell(self.operations.key("bell"), step.seconds)
                else:
                    time.sleep(step.seconds)
                    result = None
            except LINK_ERRORS as error:
                result = error

    def _link(self) -> Link:
        pid = os.getpid()
        if self._held is None or self._held[0] != pid:
            self._held = (pid, Link(self.server_at, BELL_WAIT))
        return self._held[1]

    _held: tuple[int, Link] | None = None

    def _claim_guarded(self, n: int, timeout_ms: int, max_runtime_ms: int, wait: float) -> list[Lease]:
        # when Ctrl-C or another signal ends a claim that was sent, the claim may have run: give its leases back
        tokens: list[bytes] = []

        def nonce() -> bytes:
            tokens.append(self.token())
            return tokens[-1]

        if not self.talk.proved:
            self.run(sending.prove(self.talk))
        talk = replace(self.talk, nonce=nonce)
        try:
            return self.run(flows.claim(talk, n, timeout_ms, max_runtime_ms, wait))
        except TimeoutqError:
            raise
        except BaseException:
            if tokens:
                with suppress(TimeoutqError, *LINK_ERRORS):  # leases that cannot be given back run out by themselves
                    self._give_back(tokens[-1], timeout_ms, max_runtime_ms)
            raise

    def _give_back(self, token: bytes, timeout_ms: int, max_runtime_ms: int) -> None:
        call = self.operations.claim(token, 0, timeout_ms, max_runtime_ms)
        replies = self._drive(_replay(call, self.talk))
        if replies:
            self._drive(sending.answers(self.talk, self.operations.release(replies)))

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        if self._held is not None:
            self._held[1].close()
            self._held = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- tasks in

    def put(self, *tasks: Tasks, again: bool = False, group: str | None = None, durable: int = 0) -> Outcome:
        """Put tasks: ids, `Task`s, mappings of ids to payloads, or iterables of ids and `Task`s, any number.

        Gives for each id, in order, `ADDED` or the state that holds the id already; `again=True` puts done and failed
        tasks back with a clean record. Each 500 ids (or each MiB of payloads) are one atomic step. If one of the ids is
        bad, nothing is put.
        On a polite queue, `group` is the host that the tasks count for, instead of the host of their URL; a `Task` may
        have a group of its own. A queue that is not polite keeps groups for later. With `durable`, the call returns
        when that many replicas have confirmed the tasks (WAIT), so that a failover to one of them does not lose the
        tasks.
        Raises `InvalidInput`, `ServerFull`, `Unavailable`, `NotReplicated`.
        """
        calls = self.operations.put(tasks, self.token, again=again, group=group)
        return self.run(sending.answers(self.talk, calls, _replicas(durable)))

    def schedule(
        self,
        *tasks: Tasks,
        at: float | datetime | None = None,
        after: float | None = None,
        again: bool = False,
        group: str | None = None,
        durable: int = 0,
    ) -> Outcome:
        """Schedule tasks `at` a time (Unix seconds or an aware datetime), or `after` a number of seconds.

        A task that is scheduled already gets the new time, earlier or later, and the answer `SCHEDULED`. `after` counts
        by the server's clock. `group` and `durable` are as for `put`. Raises `InvalidInput`, `ServerFull`,
        `Unavailable`, `NotReplicated`.
        """
        calls = self.operations.schedule(tasks, self.token, at=at, after=after, again=again, group=group)
        return self.run(sending.answers(self.talk, calls, _replicas(durable)))

    # ---- leases

    def claim(
        self, n: int = 1, *, timeout: float | None = None, max_runtime: float | None = None, wait: float = 0.0
    ) -> list[Lease]:
        """Lease up to `n` ready tasks (500 at most) for `timeout` seconds; wait up to `wait` seconds for the first.

        Gives an empty list when nothing is ready or the queue is paused. Expired and due tasks are made ready first.
        Raises `InvalidInput`, `Unavailable`.
        """
        return self._claim_guarded(*self._claim(n, timeout, max_runtime, wait))

    @overload
    def extend(self, lease: Lease, timeout: float | None = None) -> Lease: ...
    @overload
    def extend(self, lease: Iterable[Lease], timeout: float | None = None) -> Outcome: ...
    def extend(self, lease: Lease | Iterable[Lease], timeout: float | None = None) -> Lease | Outcome:
        """Let leases run for `timeout` seconds from now; also one that ran out, if nobody has taken the task back yet.

        For one lease: gives the lease with its new deadline, or raises `LeaseLost`. For many: gives an answer for each,
        `OK`, `LOST`, or `MAX_RUNTIME` if the lease may not be extended any more.
        """
        return self.run(self._extend(lease, timeout))

    @overload
    def ack(
        self, lease: Lease, put: Tasks | None = None, *, again_in: float | None = None, payload: Payload = None
    ) -> Answer: ...
    @overload
    def ack(self, lease: Iterable[Lease], put: None = None, *, again_in: float | None = None) -> Outcome: ...
    def ack(
        self,
        lease: Lease | Iterable[Lease],
        put: Tasks | None = None,
        *,
        again_in: float | None = None,
        payload: Payload = None,
    ) -> Answer | Outcome:
        """End leases as done; with `put`, put the tasks that one of them found in the same atomic step.

        The step takes up to 499 tasks and 1 MiB of their payloads; further tasks are put before the ack, never after.

        With `again_in`, the tasks are not done, but scheduled again in that many seconds, with a clean record; a single
        lease may also give its task a new `payload`.

        An ack after the deadline counts as long as nobody has taken the task back. For one lease: gives `OK`, or
        `ALREADY` when this very ack was carried out before, and raises `LeaseLost` when the lease is lost. For many:
        gives an answer for each.
        """
        return self.run(self._ack(lease, put, again_in, payload))

    @overload
    def release(self, lease: Lease, delay: float = 0.0, *, block_host: float = 0.0) -> Answer: ...
    @overload
    def release(self, lease: Iterable[Lease], delay: float = 0.0, *, block_host: float = 0.0) -> Outcome: ...
    def release(
        self, lease: Lease | Iterable[Lease], delay: float = 0.0, *, block_host: float = 0.0
    ) -> Answer | Outcome:
        """Give leases back; their tasks are ready at once, or after `delay` seconds. Answers as `ack` does.

        A release does not count as an attempt. On a polite queue, `block_host` also keeps all workers from the hosts of
        these tasks for that many seconds, in the same step.
        """
        return self.run(self._release(lease, delay, block_host))

    @overload
    def fail(
        self, lease: Lease, error: BaseException | str, *, retry_in: float | None = None, give_up: bool = False
    ) -> Answer: ...
    @overload
    def fail(
        self,
        lease: Iterable[Lease],
        error: BaseException | str,
        *,
        retry_in: float | None = None,
        give_up: bool = False,
    ) -> Outcome: ...
    def fail(
        self,
        lease: Lease | Iterable[Lease],
        error: BaseException | str,
        *,
        retry_in: float | None = None,
        give_up: bool = False,
    ) -> Answer | Outcome:
        """End leases as failed; tasks are tried again in `retry_in` seconds, never (`give_up`), or as the policy says.

        `error` is kept with the task, at most 4 KiB of it. Answers as `ack` does.
        """
        leases = arguments.leases(lease)
        return self.run(self._end(lease, leases, self._fail(leases, error, retry_in, give_up)))

    def pull(self, n: int = 1) -> list[Task]:
        """Take up to `n` tasks (500 at most) without a lease; they count as done at once.

        This is at most once: if you die, the tasks are lost. One call brings about 4 MiB of payloads, so fewer tasks
        when their payloads are large; no task comes only when no task is ready.

        Raises `Unavailable` when the reply was lost; its tasks are not given again.
        """
        return self.run(sending.answer(self.talk, self.operations.pull(arguments.count(n, high=BATCH))))

    # ---- the cleaner's

    def requeue_expired(self, n: int = 200) -> int:
        """Take back up to `n` tasks whose lease ran out; give their number. Any number of processes may do this."""
        return self.run(self._requeued(n))

    def promote_due(self, n: int = 500) -> int:
        """Make up to `n` scheduled tasks ready whose time has come; give their number."""
        return self.run(self._promoted(n))

    def prune(self, n: int = 500) -> int:
        """Drop up to `n` done tasks that `keep_done` does not keep; give their number."""
        return self.run(self._prune(n))

    # ---- the operator's

    def retry_failed(self, *tasks: Tasks, all: bool = False) -> int:
        """Make failed tasks ready again with a clean record: these, or with `all` every failed task; give their number.

        Raises `InvalidInput` when no tasks are named and `all` is not given, and when both are.
        """
        return self.run(flows.retry_failed(self.talk, tasks, all=all))

    def forget(self, *tasks: Tasks) -> Outcome:
        """Remove tasks from every state. A running task loses its lease. Gives the state in which each task was."""
        return self.run(sending.answers(self.talk, self.operations.forget(tasks)))

    def inspect(self, task: TaskId) -> TaskInfo:
        """Tell all that is known of one task; `state` is None when no state holds the task."""
        return self.run(sending.answer(self.talk, self.operations.inspect(task)))

    def states(self, *tasks: Tasks) -> Outcome:
        """Give the state of each task, any number of them, 500 at one moment; `UNKNOWN` for a task in no state.

        `outcome["https://example.com/"]` is the state of one task, `outcome.items()` gives pairs of id and state, and
        `outcome.counts()` the number of tasks in each state.
        """
        return self.run(sending.answers(self.talk, self.operations.states(tasks)))

    def list(self, state: State | str, cursor: str | None = None, n: int = 100) -> Page:
        """Read a page of a state, about `n` entries: leases by deadline, scheduled by due time, sets in no order."""
        return self.run(self._page(state, cursor, n))

    def each(self, state: State | str) -> Iterator[Entry]:
        """Go through all entries of a state, in no order, some hundred at a time.

        A task that stays in the state is given at least once; a task that moves meanwhile may be left out.
        """
        known, cursor = arguments.state(state).value, flows.START
        while cursor is not None:
            found, cursor = self.run(flows.entries(self.talk, known, cursor))
            yield from found

    def stats(self) -> Stats:
        """Count all states, read counters and settings, at one moment."""
        return self.run(sending.answer(self.talk, self.operations.stats()))

    def workers(self) -> Found[WorkerInfo]:
        """Tell which workers there are: the 500 whose signs of life are the newest."""
        return self.run(self._workers())

    def history(self) -> Found[Sample]:
        """Give the counters of the last twenty minutes: about one sample per ten seconds, the oldest first."""
        return self.run(self._history())

    def errors(self, n: int = 10) -> Found[Failure]:
        """Give the last errors, newest first, 50 at most."""
        return self.run(self._errors(n))

    def pause(self) -> None:
        """Stop giving out tasks; tasks that have a lease are finished."""
        self.run(sending.answer(self.talk, self.operations.configure({"paused": b"1"})))

    def resume(self) -> None:
        """Give out tasks again."""
        self.run(sending.answer(self.talk, self.operations.configure({"paused": b"0"})))

    def configure(
        self,
        *,
        keep_done: int | str | timedelta | None = None,
        max_crashes: int | None = None,
        politeness: Politeness | Literal["off"] | None = None,
    ) -> None:
        """Change settings of the queue for all its clients; see `Queue()` for their meaning.

        When politeness begins or ends (`"off"`), the tasks that are in the queue are adapted too, 500 in each step;
        handlers that run are not disturbed. When politeness ends, the hosts and their rules are forgotten.
        """
        self.run(self._configured(keep_done, max_crashes, politeness))

    def exists(self) -> bool:
        """Say whether anything was put to the queue, or set for it, since the queue was last purged.

        A queue does not exist only because a worker or a cleaner waits there.
        """
        return self.run(flows.exists(self.talk))

    def drained(self, before: float | datetime | None = None) -> bool:
        """Say whether nothing is ready, held, scheduled (before a time, if one is given), or waiting for a host's turn.

        This is one atomic answer. A task that waits because its host's budget is used up does not count. A queue to
        which nothing was put is drained, too: `exists` tells a mistyped name from a queue that is done.
        """
        return self.run(self._drained(before))

    def wait_drained(self, timeout: float | None = None, before: float | datetime | None = None) -> bool:
        """Wait until the queue is drained (see `drained`), for `timeout` seconds at most; say whether it is."""
        return self.run(self._wait_drained(timeout, before))

    def why(self, task: TaskId) -> Reason:
        """Say why a task is not being worked on now, or who works on it."""
        return self.run(self._why(task))

    # ---- hosts of a polite queue

    def host(self, host: str) -> HostInfo:
        """Tell all about one host (`example.com`, `example.com:8080`, a URL of it, or a group).

        Like all methods about hosts, it raises `InvalidInput` on a queue that is not polite.
        """
        return self.run(self._host(host))

    def hosts(self, cursor: str | None = None, n: int = 100) -> HostPage:
        """Read a page of the hosts that the queue has met; the host with the next turn comes first."""
        return self.run(self._hosts(cursor, n))

    def each_host(self) -> Iterator[HostInfo]:
        """Go through all hosts that the queue has met, in no order; each is given at least once."""
        cursor = flows.START
        while cursor is not None:
            found, cursor = self.run(flows.host_rows(self.talk, cursor))
            if found is None:
                raise InvalidInput(self._not_polite())
            yield from found

    def set_host(
        self,
        host: str,
        *,
        delay: float | Literal["usual"] | None = None,
        per_host: int | Literal["usual"] | None = None,
        budget: int | Literal["none"] | None = None,
    ) -> HostInfo:
        """Give a host rules of its own; a rule that is None stays as it is.

        `delay` (seconds) and `per_host` replace those of the queue, `"usual"` brings the queue's back. `budget` is the
        most visits in all, acked or failed; when the budget is used up, the host's tasks wait until you raise it.
        """
        return self.run(self._set_host(host, delay, per_host, budget))

    def block_host(
        self,
        host: str,
        *,
        until: float | datetime | None = None,
        for_: float | None = None,
        reason: str | None = None,
    ) -> HostInfo:
        """Keep all workers from a host `until` a time or `for_` a number of seconds; visits under way are finished."""
        return self.run(self._block_host(host, until, for_, reason))

    def unblock_host(self, host: str) -> HostInfo:
        """End a block or a ban."""
        return self.run(self._host(host, ("unblock", "")))

    def ban_host(self, host: str, reason: str = "banned") -> HostInfo:
        """Never visit a host again: its ready tasks, and all that become ready later, go to failed with the reason."""
        return self.run(self._host(host, ("ban", arguments.reason(reason))))

    def purge(self) -> None:
        """Remove the queue with all its keys. Workers that hold leases lose them."""
        self.run(flows.purge(self.talk))

    def server(self) -> dict[str, Any]:
        """Give what the command INFO says about the server."""
        return self.run(self._server())


class AsyncQueue(_Face):
    """A queue, for asyncio. Each event loop that uses it has connections of its own."""

    async def run(self, flow: Flow[T]) -> T:
        """Carry out a flow of `flows.py`; the first one also meets the server."""
        if not self._opened:
            await self._drive(flows.opening(self.talk, self._settings, self.allow_eviction))
            self._opened = True
        return await self._drive(flow)

    async def _drive(self, flow: Flow[T]) -> T:
        link = self.link
        result: Any = None
        while True:
            try:
                step = flow.send(result)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # the flow's own type
            try:
                if isinstance(step, Send):
                    result = await link.send(step.commands)
                elif isinstance(step, Bell):
                    result = await link.wait_bell(self.operations.key("bell"), step.seconds)
                else:
                    await asyncio.sleep(step.seconds)
                    result = None
            except LINK_ERRORS as error:
                result = error

    @property
    def link(self) -> AsyncLink:
        """The connections of the running event loop, made when first asked for."""
        loop = asyncio.get_running_loop()
        if self._held is None or self._held[0] is not loop:
            # connections live and die with their loop: those of one that has ended are left to it
            self._links = {known: link for known, link in self._links.items() if not known.is_closed()}
            if loop not in self._links:
                self._links[loop] = AsyncLink(self.server_at, BELL_WAIT)
            self._held = (loop, self._links[loop])
        return self._held[1]

    _held: tuple[asyncio.AbstractEventLoop, AsyncLink] | None = None

    async def _claim_shielded(self, n: int, timeout_ms: int, max_runtime_ms: int, wait: float) -> list[Lease]:
        # a claim that is cancelled after it was sent may have been carried out: its leases are given back
        tokens: list[bytes] = []

        def nonce() -> bytes:
            tokens.append(self.token())
            return tokens[-1]

        if not self.talk.proved:
            await self.run(sending.prove(self.talk))
        talk = replace(self.talk, nonce=nonce)
        try:
            return await self.run(flows.claim(talk, n, timeout_ms, max_runtime_ms, wait))
        except asyncio.CancelledError:
            if tokens:
                task = asyncio.ensure_future(self._give_back(tokens[-1], timeout_ms, max_runtime_ms))
                self._background.add(task)
                task.add_done_callback(self._background.discard)
            raise

    async def _give_back(self, token: bytes, timeout_ms: int, max_runtime_ms: int) -> None:
        call = self.operations.claim(token, 0, timeout_ms, max_runtime_ms)
        replies = await self._drive(_replay(call, self.talk))
        if replies:
            await self._drive(sending.answers(self.talk, self.operations.release(replies)))

    async def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        loop = asyncio.get_running_loop()
        mine = [task for task in self._background if task.get_loop() is loop]
        if mine:
            await asyncio.gather(*mine, return_exceptions=True)
        self._held = None
        link = self._links.pop(loop, None)
        if link is not None:
            await link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- tasks in

    async def put(self, *tasks: Tasks, again: bool = False, group: str | None = None, durable: int = 0) -> Outcome:
        """Put tasks: ids, `Task`s, mappings of ids to payloads, or iterables of ids and `Task`s, any number.

        Gives for each id, in order, `ADDED` or the state that holds the id already; `again=True` puts done and failed
        tasks back with a clean record. Each 500 ids (or each MiB of payloads) are one atomic step. If one of the ids is
        bad, nothing is put.
        On a polite queue, `group` is the host that the tasks count for, instead of the host of their URL; a `Task` may
        have a group of its own. A queue that is not polite keeps groups for later. With `durable`, the call returns
        when that many replicas have confirmed the tasks (WAIT), so that a failover to one of them does not lose the
        tasks.
        Raises `InvalidInput`, `ServerFull`, `Unavailable`, `NotReplicated`.
        """
        calls = self.operations.put(tasks, self.token, again=again, group=group)
        return await self.run(sending.answers(self.talk, calls, _replicas(durable)))

    async def schedule(
        self,
        *tasks: Tasks,
        at: float | datetime | None = None,
        after: float | None = None,
        again: bool = False,
        group: str | None = None,
        durable: int = 0,
    ) -> Outcome:
        """Schedule tasks `at` a time (Unix seconds or an aware datetime), or `after` a number of seconds.

        A task that is scheduled already gets the new time, earlier or later, and the answer `SCHEDULED`. `after` counts
        by the server's clock. `group` and `durable` are as for `put`. Raises `InvalidInput`, `ServerFull`,
        `Unavailable`, `NotReplicated`.
        """
        calls = self.operations.schedule(tasks, self.token, at=at, after=after, again=again, group=group)
        return await self.run(sending.answers(self.talk, calls, _replicas(durable)))

    # ---- leases

    async def claim(
        self, n: int = 1, *, timeout: float | None = None, max_runtime: float | None = None, wait: float = 0.0
    ) -> list[Lease]:
        """Lease up to `n` ready tasks (500 at most) for `timeout` seconds; wait up to `wait` seconds for the first.

        Gives an empty list when nothing is ready or the queue is paused. Expired and due tasks are made ready first.
        Raises `InvalidInput`, `Unavailable`.
        """
        return await self._claim_shielded(*self._claim(n, timeout, max_runtime, wait))

    @overload
    async def extend(self, lease: Lease, timeout: float | None = None) -> Lease: ...
    @overload
    async def extend(self, lease: Iterable[Lease], timeout: float | None = None) -> Outcome: ...
    async def extend(self, lease: Lease | Iterable[Lease], timeout: float | None = None) -> Lease | Outcome:
        """Let leases run for `timeout` seconds from now; also one that ran out, if nobody has taken the task back yet.

        For one lease: gives the lease with its new deadline, or raises `LeaseLost`. For many: gives an answer for each,
        `OK`, `LOST`, or `MAX_RUNTIME` if the lease may not be extended any more.
        """
        return await self.run(self._extend(lease, timeout))

    @overload
    async def ack(
        self, lease: Lease, put: Tasks | None = None, *, again_in: float | None = None, payload: Payload = None
    ) -> Answer: ...
    @overload
    async def ack(self, lease: Iterable[Lease], put: None = None, *, again_in: float | None = None) -> Outcome: ...
    async def ack(
        self,
        lease: Lease | Iterable[Lease],
        put: Tasks | None = None,
        *,
        again_in: float | None = None,
        payload: Payload = None,
    ) -> Answer | Outcome:
        """End leases as done; with `put`, put the tasks that one of them found in the same atomic step.

        The step takes up to 499 tasks and 1 MiB of their payloads; further tasks are put before the ack, never after.

        With `again_in`, the tasks are not done, but scheduled again in that many seconds, with a clean record; a single
        lease may also give its task a new `payload`.

        An ack after the deadline counts as long as nobody has taken the task back. For one lease: gives `OK`, or
        `ALREADY` when this very ack was carried out before, and raises `LeaseLost` when the lease is lost. For many:
        gives an answer for each.
        """
        return await self.run(self._ack(lease, put, again_in, payload))

    @overload
    async def release(self, lease: Lease, delay: float = 0.0, *, block_host: float = 0.0) -> Answer: ...
    @overload
    async def release(self, lease: Iterable[Lease], delay: float = 0.0, *, block_host: float = 0.0) -> Outcome: ...
    async def release(
        self, lease: Lease | Iterable[Lease], delay: float = 0.0, *, block_host: float = 0.0
    ) -> Answer | Outcome:
        """Give leases back; their tasks are ready at once, or after `delay` seconds. Answers as `ack` does.

        A release does not count as an attempt. On a polite queue, `block_host` also keeps all workers from the hosts of
        these tasks for that many seconds, in the same step.
        """
        return await self.run(self._release(lease, delay, block_host))

    @overload
    async def fail(
        self, lease: Lease, error: BaseException | str, *, retry_in: float | None = None, give_up: bool = False
    ) -> Answer: ...
    @overload
    async def fail(
        self,
        lease: Iterable[Lease],
        error: BaseException | str,
        *,
        retry_in: float | None = None,
        give_up: bool = False,
    ) -> Outcome: ...
    async def fail(
        self,
        lease: Lease | Iterable[Lease],
        error: BaseException | str,
        *,
        retry_in: float | None = None,
        give_up: bool = False,
    ) -> Answer | Outcome:
        """End leases as failed; tasks are tried again in `retry_in` seconds, never (`give_up`), or as the policy says.

        `error` is kept with the task, at most 4 KiB of it. Answers as `ack` does.
        """
        leases = arguments.leases(lease)
        return await self.run(self._end(lease, leases, self._fail(leases, error, retry_in, give_up)))

    async def pull(self, n: int = 1) -> list[Task]:
        """Take up to `n` tasks (500 at most) without a lease; they count as done at once.

        This is at most once: if you die, the tasks are lost. One call brings about 4 MiB of payloads, so fewer tasks
        when their payloads are large; no task comes only when no task is ready.

        Raises `Unavailable` when the reply was lost; its tasks are not given again.
        """
        return await self.run(sending.answer(self.talk, self.operations.pull(arguments.count(n, high=BATCH))))

    # ---- the cleaner's

    async def requeue_expired(self, n: int = 200) -> int:
        """Take back up to `n` tasks whose lease ran out; give their number. Any number of processes may do this."""
        return await self.run(self._requeued(n))

    async def promote_due(self, n: int = 500) -> int:
        """Make up to `n` scheduled tasks ready whose time has come; give their number."""
        return await self.run(self._promoted(n))

    async def prune(self, n: int = 500) -> int:
        """Drop up to `n` done tasks that `keep_done` does not keep; give their number."""
        return await self.run(self._prune(n))

    # ---- the operator's

    async def retry_failed(self, *tasks: Tasks, all: bool = False) -> int:
        """Make failed tasks ready again with a clean record: these, or with `all` every failed task; give their number.

        Raises `InvalidInput` when no tasks are named and `all` is not given, and when both are.
        """
        return await self.run(flows.retry_failed(self.talk, tasks, all=all))

    async def forget(self, *tasks: Tasks) -> Outcome:
        """Remove tasks from every state. A running task loses its lease. Gives the state in which each task was."""
        return await self.run(sending.answers(self.talk, self.operations.forget(tasks)))

    async def inspect(self, task: TaskId) -> TaskInfo:
        """Tell all that is known of one task; `state` is None when no state holds the task."""
        return await self.run(sending.answer(self.talk, self.operations.inspect(task)))

    async def states(self, *tasks: Tasks) -> Outcome:
        """Give the state of each task, any number of them, 500 at one moment; `UNKNOWN` for a task in no state.

        `outcome["https://example.com/"]` is the state of one task, `outcome.items()` gives pairs of id and state, and
        `outcome.counts()` the number of tasks in each state.
        """
        return await self.run(sending.answers(self.talk, self.operations.states(tasks)))

    async def list(self, state: State | str, cursor: str | None = None, n: int = 100) -> Page:
        """Read a page of a state, about `n` entries: leases by deadline, scheduled by due time, sets in no order."""
        return await self.run(self._page(state, cursor, n))

    async def each(self, state: State | str) -> AsyncIterator[Entry]:
        """Go through all entries of a state, in no order, some hundred at a time.

        A task that stays in the state is given at least once; a task that moves meanwhile may be left out.
        """
        known, cursor = arguments.state(state).value, flows.START
        while cursor is not None:
            found, cursor = await self.run(flows.entries(self.talk, known, cursor))
            for entry in found:
                yield entry

    async def stats(self) -> Stats:
        """Count all states, read counters and settings, at one moment."""
        return await self.run(sending.answer(self.talk, self.operations.stats()))

    async def workers(self) -> Found[WorkerInfo]:
        """Tell which workers there are: the 500 whose signs of life are the newest."""
        return await self.run(self._workers())

    async def history(self) -> Found[Sample]:
        """Give the counters of the last twenty minutes: about one sample per ten seconds, the oldest first."""
        return await self.run(self._history())

    async def errors(self, n: int = 10) -> Found[Failure]:
        """Give the last errors, newest first, 50 at most."""
        return await self.run(self._errors(n))

    async def pause(self) -> None:
        """Stop giving out tasks; tasks that have a lease are finished."""
        await self.run(sending.answer(self.talk, self.operations.configure({"paused": b"1"})))

    async def resume(self) -> None:
        """Give out tasks again."""
        await self.run(sending.answer(self.talk, self.operations.configure({"paused": b"0"})))

    async def configure(
        self,
        *,
        keep_done: int | str | timedelta | None = None,
        max_crashes: int | None = None,
        politeness: Politeness | Literal["off"] | None = None,
    ) -> None:
        """Change settings of the queue for all its clients; see `Queue()` for their meaning.

        When politeness begins or ends (`"off"`), the tasks that are in the queue are adapted too, 500 in each step;
        handlers that run are not disturbed. When politeness ends, the hosts and their rules are forgotten.
        """
        await self.run(self._configured(keep_done, max_crashes, politeness))

    async def exists(self) -> bool:
        """Say whether anything was put to the queue, or set for it, since the queue was last purged.

        A queue does not exist only because a worker or a cleaner waits there.
        """
        return await self.run(flows.exists(self.talk))

    async def drained(self, before: float | datetime | None = None) -> bool:
        """Say whether nothing is ready, held, scheduled (before a time, if one is given), or waiting for a host's turn.

        This is one atomic answer. A task that waits because its host's budget is used up does not count. A queue to
        which nothing was put is drained, too: `exists` tells a mistyped name from a queue that is done.
        """
        return await self.run(self._drained(before))

    async def wait_drained(self, timeout: float | None = None, before: float | datetime | None = None) -> bool:
        """Wait until the queue is drained (see `drained`), for `timeout` seconds at most; say whether it is."""
        return await self.run(self._wait_drained(timeout, before))

    async def why(self, task: TaskId) -> Reason:
        """Say why a task is not being worked on now, or who works on it."""
        return await self.run(self._why(task))

    # ---- hosts of a polite queue

    async def host(self, host: str) -> HostInfo:
        """Tell all about one host (`example.com`, `example.com:8080`, a URL of it, or a group).

        Like all methods about hosts, it raises `InvalidInput` on a queue that is not polite.
        """
        return await self.run(self._host(host))

    async def hosts(self, cursor: str | None = None, n: int = 100) -> HostPage:
        """Read a page of the hosts that the queue has met; the host with the next turn comes first."""
        return await self.run(self._hosts(cursor, n))

    async def each_host(self) -> AsyncIterator[HostInfo]:
        """Go through all hosts that the queue has met, in no order; each is given at least once."""
        cursor = flows.START
        while cursor is not None:
            found, cursor = await self.run(flows.host_rows(self.talk, cursor))
            if found is None:
                raise InvalidInput(self._not_polite())
            for info in found:
                yield info

    async def set_host(
        self,
        host: str,
        *,
        delay: float | Literal["usual"] | None = None,
        per_host: int | Literal["usual"] | None = None,
        budget: int | Literal["none"] | None = None,
    ) -> HostInfo:
        """Give a host rules of its own; a rule that is None stays as it is.

        `delay` (seconds) and `per_host` replace those of the queue, `"usual"` brings the queue's back. `budget` is the
        most visits in all, acked or failed; when the budget is used up, the host's tasks wait until you raise it.
        """
        return await self.run(self._set_host(host, delay, per_host, budget))

    async def block_host(
        self,
        host: str,
        *,
        until: float | datetime | None = None,
        for_: float | None = None,
        reason: str | None = None,
    ) -> HostInfo:
        """Keep all workers from a host `until` a time or `for_` a number of seconds; visits under way are finished."""
        return await self.run(self._block_host(host, until, for_, reason))

    async def unblock_host(self, host: str) -> HostInfo:
        """End a block or a ban."""
        return await self.run(self._host(host, ("unblock", "")))

    async def ban_host(self, host: str, reason: str = "banned") -> HostInfo:
        """Never visit a host again: its ready tasks, and all that become ready later, go to failed with the reason."""
        return await self.run(self._host(host, ("ban", arguments.reason(reason))))

    async def purge(self) -> None:
        """Remove the queue with all its keys. Workers that hold leases lose them."""
        await self.run(flows.purge(self.talk))

    async def server(self) -> dict[str, Any]:
        """Give what the command INFO says about the server."""
        return await self.run(self._server())


def _replicas(durable: object) -> int:
    return arguments.count(durable, "durable", low=0, high=100)


def _replay(call: Call[replies.Claimed], talk: Talk) -> Flow[list[Lease]]:
    reply = yield Send([call.command(int(talk.deadline * 1000))])
    if not isinstance(reply, list) or isinstance(reply[0], BaseException):
        return []  # the leases run out by themselves
    try:
        return (yield from flows.whole(talk, call.read(reply[0]))).leases
    except TimeoutqError:
        return []


def twin(queue: AsyncQueue) -> Queue:
    """Make a blocking client of the same queue and the same name, with connections of its own: for a thread."""
    url, client, deadline = queue.given
    made = Queue(
        queue.name,
        url,
        client=client,
        timeout=queue.timeout,
        max_runtime=queue.max_runtime,
        deadline=deadline,
        allow_eviction=queue.allow_eviction,
    )
    made.worker = queue.worker
    return made
