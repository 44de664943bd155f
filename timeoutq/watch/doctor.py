"""Examines a server and a queue: `facts.py` gathers facts once, then a pure function for each check judges them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from timeoutq.client.shards import AnyQueue, talks_of
from timeoutq.server.rights import HARMLESS, MAKING, cure
from timeoutq.verbs import flows, repairs
from timeoutq.watch import directory
from timeoutq.watch.facts import ALL, Facts, gather
from timeoutq.watch.snapshot import pace
from timeoutq.words.counts import Sample, Stats
from timeoutq.words.errors import SchemaMismatch
from timeoutq.words.model import WorkerInfo
from timeoutq.words.text import age, counted, safe

NUMBERS = 512  # up to so many numbers a server must keep a set as a plain row, or compact done tasks take much memory
TORN = "7.0."  # so begin the versions of Redis that keep the first half of a script which a power cut has cut in two
LATE = 1.0  # seconds after its time at which a lease or a due task has been forgotten by everybody
BEHIND = 10  # seconds since its last word after which a replica counts as away
UNTOLD = "the server does not tell"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: green, yellow or red, and what to do about it."""

    check: str
    verdict: str
    found: str
    cure: str = ""


Check = Callable[[Facts], Finding | None]  # gives None where there is nothing to say; `judge` adds its name
green, yellow, red = (partial(Finding, "", verdict) for verdict in ("green", "yellow", "red"))


def examine(queue: AnyQueue, named: bool = True) -> list[Finding]:
    """Gather the facts and judge them; without `named`, they are about the server, and the queue is any."""
    return judge(gather(queue, named))


def judge(facts: Facts, checks: Mapping[str, Check] | None = None) -> list[Finding]:
    """Run every check, or these; pure."""
    said = {name: check(facts) for name, check in (checks or CHECKS).items()}
    return [replace(found, check=name) for name, found in said.items() if found is not None]


def named(check: str, found: Iterable[Finding]) -> list[Finding]:
    """Give findings the name of their check."""
    return [replace(one, check=check) for one in found]


def repair(queue: AnyQueue) -> Finding:
    """Walk through the whole queue, mend the six kinds of damage that walks mend, and say what was mended."""
    found = Counter[str]()
    for talk in talks_of(queue):
        queue.run(flows.convert(talk))
        found += queue.run(flows.repair(talk))[0]
    mended = {what: n for what, n in found.items() if what not in (*repairs.CURES, repairs.NOTED)}
    said = f"mended: {repairs.told(mended)}" if mended else "nothing to mend"
    if noted := found[repairs.NOTED]:
        said += f"; noted: {repairs.told({repairs.NOTED: noted})}"
    return Finding("repair", "green", said)


# ---- the server


def version(facts: Facts) -> Finding:
    """Redis 7.0 or later, Valkey, or something that says so."""
    info, away = facts.info, f"{facts.trip_ms:.1f} ms away"
    if "redis_version" not in info:
        return yellow(f"{UNTOLD}; {away}", "make sure it is 7.0 or later")
    name = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"
    if int(str(info["redis_version"]).partition(".")[0]) < 7:
        return red(name, "upgrade to Redis 7.0 or later, or to Valkey")
    return green(f"{name}, {away}")


def role(facts: Facts) -> Finding:
    """The primary, not a replica."""
    if "role" not in facts.info:
        return yellow(UNTOLD, "make sure it is the primary, not a replica")
    if facts.info["role"] in ("slave", "replica"):
        return red("a read-only replica", f"connect to the primary, {facts.info.get('master_host')}")
    return green(f"primary with {counted(int(facts.info.get('connected_slaves', 0)), 'replica')}")


def lone_node(facts: Facts) -> Finding | None:
    """A server of a cluster is spoken to as a cluster."""
    if not int(facts.info.get("cluster_enabled", 0)) or "+cluster:" in facts.url:
        return None
    return red(f"{directory.LONE_NODE}, and loses sight of these in a failover", directory.CURE)


def replicas(facts: Facts) -> Finding | None:
    """As many replicas as must confirm, and how far each is behind."""
    wanted = facts.stats.durable
    if "connected_slaves" not in facts.info:
        return yellow(UNTOLD, "make sure that it has replicas") if wanted else None
    known = replicas_of(facts.info)
    if not known and not wanted:
        return None
    near = [one for one in known if one["state"] == "online" and int(one["lag"]) <= BEHIND]
    found = counted(len(known), "replica")
    if known:
        behind = max(int(facts.info.get("master_repl_offset", 0)) - int(one["offset"]) for one in known)
        silent_for = max(int(one["lag"]) for one in known)
        found += f", {max(0, behind):,} bytes behind and heard {silent_for} s ago at worst"
    if wanted:
        found += f"; the queue is durable={wanted}"
    if len(near) < wanted:
        return red(
            f"{found}: no put is confirmed, and no task is given out",
            f"connect more, or see why they do not keep up; or timeoutq configure {facts.name} --durable {len(near)}",
        )
    return yellow(found, "see why a replica does not keep up") if len(near) < len(known) else green(found)


def replicas_of(info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Give what INFO tells of each replica: ip, port, state, offset, and lag, the seconds since its last word."""
    usual = {"state": "unknown", "offset": 0, "lag": 0}
    return [{**usual, **told} for name, told in info.items() if re.fullmatch(r"slave\d+", name)]


def eviction(facts: Facts) -> Finding:
    """Noeviction, or tasks vanish without an error."""
    policy = str(facts.info.get("maxmemory_policy", "unknown"))
    if policy == "unknown":
        return yellow(UNTOLD, "make sure maxmemory-policy is noeviction")
    if policy == "noeviction":
        return green(policy)
    cure = "CONFIG SET maxmemory-policy noeviction, and the same in its configuration"
    return red(f"{policy}: the server may throw tasks away", cure)


def memory(facts: Facts) -> Finding:
    """Room for more tasks."""
    if "used_memory" not in facts.info:
        return yellow(UNTOLD, "make sure it has room for the tasks to come")
    used, most = int(facts.info["used_memory"]), int(facts.info.get("maxmemory", 0))
    if most and used > 0.85 * most:
        drop = f"drop done tasks: timeoutq configure {facts.name} --keep-done 1d"
        if facts.stats.compact or not facts.stats.done:
            drop = "see what fills it: timeoutq queues, and redis-cli --bigkeys"
        full = f"{used / most:.0%} of {most / 2**20:,.0f} MiB used"
        return Finding("", "red" if used > 0.98 * most else "yellow", full, f"raise maxmemory, or {drop}")
    return green(f"{used / 2**20:,.0f} MiB used" + (f" of {most / 2**20:,.0f}" if most else ""))


def durability(facts: Facts) -> Finding:
    """What a crash of the server's machine can take with it: the class of persistence, and the most that is lost."""
    info, config, cure = facts.info, facts.config, "CONFIG SET appendonly yes, and the same in its configuration"
    if "aof_enabled" not in info:
        return yellow(UNTOLD, "make sure that appendonly is on")
    stops = config.get("save") and config.get("stop-writes-on-bgsave-error") == "yes"
    if stops and info.get("rdb_last_bgsave_status", "ok") != "ok":
        cure = "free space on its disk, then redis-cli BGSAVE; or CONFIG SET stop-writes-on-bgsave-error no"
        return red("the last snapshot failed, so the server refuses all writes (MISCONF)", cure)
    if int(info["aof_enabled"]):
        return _append_only(facts)
    if "save" not in config:
        return yellow(f"no AOF, and {UNTOLD} about snapshots", cure)
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        return red("RDB: the last snapshot failed", f"free space on its disk; {cure}")
    spans = [int(word) for word in config["save"].split()[::2] if word.isdecimal()]
    if spans:
        return yellow(f"RDB: up to {max(spans):,} s may be lost", cure)
    return yellow("NONE: all tasks are lost when the server restarts", cure)


def _append_only(facts: Facts) -> Finding:
    if facts.info.get("aof_last_write_status", "ok") != "ok":
        return red("AOF: writing the append-only file fails", "free space on its disk")
    lost = {"always": "nothing accepted is lost", "everysec": "up to 2 s may be lost in a power cut"}
    synced, number = facts.config.get("appendfsync", ""), str(facts.info.get("redis_version", ""))
    if synced == "no":
        said = "AOF no: it is synced when the system likes, about 30 s may be lost"
        return yellow(said, "CONFIG SET appendfsync everysec")
    if synced not in lost:
        cure = "make sure that appendfsync is everysec (up to 2 s may be lost) or always"
        return yellow(f"AOF, but {UNTOLD} how often it is synced", cure)
    if "valkey_version" in facts.info or not number.startswith(TORN):
        return green(f"AOF {synced}: {lost[synced]}")
    return yellow(
        f"AOF {synced}: {lost[synced]}; after a power cut, Redis {number} may mix half a script with later writes",
        "after each power cut, once the server is up: redis-cli BGREWRITEAOF",
    )


def clock(facts: Facts) -> Finding:
    """Leases count by the server's clock; people read times by theirs."""
    ahead = facts.clock_ms
    if ahead is None:
        return yellow(UNTOLD, "allow TIME")
    if abs(ahead) > 2000:
        cure = "run NTP on both; leases are right, but at= times of this machine are not"
        return yellow(f"the server's clock is {ahead / 1000:+.1f} s off from this machine's", cure)
    return green(f"{ahead:+.0f} ms from this machine's")


def access(facts: Facts) -> Finding:
    """Who may come in."""
    host = urlsplit(facts.url).hostname or ""
    local = host in ("", "localhost", "::1") or host.startswith("127.") or facts.url.startswith("unix")
    password = "***" in facts.url.replace("://***@", "://")
    if not local and not password:
        return yellow(f"{host} without a password", "set requirepass or an ACL user, and use TLS")
    if not local and not facts.url.startswith(("rediss", "valkeys")):
        return yellow(f"{host} without TLS", "use rediss://")
    # an empty `bind` is all addresses; a minus before one says that it may be missing
    listens = [word.lstrip("-") for word in facts.config.get("bind", "127.0.0.1").split()] or ["*"]
    open_to = [word for word in listens if word != "::1" and not word.startswith("127.")]
    if open_to and not password and facts.config.get("protected-mode") == "no":
        cure = "set requirepass or an ACL user, or bind it to 127.0.0.1"
        return yellow(f"the server listens on {' '.join(open_to)} without a password", cure)
    return green("local" if local else "password and TLS")


def acl(facts: Facts) -> Finding:
    """The user may run every command on the keys of the queue."""
    user = facts.user or "this user"
    # who may not load the library works all the same, once somebody else has loaded it
    refused = [name for name in facts.refused if name != "FUNCTION" or facts.error]
    if not refused and facts.keys == "allowed":
        return green(f"{user} may run all {len(HARMLESS) + len(MAKING)} commands that are used")
    verdict = "yellow" if facts.keys == "allowed" and set(refused) <= {"INFO"} else "red"  # it lacks only checks
    # without UNLINK, commands that make a key cannot be tried; they may be missing, too
    missing = sorted({*refused, *(MAKING if "UNLINK" in refused else ())})
    lacks = [*refused, *([f"the keys {facts.pattern}"] if facts.keys == "refused" else [])]
    keys = "" if facts.keys == "allowed" else facts.pattern
    rights = "timeoutq doctor QUEUE proposes the rights for the keys of one queue"
    if facts.pattern != ALL or not keys:
        rights = cure(facts.user, missing, keys)
    return Finding("", verdict, f"{user} is refused {', '.join(lacks)}", rights)


# ---- the queue


def library(facts: Facts) -> Finding | None:
    """The library is there and runs."""
    has = facts.library
    if facts.error and not isinstance(facts.error, SchemaMismatch):
        return red(str(facts.error), f"allow FCALL, FUNCTION LOAD and the keys {facts.pattern}")
    if has is not None and has.is_another:
        cure = "use one timeoutq for all; then timeoutq library --load"
        return red(f"another text of revision {has.revision} ({has.digest[:12]})", cure)
    return None


def schema(facts: Facts) -> Finding | None:
    """The queue's schema is ours."""
    if isinstance(facts.error, SchemaMismatch):
        return red(str(facts.error), "use the timeoutq that made it, or upgrade")
    if library(facts) is not None:
        return None
    found = facts.stats.settings.get("schema", "none yet")
    runs = "the library runs" if facts.library is None else f"library revision {facts.library.revision}"
    runs += ", which this user may not load" if "FUNCTION" in facts.refused else ""
    return green(f"{found}; {runs}; {counted(facts.stats.known, 'task')} known")


def keys(facts: Facts) -> Finding | None:
    """No key of the queue has a foreign type."""
    if not facts.foreign:
        return None
    said = ", ".join(f"{name} is a {kind}" for name, kind in facts.foreign.items())
    cure = f"find out who wrote it; then redis-cli RENAME '{facts.stem}{next(iter(facts.foreign))}' elsewhere"
    return red(f"{said}: calls that meet it stop half-way", cure)


def tasks(facts: Facts) -> Finding | None:
    """Each task is in one state, and its lease, its place and its records agree with it."""
    found = facts.crooked
    if not found:
        return None
    cures = [] if found.keys() <= repairs.CURES.keys() else [f"timeoutq doctor {facts.name} --repair"]
    cures += [cure.format(queue=facts.name) for what, cure in repairs.CURES.items() if what in found]
    return yellow(repairs.told(found), "; ".join(cures))


def compact(facts: Facts) -> Finding | None:
    """Done tasks that are kept as fingerprints take the 10 bytes that they should take."""
    if not facts.stats.compact:
        return None
    setting = "set-max-intset-entries"
    given = facts.config.get(setting, "")
    if given.isdecimal() and int(given) < NUMBERS:
        cure = f"CONFIG SET {setting} {NUMBERS}, and the same in its configuration; what is there already becomes "
        said = f"{setting} is {given}, so done tasks take several times 10 bytes each"
        return yellow(said, f"{cure}small when the server restarts")
    if not given:
        return yellow(f"{UNTOLD} its {setting}", f"make sure that it is at least {NUMBERS}")
    return green(f"done tasks are kept as fingerprints; {setting} is {given}")


def politeness(facts: Facts) -> Finding | None:
    """All tasks follow the politeness that is set."""
    settings = facts.stats.settings
    ends = settings.get("politeness", "").endswith("off")
    if "converting" not in settings and not ends:
        return None
    what = "ends" if ends else "has changed"
    return yellow(
        f"the politeness of the queue {what}, and not all tasks are in line with it yet",
        f"let workers or `timeoutq cleaner` go on with it, or do it now: timeoutq doctor {facts.name} --repair",
    )


def paused(facts: Facts) -> Finding | None:
    """Somebody paused it, and may have forgotten."""
    return yellow("nobody is given a task", f"timeoutq resume {facts.name}") if facts.stats.paused else None


def leases(facts: Facts) -> Finding | None:
    """Expired leases are taken back."""
    held = f"{facts.stats.in_progress:,} held, {counted(facts.stats.workers, 'worker')} alive, the next one ends"
    return _timely(facts, facts.stats.next_deadline, "a lease ran out", held)


def scheduled(facts: Facts) -> Finding | None:
    """Due tasks become ready."""
    many = counted(facts.stats.scheduled, "task")
    return _timely(facts, facts.stats.next_due, "a task was due", f"{many}, the next one due")


def schedules(facts: Facts) -> Finding | None:
    """Due ticks are put, and code declares its schedules."""
    found = facts.schedules
    if found is None:
        return None
    next_tick, said = found
    late = _timely(facts, next_tick, "a tick was due", "")
    return late if late is not None and late.verdict != "green" else Finding("", *said)


def batches(facts: Facts) -> Finding | None:
    """Batches are sealed, and their tasks are done."""
    return None if facts.batches is None else Finding("", *facts.batches)


def claims(facts: Facts) -> Finding | None:
    """Workers are alive, and claim what is ready."""
    idle, ready = facts.idle, facts.stats.todos
    if not ready or facts.stats.paused:
        return None
    if not facts.stats.workers:
        said = f"{counted(ready, 'task')} {'is' if ready == 1 else 'are'} ready, and no worker is alive"
        cure = f"start one: timeoutq worker {facts.name} …; clients without a worker, such as those over HTTP, give no "
        return yellow(said, f"{cure}sign of life")
    if not idle:
        return None
    some = "; ".join(f"worker {safe(one.worker, 80)} claims nothing: {safe(one.trouble, 200)}" for one in idle[:3])
    more = f"; and {counted(len(idle) - 3, 'other')}" if len(idle) > 3 else ""
    return yellow(
        f"{counted(ready, 'task')} {'is' if ready == 1 else 'are'} ready, and {some}{more}",
        "start such a worker again (SIGTERM, and its supervisor or a new start brings another), and look into its log",
    )


def functions(facts: Facts) -> Finding | None:
    """A worker that is alive has the function of each call that waits."""
    tells, lacking = facts.functions
    # where no worker of functions has ever been, those that are alive may read such payloads by themselves
    if not lacking or (not tells and facts.stats.workers):
        return None
    some = ", ".join(f"{safe(name, 60)} (as of call {safe(id, 80)})" for name, id in list(lacking.items())[:5])
    more = f" and {counted(len(lacking) - 5, 'other')}" if len(lacking) > 5 else ""
    return yellow(
        f"calls wait, and no worker that is alive has their function: {some}{more}",
        "start a worker whose program has it: timeoutq worker --app MODULE:APP; a worker that lacks it gives a call "
        "back for an hour, and then the call fails",
    )


def _timely(facts: Facts, at: float | None, what: str, said: str) -> Finding | None:
    if at is None:
        return None
    late, workers = facts.stats.now - at, facts.stats.workers
    if late < LATE:
        return green(f"{said} in {max(-late, 0):.1f} s")
    if not workers:
        return red(f"{what} {late:.0f} s ago, and nobody saw to it", "start a worker or `timeoutq cleaner`")
    nobody = "the one worker has not seen" if workers == 1 else f"none of {workers:,} workers saw"
    return yellow(
        f"{what} {late:.0f} s ago, and {nobody} to it: it may be that none lives, for a worker that was killed counts "
        "as alive for half a minute after its last sign of life",
        f"see when each gave its last sign: timeoutq status {facts.name}; after a restart of the server workers wait "
        "for one lease; else look into their logs",
    )


SERVER_CHECKS: Mapping[str, Check] = {
    "version": version, "role": role, "cluster": lone_node, "replicas": replicas, "eviction": eviction,
    "memory": memory, "durability": durability, "clock": clock, "access": access, "acl": acl,
}  # fmt: skip
QUEUE_CHECKS: Mapping[str, Check] = {
    "library": library, "schema": schema, "keys": keys, "tasks": tasks, "compact": compact, "politeness": politeness,
    "paused": paused, "leases": leases, "scheduled": scheduled, "schedules": schedules, "batches": batches,
    "claims": claims, "functions": functions,
}  # fmt: skip
CHECKS = {**SERVER_CHECKS, **QUEUE_CHECKS}


def check_limits(
    queue: AnyQueue, workers: int | None, failed: int | None, age: float | None, *, here: bool
) -> list[Finding]:
    """Look at the queue and check each limit that is given: the fewest workers that are alive, the most failed tasks,
    and the longest that a ready task may wait, in seconds. With `here`, only workers on this machine, or in this
    container, count. Raises what `Queue.stats` raises."""
    stats, found = queue.stats(), list[Finding]()
    if workers is not None:
        host = queue.worker.partition(":")[0] if here else None
        found += named("workers", [enough_workers(stats.now, queue.workers(), workers, host)])
    if failed is not None:
        found += named("failed", [few_failed(stats, failed, queue.name)])
    if age is not None:
        found += named("ready", [short_wait(stats, [*queue.history(), stats.sample], age, queue.name)])
    return found


def enough_workers(now: float, known: Sequence[WorkerInfo], least: int, host: str | None = None) -> Finding:
    """Check that at least `least` workers, on `host` if it is given, gave a sign of life in the last half minute."""
    known = [worker for worker in known if host in (None, worker.host)]
    alive = sum(not worker.is_gone(now) for worker in known)
    found = f"{alive} alive" if host is None else f"{alive} alive on {host}"
    if len(known) > alive:
        found += f", {len(known) - alive} gone without a word"
    if alive >= least:
        return green(found)
    return red(f"{found}, wanted {least}", "start workers, or look into their logs")


def few_failed(stats: Stats, most: int, name: str) -> Finding:
    """Check that at most `most` tasks have failed; `name` is that of the queue."""
    found = counted(stats.failed, "task")
    if stats.failed <= most:
        return green(found)
    return red(f"{found}, allowed {most:,}", f"timeoutq list {name} failed; timeoutq retry {name} --all")


def short_wait(stats: Stats, history: Sequence[Sample], longest: float, name: str) -> Finding:
    """Check that no ready task waits for longer than `longest` seconds, as far as this can be known.

    The queue keeps since when there have been ready tasks without a break: no ready task has waited for longer. If that
    is beyond the limit, the check is green if at the pace of the last claims all ready tasks are claimed within the
    limit. A pace says nothing of the time to come if no worker is alive or the queue is paused: then the check is red.
    """
    if not stats.todos or stats.todos_since is None:
        return green("no ready tasks")
    since = max(0.0, stats.now - stats.todos_since)
    found = f"{counted(stats.todos, 'ready task')}; there have been some for {age(since)}"
    if since <= longest:
        return green(found)
    cure, claims = "start more workers, or see why they are slow", pace(history, "claimed", longest)
    if stats.paused:
        found, cure = f"{found}, and the queue is paused", f"timeoutq resume {name}"
    elif not stats.workers:
        found, cure = f"{found}, and no worker is alive", f"start one: timeoutq worker {name} …"
    elif claims:
        wait = stats.todos / claims
        found += f"; at the present pace they are all claimed in {age(wait)}"
        if wait <= longest:
            return green(found)
    else:
        found += ", and none is being claimed"
    return red(f"{found}, wanted {age(longest)}", cure)
