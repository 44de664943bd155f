"""Bugs seeded into the API over HTTP: its claims that wait, its lines, its problems and its places."""

from __future__ import annotations

from tests.rig.seeded import Mutant, in_test


def _waits(name: str) -> str:
    return in_test("test_http_waits", name)


def _verbs(name: str) -> str:
    return in_test("test_http_verbs", name)


MUTANTS = [
    Mutant(
        "http: what was taken for a client that is gone is not given back",
        "gateway/polls.py",
        "                await undo()\n",
        "                pass\n",
        [_waits("leases_of_a_client_that_is_gone")],
    ),
    Mutant(
        "http: leases go back when a client hangs up that has them from another gateway",
        "gateway/claims.py",
        "talk.operations.release(part, deadline_ms=deadline_ms)",
        "talk.operations.release(part)",
        [_waits("has_from_another_gateway")],
    ),
    Mutant(
        "http: a claim that is sent again does not extend its leases",
        "gateway/claims.py",
        "flows.extend(talk, found.leases, wish.timeout_ms + 1)",
        "flows.extend(talk, found.leases[:0], wish.timeout_ms + 1)",
        [_waits("sent_again")],
    ),
    Mutant(
        "http: a revoked token that waits takes tasks",
        "gateway/polls.py",
        "            if not good:\n",
        "            if False:\n",
        [in_test("test_access", "revoked_while_its_holder_waits")],
    ),
    Mutant(
        "http: what was done for an answer that is refused stays done",
        "gateway/app.py",
        "if request.answer.was_refused and request.undo is not None:",
        "if False:",
        [in_test("test_access", "took_goes_back")],
    ),
    Mutant(
        "http: unknown queues stay open",
        "gateway/queues.py",
        "            await self.forget(name)\n        raise unknown(name)",
        "            pass\n        raise unknown(name)",
        [in_test("test_open_queues", "unknown_is_closed")],
    ),
    Mutant(
        "http: one caller may have all open queues",
        "gateway/queues.py",
        "len(own) >= max(1, most // 2)",
        "len(own) >= most",
        [in_test("test_open_queues", "shuts_the_gateway_for_nobody")],
    ),
    Mutant(
        "http: a claim that is sent again leaves the first one in line",
        "gateway/polls.py",
        "                older.leave()\n",
        "",
        [_waits("takes_the_place_of_the_first")],
    ),
    Mutant(
        "http: a claim sent again does not wait for the first one to end",
        "gateway/polls.py",
        "                await asyncio.wait([older.over])\n",
        "",
        [_waits("carried_out_after_the_first")],
    ),
    Mutant(
        "http: a client that has gone while it waited stays in line",
        "gateway/polls.py",
        "        self.left = True\n        self.expire()\n",
        "        self.left = True\n",
        [_waits("nothing_is_leased_to_a_client")],
    ),
    Mutant(
        "http: each client that waits makes a line of its own",
        "gateway/polls.py",
        "        if line is None:\n            line = self._lines[",
        "        if True:\n            line = self._lines[",
        [_waits("served_in_turn_through_one_connection")],
    ),
    Mutant(
        "http: the age of a claim is not passed on",
        "gateway/claims.py",
        "replace(call, sent_ms=wish.age_ms)",
        "call",
        [_waits("sent_again_gives_the_same_leases")],
    ),
    Mutant(
        "http: nobody cleans a queue of clients over HTTP",
        "gateway/tending.py",
        "        if name not in self._tasks:\n",
        "        if name in self._tasks:\n",
        [_waits("leases_that_ran_out_are_taken_back")],
    ),
    Mutant(
        "http: lines before a bad one are dropped",
        "gateway/intake.py",
        'return tasks, self._bad(422, "bad-body",',
        'return [], self._bad(422, "bad-body",',
        [_verbs("lines_before_a_bad_one")],
    ),
    Mutant(
        "http: a line that is cut between two parts is lost",
        "gateway/intake.py",
        'whole, _, data = data.rpartition(b"\\n")',
        'whole, data = data.rpartition(b"\\n")[0], bytearray()',
        [_verbs("lines_are_put_whatever")],
    ),
    Mutant(
        "http: an unknown field is taken",
        "gateway/bodies.py",
        "class Strict(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):",
        "class Strict(msgspec.Struct, kw_only=True):",
        [_verbs("asked_wrongly")],
    ),
    Mutant(
        "http: ids that are no text lose their bytes",
        "gateway/problems.py",
        '        return {"b64": task.encode("utf-8", "surrogateescape")}\n',
        '        return task.encode("utf-8", "replace").decode()\n',
        [_verbs("ids_have_every_byte")],
    ),
    Mutant(
        "http: one caller may have all places",
        "gateway/fairness.py",
        "self._each = max(1, self._free // 2)",
        "self._each = max(1, self._free)",
        [in_test("test_places", "half_of_the_places")],
    ),
]
