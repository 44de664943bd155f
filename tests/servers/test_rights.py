"""Users of few rights: refused before anything is written, told the cure; the cure carries all that a queue does."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.core import test_core
from tests.rig.faces import Blocking
from tests.rig.replication import Sentinel, free_ports
from tests.rig.servers import redis_server
from tests.rig.waiting import wait_until
from timeoutq import AccessDenied, Politeness, Queue, Unavailable
from timeoutq.server import rights
from timeoutq.verbs import sending
from timeoutq.watch.doctor import examine, judge
from timeoutq.watch.facts import gather

MakeUser = Callable[..., str]


@pytest.fixture
def user(url: str, raw: redis.Redis) -> Any:
    """Set the rights of a user who has none by itself; give the URL for it."""
    client: Any = raw

    def make(*rules: str) -> str:
        client.execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", *rules)
        return re.sub("//[^@/]*@", "//app:secret@", url)

    yield make
    client.acl_deluser("app")


@pytest.mark.parametrize(
    "command", ["HMGET", "HSET", "SADD", "SMOVE", "TIME", "UNLINK", "XADD", "ZADD", "ZRANGEBYSCORE"]
)
def test_a_user_who_lacks_a_command_is_refused_before_anything_is_written(
    user: MakeUser, name: str, raw: redis.Redis, command: str
) -> None:
    with Queue(name, user("~*", "+@all", f"-{command.lower()}")) as queue:
        with pytest.raises(AccessDenied) as caught:
            queue.put("a")
        assert list(raw.scan_iter("*")) == []
        if command not in ("TIME", "HMGET"):  # without these no script runs at all
            assert f"may not run {command} on the keys of queue {name}" in str(caught.value)
            cure = str(caught.value).partition("Let an operator run: ")[2]
            assert cure == f"ACL SETUSER app +{command.lower()}", "no rights beyond what is missing"
        # what is allowed later is tried again
        user("~*", "+@all")
        queue.put("a")
        queue.purge()


@pytest.mark.parametrize("may", [True, False], ids=["may", "may not"])
def test_the_locks_of_a_claim_are_set_in_one_command_if_the_user_may(
    user: MakeUser, name: str, raw: redis.Redis, *, may: bool
) -> None:
    client: Any = raw
    has = "msetex" in client.command_list()
    if not (has or may):
        pytest.skip("a server without MSETEX knows no right to it")
    with Queue(name, user("~timeoutq:*", "+@all", *([] if may else ["-msetex"]))) as queue:
        queue.put("a", "b", "c")
        client.config_resetstat()
        leases = queue.claim(3, timeout=20)
        assert queue.extend(leases, 50).codes == b"OOO"
        for lease in leases:
            lock = queue.operations.key(f"lock:{lease.task}")
            assert raw.get(lock) == lease.token
            assert 40_000 < client.pttl(lock) <= 50_000
        calls = {
            word: client.info("commandstats").get(f"cmdstat_{word}", {}).get("calls", 0)
            for word in ("msetex", "psetex")
        }
        assert calls == ({"msetex": 2, "psetex": 0} if has and may else {"msetex": 0, "psetex": 3})
        queue.ack(leases)
        assert list(client.scan_iter("*lock:*")) == []
        queue.purge()


def test_the_probe_takes_one_exchange_and_leaves_no_key(url: str, name: str, raw: redis.Redis) -> None:
    with Queue(name, url) as queue:
        queue.put("a")
        queue.stats()
        queue.purge()
        queue.run(sending.prove(queue.talk))
        assert list(raw.scan_iter("*")) == []
        client: Any = raw
        client.config_resetstat()
        with Queue(name, url) as other:
            other.stats()
            assert "cmdstat_psetex" not in client.info("commandstats"), "who only reads tries nothing"
            other.put("a")
            sent = client.info("commandstats")["cmdstat_fcall"]["calls"]
            other.put("b")
            assert client.info("commandstats")["cmdstat_fcall"]["calls"] == sent + 1
            assert sent == 2
        queue.purge()


def test_who_may_only_read_can_look(user: MakeUser, url: str, name: str) -> None:
    with Queue(name, url, politeness=Politeness(1)) as owner:
        owner.put("http://a.example/", "b")
        address = user("~timeoutq:*", "+@read", "+fcall_ro", "+function|load", "+time")
        with Queue(name, address) as queue:
            assert queue.stats().known == 2
            assert queue.why("b").code == "no_worker"
            assert [entry.task for entry in queue.list("todos").entries]
            assert queue.inspect("b").state == "todos"
            assert len(queue.hosts.list().hosts) == 1
            assert queue.drained() is False
            with pytest.raises(AccessDenied, match="no permissions to run the 'fcall' command"):
                queue.claim()
        owner.purge()


def test_a_user_who_may_not_hear_the_bell_is_told_so(user: MakeUser, name: str) -> None:
    with Queue(name, user("~*", "+@all", "-blpop")) as queue:
        with pytest.raises(AccessDenied, match="blpop"):
            queue.claim(wait=5)
        queue.purge()


WAITING: dict[str, Callable[[Any], object]] = {
    "put": lambda queue: queue.put("new"),
    "schedule": lambda queue: queue.schedule("new", after=60),
    "claim": lambda queue: queue.claim(),
    "forget": lambda queue: queue.forget("old"),
}


@pytest.mark.breaking
@pytest.mark.parametrize("face", [Queue, Blocking])
@pytest.mark.parametrize("call", WAITING)
def test_a_user_who_may_not_wait_for_replicas_is_refused_before_a_durable_queue_is_written(
    user: MakeUser, url: str, name: str, raw: redis.Redis, face: Callable[..., Any], call: str
) -> None:
    client: Any = raw
    with Queue(name, url) as owner:
        owner.put("old")
        client.hset(owner.operations.key("meta"), mapping={"uses": "durable", "durable": 1})
        before = owner.stats()
        with face(name, user("~*", "+@all", "-wait"), deadline=1.0) as queue:
            assert queue.stats().durable == 1
            with pytest.raises(AccessDenied, match=r"may not run WAIT.*; nothing was written"):
                WAITING[call](queue)
            with pytest.raises(AccessDenied, match=r"may not run WAIT.*; nothing was written") as caught:
                WAITING[call](queue)
            assert (owner.stats().todos, owner.stats().counters) == (before.todos, before.counters)
            cure = str(caught.value).partition("Let an operator run: ")[2]
            assert cure == "ACL SETUSER app +wait"
            client.execute_command(*cure.split())
            with pytest.raises(Unavailable):  # there are no replicas, but the user may ask for them now
                WAITING[call](queue)
        owner.purge()


@pytest.mark.parametrize(
    ("rules", "refused", "cure"),
    [
        (["~timeoutq:{web}:*", "+@all", "-smove", "-info"], "INFO, SMOVE", "+info +smove"),
        (["~*", "+@all", "-zadd"], "ZADD", "+zadd"),
        (["~timeoutq:{other}:*", "+@all"], "the keys timeoutq:{web}:*", "~timeoutq:{web}:*"),
        (
            ["~timeoutq:{other}:*", "+@all", "-sadd"],
            "SADD, the keys timeoutq:{web}:*",
            "~timeoutq:{web}:* +sadd",
        ),
    ],
)
def test_doctor_proposes_no_more_than_the_queue_that_was_asked_about_needs(
    user: MakeUser, raw: redis.Redis, rules: list[str], refused: str, cure: str
) -> None:
    client: Any = raw
    with Queue("web", user(*rules)) as queue:
        (found,) = [finding for finding in examine(queue) if finding.check == "acl"]
        assert (found.verdict, found.found) == ("red", f"app is refused {refused}")
        assert found.cure == f"ACL SETUSER app {cure}"
        client.execute_command(*found.cure.split())
        assert [finding.verdict for finding in examine(queue) if finding.check == "acl"] == ["green"]


def test_the_user_that_doctor_proposes_carries_all_that_a_queue_does(
    user: MakeUser, url: str, raw: redis.Redis
) -> None:
    client: Any = raw
    address = user()
    with Queue("q", address) as queue:
        cure = next(finding.cure for finding in examine(queue) if finding.check == "acl")
        assert cure.startswith("ACL SETUSER app ~timeoutq:{q}:* +")
        client.execute_command(*cure.split())
        facts = gather(queue)
        assert facts.refused == [], "one cure is enough"
        assert next(finding.verdict for finding in judge(facts) if finding.check == "acl") == "green"
    wanted = {f"+{name.lower()}" for name in rights.every()}
    assert wanted - {"+function"} | {"+function|load"} == set(cure.split()[4:])
    transcripts = [
        body
        for title, body in vars(test_core).items()
        if title.startswith("test_") and list(inspect.signature(body).parameters) == ["face"]
    ]
    assert len(transcripts) > 15
    for body in transcripts:
        with Queue("q", address, timeout=5) as queue:
            body(queue)
            queue.purge()
    with Queue("q", address) as queue:
        assert queue.put("a", durable=0).added == 1
        assert queue.run(sending.ask(queue.talk, [("WAIT", 0, 1)])) == [0]
        queue.purge()


@pytest.mark.parametrize("kind", [Queue, Blocking])
def test_sentinels_that_want_another_password_than_the_server_are_named(kind: Any, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    (tmp_path / "sentinel.conf").write_text(f"port {port}\nbind 127.0.0.1\nrequirepass hush\ndir {tmp_path}\n")

    def said(options: str, error: Any) -> str:
        url = f"redis+sentinel://:ofserver@127.0.0.1:{port}/service/0{options}"
        with kind("q", url, deadline=1) as queue, pytest.raises(error) as caught:
            queue.put("a")
        return str(caught.value)

    sentinel = Sentinel(redis_server(), tmp_path / "sentinel.conf", port)
    try:
        wait_until(lambda: "check the service name" not in said("", (AccessDenied, Unavailable)))
        for options in ("", "?sentinel_password=ofserver"):
            assert "refuse access: check ?sentinel_password=" in said(options, AccessDenied)
        assert "check the service name" in said("?sentinel_password=hush", Unavailable)
    finally:
        sentinel.kill()
