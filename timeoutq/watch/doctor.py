"""Examines a server and a queue: `facts.py` gathers facts once, then one pure function per check judges, with its cure.

`timeoutq doctor` prints what it finds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from timeoutq.client.shards import AnyQueue, talks_of
from timeoutq.rooms.schedules.flows import Health
from timeoutq.server.rights import HARMLESS, MAKING, cure
from timeoutq.verbs import flows, repairs
from timeoutq.watch import directory
from timeoutq.watch.facts import Facts, gather
from timeoutq.words.text import counted, safe

MARKS = {"green": ("green", "✓"), "yellow": ("yellow", "!"), "red": ("red", "✗")}

NUMBERS = 512
"""Up to so many numbers a server must keep a set as a plain row of them, or compact done tasks take much memory."""

TORN = "7.0."
"""How the versions of Redis begin that keep the first half of a script which a power cut has cut in two."""

LATE = 1.0
"""Seconds after its time at which a lease or a due task has been forgotten by everybody."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: green, yellow or red, and what to do about it."""

    check: str
    verdict: str
    found: str
    cure: str = ""


Check = Callable[[Facts], Finding | None]


def examine(queue: AnyQueue, named: bool = True) -> list[Finding]:
    """Gather the facts and judge them; without `named`, they are about the server, and the queue is any.

    Raises `Unavailable` or `AccessDenied` when nothing can be asked at all.
    """
    return judge(gather(queue, named))


def judge(facts: Facts, checks: Sequence[Check] | None = None) -> list[Finding]:
    """Run every check, or these; pure."""
    return [finding for check in checks or CHECKS for finding in [check(facts)] if finding is not None]


def repair(queue: AnyQueue) -> Finding:
    """Walk through the whole queue, mend the six kinds of damage that walks mend, and say what was mended.

    Raises what any call raises.
    """
    found = Counter[str]()
    for talk in talks_of(queue):
        queue.run(flows.convert(talk))
        found += queue.run(flows.repair(talk))[0]
    mended = {what: n for what, n in found.items() if what not in (*repairs.CURES, repairs.NOTED)}
    said = f"mended: {repairs.told(mended)}" if mended else "nothing to mend"
    noted = {repairs.NOTED: found[repairs.NOTED]} if repairs.NOTED in found else {}
    return Finding("repair", "green", f"{said}; noted: {repairs.told(noted)}" if noted else said)


# ---- judging


def version(facts: Facts) -> Finding:
    """Redis 7.0 or later, Valkey, or something that says so."""
    away = f"{facts.trip_ms:.1f} ms away"
    if "redis_version" not in facts.info:
        return Finding("version", "yellow", f"the server does not tell; {away}", "make sure it is 7.0 or later")
    name = "Valkey" if "valkey_version" in facts.info else "Redis"
    shown = str(facts.info.get("valkey_version") or facts.info["redis_version"])
    number = tuple(int(part) for part in str(facts.info["redis_version"]).split(".")[:2] if part.isdecimal())
    if number < (7, 0):
        return Finding("version", "red", f"{name} {shown}", "upgrade to Redis 7.0 or later, or to Valkey")
    return Finding("version", "green", f"{name} {shown}, {away}")


def role(facts: Facts) -> Finding:
    """The primary, not a replica."""
    if "role" not in facts.info:
        return Finding("role", "yellow", "the server does not tell", "make sure it is the primary, not a replica")
    if facts.info["role"] in ("slave", "replica"):
        return Finding("role", "red", "a read-only replica", f"connect to the primary, {facts.info.get('master_host')}")
    replicas = int(facts.info.get("connected_slaves", 0))
    return Finding("role", "green", f"primary with {counted(replicas, 'replica')}")


def lone_node(facts: Facts) -> Finding | None:
    """A server of a cluster is spoken to as a cluster."""
    if not int(facts.info.get("cluster_enabled", 0)) or "+cluster:" in facts.url:
        return None
    return Finding("cluster", "red", f"{directory.LONE_NODE}, and loses sight of these in a failover", directory.CURE)


BEHIND = 10
"""Seconds since its last word after which a replica counts as away."""


def replicas(facts: Facts) -> Finding | None:
    """As many replicas as must confirm, and how far each is behind."""
    wanted = facts.queue.get("durable", 0)
    if "connected_slaves" not in facts.info:
        silent = Finding("replicas", "yellow", "the server does not tell", "make sure that it has replicas")
        return silent if wanted else None
    known = [one for one in map(_replica, facts.info.items()) if one is not None]
    if not known and not wanted:
        return None
    near = [one for one in known if one["state"] == "online" and int(one.get("lag", 0)) <= BEHIND]
    written = int(facts.info.get("master_repl_offset", 0))
    found = counted(len(known), "replica")
    if known:
        behind = max(written - int(one.get("offset", 0)) for one in known)
        silent_for = max(int(one.get("lag", 0)) for one in known)
        found += f", {max(0, behind):,} bytes behind and heard {silent_for} s ago at worst"
    if wanted:
        found += f"; the queue is durable={wanted}"
    if len(near) < wanted:
        return Finding(
            "replicas", "red", f"{found}: no put is confirmed, and no task is given out",
            f"connect more, or see why they do not keep up; or timeoutq configure {facts.name} --durable {len(near)}",
        )  # fmt: skip
    if len(near) < len(known):
        return Finding("replicas", "yellow", found, "see why a replica does not keep up")
    return Finding("replicas", "green", found)


def _replica(field: tuple[str, Any]) -> dict[str, Any] | None:
    """Read a line of INFO about a replica, such as slave0:ip=…,port=…,state=online,offset=…,lag=0."""
    name, told = field
    if re.fullmatch(r"slave\d+", name) is None:  # redis-py splits such a line
        return None
    return {"state": "unknown", **told} if isinstance(told, dict) else None


def eviction(facts: Facts) -> Finding:
    """Noeviction, or tasks vanish without an error."""
    policy = str(facts.info.get("maxmemory_policy", "unknown"))
    if policy == "noeviction":
        return Finding("eviction", "green", "noeviction")
    if policy == "unknown":
        return Finding("eviction", "yellow", "the server does not tell", "make sure maxmemory-policy is noeviction")
    return Finding(
        "eviction", "red", f"{policy}: the server may throw tasks away",
        "CONFIG SET maxmemory-policy noeviction, and the same in its configuration",
    )  # fmt: skip


def memory(facts: Facts) -> Finding:
    """Room for more tasks."""
    if "used_memory" not in facts.info:
        return Finding("memory", "yellow", "the server does not tell", "make sure it has room for the tasks to come")
    used, most = int(facts.info["used_memory"]), int(facts.info.get("maxmemory", 0))
    if most and used > 0.85 * most:
        drop = "" if facts.compact else f", or drop done tasks: timeoutq configure {facts.name} --keep-done 7d"
        return Finding(
            "memory", "red" if used > 0.98 * most else "yellow", f"{used / most:.0%} of {most / 2**20:,.0f} MiB used",
            f"raise maxmemory{drop}",
        )  # fmt: skip
    return Finding("memory", "green", f"{used / 2**20:,.0f} MiB used" + (f" of {most / 2**20:,.0f}" if most else ""))


def durability(facts: Facts) -> Finding:
    """What a crash of the server's machine can take with it: the class of persistence, and the most that is lost."""

    def found(verdict: str, what: str, cure: str = "") -> Finding:
        return Finding("durability", verdict, what, cure)

    cure = "CONFIG SET appendonly yes, and the same in its configuration"
    if "aof_enabled" not in facts.info:
        return found("yellow", "the server does not tell", "make sure that appendonly is on")
    if int(facts.info["aof_enabled"]):
        if facts.info.get("aof_last_write_status", "ok") != "ok":
            return found("red", "AOF: writing the append-only file fails", "free space on its disk")
        torn = ("", "")
        if "valkey_version" not in facts.info and str(facts.info.get("redis_version", "")).startswith(TORN):
            torn = (f"; after a power cut, Redis {facts.info['redis_version']} may mix half a script with later writes",
                    "after each power cut, once the server is up: redis-cli BGREWRITEAOF")  # fmt: skip
        safe = "yellow" if torn[0] else "green"
        return {
            "always": found(safe, f"AOF always: nothing accepted is lost{torn[0]}", torn[1]),
            "everysec": found(safe, f"AOF everysec: up to 2 s may be lost in a power cut{torn[0]}", torn[1]),
            "no": found("yellow", "AOF no: it is synced when the system likes, about 30 s may be lost",
                        "CONFIG SET appendfsync everysec"),
        }.get(
            facts.config.get("appendfsync", ""),
            found("yellow", "AOF, but the server does not tell how often it is synced",
                  "make sure that appendfsync is everysec (up to 2 s may be lost) or always"),
        )  # fmt: skip
    if "save" not in facts.config:
        return found("yellow", "no AOF, and the server does not tell about snapshots", cure)
    if facts.info.get("rdb_last_bgsave_status", "ok") != "ok":
        return found("red", "RDB: the last snapshot failed", f"free space on its disk; {cure}")
    spans = [int(word) for word in facts.config["save"].split()[::2] if word.isdecimal()]
    if spans:
        return found("yellow", f"RDB: up to {max(spans):,} s may be lost", cure)
    return found("yellow", "NONE: all tasks are lost when the server restarts", cure)


def clock(facts: Facts) -> Finding:
    """Leases count by the server's clock; people read times by theirs."""
    ahead = facts.clock_ms
    if ahead is None:
        return Finding("clock", "yellow", "the server does not tell", "allow TIME")
    if abs(ahead) > 2000:
        return Finding(
            "clock", "yellow", f"the server's clock is {ahead / 1000:+.1f} s off from this machine's",
            "run NTP on both; leases are right, but at= times of this machine are not",
        )  # fmt: skip
    return Finding("clock", "green", f"{ahead:+.0f} ms from this machine's")


def access(facts: Facts) -> Finding:
    """Who may come in."""
    host = urlsplit(facts.url).hostname or ""
    local = host in ("", "localhost", "::1") or host.startswith("127.") or facts.url.startswith("unix")
    password = "***" in facts.url.replace("://***@", "://")
    if not local and not password:
        return Finding("access", "yellow", f"{host} without a password", "set requirepass or an ACL user, and use TLS")
    if not local and not facts.url.startswith(("rediss", "valkeys")):
        return Finding("access", "yellow", f"{host} without TLS", "use rediss://")
    # an empty `bind` is all addresses; a minus before one says that it may be missing
    listens = [word.lstrip("-") for word in facts.config.get("bind", "127.0.0.1").split()] or ["*"]
    open_to = [word for word in listens if word != "::1" and not word.startswith("127.")]
    if open_to and not password and facts.config.get("protected-mode") == "no":
        return Finding(
            "access", "yellow", f"the server listens on {' '.join(open_to)} without a password",
            "set requirepass or an ACL user, or bind it to 127.0.0.1",
        )  # fmt: skip
    return Finding("access", "green", "local" if local else "password and TLS")


def acl(facts: Facts) -> Finding:
    """The user may run every command on the keys of the queue."""
    user = facts.user or "this user"
    # who may not load the library works all the same, once somebody else has loaded it
    refused = [name for name in facts.refused if name != "FUNCTION" or facts.script_error]
    if not refused and facts.keys == "allowed":
        return Finding("acl", "green", f"{user} may run all {len(HARMLESS) + len(MAKING)} commands that are used")
    verdict = "yellow" if facts.keys == "allowed" and set(refused) <= {"INFO"} else "red"  # it lacks only checks
    # without UNLINK, commands that make a key cannot be tried; they may be missing, too
    missing = sorted({*refused, *(MAKING if "UNLINK" in refused else ())})
    lacks = [*refused, *([f"the keys {facts.pattern}"] if facts.keys == "refused" else [])]
    keys = "" if facts.keys == "allowed" else facts.pattern
    return Finding(
        "acl", verdict, f"{user} is refused {', '.join(lacks)}",
        cure(facts.user, missing, keys) if facts.named or not keys else
        "timeoutq doctor QUEUE proposes the rights for the keys of one queue",
    )  # fmt: skip


def library(facts: Facts) -> Finding:
    """The library is there and runs, and the queue's schema is ours."""
    if facts.script_error.startswith("schema: "):
        return Finding("schema", "red", facts.script_error[8:], "use the timeoutq that made it, or upgrade")
    if facts.script_error:
        return Finding("library", "red", facts.script_error, f"allow FCALL, FUNCTION LOAD and the keys {facts.pattern}")
    if facts.library is not None and facts.library.is_another:
        return Finding(
            "library", "red", f"another text of revision {facts.library.revision} ({facts.library.digest[:12]})",
            "use one timeoutq for all; then timeoutq library --load",
        )  # fmt: skip
    schema = facts.queue.get("settings", {}).get("schema", "none yet")
    runs = "the library runs" if facts.library is None else f"library revision {facts.library.revision}"
    runs += ", which this user may not load" if "FUNCTION" in facts.refused else ""
    return Finding("schema", "green", f"{schema}; {runs}; {counted(facts.queue.get('known', 0), 'task')} known")


def keys(facts: Facts) -> Finding | None:
    """No key of the queue has a foreign type."""
    if not facts.foreign:
        return None
    said = ", ".join(f"{name} is a {kind}" for name, kind in facts.foreign.items())
    key = f"{facts.stem}{next(iter(facts.foreign))}"
    return Finding(
        "keys", "red", f"{said}: calls that meet it stop half-way",
        f"find out who wrote it; then redis-cli RENAME '{key}' elsewhere",
    )  # fmt: skip


def tasks(facts: Facts) -> Finding | None:
    """Each task is in one state, and its lease, lane and records agree with it."""
    found = facts.crooked
    if not found:
        return None
    cures = [] if found.keys() <= repairs.CURES.keys() else [f"timeoutq doctor {facts.name} --repair"]
    cures += [cure.format(queue=facts.name) for what, cure in repairs.CURES.items() if what in found]
    return Finding("tasks", "yellow", repairs.told(found), "; ".join(cures))


def compact(facts: Facts) -> Finding | None:
    """Done tasks that are kept as fingerprints take the 10 bytes that they should take."""
    if not facts.compact:
        return None
    given = facts.config.get("set-max-intset-entries", "")
    large, looked = facts.large
    cure = f"CONFIG SET set-max-intset-entries {NUMBERS}, and the same in its configuration"
    if given.isdecimal() and int(given) < NUMBERS:
        found = f"set-max-intset-entries is {given}, so done tasks take several times 10 bytes each"
        return Finding(
            "compact", "yellow", found, f"{cure}; what is there already becomes small when the server restarts"
        )
    if large:
        return Finding(
            "compact", "yellow", f"{large} of {looked} sets of done tasks that were looked at take too much memory",
            "set-max-intset-entries was lower before; a restart of the server makes them small again",
        )  # fmt: skip
    if not given:
        return Finding(
            "compact",
            "yellow",
            "the server does not tell its set-max-intset-entries",
            f"make sure that it is at least {NUMBERS}",
        )
    return Finding("compact", "green", f"done tasks are kept as fingerprints; set-max-intset-entries is {given}")


def politeness(facts: Facts) -> Finding | None:
    """All tasks follow the politeness that is set."""
    settings = facts.queue.get("settings", {})
    ends = settings.get("politeness", "").endswith("off")
    if "converting" not in settings and not ends:
        return None
    what = "ends" if ends else "has changed"
    return Finding(
        "politeness", "yellow", f"the politeness of the queue {what}, and not all tasks are in line with it yet",
        f"let workers or `timeoutq cleaner` go on with it, or do it now: timeoutq doctor {facts.name} --repair",
    )  # fmt: skip


def paused(facts: Facts) -> Finding | None:
    """Somebody paused it, and may have forgotten."""
    if not facts.queue.get("paused"):
        return None
    return Finding("paused", "yellow", "nobody is given a task", f"timeoutq resume {facts.name}")


def leases(facts: Facts) -> Finding | None:
    """Expired leases are taken back."""
    deadline = facts.queue.get("next_deadline")
    if not deadline:
        return None
    left = deadline - facts.queue["now"]
    held = f"{facts.queue['in_progress']:,} held, {counted(facts.queue['workers'], 'worker')} alive"
    return _late(facts, "leases", left, "a lease ran out") or Finding(
        "leases", "green", f"{held}, the next one ends in {max(left, 0):.1f} s"
    )


def scheduled(facts: Facts) -> Finding | None:
    """Due tasks become ready."""
    due = facts.queue.get("next_due")
    if not due:
        return None
    left = due - facts.queue["now"]
    return _late(facts, "scheduled", left, "a task was due") or Finding(
        "scheduled", "green", f"{counted(facts.queue['scheduled'], 'task')}, the next one due in {max(left, 0):.1f} s"
    )


def schedules(facts: Facts) -> Finding | None:
    """Due ticks are put, and code declares its schedules."""
    found: Health | None = facts.queue.get("schedules")
    if found is None:
        return None
    late = None if found.next is None else _late(facts, "schedules", found.next - facts.queue["now"], "a tick was due")
    return late or Finding("schedules", *found.says())


def batches(facts: Facts) -> Finding | None:
    """Batches are sealed, and their tasks are done."""
    found = facts.queue.get("batches")
    return None if found is None else Finding("batches", *found)


def claims(facts: Facts) -> Finding | None:
    """Workers that are alive claim what is ready."""
    idle, _ = facts.queue.get("idlers", ([], 0))
    ready = facts.queue.get("ready", 0)
    if not (ready and idle) or facts.queue.get("paused"):
        return None
    some = "; ".join(f"worker {safe(one.worker, 80)} claims nothing: {safe(one.trouble, 200)}" for one in idle[:3])
    more = f"; and {counted(len(idle) - 3, 'other')}" if len(idle) > 3 else ""
    return Finding(
        "claims", "yellow", f"{counted(ready, 'task')} {'is' if ready == 1 else 'are'} ready, and {some}{more}",
        "start such a worker again (SIGTERM, and its supervisor or a new start brings another), and look into its log",
    )  # fmt: skip


def functions(facts: Facts) -> Finding | None:
    """A worker that is alive has the function of each call that waits."""
    tells, lacking = facts.queue.get("functions", (False, {}))
    # where no worker of functions has ever been, those that are alive may read such payloads by themselves
    if not lacking or (not tells and facts.queue.get("workers")):
        return None
    some = ", ".join(f"{safe(name, 60)} (as of call {safe(id, 80)})" for name, id in list(lacking.items())[:5])
    more = f" and {counted(len(lacking) - 5, 'other')}" if len(lacking) > 5 else ""
    return Finding(
        "functions", "yellow", f"calls wait, and no worker that is alive has their function: {some}{more}",
        "start a worker whose program has it: timeoutq worker --app MODULE:APP; a worker that lacks it gives a call "
        "back for an hour, and then the call fails",
    )  # fmt: skip


def _late(facts: Facts, check: str, left: float, what: str) -> Finding | None:
    if left > -LATE:
        return None
    workers = facts.queue.get("workers", 0)
    if not workers:
        return Finding(
            check, "red", f"{what} {-left:.0f} s ago, and nobody saw to it", "start a worker or `timeoutq cleaner`"
        )
    nobody = "the one worker has not seen" if workers == 1 else f"none of {workers:,} workers saw"
    return Finding(
        check, "yellow",
        f"{what} {-left:.0f} s ago, and {nobody} to it: it may be that none lives, for a worker that was killed counts "
        "as alive for a minute after its last sign of life",
        f"see when each gave its last sign: timeoutq status {facts.name}; after a restart of the server workers wait "
        "for one lease; else look into their logs",
    )  # fmt: skip


SERVER_CHECKS: tuple[Check, ...] = (
    version, role, lone_node, replicas, eviction, memory, durability, clock, access, acl,
)  # fmt: skip
QUEUE_CHECKS: tuple[Check, ...] = (
    library, keys, tasks, compact, politeness, paused, leases, scheduled, schedules, batches,
    claims, functions,
)  # fmt: skip
CHECKS = SERVER_CHECKS + QUEUE_CHECKS
