"""The operations on hosts: which script, which arguments, how to read the reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from timeoutq.server.calls import Argument, Call, Words
from timeoutq.verbs import replies
from timeoutq.verbs.operations import Operations
from timeoutq.words import arguments
from timeoutq.words.model import HostInfo, HostRecord

Rule = tuple[str, Argument]
"""A rule of a host, as `lua/host.lua` takes it: its name and its value."""


def host(
    operations: Operations, name: object, rules: Sequence[Rule] = (), nonce: Callable[[], bytes] = bytes
) -> Call[HostInfo | None]:
    """Build the call that sets rules of a host, if any, and tells all about the host; None without politeness."""
    words = [word for rule in rules for word in rule]
    id = nonce() if rules else b""
    return operations.call("host", [arguments.host(name), *words], lambda reply: reply and replies.host(reply), id=id)


def page(operations: Operations, start: int, n: int) -> Call[list[HostInfo] | None]:
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
        words += (record.host, *_rules(record), record.visits, record.failures, _ms(record.next_allowed))
        if record.banned is not None:
            words += (0, "x", arguments.reason(record.banned))
        elif record.blocked_until is not None:
            words += (_ms(record.blocked_until), "b", arguments.reason(record.blocked_by))
        else:
            words += (0, "-", "")
    return operations.call("restore_hosts", words, lambda reply: reply, id=nonce())


def _rules(record: HostRecord) -> Words:
    delay = None if record.delay is None else arguments.delay_ms(record.delay, "delay")
    return ["" if rule is None else rule for rule in (delay, record.per_host, record.budget)]


def _ms(at: float | None) -> int:
    return 0 if at is None else round(at * 1000)
