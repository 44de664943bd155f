"""Tokens, with which programs and browsers ask the gateway about some queues. Kept in Redis, as SHA-256 only.

All tokens are in one HASH, `timeoutq:tokens`: the name of a token, and JSON with its digest, its queues, what it allows
and when it ends. A gateway reads the whole hash, which is small, and finds a token there by its digest. So wrong tokens
cost Redis four readings a second at most, and the time of the search says nothing of any token.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from timeoutq.client import AsyncServerClient, ServerClient
from timeoutq.server.cluster import slot_of
from timeoutq.verbs.sending import Flow, Talk, ask
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput, TimeoutqError, Unavailable
from timeoutq.words.model import text

KEY = "timeoutq:tokens"
PREFIX = "tq_"  # with this every token begins, so that people and scanners of secrets recognise one
SHAPE = re.compile(r"tq_[A-Za-z0-9_-]{43}")
SCOPES = ("look", "put", "work", "manage")
"""The rights of tokens: to look; to put and schedule; to claim, extend, ack, fail, release, note and pull; all else."""
MOST = 1000  # the most tokens of a server: a gateway reads all of them
FRESH = 2.0  # seconds between two readings of all tokens; with `STALE`, this bounds how long a revoked token works
STALE = 5.0  # seconds after which the last reading counts no more, when Redis does not answer
AGAIN = 0.25
"""Seconds between two looks for a token that is not there: a new token works at once, and wrong ones cost little."""
LONGEST = 100 * 365 * 86400.0  # the most seconds after which a token may end

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}\Z")
_GLOB = re.compile(r"[A-Za-z0-9._*-]{1,64}\Z")
_SLOT = slot_of(KEY)


@dataclass(frozen=True, slots=True)
class Token:
    """All that is known of a token, but the token itself; times are Unix seconds by the clock of the server."""

    name: str
    queues: tuple[str, ...]  # names of queues; `*` in a name stands for any text
    allow: tuple[str, ...]
    created: float = 0.0
    expires: float | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """All tokens of a server at one moment."""

    by_digest: Mapping[str, Token]
    broken: tuple[str, ...] = ()  # names of entries that cannot be read: they let nobody in
    now: float = 0.0  # Unix seconds, by the clock of the server

    @property
    def empty(self) -> bool:
        """Whether there is no token at all, not even a broken one or one that has run out."""
        return not self.by_digest and not self.broken


def digest(secret: str) -> str:
    """Give the digest under which a token is kept."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def described(name: str, queues: Sequence[str], allow: Sequence[str], expires: float | None) -> Token:
    """Check the words of a new token; `expires` is seconds from now. Raises `InvalidInput`."""
    if not _NAME.match(name):
        raise InvalidInput(
            f"{shown(name)} is not a name for a token: 1 to 32 of A-Z a-z 0-9 . _ -, with a letter or a digit first"
        )
    if name in ("anybody", "nobody"):
        raise InvalidInput(f"no token may be called {name}: callers without a token are called so")
    if not queues:
        raise InvalidInput("a token is for some queues: name them, such as 'crawl*'; '*' is all")
    for glob in queues:
        if not _GLOB.match(glob):
            raise InvalidInput(f"{shown(glob)} is not the name of a queue: A-Z a-z 0-9 . _ -, and * for any text")
    unknown = [scope for scope in allow if scope not in SCOPES]
    if unknown or not allow:
        raise InvalidInput(f"a token may allow {', '.join(SCOPES)}, not {', '.join(map(shown, unknown)) or 'nothing'}")
    if expires is not None and not 1 <= expires <= LONGEST:
        raise InvalidInput(f"a token cannot end {expires:g} s from now: take 1 s to 100 years, or leave the end out")
    scopes = tuple(scope for scope in SCOPES if scope in allow)
    return Token(name, tuple(dict.fromkeys(queues)), scopes, expires=expires)


# ---- flows


def load(talk: Talk) -> Flow[Table]:
    """Read all tokens."""
    entries, (seconds, micros) = yield from ask(talk, [("HGETALL", KEY), ("TIME",)], _SLOT)
    found: dict[str, Token] = {}
    broken: list[str] = []
    for name, value in sorted(cast("dict[bytes, bytes]", entries).items()):
        try:
            words = json.loads(value)
            made = described(name.decode(), words["queues"], words["allow"], None)
            ends = None if words["expires"] is None else int(words["expires"]) / 1000
            found[words["sha256"]] = replace(made, created=int(words["created"]) / 1000, expires=ends)
        except (ValueError, TypeError, KeyError, RecursionError):
            broken.append(text(name))
    return Table(found, tuple(broken), int(seconds) + int(micros) / 1_000_000)


def add(talk: Talk, wanted: Token, secret: str) -> Flow[Token]:
    """Keep a token under its name; raises `InvalidInput` if there is one of this name, or if there are too many."""
    many, (seconds, micros) = yield from ask(talk, [("HLEN", KEY), ("TIME",)], _SLOT)
    if int(many) >= MOST:
        raise InvalidInput(f"there are {int(many):,} tokens, and {MOST:,} are the most: revoke some of them")
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    ends_ms = None if wanted.expires is None else now_ms + int(wanted.expires * 1000)
    words = {
        "sha256": digest(secret), "queues": wanted.queues, "allow": wanted.allow, "created": now_ms, "expires": ends_ms,
    }  # fmt: skip
    line = json.dumps(words).encode()
    # sent again after a lost reply, the first command changes nothing, and the second says whose the name is
    _, kept = yield from ask(talk, [("HSETNX", KEY, wanted.name, line), ("HGET", KEY, wanted.name)], _SLOT)
    if kept != line:
        raise InvalidInput(
            f"there is a token {wanted.name!r} already: take another name, or revoke that one "
            f"(timeoutq token revoke {wanted.name})"
        )
    return replace(wanted, created=now_ms / 1000, expires=None if ends_ms is None else ends_ms / 1000)


def remove(talk: Talk, name: str) -> Flow[bool]:
    """Revoke a token; say whether there was one of this name."""
    field = name.encode("utf-8", "surrogateescape")  # another program may have written any name
    (there,) = yield from ask(talk, [("HEXISTS", KEY, field)], _SLOT)
    yield from ask(talk, [("HDEL", KEY, field)], _SLOT)
    return bool(there)


# ---- for the command


class TokenBook:
    """Makes, lists and revokes the tokens of a server; for code that blocks, and a context manager."""

    def __init__(self, url: str | None = None) -> None:
        """Describe the server as for `Queue`; the first call connects."""
        self._client = ServerClient("tokens", url)
        self.url = self._client.url

    def __enter__(self) -> TokenBook:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def new(
        self, name: str, *, queues: Sequence[str], allow: Sequence[str], expires: float | None = None
    ) -> tuple[str, Token]:
        """Make a token, which ends `expires` seconds from now; give the token, which is kept nowhere, and its record.

        Raises `InvalidInput` for a name that is taken, and for arguments that cannot be used.
        """
        wanted = described(name, queues, allow, expires)
        secret = PREFIX + secrets.token_urlsafe(32)
        return secret, self._client.run(add(self._client.talk, wanted, secret))

    def first(self, name: str) -> str | None:
        """Make a token for everything, if the server has no tokens yet; None if it has."""
        return self.new(name, queues=["*"], allow=SCOPES)[0] if self.table().empty else None

    def table(self) -> Table:
        """Read all tokens."""
        return self._client.run(load(self._client.talk))

    def revoke(self, name: str) -> bool:
        """Revoke a token; say whether there was one of this name. Gateways forget it within `STALE` seconds."""
        return self._client.run(remove(self._client.talk, name))


# ---- for the gateway


class Tokens:
    """Looks tokens up, for a gateway: reads all of them every `FRESH` seconds while somebody asks."""

    def __init__(self, url: str | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Describe the server as for `AsyncQueue`; the first look connects."""
        self._client = AsyncServerClient("tokens", url, deadline=2.0)
        self._clock = clock
        self._table = Table({})
        self._read_at = float("-inf")
        self._reading: asyncio.Future[None] | None = None
        self.met = False
        """Whether a token has ever been seen: a gateway that has seen one does not let everybody in any more."""

    async def look_up(self, secret: str) -> Token | None:
        """Give the record of a token; None if it is unknown, revoked or has run out.

        Raises `Unavailable` when Redis has not answered for `STALE` seconds.
        """
        key = digest(secret)
        if self._clock() - self._read_at >= FRESH:
            await self._refresh(FRESH)
        if key not in self._table.by_digest:
            await self._refresh(AGAIN)
        found = self._table.by_digest.get(key)
        if found is None or (found.expires is not None and found.expires <= self.now()):
            return None
        return found

    async def are_there(self) -> bool:
        """Say whether the server has tokens, or has had one since this gateway started. Raises `Unavailable`."""
        if self._clock() - self._read_at >= FRESH:  # as in `look_up`: usually no coroutine is needed
            await self._refresh(FRESH)
        return self.met

    def now(self) -> float:
        """Give the time of the server, Unix seconds."""
        return self._table.now + self._clock() - self._read_at

    async def _refresh(self, age: float) -> None:
        """Read all tokens, unless they were read less than `age` seconds ago; all who ask at once share one reading."""
        if self._clock() - self._read_at < age:
            return
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._read())
            self._reading.add_done_callback(lambda read: read.cancelled() or read.exception())
        try:
            await asyncio.shield(self._reading)
        except TimeoutqError as error:
            if self._clock() - self._read_at >= STALE:
                raise Unavailable(f"tokens cannot be looked up: {error}") from error

    async def _read(self) -> None:
        began = self._clock()
        self._table = await self._client.run(load(self._client.talk))
        self._read_at = began
        self.met = self.met or not self._table.empty

    async def close(self) -> None:
        """Close the connection."""
        if self._reading is not None:
            self._reading.cancel()
        await self._client.close()
