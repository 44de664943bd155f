"""What `queue.hosts` does: `HostFlows` checks what the caller passed, and gives the flow that does the work. No I/O.

The checks come at once, and raise `InvalidInput` before the client connects. Each flow raises `InvalidInput`, too, on a
queue that is not polite.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from timeoutq.rooms.hosts import operations
from timeoutq.rooms.hosts.operations import Rule
from timeoutq.server.calls import Argument, Call
from timeoutq.verbs import reads
from timeoutq.verbs.confirming import UNCONFIRMED
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

    def page(self, cursor: str | None, n: int) -> Flow[HostPage]:
        """Read a page of `n` hosts, from where the last page ended."""
        return page(self.talk, cursor, n)

    def some(self, cursor: str) -> Flow[tuple[list[HostInfo], str | None]]:
        """Read some hosts in no order; no host is missed, even if the turns of hosts move meanwhile."""
        return some(self.talk, cursor)

    def inspect(self, host: str) -> Flow[HostInfo]:
        """Tell all about one host."""
        return self._ask(host)

    def set_rules(
        self,
        host: str,
        delay: float | Literal["usual"] | None,
        per_host: int | Literal["usual"] | None,
        budget: int | Literal["none"] | None,
    ) -> Flow[HostInfo]:
        """Give a host rules of its own; None leaves a rule as it is."""
        rules: list[Rule] = []
        if delay is not None:
            rules.append(("delay", "" if arguments.is_word(delay, "usual") else arguments.delay_ms(delay, "delay")))
        if per_host is not None:
            most = "" if arguments.is_word(per_host, "usual") else arguments.count(per_host, "per_host", high=10_000)
            rules.append(("per_host", most))
        if budget is not None:
            most = "" if arguments.is_word(budget, "none") else arguments.count(budget, "budget", low=0)
            rules.append(("budget", most))
        return self._ask(host, *rules)

    def block(
        self, host: str, until: float | datetime | None, for_: float | None, reason: str | None, by: str
    ) -> Flow[HostInfo]:
        """Block a host until a time, or for some seconds; without a `reason`, `by` (who does it) is the reason."""
        if (until is None) == (for_ is None):
            raise InvalidInput("say for how long: either until= (Unix seconds or an aware datetime) or for_= (seconds)")
        end: Argument = b"@" + arguments.due(until, None) if for_ is None else arguments.delay_ms(for_, "for_")
        return self._ask(host, ("block", end), ("by", arguments.reason(by if reason is None else reason)))

    def unblock(self, host: str) -> Flow[HostInfo]:
        """End a block or a ban."""
        return self._ask(host, ("unblock", ""))

    def ban(self, host: str, reason: str) -> Flow[HostInfo]:
        """Ban a host, and move its ready tasks to failed."""
        return self._ask(host, ("ban", arguments.reason(reason)))

    def _ask(self, host: str, *rules: Rule) -> Flow[HostInfo]:
        return one(self.talk, host, rules)
