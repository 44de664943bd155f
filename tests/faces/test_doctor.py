"""What doctor makes of facts, one check at a time, and of servers that refuse to tell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

import timeoutq
from tests.rig.command import server
from timeoutq import AccessDenied, Queue, SchemaMismatch
from timeoutq.server import rights
from timeoutq.server.rights import HARMLESS, MAKING
from timeoutq.watch import doctor
from timeoutq.watch.doctor import Finding, examine, judge
from timeoutq.watch.facts import SETTINGS, Facts, gather
from timeoutq.words.counts import Stats

__all__ = ["server"]

INFO: dict[str, Any] = {
    "redis_version": "7.2.4",
    "role": "master",
    "connected_slaves": 1,
    "maxmemory_policy": "noeviction",
    "used_memory": 50,
    "maxmemory": 100,
    "aof_enabled": 1,
    "aof_last_write_status": "ok",
    "rdb_last_bgsave_status": "ok",
}
SOUND = Facts(
    url="redis://localhost:6379/0",
    info=INFO,
    config={"appendfsync": "everysec", "save": "3600 1 300 100", "bind": "127.0.0.1 -::1", "protected-mode": "yes"},
    clock_ms=3.0,
    stats=Stats(1000.0, todos=2, scheduled=3, in_progress=2, done=0, failed=0, paused=False, counters={}, workers=1,
                settings={"schema": "2"}, next_deadline=1004.0, next_due=1060.0),
    user="default",
)  # fmt: skip


def found(check: str, facts: Facts) -> Finding:
    return next(finding for finding in judge(facts) if finding.check == check)


def with_info(**changes: object) -> Facts:
    return replace(SOUND, info={**INFO, **changes})


def with_config(**changes: str) -> Facts:
    return replace(SOUND, config={**SOUND.config, **{name.replace("_", "-"): value for name, value in changes.items()}})


def with_stats(**changes: Any) -> Facts:
    return replace(SOUND, stats=replace(SOUND.stats, **changes))


def with_settings(**settings: str) -> Facts:
    return with_stats(settings={**SOUND.stats.settings, "uses": " ".join(settings), **settings})


def with_compact(entries: int | None) -> Facts:
    given = {} if entries is None else {"set-max-intset-entries": str(entries)}
    return replace(with_settings(compact=""), config={**SOUND.config, **given})


NO_AOF = with_info(aof_enabled=0)
REFUSING = replace(
    with_info(rdb_last_bgsave_status="err"), config={**SOUND.config, "stop-writes-on-bgsave-error": "yes"}
)


@pytest.mark.parametrize(
    ("check", "facts", "verdict", "words"),
    [
        ("version", with_info(redis_version="6.2.14"), "red", "Redis 6.2.14"),
        ("version", with_info(redis_version="7.2.4", valkey_version="9.0.1"), "green", "Valkey 9.0.1"),
        ("role", with_info(role="slave", master_host="primary.example"), "red", "replica"),
        ("eviction", with_info(maxmemory_policy="volatile-lru"), "red", "volatile-lru"),
        ("memory", with_info(used_memory=99), "red", "99%"),
        ("durability", with_config(appendfsync="always"), "green", "AOF always: nothing accepted is lost"),
        ("durability", SOUND, "green", "AOF everysec: up to 2 s may be lost"),
        ("durability", with_info(redis_version="7.0.15"), "yellow", "up to 2 s may be lost in a power cut; after a "),
        ("durability", replace(SOUND, config={}), "yellow", "does not tell how often"),
        ("durability", with_info(aof_last_write_status="err"), "red", "fails"),
        ("durability", NO_AOF, "yellow", "RDB: up to 3,600 s may be lost"),
        ("durability", replace(NO_AOF, config={}), "yellow", "does not tell about snapshots"),
        ("durability", with_info(aof_enabled=0, rdb_last_bgsave_status="err"), "red", "the last snapshot failed"),
        ("durability", REFUSING, "red", "the last snapshot failed, so the server refuses all writes (MISCONF)"),
        ("durability", replace(REFUSING, config={**REFUSING.config, "save": ""}), "green", "AOF everysec"),
        ("clock", replace(SOUND, clock_ms=-2500.0), "yellow", "-2.5 s off"),
        ("clock", replace(SOUND, clock_ms=None), "yellow", "does not tell"),
        ("access", replace(SOUND, url="redis://db.example:6379/0"), "yellow", "without a password"),
        ("access", replace(SOUND, url="redis://:***@db.example:6379/0"), "yellow", "without TLS"),
        ("access", replace(SOUND, url="rediss://:***@db.example:6379/0"), "green", "password and TLS"),
        ("access", with_config(bind="*", protected_mode="no"), "yellow", "listens on * without a password"),
        ("acl", replace(SOUND, user="app", refused=["SMOVE"]), "red", "app is refused SMOVE"),
        ("acl", replace(SOUND, user="app", refused=["INFO"]), "yellow", "app is refused INFO"),
        ("schema", replace(SOUND, error=SchemaMismatch("the queue has schema 2")), "red", "the queue has schema 2"),
        ("library", replace(SOUND, error=AccessDenied("NOPERM fcall")), "red", "NOPERM fcall"),
        ("paused", with_stats(paused=True), "yellow", "nobody is given a task"),
        ("claims", with_stats(todos=3, workers=0), "yellow", "3 tasks are ready, and no worker is alive"),
        ("leases", SOUND, "green", "2 held, 1 worker alive, the next one ends in 4.0 s"),
        ("leases", with_stats(next_deadline=990.0, workers=0), "red", "a lease ran out 10 s ago, and nobody"),
        ("leases", with_stats(next_deadline=990.0, workers=4), "yellow", "alive for half a minute after"),
        ("compact", with_compact(511), "yellow", "set-max-intset-entries is 511"),
        ("compact", with_compact(None), "yellow", "does not tell its set-max-intset-entries"),
        ("scheduled", with_stats(next_due=940.0, workers=0), "red", "a task was due 60 s ago"),
    ],
)  # fmt: skip
def test_each_check_says_what_it_found(check: str, facts: Facts, verdict: str, words: str) -> None:
    finding = found(check, facts)
    assert finding.verdict == verdict
    assert words in finding.found
    assert bool(finding.cure) == (verdict != "green")


def with_replicas(*replicas: Mapping[str, object], durable: int = 0) -> Facts:
    info = {**INFO, "connected_slaves": len(replicas), "master_repl_offset": 1000}
    known = {f"slave{i}": {"state": "online", "offset": 1000, "lag": 0, **one} for i, one in enumerate(replicas)}
    return replace(with_settings(durable=f"{durable}") if durable else SOUND, info={**info, **known})


@pytest.mark.parametrize(
    ("facts", "verdict", "words"),
    [
        (
            with_replicas({"offset": 400, "lag": 2}, {}, durable=2),
            "green",
            "600 bytes behind and heard 2 s ago at worst",
        ),
        (with_replicas({"lag": 11}, {}, durable=2), "red", "no put is confirmed, and no task is given out"),
        (with_replicas(durable=1), "red", "0 replicas; the queue is durable=1"),
        (replace(with_replicas(durable=1), info={}), "yellow", "the server does not tell"),
    ],
)
def test_doctor_says_whether_replicas_can_confirm(facts: Facts, verdict: str, words: str) -> None:
    finding = found("replicas", facts)
    assert finding.verdict == verdict
    assert words in finding.found
    assert bool(finding.cure) == (verdict != "green")


def test_a_server_that_tells_nothing_is_never_called_sound() -> None:
    assert {finding.verdict for finding in judge(SOUND)} == {"green"}
    silent = {finding.check: finding.verdict for finding in judge(Facts(url="redis://localhost/0"))}
    for check in ("version", "role", "eviction", "memory", "durability", "clock"):
        assert silent[check] == "yellow", check


def test_every_command_of_the_package_is_tried() -> None:
    package = Path(timeoutq.__file__).parent
    used: set[str] = set()
    for path in (
        path
        for room in ("server", "verbs", "rooms", "client", "worker", "watch")
        for path in (package / room).rglob("*.py")
    ):
        if path.stem != "facts":
            used |= set(re.findall(r'(?:execute_command|\[|return )\(\s*"([A-Z]+)"', path.read_text("utf-8")))
    used |= {"FCALL", "FCALL_RO", "FUNCTION", "TIME"}
    used |= rights.of_scripts()
    assert {"SMOVE", "ZADD", "BLPOP", "SSCAN", "XREAD"} <= used
    tried = {*HARMLESS, *MAKING}
    assert {name.upper() for name in used} - tried == {"AUTH"}  # which needs no right


# ---- real servers


def test_it_leaves_no_key_and_changes_nothing(queue: Queue, raw: redis.Redis) -> None:
    queue.put("a", "b")
    queue.claim(1)
    before = {key: raw.dump(key) for key in map(str, raw.scan_iter()) if not key.endswith(("meta", "stats"))}
    facts = gather(queue)
    assert (facts.refused, facts.user, set(facts.config)) == ([], "default", set(SETTINGS))
    assert found("schema", facts).verdict == "green"
    after = {key: raw.dump(key) for key in map(str, raw.scan_iter()) if not key.endswith(("meta", "stats"))}
    assert after == before


def restricted(url: str, *rules: str) -> str:
    """Make a user of those rules; give the URL for it."""
    with redis.Redis.from_url(url) as raw:
        raw.execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", *rules)
    return re.sub("//[^@/]*@", "//app:secret@", url)


def test_a_user_who_may_do_all_that_is_needed_is_told_so(url: str) -> None:
    words = [f"+{name.lower()}" for name in (*HARMLESS, *MAKING)]
    with Queue("q", restricted(url, "~timeoutq:*", *words)) as queue:
        findings = {finding.check: finding.verdict for finding in examine(queue)}
        assert findings["acl"] == findings["schema"] == "green"
        assert findings["durability"] == "yellow"  # it may not ask CONFIG GET


def test_a_user_who_may_not_is_told_what_is_missing(url: str) -> None:
    with Queue("q", restricted(url, "~timeoutq:*", "+@all", "-smove", "-sadd", "-info")) as queue:
        findings = {finding.check: finding for finding in examine(queue)}
    assert findings["acl"].verdict == "red"
    assert "app is refused INFO, SADD, SMOVE" in findings["acl"].found
    assert findings["acl"].cure == "ACL SETUSER app +info +sadd +smove"
    assert findings["version"].verdict == "yellow"
    with Queue("q", restricted(url, "~other:*", "+@all")) as queue:
        findings = {finding.check: finding for finding in examine(queue)}
    assert findings["acl"].verdict == "red"
    assert findings["acl"].cure == "ACL SETUSER app ~timeoutq:{q}:*"
    with redis.Redis.from_url(url) as raw:
        assert list(raw.scan_iter("*doctor*")) == []


def test_what_a_foreign_hand_has_left_is_told_and_mended(queue: Queue, raw: redis.Redis) -> None:
    client: Any = raw
    queue.put("a")
    assert "tasks" not in {finding.check for finding in examine(queue)}
    client.sadd(queue.operations.key("done"), "a")
    told = next(finding for finding in examine(queue) if finding.check == "tasks")
    assert (told.verdict, told.found) == ("yellow", "1 task in two states at once")
    assert told.cure == f"timeoutq doctor {queue.name} --repair"
    assert doctor.repair(queue).found == "mended: 1 task in two states at once"
    assert doctor.repair(queue).found == "nothing to mend"
    assert "tasks" not in {finding.check for finding in examine(queue)}


def test_what_no_walk_mends_is_told_with_what_a_person_can_do(queue: Queue, raw: redis.Redis) -> None:
    client: Any = raw
    queue.put("a")
    queue.schedule("b", after=60)
    client.smove(queue.operations.key("todos"), queue.operations.key("waiting"), "a")
    client.zadd(queue.operations.key("scheduled"), {"b": "inf"})
    told = next(finding for finding in examine(queue) if finding.check == "tasks")
    assert "1 task waiting for hosts on a queue that is not polite" in told.found
    assert "1 task scheduled for a time that is none" in told.found
    assert "--repair" not in told.cure
    assert f"timeoutq configure {queue.name} --delay TIME, or --impolite" in told.cure
    assert f"timeoutq schedule {queue.name} TASK --after TIME" in told.cure
    assert doctor.repair(queue).found == "nothing to mend"
    queue.configure(politeness="off")
    queue.schedule("b", after=0)
    queue.promote_due()
    assert queue.stats().todos == 2
    assert "tasks" not in {finding.check for finding in examine(queue)}


def test_a_key_of_a_foreign_type_is_named(queue: Queue, raw: redis.Redis) -> None:
    raw.set(queue.operations.key("history"), "a string")
    told = next(finding for finding in examine(queue) if finding.check == "keys")
    assert told.verdict == "red"
    assert "history is a string" in told.found
    assert f"redis-cli RENAME 'timeoutq:{{{queue.name}}}:history' elsewhere" in told.cure
    raw.delete(queue.operations.key("history"))


def test_full_memory_names_done_tasks_only_where_there_are_some() -> None:
    full = with_info(used_memory=90)
    assert "--bigkeys" in found("memory", full).cure
    done = replace(full, stats=replace(SOUND.stats, done=3))
    assert "drop done tasks: timeoutq configure QUEUE --keep-done 1d" in found("memory", done).cure
    compact = replace(done.stats, settings=with_compact(None).stats.settings)
    assert "--bigkeys" in found("memory", replace(done, stats=compact)).cure
