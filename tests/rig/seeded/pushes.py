"""Bugs seeded into the room `push`, and into what the dashboard does with keys."""

from __future__ import annotations

from tests.rig.seeded import Mutant, in_test


def _push(name: str) -> list[str]:
    return [in_test("test_push", name)]


def _address(name: str) -> list[str]:
    return [in_test("test_push_addresses", name)]


MUTANTS: list[Mutant] = [
    Mutant(
        "push: only the first address of a name is judged",
        "gateway/push/posting.py",
        "first_refusal(addresses, private=self._private)",
        "first_refusal(addresses[:1], private=self._private)",
        _address("name_that_leads"),
    ),
    Mutant(
        "push: a name is looked up again to connect",
        "gateway/push/posting.py",
        "await self._network.connect_tcp(address, port,",
        "await self._network.connect_tcp(host, port,",
        _address("between_the_check"),
    ),
    Mutant(
        "push: an address of IPv4 inside one of IPv6 is not looked into",
        "gateway/push/target.py",
        "        why = _of_four(inner, private)\n",
        '        why = ""\n',
        _address("not_public_is_refused"),
    ),
    Mutant(
        "push: with --allow-private link-local addresses are allowed",
        "gateway/push/target.py",
        "    return _special(found) or _private(found, private)",
        '    return _private(found, private) or ("" if private else _special(found))',
        _address("with_allow_private"),
    ),
    Mutant(
        "push: what is sent again has another id",
        "gateway/push/message.py",
        'raw(lease.task), stored or b""',
        'raw(lease.task), b"%d" % lease.attempt, stored or b""',
        _push("sent_again_with_the_same_id"),
    ),
    Mutant(
        "push: the timestamp is not signed",
        "gateway/push/message.py",
        'f"{id}.{at}.".encode()',
        'f"{id}.".encode()',
        _push("each_of_two_secrets"),
    ),
    Mutant(
        "push: a busy receiver costs an attempt",
        "gateway/push/endpoint.py",
        "BUSY = frozenset({429, 502, 503, 504})",
        "BUSY = frozenset({429, 502, 504})",
        _push("each_status"),
    ),
    Mutant(
        "push: Retry-After is not bounded",
        "gateway/push/endpoint.py",
        "retry_after(answer.retry_after, now, LONGEST_BLOCK)",
        "retry_after(answer.retry_after, now, 1e12)",
        _push("retry_after_is"),
    ),
    Mutant(
        "push: a busy receiver holds a task up for ever",
        "gateway/push/pushing.py",
        "within=self._patience, error=error",
        "within=1e8, error=error",
        _push("holds_up_for_too_long"),
    ),
    Mutant(
        "push: the worker goes on to claim while the receiver is blocked",
        "gateway/push/pushing.py",
        "        self._place.pause(left)\n",
        "",
        _push("left_alone_for_as_long"),
    ),
    Mutant(
        "push: after a block all tasks go at once",
        "gateway/push/endpoint.py",
        "        self._trying = self.strikes > 0\n",
        "        self._trying = False\n",
        _push("one_task_at_a_time"),
    ),
    Mutant(
        "push: what was sent before a block ends the block",
        "gateway/push/endpoint.py",
        "        if not self.strikes or began < self._since:\n",
        "        if not self.strikes:\n",
        _push("before_a_block"),
    ),
    Mutant(
        "push: a task that was sent before a block lets a second one try",
        "gateway/push/endpoint.py",
        "        if began >= self._since:\n            self._trying = False\n",
        "        self._trying = False\n",
        _push("lets_a_second_task_try"),
    ),
    Mutant(
        "push: what a receiver sends without end is read without end",
        "gateway/push/posting.py",
        "                if len(data) >= MOST_READ:\n                    break\n",
        "",
        _push("no_more_than_64_kib"),
    ),
]
