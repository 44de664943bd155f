"""Tokens: made once and shown once, kept as a digest, looked up, run out, revoked; and what `timeoutq token` says."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from tests.rig.command import Say, say, server
from timeoutq.gateway import tokens
from timeoutq.gateway.tokens import KEY, SHAPE, STALE, TokenBook, Tokens
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.words.errors import InvalidInput, Unavailable

__all__ = ["say", "server"]


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def test_a_token_is_shown_once_and_only_its_digest_is_kept(url: str, raw: redis.Redis) -> None:
    with TokenBook(url) as book:
        secret, made = book.new("ci", queues=["crawl*"], allow=["work", "put"], expires=3600)
        assert SHAPE.fullmatch(secret)
        assert (made.name, made.queues, made.allow) == ("ci", ("crawl*",), ("put", "work"))
        kept = raw.dump(KEY)
        (line,) = raw.hgetall(KEY).values()
        assert json.loads(line)["sha256"] == hashlib.sha256(secret.encode()).hexdigest()
        assert secret not in str(line)
        assert secret[3:].encode() not in (kept or b"")
        assert made.expires == pytest.approx(made.created + 3600)
        assert list(book.table().by_digest.values()) == [made]


def test_of_many_who_want_one_name_at_once_one_gets_it(url: str) -> None:
    def want(_: int) -> bool:
        with TokenBook(url) as book:
            try:
                book.new("ci", queues=["*"], allow=["look"])
            except InvalidInput as error:
                assert "already" in str(error)
                return False
            return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(want, range(24))) == 1


def test_a_token_that_cannot_be_is_refused() -> None:
    for name in ("", "a/b", "-x", "x" * 33, "ä", "a\n", "anybody", "nobody", "\udc80"):
        with pytest.raises(InvalidInput, match=r"name for a token|may be called"):
            tokens.described(name, ["*"], ["look"], None)
    for glob in ("", "a b", "[a-z]", "a?", "x" * 65, "*\n"):
        with pytest.raises(InvalidInput, match="not the name of a queue"):
            tokens.described("ci", ["crawl", glob], ["look"], None)
    for expires in (0, -1, 0.5, float("nan"), float("inf")):
        with pytest.raises(InvalidInput, match="cannot end"):
            tokens.described("ci", ["*"], ["look"], expires)
    with pytest.raises(InvalidInput, match="name them"):
        tokens.described("ci", [], ["look"], None)
    with pytest.raises(InvalidInput, match="not 'read'"):
        tokens.described("ci", ["*"], ["look", "read"], None)


def test_an_entry_that_cannot_be_read_lets_nobody_in_and_keeps_the_gateway_shut(url: str, raw: redis.Redis) -> None:
    good = {"sha256": "0" * 64, "queues": ["*"], "allow": ["look"], "created": 1, "expires": None}
    odd = ["", "null", "[]", "{}", "[" * 5000]
    odd += [json.dumps({**good, "allow": ["all"]}), json.dumps({**good, "queues": [7]})]
    odd.append(json.dumps({**good, "expires": float("inf")}))
    raw.hset(KEY, mapping={f"t{i}": words for i, words in enumerate(odd)})
    raw.hset(KEY, "a b", json.dumps(good))
    with TokenBook(url) as book:
        table = book.table()
        assert (len(table.by_digest), len(table.broken), table.empty) == (0, len(odd) + 1, False)
        assert book.first("admin") is None
        assert book.revoke("a b")


async def test_a_gateway_finds_a_token_at_once_and_forgets_it_when_revoked(url: str) -> None:
    clock = Clock()
    found = Tokens(url, clock=clock)
    with TokenBook(url) as book:
        assert not await found.are_there()
        secret, made = book.new("ci", queues=["*"], allow=["look"])
        clock.at += tokens.AGAIN
        assert await found.look_up(secret) == made
        assert await found.look_up(secret[:-2] + "__") is None
        book.revoke("ci")
        clock.at += tokens.FRESH
        assert await found.look_up(secret) is None
        # nobody is let in without a token by a server that has lost its tokens
        assert await found.are_there()
    await found.close()


async def test_a_token_runs_out_by_the_clock_of_the_server(url: str) -> None:
    clock = Clock()
    found = Tokens(url, clock=clock)
    with TokenBook(url) as book:
        secret, _ = book.new("ci", queues=["*"], allow=["look"], expires=1.5)
        assert await found.look_up(secret)
        clock.at += 1.6  # within what was read, so that the server is not asked
        assert await found.look_up(secret) is None
    await found.close()


async def test_wrong_tokens_cost_the_server_a_few_readings_only(url: str, raw: redis.Redis) -> None:
    clock = Clock()
    found = Tokens(url, clock=clock)
    with TokenBook(url) as book:
        book.new("ci", queues=["*"], allow=["look"])
    raw.config_resetstat()
    for i in range(300):
        assert await asyncio.gather(*(found.look_up(f"tq_{i}-{j}") for j in range(10))) == [None] * 10
        clock.at += 0.01
    read = raw.info("commandstats")["cmdstat_hgetall"]["calls"]
    assert 1 <= read <= 3 / tokens.AGAIN + 2
    assert len(found._table.by_digest) == 1
    await found.close()


async def test_without_redis_a_known_token_counts_for_seconds_and_nobody_comes_in_later() -> None:
    clock = Clock()
    with EmbeddedServer() as started:
        found = Tokens(started.url, clock=clock)
        with TokenBook(started.url) as book:
            secret, _ = book.new("ci", queues=["*"], allow=["look"])
        assert await found.look_up(secret)
    clock.at += STALE - 1
    assert await found.look_up(secret)
    clock.at += 1
    with pytest.raises(Unavailable, match="tokens cannot be looked up"):
        await found.look_up(secret)
    with pytest.raises(Unavailable):
        await found.are_there()
    await found.close()


# ---- the command


def test_the_command_makes_lists_and_revokes_tokens(say: Say) -> None:
    none = say("token", "list")
    assert (none.code, none.out) == (1, "")
    assert "timeoutq token new" in none.err
    made = say("token", "new", "ci", "--queues", "crawl*, feed", "--allow", "put,work", "--expires", "30d")
    assert (made.code, bool(SHAPE.fullmatch(made.out.strip()))) == (0, True)
    assert "not shown again" in made.err
    assert made.out.strip() not in made.err
    assert "the first token" in made.err
    admin = say("token", "new", "admin", "--queues", "*", "--allow", "look,put,work,manage", "--json").documents[0]
    assert SHAPE.fullmatch(admin["secret"])
    listed = say("token", "list")
    assert [line[:3] for line in listed.lines] == [
        ["admin", "*", "look,put,work,manage"], ["ci", "crawl*,feed", "put,work"],
    ]  # fmt: skip
    assert [line[5] for line in listed.lines] == ["good", "good"]
    assert re.match(r"\d{4}-", listed.lines[1][4])
    documents = say("token", "list", "--json").documents
    assert documents[1]["queues"] == ["crawl*", "feed"]
    assert admin["secret"] not in str(documents)
    # Unix seconds, as in every --json
    assert documents[1]["expires"] - documents[1]["created"] == pytest.approx(30 * 86400)
    assert documents[0]["created"] == admin["created"] == pytest.approx(time.time(), abs=60)
    assert (documents[0]["expires"], admin["expires"]) == (None, None)
    assert say("token", "revoke", "ci").code == 0
    gone = say("token", "revoke", "ci")
    assert gone.code == 1
    assert "there is no token 'ci'" in gone.err
    assert "did you mean admin?" in say("token", "revoke", "admn").err
    assert say("token", "revoke", "admin", "--json").documents == [{"token": "admin", "revoked": True}]


def test_wrong_words_are_refused_with_what_would_be_right(say: Say) -> None:
    for words, cure in (
        (("new", "ci", "--queues", "*", "--allow", "read"), "look, put, work, manage"),
        (("new", "ci", "--queues", "*", "--expires", "soon"), "1d"),
        (("new", "ci"), "--queues"),
    ):
        done = say("token", *words)
        assert (done.code, done.out) == (2, "")
        assert cure in done.err
