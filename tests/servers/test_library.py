"""The library on a server: who loads it, which revision stays, and what is said where it cannot be loaded."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from timeoutq import AccessDenied, Queue, ServerError, ServerFull
from timeoutq.server import scripts
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.server.troubles import explain

FIRST = f"local NAME, REVISION, DIGEST = '{scripts.NAME}', {scripts.REVISION}, '{scripts.digest()}'"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    """A server that has no library yet, as a client without a prefix."""
    with EmbeddedServer(tmp_path) as started, redis.Redis.from_url(started.url, decode_responses=True) as raw:
        client: Any = raw
        client.url = started.url
        yield client


def revision(server: Any) -> int:
    return int(server.fcall_ro("timeoutq5_about", 0)[0])


def text_of(revision: int, digest: str = "d" * 64) -> str:
    """Give a library of another revision, or another one of ours."""
    return scripts.library().replace(FIRST, f"local NAME, REVISION, DIGEST = 'timeoutq5', {revision}, '{digest}'")


def test_the_first_client_loads_it_and_a_server_that_forgets_it_gets_it_again(server: Any) -> None:
    with Queue("q", server.url) as queue:
        assert queue.put("a").added == 1
        assert [one[1] for one in server.function_list()] == ["timeoutq5"]
        for act in (lambda: queue.put("b"), queue.stats, lambda: queue.claim(2)):
            server.function_flush("SYNC")
            act()
        assert queue.states("a", "b").counts() == {"in_progress": 2}


def test_a_newer_revision_replaces_an_older_one_and_never_the_reverse(server: Any) -> None:
    server.function_load(text_of(scripts.REVISION - 1))
    with Queue("q", server.url) as queue:
        queue.put("a")
    assert revision(server) == scripts.REVISION
    server.function_load(text_of(scripts.REVISION + 1), replace=True)
    with Queue("q", server.url) as queue:
        queue.put("b")
    assert revision(server) == scripts.REVISION + 1


def test_two_texts_of_one_revision_are_named_and_an_administrator_chooses(server: Any) -> None:
    server.function_load(text_of(scripts.REVISION))
    with Queue("q", server.url) as queue:
        said = f"another text of revision {scripts.REVISION} .*dddddddddddd.*{scripts.digest()[:12]}"
        with pytest.raises(ServerError, match=said):
            queue.put("a")
        assert f"timeoutq5, revision {scripts.REVISION}" in command("library", "--load", "--url", server.url)
        assert queue.put("a").added == 1


def test_a_library_of_the_same_name_that_is_not_ours_is_left_alone(server: Any) -> None:
    server.function_load("#!lua name=timeoutq5\nredis.register_function('other', function() return 1 end)")
    with (
        Queue("q", server.url) as queue,
        pytest.raises(ServerError, match=r"not of timeoutq: .*FUNCTION DELETE timeoutq5"),
    ):
        queue.put("a")
    assert server.fcall("other", 0) == 1


def test_a_user_who_may_not_load_it_is_told_and_works_once_it_is_loaded(server: Any) -> None:
    server.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-function|load")
    with Queue("q", server.url.replace("//", "//app:secret@")) as queue:
        with pytest.raises(AccessDenied, match=r"ACL SETUSER app \+function\|load; or timeoutq library --load"):
            queue.put("a")
        shown = command("library")
        assert server.function_load(shown) == "timeoutq5"
        assert queue.put("a").added == 1


def test_a_full_server_without_the_library_is_told_how_to_get_it(server: Any) -> None:
    with Queue("q", server.url) as queue:
        queue.put("a")
        (lease,) = queue.claim()
        server.config_set("maxmemory", 1)
        server.function_flush("SYNC")
        with pytest.raises(ServerFull, match="timeoutq library --load"):
            queue.ack(lease)
        server.config_set("maxmemory", 0)
        assert queue.ack(lease) == "ok"


def test_a_server_without_functions_is_named_with_the_cure() -> None:
    for said in ("unknown command 'FCALL_RO', with args beginning with: 'x'", "ERR unknown command `FUNCTION`"):
        told = explain(redis.ResponseError(said), "redis://old")
        assert isinstance(told, ServerError)
        assert str(told).endswith("; it has no functions: use Redis 7.0 or later, or Valkey 7.2 or later")


def command(*words: str) -> str:
    """Run the command, and give what it prints."""
    done = subprocess.run([sys.executable, "-m", "timeoutq", *words], capture_output=True, text=True, check=True)
    assert re.search("^(#!lua|loaded)", done.stdout), done.stderr
    return done.stdout
