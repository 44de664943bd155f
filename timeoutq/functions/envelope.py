"""The payload of a call: JSON that any language can write, and an optional signature. No I/O.

    {"v":1,"f":"send","a":[],"k":{"to":"a@example.com"},"o":{"max_runtime":60},"t":[…],"s":"1a2b3c4d.9f…"}

`v` is the version of this form, `f` the function, `a` and `k` the arguments by place and by name; all but `v` and `f`
may be left out. `o` holds options for this call alone, `t` the calls that follow it, each with `f`, `a`, `k` and `o`,
`w` the time of the tick, in ms, if a schedule has put the call, `c` when the call was put, in ms by the caller's clock,
if its result is kept, and `p` the trace (`traceparent` of W3C Trace Context). `x`, which is true, says that the call
has expired: if somebody retries it, it runs, however late. Fields that a reader does not know are ignored: a field
without which a call must not be run makes a higher `v`.

The signature `s` is eight hex digits that name the secret, a dot, and HMAC-SHA256 in hex, over a fixed text and, each
behind its length in eight bytes, the queue, the id, `f`, and the JSON of `a`, `k`, `o` and `t` as they stand in the
payload (`[]`, `{}`, `{}` and `[]` if left out). Only if `o` holds `"ticks":true`, the id may also end in `@` and digits
that are not signed: so the calls of a schedule that overlap share one payload. `w`, `c`, `p` and `x` are not signed.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec

from timeoutq.functions import ids
from timeoutq.functions.errors import CallTooLarge, Forged, NewerCall, NotACall, UnknownSecret
from timeoutq.functions.signature import Arguments
from timeoutq.words.arguments import error_words, shown
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import MAX_TIME_MS

VERSION: Literal[1] = 1
LIMIT = 256 * 1024  # bytes of a payload
SHORTEST_SECRET = 16  # bytes of a secret
MOST_SECRETS = 10

_PURPOSE, _NAMING = b"timeoutq call 1\n", b"timeoutq secret 1\n"
_EMPTY_LIST, _EMPTY_DICT = msgspec.Raw(b"[]"), msgspec.Raw(b"{}")
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_TIME_MS / 1000)]
_SomeSeconds = Annotated[float, msgspec.Meta(gt=0, le=MAX_TIME_MS / 1000)]


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """The options of one call, which a caller sets and a worker reads."""

    retry: list[_Seconds] | None = None  # seconds to wait before each further attempt
    max_runtime: _SomeSeconds | None = None
    keep_result: _Seconds | None = None
    unique: _SomeSeconds | Literal["active", "forever"] | None = None
    """How long the id of this call keeps other calls away; a number: also for so many seconds after its end."""
    batch: str | None = None  # the batch of which this call is the callback
    order: list[int] | None = None
    """Of each call of that batch, its place among the batch's tasks, from 0; None: both stand in the same order."""
    again: bool = False
    """Whether somebody has chosen the id of this call, or a key has: it may be put again, and what follows it, too."""
    expires: _SomeSeconds | None = None  # Unix time: a run that has not begun by then never begins
    lasts: _SomeSeconds | None = None
    """Seconds in which a run must begin, from the tick, or from when the call before this one has returned."""
    on_failed: Step | None = None  # what is put when this call has failed for good; its arguments are not said here
    headers: dict[str, str] | None = None  # what the caller says besides the arguments; `ctx.headers`
    ticks: bool = False  # whether a schedule puts this call under ids that end in `@` and the time of a tick


NO_OPTIONS = Options()


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that follows another call and takes its result as its first argument."""

    f: str
    a: msgspec.Raw = _EMPTY_LIST
    k: msgspec.Raw = _EMPTY_DICT
    o: Options | None = None

    @property
    def options(self) -> Options:
        """The options of this call."""
        return self.o or NO_OPTIONS

    @property
    def arguments(self) -> Arguments:
        """The arguments behind the first one, which is the result of the call before."""
        return Arguments(bytes(self.a), bytes(self.k))


class _Payload(msgspec.Struct):
    v: Literal[1]
    f: str
    a: msgspec.Raw = _EMPTY_LIST
    k: msgspec.Raw = _EMPTY_DICT
    o: msgspec.Raw = _EMPTY_DICT
    t: msgspec.Raw = _EMPTY_LIST
    s: str | None = None
    w: Annotated[int, msgspec.Meta(ge=0, le=MAX_TIME_MS)] | None = None
    x: bool = False
    c: Annotated[int, msgspec.Meta(ge=0, le=MAX_TIME_MS)] | None = None


class _Version(msgspec.Struct):
    v: int


_PAYLOADS = msgspec.json.Decoder(_Payload)
_OPTIONS = msgspec.json.Decoder(Options)
_STEPS = msgspec.json.Decoder(tuple[Step, ...])
_ENCODER = msgspec.json.Encoder()


@dataclass(slots=True)  # not frozen: a worker makes one for each call, and frozen ones take three times as long
class Letter:
    """The content of a payload."""

    function: str
    arguments: Arguments
    options: Options = NO_OPTIONS
    then: Sequence[Step] = ()
    tick: float | None = None  # the time for which a schedule has put the call, Unix seconds
    trace: str | None = None
    """The trace of which the call is a part. Only `seal` heeds it; `tracing.py` reads it from the payload."""
    put_ms: int | None = None  # when the call was put, if it says so


class Secrets:
    """The secrets of an app: the first signs, each is accepted. Without one, nothing is signed and all is accepted.

    To change a secret without losing a call: give all programs `[old, new]`, then `[new, old]`, then `[new]`.
    """

    __slots__ = ("_keys",)

    def __init__(self, given: str | bytes | Sequence[str | bytes] | None = None) -> None:
        """Take the secrets. Raises `InvalidInput`, whose message does not hold them."""
        is_list = isinstance(given, Sequence) and not isinstance(given, str | bytes)
        many: list[Any] = [] if given is None else list(given) if is_list else [given]
        if given is not None and not 1 <= len(many) <= MOST_SECRETS:
            raise InvalidInput(f"secret= takes one secret, or a list of 1 to {MOST_SECRETS}, not {len(many)}")
        self._keys: dict[str, bytes] = {}
        for one in many:
            key = one.encode("utf-8", "surrogateescape") if isinstance(one, str) else one
            if not isinstance(key, bytes) or len(key) < SHORTEST_SECRET:
                raise InvalidInput(
                    f"a secret is str or bytes, of at least {SHORTEST_SECRET} bytes: make one with "
                    "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
                )
            self._keys[hmac.digest(key, _NAMING, hashlib.sha256)[:4].hex()] = key

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self._keys)})"

    def sign(self, queue: str, id: bytes, payload: _Payload) -> str | None:
        """Give the signature of a payload; None without a secret."""
        name, key = next(iter(self._keys.items()), (None, b""))
        return None if name is None else f"{name}.{_digest(key, queue, id, payload)}"

    def check(self, queue: str, id: bytes, payload: _Payload) -> None:
        """Raise `Forged` or `UnknownSecret` for a payload that must not be carried out."""
        if not self._keys:
            return
        if payload.s is None:
            raise Forged(f"the call of task {_task(id)} is not signed: this app takes signed calls only")
        name, _, digest = payload.s.partition(".")
        key = self._keys.get(name)
        if key is None:
            raise UnknownSecret(
                f"the call of task {_task(id)} is signed with the secret {shown(name)}, which is not among those of "
                f"this app ({', '.join(self._keys)}): give a new secret to the workers before the callers"
            )
        # a schedule whose calls overlap gives each the time of its tick, behind the id that was signed; any other call
        # is bound to its whole id, or whoever writes to Redis could put it again and again
        base = ids.without_tick(id)
        signed = [id] if base is None or not _says_ticks(payload) else [id, base]
        given = digest.encode("utf-8", "replace")
        if not any(hmac.compare_digest(_digest(key, queue, one, payload).encode(), given) for one in signed):
            raise Forged(
                f"the signature of task {_task(id)} does not fit: the call was changed, or was made for another queue "
                "or another id"
            )


def _digest(key: bytes, queue: str, id: bytes, payload: _Payload) -> str:
    parts = (queue.encode(), id, payload.f.encode(), *map(bytes, (payload.a, payload.k, payload.o, payload.t)))
    framed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hmac.new(key, _PURPOSE + framed, hashlib.sha256).hexdigest()


def _says_ticks(payload: _Payload) -> bool:
    try:
        return _OPTIONS.decode(payload.o).ticks
    except (msgspec.MsgspecError, UnicodeDecodeError):  # it is not signed, so it may be anything
        return False


def seal(letter: Letter, queue: str, id: bytes, secrets: Secrets) -> bytes:
    """Give the payload of a call, at most 256 KiB. Raises `CallTooLarge`."""
    a, k = letter.arguments
    parts = [opening_of(letter.function), b',"a":', a, b',"k":', k]
    if secrets or letter.then or letter.trace or letter.options is not NO_OPTIONS:
        o, t = _ENCODER.encode(letter.options), _ENCODER.encode(letter.then)
        parts += [b',"o":', o] * (o != b"{}") + [b',"t":', t] * (t != b"[]")
        if secrets:
            raw = msgspec.Raw
            payload = _Payload(VERSION, letter.function, raw(a), raw(k), raw(o), raw(t))
            parts += b',"s":', _ENCODER.encode(secrets.sign(queue, id, payload))
        if letter.trace:
            parts += b',"p":', _ENCODER.encode(letter.trace)
    if letter.put_ms is not None:
        parts.append(b',"c":%d' % letter.put_ms)
    data = b"".join([*parts, b"}"])
    if len(data) > LIMIT:
        raise CallTooLarge(
            f"a call of {letter.function}() has {len(data):,} bytes; the limit is {LIMIT:,}: store the data elsewhere "
            "and pass its address", size=len(data), limit=LIMIT,
        )  # fmt: skip
    return data


@lru_cache(maxsize=1_000)
def opening_of(function: str) -> bytes:
    """Give how the payload of each call of this function begins."""
    return b'{"v":1,"f":' + _ENCODER.encode(function)


def usual_parts(payload: object) -> tuple[bytes, bytes, int | None]:
    """Cut a payload as `seal` writes most of them: how it begins, the JSON of arguments by name, when it was put.

    In any other payload, the first part is not how one begins, or the second is no JSON.
    """
    if type(payload) is not bytes or len(payload) > LIMIT or payload[-1:] != b"}":
        return b"", b"", None
    begins, _, rest = payload.partition(b',"a":[],"k":')
    named = rest[:-1]
    arguments, mark, put = named.rpartition(b',"c":')
    if mark and put.isdigit() and len(put) <= 13 and put[:1] != b"0":  # a time before the year 2286
        return begins, arguments, int(put)
    return begins, named, None


def unseal(payload: object, queue: str, id: bytes, secrets: Secrets) -> Letter:
    """Read the payload of a task, the bytes as they stand in Redis, and check its signature.

    Raises `NotACall`, `NewerCall`, `CallTooLarge`, `Forged`, `UnknownSecret`. Messages hold no argument.
    """
    if not isinstance(payload, bytes):
        raise NotACall(f"task {_task(id)} has no payload: it is no call of a function")
    if len(payload) > LIMIT:
        message = f"the call of task {_task(id)} has {len(payload):,} bytes; the limit is {LIMIT:,}"
        raise CallTooLarge(message, size=len(payload), limit=LIMIT)
    try:
        found = _PAYLOADS.decode(payload)
    except Exception as error:
        _refuse_newer(payload, id)
        raise NotACall(f"the payload of task {_task(id)} is no call of a function: {error_words(error)}") from error
    secrets.check(queue, id, found)
    tick = None if found.w is None else ids.tick_of(id, found.w) / 1000
    if found.o is _EMPTY_DICT and found.t is _EMPTY_LIST and tick is None:  # the usual case, made quick
        return Letter(found.f, Arguments(bytes(found.a), bytes(found.k)), NO_OPTIONS, (), None, None, found.c)
    try:
        chosen, then = _OPTIONS.decode(found.o), _STEPS.decode(found.t)
    except Exception as error:
        raise NotACall(f"the call of task {_task(id)} has odd options: {error_words(error)}") from error
    if found.x:
        chosen = msgspec.structs.replace(chosen, expires=None, lasts=None)
    return Letter(found.f, Arguments(bytes(found.a), bytes(found.k)), chosen, then, tick, None, found.c)


def _refuse_newer(payload: bytes, id: bytes) -> None:
    try:
        version = msgspec.json.decode(payload, type=_Version).v
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # it has no version that can be read
        return
    if version > VERSION:
        raise NewerCall(
            f"the call of task {_task(id)} has the version {version}, and this timeoutq reads up to {VERSION}: "
            "upgrade the workers"
        )


def _task(id: bytes) -> str:
    return shown(id.decode("utf-8", "surrogateescape"))
