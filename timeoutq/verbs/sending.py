"""Sends calls until each has an answer or the deadline is over. Decides what may be sent again, when, and for how long.

A flow is a generator: it yields steps, such as "send these commands", and gets the result of each step.
`client/driving.py` carries the steps out, blocking or for asyncio.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from timeoutq.server import rights, scripts
from timeoutq.server.calls import Call, Command, flushes
from timeoutq.server.deadlines import ATTEMPT, CONNECT, SLICE, SLOWEST
from timeoutq.server.troubles import is_full, is_hopeless, is_library_missing, is_transient
from timeoutq.verbs import confirming, replies
from timeoutq.verbs.confirming import CONFIRMED, UNCONFIRMED, Durable
from timeoutq.verbs.operations import Operations
from timeoutq.words.errors import AccessDenied, NotReplicated, ServerError, TimeoutqError, Unavailable
from timeoutq.words.model import Outcome
from timeoutq.words.retry import RetryPolicy

if TYPE_CHECKING:
    from timeoutq.server.cluster import Where
    from timeoutq.server.scripts import About
    from timeoutq.server.server import Server

T = TypeVar("T")

BELL_WAIT = 10.0
"""The longest wait for one stroke of the bell, seconds. Then the worker looks all the same: a stroke may get lost."""

LAST_START = 1 - CONNECT - ATTEMPT
"""The part of the deadline after which no new attempt begins, because the attempt could not end in time."""

RESEND = 50.0  # seconds after which a call that may have run is not sent again: the queue knows the calls of one minute


@dataclass(frozen=True, slots=True)
class Send:
    """Send these commands. The result is a list of replies, or the error of the network."""

    commands: Sequence[Command]
    at: Where = None


@dataclass(frozen=True, slots=True)
class Sends:
    """Send several lists of commands at the same time, a flush for each node. The result is that of each `Send`."""

    parts: Sequence[Send]
    within: float | None = None  # a deadline in seconds, if it is to be shorter than that of the client


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait for `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Bell:
    """Wait for the bell `key`, at most `seconds`; the server then runs the commands `then`.

    The result is the stroke or None, and the replies to the commands; or the error of the network.
    """

    key: str
    seconds: float
    at: Where = None
    then: Sequence[Command] = ()


@dataclass(frozen=True, slots=True)
class Alarm:
    """Wait until any client sounds the alarm `key` after the sound `last`, at most `seconds`, and at most `BELL_WAIT`.

    The result is the id of the newest sound, which is `last` when there was none, or the error of the network.
    """

    key: str
    last: bytes
    seconds: float
    at: Where = None


@dataclass(frozen=True, slots=True)
class Nodes:
    """Look at the map of the cluster. The result is its nodes, each with whether it is a primary, or the error."""


def a_moment() -> Sleep:
    """Give the pause before a command that failed is sent again: up to 0.2 s, so that clients disperse."""
    return Sleep(random.uniform(0, 0.2))  # noqa: S311  # jitter, not a secret


Step = Send | Sends | Sleep | Bell | Alarm | Nodes
Flow = Generator[Step, Any, T]


class ServerClock:
    """What the server's clock shows, reckoned from the last reply with a time. No client's own clock matters."""

    STEP_MS = 200  # how many ms the server's clock may gain between two replies before we say that it has jumped
    TRIP_MS = 1000  # the longest round trip, ms, that counts as usual

    def __init__(self) -> None:
        self._offset_ms: int | None = None
        # if the server's clock has run evenly, it is ahead of ours by `_least_ms` to `_most_ms`
        self._least_ms = self._most_ms = self._seen_ms = self._trip_ms = 0

    def another(self) -> ServerClock:
        """Make the clock of another part of the queue, which may be on another server."""
        return type(self)()

    def seen(self, now_ms: int, asked: float) -> None:
        """Take the time in a reply that has just come; `asked` is when the request went, by the monotonic clock."""
        here_ms = int(time.monotonic() * 1000)
        least, most = now_ms - here_ms, now_ms - int(asked * 1000)
        self._trip_ms = max(self._trip_ms * 7 // 8, min(most - least, self.TRIP_MS))
        slewed_ms = self.STEP_MS + (here_ms - self._seen_ms) // 1000
        if self._offset_ms is None or most < self._least_ms:
            # a step back is believed at once, so that a later step forward is seen as a jump
            self._least_ms, self._most_ms, self._seen_ms = least, most, here_ms
        elif least <= self._most_ms + slewed_ms:
            self._least_ms = max(self._least_ms, least)
            self._most_ms = max(self._least_ms, min(self._most_ms, most))
            self._seen_ms = here_ms
        self._offset_ms = least

    def forget(self) -> None:
        """Forget the time: the next reply comes from another server, with a clock of its own."""
        self._offset_ms = None

    def swept(self, now_ms: int, asked: float) -> None:
        """Take the time in the reply of a cleaner's script, which has already judged whether the clock jumped."""
        self.forget()
        self.seen(now_ms, asked)

    @property
    def now_ms(self) -> int:
        """The server's time, or 0 while it is unknown."""
        return 0 if self._offset_ms is None else self._offset_ms + int(time.monotonic() * 1000)

    @property
    def latest_ms(self) -> int:
        """The most that the server's clock may show now, even if its last reply was read late; 0 if it is unknown."""
        return 0 if self._offset_ms is None else max(self._offset_ms, self._most_ms) + int(time.monotonic() * 1000)

    @property
    def expected_ms(self) -> int:
        """The server's time at which a request that is sent now arrives, or 0 while the time is unknown."""
        return 0 if self._offset_ms is None else self._most_ms + self._trip_ms + int(time.monotonic() * 1000)


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for every lease of a client, unless a call says something else."""

    timeout_ms: int
    max_runtime_ms: int  # the longest time that a lease may be held in all; 0 is no limit
    retry: RetryPolicy


@dataclass(slots=True)
class Talk:
    """What the flows of one queue share."""

    operations: Operations
    server: Server
    clock: ServerClock
    deadline: float  # how long one call may take, seconds
    nonce: Callable[[], bytes]  # makes the token or the id of a call, a new one each time
    terms: Terms
    at: Where = None  # where in a cluster the keys of these operations are
    proved: bool = False
    """Whether the user may run all commands of the scripts; this is tried before the first call that writes."""
    durable: Durable = field(default_factory=Durable)
    settings: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """What the caller gave, to be written where the queue has no such setting: the server may come back empty."""
    away_since: float = 0.0
    """Since when the server has not answered, by the monotonic clock; 0: it has answered the last attempt."""

    @property
    def client(self) -> str:
        """The name of the client, with the name of whom it acts for."""
        return self.nonce().partition(b"#")[0].decode("utf-8", "replace")

    def pause(self, tries: int, left: float) -> Sleep:
        """Give the pause before the next attempt of a call: the longer, the longer the server has been away."""
        away = time.monotonic() - self.away_since if self.away_since else 0.0
        longest = max(min(0.02 * 2 ** min(tries, 5), 0.5), min(away / 4, LONGEST_PAUSE))
        # not a part of what is left: many attempts would crowd at the end of the deadline
        return Sleep(min(random.uniform(0, longest), max(0.0, left)))  # noqa: S311  # jitter, not a secret


LONGEST_PAUSE = 3.0  # seconds between two attempts of one call, at most


def prove(talk: Talk) -> Flow[None]:
    """Raise `AccessDenied` if the user may not run one of the scripts' commands: a script would stop half-way."""
    found, refused = yield from settled(talk, [talk.operations.about(), talk.operations.probe(*rights.trials())])
    if found.is_another:
        raise ServerError(
            f"{talk.server.url} has another text of revision {found.revision} of the library {scripts.NAME} "
            f"({found.digest[:12]}) than this timeoutq ({scripts.digest()[:12]}): use one timeoutq for all, then run "
            "timeoutq library --load"
        )
    if found.is_older:
        yield from _load(talk)
    if set(refused) - {"INFO"}:
        raise _denied(talk, refused, f" on the keys of queue {talk.operations.name}")
    talk.proved = True


def _prove_wait(talk: Talk) -> Flow[None]:
    # without this trial, the server would carry out the call, and refuse only the WAIT behind the call
    try:
        yield from ask(talk, [("WAIT", 0, 1)])
    except AccessDenied as error:
        if "'wait'" not in str(error):
            raise
        raise _denied(talk, ["WAIT"], ", which waits for replicas (durable)") from error
    except ServerError:
        return  # a server that has become a replica refuses WAIT: the call itself says so, and finds the new primary
    talk.durable.proved = True


def _denied(talk: Talk, refused: Sequence[str], where: str) -> AccessDenied:
    return AccessDenied(
        f"{talk.server.url} refuses access: user {talk.server.user or 'default'} may not run {', '.join(refused)}"
        f"{where}; nothing was written. Let an operator run: "
        f"{rights.cure(talk.server.user, refused)}"  # commands were tried, so the user may use the keys
    )


_OPENING = scripts.READING | {"about", "probe"}  # what a client may call before it has proved that its user may write


def settle(talk: Talk, calls: Sequence[Call[Any]], replicas: int = 0) -> Flow[list[Any]]:
    """Send calls in one flush until each has an answer or the deadline is over; heavy calls go in several flushes.

    Gives for each call its answer, or the `TimeoutqError` in which the call ended. A call that is not replayable is
    sent again only if it surely did not run. On a durable queue, or with `replicas`, an answer counts when that many
    replicas have confirmed its writes (the higher of the two numbers); otherwise the call is sent again, and ends in
    `NotReplicated`. With `UNCONFIRMED` in the place of `replicas`, none waits.

    The usual case is short: one call that no replica must confirm, answered at the first attempt. `_Flush` judges
    everything else.
    """
    if not calls:
        return []  # an event loop would wait for the reply to nothing
    if not talk.proved and any(call.name not in _OPENING for call in calls):
        try:
            yield from prove(talk)
        except TimeoutqError as error:
            return [error] * len(calls)
    given: Any = None
    began = time.monotonic()
    durable = talk.durable
    waits = replicas > 0 or (
        (durable.replicas > 0 or began >= durable.until) and replicas == 0 and any(c.name in CONFIRMED for c in calls)
    )
    if len(calls) == 1 and not waits and calls[0].expects is None and (calls[0].dated is None or talk.clock.now_ms):
        not_after = _last_moment(talk, talk.deadline * ATTEMPT + calls[0].weight / SLOWEST)
        given = yield Send((calls[0].command(not_after=not_after),), talk.at)
        value: Any = given if isinstance(given, BaseException) else given[0]
        if not isinstance(value, BaseException):
            talk.away_since = 0.0
            return [calls[0].read(value)]
    if waits and not durable.proved and (replicas > 0 or durable.replicas > 0):
        try:
            yield from _prove_wait(talk)
        except TimeoutqError as error:
            return [error] * len(calls)
    replicas = replicas if waits else UNCONFIRMED
    results: list[Any] = []
    broken: TimeoutqError | None = None
    for flush in flushes(calls):
        results += yield from _Flush(talk, flush, replicas, began or time.monotonic()).settle(given)
        given, began = None, 0.0
        broken = next((result for result in results if type(result) in (Unavailable, NotReplicated)), None)
        if broken is not None:
            break
    return results + [broken] * (len(calls) - len(results))


class _Flush:
    """Calls that travel together, until each has an answer or the deadline is over."""

    def __init__(self, talk: Talk, calls: Sequence[Call[Any]], replicas: int, began: float) -> None:
        self.talk = talk
        self.calls = list(calls)
        self.began = began
        self.weight = sum(call.weight for call in calls)
        self.least = replicas  # how many replicas must confirm the calls, whatever the setting of the queue says
        self.heeds = replicas >= 0 and any(call.name in CONFIRMED for call in calls)
        self.patience = math.inf  # seconds after which the flush ends unless replicas have confirmed it
        self.results: list[Any] = [None] * len(calls)
        self.open: list[int] = list(range(len(calls)))  # the calls that are to be sent, or sent again
        self.unconfirmed: dict[int, Any] = {}  # the answers of those that replicas have not confirmed
        self.may_have_run = False
        # of the last attempt: whether it looked at the setting, and for how many replicas it waited
        self.looked, self.waited = False, 0
        self.missing = False  # whether the server did not know a function
        self.smaller = False  # whether a full server gets a smaller call in the place of one that it has refused
        self.error: object = None  # its last error
        self.refusal: Exception | None = None  # why the library was not loaded

    @property
    def wanted(self) -> int:
        """How many replicas must confirm the calls."""
        return max(self.least, self.talk.durable.replicas) if self.heeds else self.least

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def settle(self, given: Any) -> Flow[list[Any]]:
        """Send the calls again and again; `given` is the reply to the first attempt, if that was made before."""
        talk, tries = self.talk, 0
        # the bytes of a flush need time to travel, in addition to the time for the reply
        carried = self.weight / SLOWEST
        while True:
            if talk.clock.now_ms == 0 and any(self.calls[i].dated is not None for i in self.open):
                yield from _ask_time(talk)
            # an attempt is waited for as long as `left`; then the next attempt asks again
            left = min(talk.deadline - self.elapsed, talk.deadline * ATTEMPT)
            if given is None:
                given = yield Send(self.commands(_last_moment(talk, left + carried), left), talk.at)
            self.judge(given)
            given = None
            tries += 1
            elapsed = self.elapsed
            if not self.open or self.is_too_old(elapsed) or (self.unconfirmed and elapsed >= self.patience):
                break
            left = talk.deadline * LAST_START - elapsed
            # a server that answers, but has lost the library, gets the library at once, even if no time is left for a
            # new attempt. Nobody knows beforehand how long heavy calls travel
            in_time = elapsed < talk.deadline * (1 - ATTEMPT) + carried or (self.weight > SLICE and tries < 3)
            if left < 0.001 and not (self.missing and in_time):
                break
            if self.smaller and tries < 3:
                continue
            if self.missing:
                self.refusal = yield from _load(talk)
                if self.refusal is None and talk.settings:
                    yield from _first(talk, talk.operations.configure(talk.settings).command())
                if self.refusal is not None and not is_transient(self.refusal):
                    break
                if tries < 3:
                    continue
            if isinstance(self.error, Exception) and str(self.error).startswith("LATE"):
                yield from _ask_time(talk)
            yield talk.pause(tries, left)
        connected = None
        if self.unconfirmed and self.error is None:
            connected = yield from count_replicas(talk)
        return self.end(connected)

    def commands(self, not_after: int, left: float) -> list[Command]:
        """Give the commands of the next attempt, which takes `left` seconds at most."""
        talk, elapsed = self.talk, self.elapsed
        age_ms = max(1, int(elapsed * 1000)) if self.may_have_run else 0
        expected = talk.clock.expected_ms
        commands = [self.calls[i].command(age_ms, not_after=not_after, expected=expected) for i in self.open]
        if self.least < 0:
            return commands
        self.looked = self.heeds and time.monotonic() >= talk.durable.until
        if self.looked:
            commands.append(confirming.look(talk.operations))
        self.waited = self.wanted
        if self.waited:
            self.patience = confirming.patience(self.calls)
            commands.append(("WAIT", self.waited, max(1, int(min(left, self.patience - elapsed) * 800))))
        return commands

    def judge(self, reply: Any) -> None:
        """Take the reply to an attempt: the answers of the open calls, or the error of the network."""
        talk = self.talk
        self.missing, self.smaller, self.error = False, False, None
        sent, self.open = self.open, list[int]()
        if isinstance(reply, BaseException):
            self.error, self.may_have_run = reply, True
            talk.away_since = talk.away_since or time.monotonic()
            for i in sent:
                self.results[i] = reply
                if self.calls[i].replayable and not is_hopeless(reply):
                    self.open.append(i)
            return
        talk.away_since = 0.0
        confirmed: object = 0
        if self.waited:
            confirmed = reply.pop()
            talk.durable.proved |= isinstance(confirmed, int)
        if self.looked:
            talk.durable.read(reply.pop(), time.monotonic())
        is_confirmed = self.least < 0 or (isinstance(confirmed, int) and confirmed >= self.wanted)
        for i, value in zip(sent, reply, strict=True):
            if isinstance(value, BaseException):
                self.error = self.results[i] = value
                smaller = self.calls[i].when_full if is_full(value) else None
                if smaller is not None:
                    self.calls[i], self.smaller = smaller, True
                self.missing = self.missing or is_library_missing(value)
                if smaller is not None or is_library_missing(value) or is_transient(value):
                    self.open.append(i)
                continue
            self.results[i] = result = self.calls[i].read(value)
            if i in self.unconfirmed:
                self.results[i] = confirming.merged(self.calls[i], self.unconfirmed.pop(i), result)
            if not is_confirmed and confirming.is_promise(result):
                self.unconfirmed[i], self.results[i] = self.results[i], confirmed
                self.open.append(i)
                self.may_have_run = True
        if self.waited and not is_confirmed:
            talk.durable.until = 0.0  # the queue may ask for fewer by now

    def is_too_old(self, elapsed: float) -> bool:
        """Say whether the queue may have forgotten these calls, so that they must not be sent again."""
        if not self.may_have_run or elapsed <= RESEND:
            return False
        for i in self.open:
            if is_library_missing(self.results[i]):
                place = self.talk.server.place
                self.results[i] = Unavailable(f"{place} took {elapsed:.0f} s; the call is not sent again")
        return True

    def end(self, connected: int | None) -> list[Any]:
        """Give for each call its answer, or the error in which it ended; `connected` is how many replicas there are."""
        talk, explain = self.talk, self.talk.server.explain
        name = talk.operations.name
        for i in self.unconfirmed:  # the result is how many have confirmed, or an error of a server that went away
            few, wanted = self.results[i], max(1, self.wanted)
            why = confirming.told(explain(few) if isinstance(few, BaseException) else few, wanted)
            few = "" if connected is None or connected >= wanted else confirming.too_few(connected, name)
            self.results[i] = confirming.not_replicated(self.calls[i], name, talk.server.place, why, few)
        if self.refusal is not None:
            self.results = [self.refusal if is_library_missing(result) else result for result in self.results]
        return [explain(result) if isinstance(result, BaseException) else result for result in self.results]


def load(talk: Talk, at: Where) -> Flow[About]:
    """Have a server, or a node, load the library, whatever it has; give which one it has now. For an administrator."""
    yield from ask(talk, [("FUNCTION", "LOAD", "REPLACE", scripts.library())], at)
    return scripts.about((yield from ask(talk, [talk.operations.about().command()], at))[0])


def _load(talk: Talk) -> Flow[Exception | None]:
    # another client may load the library at the same time, or have it forgotten, and a newer revision must stay. Gives
    # why it is not loaded; an error of the network comes again by itself
    refusal: Any = None
    for tries in range(3):
        refusal = yield from _first(talk, ("FUNCTION", "LOAD", scripts.library()))
        if not isinstance(refusal, Exception) or "already exists" not in str(refusal):
            break
        about = yield from _first(talk, talk.operations.about().command())
        if is_library_missing(about):
            if tries < 2:
                continue  # it may be gone since
            return ServerError(
                f"{talk.server.url} has a library {scripts.NAME} that is not of timeoutq: "
                f"redis-cli FUNCTION DELETE {scripts.NAME}"
            )
        if about is None or isinstance(about, Exception) or not scripts.about(about).is_older:
            return None
        refusal = yield from _first(talk, ("FUNCTION", "LOAD", "REPLACE", scripts.library()))
        break
    if not isinstance(refusal, Exception):
        return None
    if is_full(refusal):
        return type(refusal)(f"{refusal} (FUNCTION LOAD; when it has memory again: timeoutq library --load)")
    return refusal


def _first(talk: Talk, command: Command) -> Flow[Any]:
    # the reply to one command, or the error of the server; None if the network failed
    found: Any = yield Send([command], talk.at)
    return cast("Any", found)[0] if isinstance(found, list) else None


def _last_moment(talk: Talk, seconds: float) -> int:
    """Give the moment, ms of the server's clock, after which the server refuses a dated call; 0: the clock is unknown.

    It comes a tenth of the `seconds` early: a call never runs when nobody waits for it any more.
    """
    now_ms = talk.clock.now_ms
    return now_ms + int(seconds * 900) if now_ms else 0


def count_replicas(talk: Talk) -> Flow[int | None]:
    """Ask once how many replicas the server has; None if it does not tell."""
    info = yield from _first(talk, ("INFO", "replication"))
    return replies.number(cast("Any", info).get("connected_slaves")) if isinstance(info, dict) else None


def _ask_time(talk: Talk) -> Flow[None]:
    asked = time.monotonic()
    tell_time(talk, (yield from _first(talk, ("TIME",))), asked)


def time_of(talk: Talk) -> Flow[float]:
    """Ask what the server's clock shows, Unix seconds."""
    ((seconds, micros),) = yield from ask(talk, [("TIME",)])
    return int(seconds) + int(micros) / 1e6


def tell_time(talk: Talk, moment: Any, asked: float) -> None:
    """Take the reply to TIME; `asked` is when the command was sent, by the monotonic clock."""
    if isinstance(moment, list | tuple):
        seconds, micros = cast("Any", moment)
        talk.clock.seen(int(seconds) * 1000 + int(micros) // 1000, asked)


def answer(talk: Talk, call: Call[T], replicas: int = 0) -> Flow[T]:
    """Send one call and give its answer, or raise the error in which the call ended; `replicas` is as for `settle`."""
    result = (yield from settle(talk, [call], replicas))[0]
    if isinstance(result, TimeoutqError):
        raise result
    return result  # type: ignore[no-any-return]  # settle() gives what the call reads


def settled(talk: Talk, calls: Sequence[Call[Any]], replicas: int = 0) -> Flow[list[Any]]:
    """Do as `settle`, and raise the first error in which a call ended."""
    results = yield from settle(talk, calls, replicas)
    for result in results:
        if isinstance(result, TimeoutqError):
            raise result
    return results


CALLS = 16  # the most calls in one flush of a long batch


def answers(talk: Talk, calls: Sequence[Call[Outcome]], replicas: int = 0) -> Flow[Outcome]:
    """Send the calls of a long batch, `CALLS` in a flush, and give all their answers as one; see `settle`."""
    if len(calls) == 1:
        return (yield from answer(talk, calls[0], replicas))
    parts: list[Outcome] = []
    for at in range(0, len(calls), CALLS):
        parts += yield from settled(talk, calls[at : at + CALLS], replicas)
    return joined(parts)


def joined(parts: Sequence[Outcome]) -> Outcome:
    """Give the answers of several calls as one."""
    return Outcome([task for part in parts for task in part.tasks], b"".join(part.codes for part in parts))


def once(talk: Talk, step: Step) -> Flow[Any]:
    """Carry out a step, and raise its error."""
    reply = yield step
    if isinstance(reply, BaseException):
        raise talk.server.explain(reply)
    return reply


def insist(talk: Talk, step: Step) -> Flow[Any]:
    """Carry out a step that only reads, again and again until the server answers."""
    began = time.monotonic()
    while isinstance(reply := (yield step), BaseException):
        if is_hopeless(reply) or time.monotonic() - began > talk.deadline * LAST_START:
            raise talk.server.explain(reply)
        yield a_moment()
    return reply


def ask(talk: Talk, commands: Sequence[Command], at: Where = None) -> Flow[list[Any]]:
    """Send plain commands that only read, to `at` if it is given; raise the first error among the replies."""
    began = time.monotonic()
    while True:
        reply: Any = yield Send(commands, talk.at if at is None else at)
        errors = [reply] if isinstance(reply, BaseException) else [r for r in reply if isinstance(r, BaseException)]
        if not errors:
            return list(cast("Any", reply))
        hopeless = is_hopeless(errors[0]) or not (isinstance(reply, BaseException) or is_transient(errors[0]))
        left = talk.deadline * LAST_START - (time.monotonic() - began)
        if hopeless or left < 0:
            raise talk.server.explain(errors[0])
        yield talk.pause(3, left)
