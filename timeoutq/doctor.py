"""Examines a server and a queue: facts gathered once, then one pure function a check, each with its cure.

`timeoutq doctor` prints what it finds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from timeoutq.client import Queue
from timeoutq.errors import SchemaMismatch, TimeoutqError

MARKS = {"green": ("green", "✓"), "yellow": ("yellow", "!"), "red": ("red", "✗")}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: green, yellow or red, and what to do about it."""

    check: str
    verdict: str
    found: str
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was seen."""

    url: str
    info: Mapping[str, Any]
    config: Mapping[str, str]
    """Empty where the server does not tell."""
    clock_ms: float
    """How far the server's clock is ahead of ours, ms."""
    trip_ms: float
    script_error: str
    queue: Mapping[str, Any]


def examine(queue: Queue) -> list[Finding]:
    """Gather the facts and judge them. Raises `Unavailable` when the server cannot be asked at all."""
    facts = gather(queue)
    return [finding for check in CHECKS for finding in [check(facts)] if finding is not None]


def gather(queue: Queue) -> Facts:
    """Ask the server."""
    from timeoutq import flows

    info = queue.server()
    config: dict[str, str] = {}
    try:
        (reply,) = queue.run(flows.ask(queue.talk, [("CONFIG", "GET", "*")]))
        pairs: Any = (
            cast("Any", reply).items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
        )
        config = {_text(name): _text(value) for name, value in pairs}
    except TimeoutqError:
        pass  # managed servers hide it; the checks say what they could not see
    began = time.time()
    (moment,) = queue.run(flows.ask(queue.talk, [("TIME",)]))
    ended = time.time()
    clock = int(moment[0]) + int(moment[1]) / 1e6 - (began + ended) / 2
    error, found = "", {}
    try:
        stats = queue.stats()
        found = {"known": stats.known, "settings": dict(stats.settings), "next_deadline": stats.next_deadline,
                 "in_progress": stats.in_progress, "workers": stats.workers, "now": stats.now}  # fmt: skip
    except SchemaMismatch as mismatch:
        error = f"schema: {mismatch}"
    except TimeoutqError as refused:
        error = str(refused)
    return Facts(queue.url, info, config, clock * 1000, (ended - began) * 1000, error, found)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def version(facts: Facts) -> Finding:
    """Redis 6.2 or later, Valkey, or something that says so."""
    name = "Valkey" if "valkey_version" in facts.info else "Redis"
    shown = str(facts.info.get("valkey_version") or facts.info.get("redis_version") or "?")
    number = tuple(int(part) for part in str(facts.info.get("redis_version", "0.0")).split(".")[:2] if part.isdigit())
    if number and number < (6, 2):
        return Finding("version", "red", f"{name} {shown}", "upgrade to Redis 6.2 or later, or to Valkey")
    return Finding("version", "green", f"{name} {shown}, {facts.trip_ms:.1f} ms away")


def role(facts: Facts) -> Finding:
    """The primary, not a replica."""
    if facts.info.get("role") in ("slave", "replica"):
        return Finding("role", "red", "a read-only replica", f"connect to the primary, {facts.info.get('master_host')}")
    return Finding("role", "green", f"primary with {facts.info.get('connected_slaves', 0)} replicas")


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
    used, most = int(facts.info.get("used_memory", 0)), int(facts.info.get("maxmemory", 0))
    if most and used > 0.85 * most:
        return Finding(
            "memory", "red" if used > 0.98 * most else "yellow", f"{used / most:.0%} of {most / 2**20:,.0f} MiB used",
            "raise maxmemory, or drop done tasks: timeoutq configure QUEUE --keep-done 7d",
        )  # fmt: skip
    return Finding("memory", "green", f"{used / 2**20:,.0f} MiB used" + (f" of {most / 2**20:,.0f}" if most else ""))


def durability(facts: Facts) -> Finding:
    """What a crash of the server's machine can take with it."""
    aof = int(facts.info.get("aof_enabled", 0))
    if aof:
        if facts.info.get("aof_last_write_status", "ok") != "ok":
            return Finding("durability", "red", "writing the append-only file fails", "free space on its disk")
        sync = facts.config.get("appendfsync", "unknown")
        if sync == "always":
            return Finding("durability", "green", "append-only file, synced always: nothing accepted is lost")
        if sync == "no":
            return Finding(
                "durability", "yellow", "append-only file, synced when the system likes: about 30 s may be lost",
                "CONFIG SET appendfsync everysec",
            )  # fmt: skip
        return Finding("durability", "green", f"append-only file, synced {sync}: up to 2 s may be lost in a power cut")
    save = facts.config.get("save", "")
    if save:
        return Finding(
            "durability", "yellow", f"snapshots only ({save}): all since the last one may be lost",
            "CONFIG SET appendonly yes",
        )  # fmt: skip
    if not facts.config:
        return Finding("durability", "yellow", "no append-only file; snapshots unknown", "switch appendonly on")
    return Finding(
        "durability", "yellow", "NONE: all tasks are lost when the server restarts",
        "CONFIG SET appendonly yes, and the same in its configuration",
    )  # fmt: skip


def clock(facts: Facts) -> Finding:
    """Leases count by the server's clock; people read times by theirs."""
    ahead = facts.clock_ms
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
    if not local and "***" not in facts.url:
        return Finding("access", "yellow", f"{host} without a password", "set requirepass or an ACL user, and use TLS")
    if not local and not facts.url.startswith(("rediss", "valkeys")):
        return Finding("access", "yellow", f"{host} without TLS", "use rediss://")
    return Finding("access", "green", "local" if local else "password and TLS")


def scripts(facts: Facts) -> Finding:
    """The queue's scripts run."""
    if facts.script_error.startswith("schema: "):
        return Finding("schema", "red", facts.script_error[8:], "upgrade timeoutq")
    if facts.script_error:
        return Finding("scripts", "red", facts.script_error, "allow EVALSHA, SCRIPT LOAD and the keys timeoutq:*")
    schema = facts.queue.get("settings", {}).get("schema", "none yet")
    return Finding("schema", "green", f"{schema}; scripts run; {facts.queue.get('known', 0):,} tasks known")


def leases(facts: Facts) -> Finding | None:
    """Expired leases are taken back."""
    deadline, now = facts.queue.get("next_deadline"), facts.queue.get("now", 0.0)
    if not deadline:
        return None
    late = now - deadline
    if late > 1 and not facts.queue.get("workers"):
        return Finding(
            "leases", "red", f"a lease ran out {late:.0f} s ago and nobody took it back",
            "start a worker or `timeoutq cleaner`",
        )  # fmt: skip
    return Finding("leases", "green", f"{facts.queue['in_progress']:,} held, {facts.queue['workers']} workers alive")


CHECKS: tuple[Callable[[Facts], Finding | None], ...] = (
    version, role, eviction, memory, durability, clock, access, scripts, leases,
)  # fmt: skip
