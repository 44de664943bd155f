"""Tokens, with which programs and browsers ask the gateway about some queues; Redis has their SHA-256 only.

A gateway reads the whole HASH `timeoutq:tokens`, which is small, and finds a token there by its digest. So wrong tokens
cost Redis four readings a second at most, and the time of the search says nothing of any token.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from timeoutq.client import AsyncServerClient, ServerClient
from timeoutq.gateway.names import Shared
from timeoutq.server.cluster import slot_of
from timeoutq.verbs.sending import Flow, Talk, ask
from timeoutq.words.arguments import shown
from timeoutq.words.errors import InvalidInput, TimeoutqError, Unavailable
from timeoutq.words.model import text

Needs = Literal["look", "put", "work", "manage"]
SCOPES: tuple[Needs, ...] = ("look", "put", "work", "manage")
"""The rights of tokens: to look; to put and schedule; to claim, extend, ack, fail, release, note and pull; all else."""
KEY = "timeoutq:tokens"
PREFIX = "tq_"  # with this every token begins, so that people and scanners of secrets recognise one
SHAPE = re.compile(r"tq_[A-Za-z0-9_-]{43}")
MOST = 1000  # the most tokens of a server: a gateway reads all of them
FRESH = 2.0  # seconds between two readings of all tokens; with `STALE`, this bounds how long a revoked token works
STALE = 5.0  # seconds after which the last reading counts no more, when Redis does not answer
AGAIN = 0.25  # seconds between two looks for a token that is not there, so that a new token works at once
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


def load(talk: Talk) -> Flow[Table]:
    entries, (seconds, micros) = yield from ask(talk, [("HGETALL", KEY), ("TIME",)], _SLOT)
    found: dict[str, Token] = {}
    broken: list[str] = []
    for name, value in sorted(cast("dict[bytes, bytes]", entries).items()):
        try:
            words = json.loads(value)
            made = described(name.decode(), words["queues"], words["allow"], None)
            ends = None if words["expires"] is None else int(words["expires"]) / 1000
            found[words["sha256"]] = replace(made, created=int(words["created"]) / 1000, expires=ends)
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
            broken.append(text(name))
    return Table(found, tuple(broken), int(seconds) + int(micros) / 1_000_000)


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
        """Make a token, which ends `expires` seconds from now; give it, which is kept nowhere, and its record."""
        wanted = described(name, queues, allow, expires)
        secret = PREFIX + secrets.token_urlsafe(32)
        many, (seconds, micros) = self._ask(("HLEN", KEY), ("TIME",))
        if int(many) >= MOST:
            raise InvalidInput(f"there are {int(many):,} tokens, and {MOST:,} are the most: revoke some of them")
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        ends_ms = None if expires is None else now_ms + int(expires * 1000)
        words = {"sha256": digest(secret), "queues": wanted.queues, "allow": wanted.allow}
        line = json.dumps({**words, "created": now_ms, "expires": ends_ms}).encode()
        # sent again after a lost reply, the first command changes nothing, and the second says whose the name is
        _, kept = self._ask(("HSETNX", KEY, name, line), ("HGET", KEY, name))
        if kept != line:
            raise InvalidInput(
                f"there is a token {name!r} already: take another name, or revoke that one "
                f"(timeoutq token revoke {name})"
            )
        return secret, replace(wanted, created=now_ms / 1000, expires=None if ends_ms is None else ends_ms / 1000)

    def first(self, name: str) -> str | None:
        """Make a token for everything, if the server has no tokens yet; None if it has."""
        return self.new(name, queues=["*"], allow=SCOPES)[0] if self.table().empty else None

    def table(self) -> Table:
        return self._client.run(load(self._client.talk))

    def revoke(self, name: str) -> bool:
        """Revoke a token; say whether there was one of this name. Gateways forget it within `STALE` seconds."""
        field = name.encode("utf-8", "surrogateescape")  # another program may have written any name
        (there,) = self._ask(("HEXISTS", KEY, field))
        self._ask(("HDEL", KEY, field))
        return bool(there)

    def _ask(self, *commands: tuple[Any, ...]) -> list[Any]:
        return self._client.run(ask(self._client.talk, commands, _SLOT))


class Tokens:
    """Looks tokens up, for a gateway: reads all of them every `FRESH` seconds while somebody asks."""

    def __init__(self, url: str | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Describe the server as for `AsyncQueue`; the first look connects."""
        self._client = AsyncServerClient("tokens", url, deadline=2.0)
        self._clock = clock
        self._table = Table({})
        self._read_at = float("-inf")
        self._reading = Shared(self._read, rest=0.0, share=0.0)
        self.met = False  # whether a token was ever seen: a gateway that has seen one lets in nobody without any more

    async def look_up(self, secret: str) -> Token | None:
        """Give the record of a token; None if it is unknown, revoked or has run out. Raises `Unavailable`."""
        key = digest(secret)
        await self._refresh(FRESH)
        if key not in self._table.by_digest:
            await self._refresh(AGAIN)
        found, now = self._table.by_digest.get(key), self._table.now + self._clock() - self._read_at
        return None if found is None or (found.expires is not None and found.expires <= now) else found

    async def are_there(self) -> bool:
        """Say whether the server has tokens, or has had one since this gateway started. Raises `Unavailable`."""
        await self._refresh(FRESH)
        return self.met

    async def _refresh(self, age: float) -> None:
        """Read all tokens, unless they were read less than `age` seconds ago; all who ask at once share one reading."""
        if self._clock() - self._read_at < age:
            return
        try:
            await self._reading.get()
        except TimeoutqError as error:
            if self._clock() - self._read_at >= STALE:
                raise Unavailable(f"tokens cannot be looked up: {error}") from error

    async def _read(self) -> None:
        began = self._clock()
        self._table = await self._client.run(load(self._client.talk))
        self._read_at = began
        self.met = self.met or not self._table.empty

    async def close(self) -> None:
        await self._reading.close()
        await self._client.close()
