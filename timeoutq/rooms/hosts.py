"""The hosts of a polite queue: their rules, blocks and bans. `queue.hosts` is the face of this room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal

from timeoutq.rooms.room import AsyncRoom, Room, RoomFlows
from timeoutq.server.calls import Argument, Call, Words
from timeoutq.verbs import reads, replies
from timeoutq.verbs.confirming import UNCONFIRMED
from timeoutq.verbs.faces import Walk, aiterating, awaiting, blocking, iterating
from timeoutq.verbs.operations import Operations
from timeoutq.verbs.sending import CALLS, Flow, Talk, answer, ask, settled
from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import HostInfo, HostPage, HostRecord

Rule = tuple[str, Argument]  # a rule of a host, as `lua/verbs/host.lua` takes it: its name and its value


def call_host(
    operations: Operations, name: object, rules: Sequence[Rule] = (), nonce: Callable[[], bytes] = bytes
) -> Call[HostInfo | None]:
    """Build the call that sets rules of a host, if any, and tells all about the host; None without politeness."""
    words = [word for rule in rules for word in rule]
    id = nonce() if rules else b""
    return operations.call("host", [arguments.host(name), *words], lambda reply: reply and replies.host(reply), id=id)


def call_page(operations: Operations, start: int, n: int) -> Call[list[HostInfo] | None]:
    """Build the call that reads a page of hosts; None without politeness."""
    return operations.call(
        "hosts", [start, n], lambda reply: None if reply is None else [replies.host(row) for row in reply]
    )


def describe_hosts(operations: Operations, names: Sequence[bytes]) -> Call[list[HostRecord] | None]:
    """Build the call that tells what an export says of up to 500 hosts; None without politeness."""

    def read(reply: Any) -> list[HostRecord] | None:
        if reply is None:
            return None
        now_ms, *rows = reply
        return [replies.host_record(name, row, now_ms / 1000) for name, row in zip(names, rows, strict=True)]

    return operations.call("describe_hosts", list(names), read)


def restore_hosts(
    operations: Operations, records: Sequence[HostRecord], nonce: Callable[[], bytes]
) -> Call[int | None]:
    """Build the call that gives up to 500 hosts their rules and counts back; None without politeness."""
    words: Words = []
    for record in records:
        delay = None if record.delay is None else arguments.delay_ms(record.delay, "delay")
        rules = ["" if rule is None else rule for rule in (delay, record.per_host, record.budget)]
        words += (record.host, *rules, record.visits, record.failures, round((record.next_allowed or 0) * 1000))
        if record.banned is not None:
            words += (0, "x", arguments.reason(record.banned))
        elif record.blocked_until is not None:
            words += (round(record.blocked_until * 1000), "b", arguments.reason(record.blocked_by))
        else:
            words += (0, "-", "")
    return operations.call("restore_hosts", words, lambda reply: reply, id=nonce())


def page(talk: Talk, cursor: str | None, n: int) -> Flow[HostPage]:
    """Read a page of `n` hosts, from where the last page ended."""
    start = int(arguments.cursor(cursor))
    found = yield from answer(talk, call_page(talk.operations, start, arguments.count(n, high=500)))
    if found is None:
        raise _impolite(talk)
    return HostPage(found, str(start + n) if len(found) == n else None)


def some(talk: Talk, cursor: str) -> Flow[tuple[list[HostInfo], str | None]]:
    """Read some hosts in no order; no host is missed, even if the turns of hosts move meanwhile."""
    (reply,) = yield from ask(talk, [("ZSCAN", talk.operations.key("hosts"), cursor, "COUNT", 100)])
    following, found = reply
    rows: list[HostInfo] = []
    calls = [call_host(talk.operations, name) for name, _ in reads.pairs_of(found)]
    for at in range(0, len(calls), CALLS):
        for row in (yield from settled(talk, calls[at : at + CALLS], UNCONFIRMED)):
            if row is None:
                raise _impolite(talk)
            rows.append(row)
    return rows, reads.next_cursor(following)


def one(talk: Talk, host: str, rules: Sequence[Rule]) -> Flow[HostInfo]:
    """Set the rules, if there are any, and tell all about the host."""
    # who only looks waits for no replica
    call = call_host(talk.operations, host, rules, talk.nonce)
    found = yield from answer(talk, call, 0 if rules else UNCONFIRMED)
    while found is not None and found.recalling and rules:
        # if the host has many ready tasks, one step takes back only a part of them
        found = yield from answer(talk, call_host(talk.operations, host, [("recall", "")], talk.nonce))
    if found is None:
        raise _impolite(talk)
    return found


def _impolite(talk: Talk) -> InvalidInput:
    name = talk.operations.name
    return InvalidInput(
        f"queue {name!r} is not polite, and knows no hosts: give it politeness=Politeness(delay=, per_host=), "
        f"or run 'timeoutq configure {name} --delay 1s'"
    )


class HostFlows(RoomFlows):
    """The flows about the hosts of a plain queue, which has one talk; those of a sharded queue choose one."""

    def list(self, cursor: str | None = None, n: int = 100) -> Flow[HostPage]:
        """Read a page of the hosts that the queue has met; the host whose turn is next comes first.

        A sharded queue is read shard by shard.
        """
        return page(self.talk, cursor, n)

    def each(self) -> Walk[HostInfo]:
        """Go through all hosts that the queue has met, in no order; each is given at least once."""
        return Walk(self._some)

    def inspect(self, host: str) -> Flow[HostInfo]:
        """Tell all about one host (`example.com`, `example.com:8080`, a URL of the host, or a group)."""
        return self._ask(host)

    def set(
        self,
        host: str,
        *,
        delay: float | Literal["usual"] | None = None,
        per_host: int | Literal["usual"] | None = None,
        budget: int | Literal["none"] | None = None,
    ) -> Flow[HostInfo]:
        """Give a host rules of its own; a rule that is None stays as it is.

        `delay` (seconds) and `per_host` replace those of the queue; `"usual"` brings those of the queue back. `budget`
        is how many visits the host may have in all, acked or failed; `"none"` removes this limit. When the budget is
        used up, the host's tasks wait until you raise the budget.
        """
        rules: list[Rule] = []
        if delay is not None:
            rules.append(("delay", "" if delay == "usual" else arguments.delay_ms(delay, "delay")))
        if per_host is not None:
            most = "" if per_host == "usual" else arguments.count(per_host, "per_host", high=10_000)
            rules.append(("per_host", most))
        if budget is not None:
            rules.append(("budget", "" if budget == "none" else arguments.count(budget, "budget", 0)))
        return self._ask(host, *rules)

    def block(
        self,
        host: str,
        *,
        until: float | datetime | None = None,
        for_: float | None = None,
        reason: str | None = None,
    ) -> Flow[HostInfo]:
        """Keep all workers from a host `until` a time or `for_` a number of seconds; visits under way are finished.

        `until` is Unix seconds or an aware datetime. `why` shows the `reason`; without one, it shows the name of this
        client.
        """
        if (until is None) == (for_ is None):
            raise InvalidInput("say for how long: either until= (Unix seconds or an aware datetime) or for_= (seconds)")
        end: Argument = b"@" + arguments.due(until, None) if for_ is None else arguments.delay_ms(for_, "for_")
        return self._ask(host, ("block", end), ("by", arguments.reason(self.talk.client if reason is None else reason)))

    def unblock(self, host: str) -> Flow[HostInfo]:
        """End a block or a ban."""
        return self._ask(host, ("unblock", ""))

    def ban(self, host: str, reason: str = "banned") -> Flow[HostInfo]:
        """Never visit a host again: its ready tasks, and all that become ready later, go to failed with the reason."""
        return self._ask(host, ("ban", arguments.reason(reason)))

    # ---- with the one talk; a sharded queue chooses among its talks

    def _some(self, cursor: str) -> Flow[tuple[Sequence[HostInfo], str | None]]:
        return some(self.talk, cursor)

    def _ask(self, host: str, *rules: Rule) -> Flow[HostInfo]:
        return one(self.talk, host, rules)


class Hosts(Room[HostFlows]):
    """The hosts of a polite queue. Every method raises `InvalidInput` on a queue that is not polite."""

    list = blocking(HostFlows.list)
    each = iterating(HostFlows.each)
    inspect = blocking(HostFlows.inspect)
    set = blocking(HostFlows.set)
    block = blocking(HostFlows.block)
    unblock = blocking(HostFlows.unblock)
    ban = blocking(HostFlows.ban)


class AsyncHosts(AsyncRoom[HostFlows]):
    """The hosts of a polite queue, for asyncio: the methods are those of `Hosts`."""

    list = awaiting(HostFlows.list)
    each = aiterating(HostFlows.each)
    inspect = awaiting(HostFlows.inspect)
    set = awaiting(HostFlows.set)
    block = awaiting(HostFlows.block)
    unblock = awaiting(HostFlows.unblock)
    ban = awaiting(HostFlows.ban)
