"""`queue.hosts`: what it does, and its two faces, `Hosts` and `AsyncHosts`. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from timeoutq.rooms.hosts import operations
from timeoutq.rooms.hosts.operations import Rule
from timeoutq.rooms.room import AsyncRoom, Room
from timeoutq.server.calls import Argument, Call
from timeoutq.verbs import reads
from timeoutq.verbs.confirming import UNCONFIRMED
from timeoutq.verbs.faces import Walk, aiterating, awaiting, blocking, iterating
from timeoutq.verbs.sending import CALLS, Flow, Talk, answer, ask, settle
from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput, TimeoutqError
from timeoutq.words.model import HostInfo, HostPage


def page(talk: Talk, cursor: str | None, n: int) -> Flow[HostPage]:
    """Read a page of `n` hosts, from where the last page ended."""
    return _page(talk, int(arguments.cursor(cursor)), arguments.count(n, high=500))


def _page(talk: Talk, start: int, n: int) -> Flow[HostPage]:
    found = yield from answer(talk, operations.page(talk.operations, start, n))
    if found is None:
        raise _impolite(talk)
    return HostPage(found, str(start + n) if len(found) == n else None)


def some(talk: Talk, cursor: str) -> Flow[tuple[list[HostInfo], str | None]]:
    """Read some hosts in no order; no host is missed, even if the turns of hosts move meanwhile."""
    (reply,) = yield from ask(talk, [("ZSCAN", talk.operations.key("hosts"), cursor, "COUNT", 100)])
    following, found = reply
    rows: list[HostInfo] = []
    names = [name for name, _ in reads.pairs_of(found)]
    for at in range(0, len(names), CALLS):
        for row in (
            yield from settle(
                talk, [operations.host(talk.operations, name) for name in names[at : at + CALLS]], UNCONFIRMED
            )
        ):
            if isinstance(row, TimeoutqError):
                raise row
            if row is None:
                raise _impolite(talk)
            rows.append(row)
    return rows, reads.next_cursor(following)


def one(talk: Talk, host: str, rules: Sequence[Rule]) -> Flow[HostInfo]:
    """Set the rules, if there are any, and tell all about the host."""
    recall = operations.host(talk.operations, host, [("recall", "")], talk.nonce) if rules else None
    return _told(talk, operations.host(talk.operations, host, rules, talk.nonce), recall)


def _told(talk: Talk, call: Call[HostInfo | None], recall: Call[HostInfo | None] | None) -> Flow[HostInfo]:
    # who only looks waits for no replica
    found = yield from answer(talk, call, UNCONFIRMED if recall is None else 0)
    while found is not None and found.recalling and recall is not None:
        # if the host has many ready tasks, one step takes back only a part of them
        found = yield from answer(talk, recall)
    if found is None:
        raise _impolite(talk)
    return found


def _impolite(talk: Talk) -> InvalidInput:
    name = talk.operations.name
    return InvalidInput(
        f"queue {name!r} is not polite, and knows no hosts: give it politeness=Politeness(delay=, per_host=), "
        f"or run 'timeoutq configure {name} --delay 1s'"
    )


class HostFlows:
    """The flows about the hosts of a plain queue, which has one talk; those of a sharded queue choose one."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk

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
            rules.append(("delay", "" if arguments.is_word(delay, "usual") else arguments.delay_ms(delay, "delay")))
        if per_host is not None:
            most = "" if arguments.is_word(per_host, "usual") else arguments.count(per_host, "per_host", high=10_000)
            rules.append(("per_host", most))
        if budget is not None:
            rules.append(("budget", "" if arguments.is_word(budget, "none") else arguments.count(budget, "budget", 0)))
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
