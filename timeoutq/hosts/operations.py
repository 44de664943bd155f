"""The operations on hosts: which script, which arguments, how to read the reply.

`flows.py` of this room sends the calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from timeoutq import arguments, replies
from timeoutq.calls import Argument, Call
from timeoutq.model import HostInfo
from timeoutq.operations import Operations

Rule = tuple[str, Argument]
"""A rule of a host, as `lua/host.lua` takes it: its name and its value."""


def host(operations: Operations, name: object, rules: Sequence[Rule] = ()) -> Call[HostInfo | None]:
    """Build the call that sets rules of a host, if any, and tells all about the host; None without politeness."""
    words = [word for rule in rules for word in rule]
    return operations.call("host", [arguments.host(name), *words], lambda reply: reply and replies.host(reply))


def page(operations: Operations, start: int, n: int) -> Call[list[HostInfo] | None]:
    """Build the call that reads a page of hosts; None without politeness."""
    return operations.call(
        "hosts", [start, n], lambda reply: None if reply is None else [replies.host(row) for row in reply]
    )
