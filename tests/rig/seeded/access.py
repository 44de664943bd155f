"""Bugs seeded into what decides who may ask the gateway, into its tokens, and into the bounds of clients."""

from __future__ import annotations

from tests.rig.seeded import Mutant, in_test

ACCESS = "gateway/access.py"
TOKENS = "gateway/tokens.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "a token that has run out counts",
        TOKENS,
        "if found is None or (found.expires is not None and found.expires <= self.now()):",
        "if found is None:",
        [in_test("test_tokens", "runs_out_by_the_clock")],
    ),
    Mutant(
        "what was read of tokens counts for ever when Redis is away",
        TOKENS,
        "            if self._clock() - self._read_at >= STALE:\n                raise",
        "            if self._read_at < 0:\n                raise",
        [in_test("test_tokens", "nobody_comes_in_later")],
    ),
    Mutant(
        "a gateway that has seen its tokens vanish lets everybody in",
        TOKENS,
        "self.met = self.met or not self._table.empty",
        "self.met = not self._table.empty",
        [in_test("test_tokens", "forgets_it_when_revoked")],
    ),
    Mutant(
        "each wrong token is a reading",
        TOKENS,
        "await self._refresh(AGAIN)",
        "await self._refresh(0.0)",
        [in_test("test_tokens", "wrong_tokens_cost")],
    ),
    Mutant(
        "a token of a taken name replaces the other",
        TOKENS,
        '("HSETNX", KEY, wanted.name, line)',
        '("HSET", KEY, wanted.name, line)',
        [in_test("test_tokens", "of_many_who_want_one_name")],
    ),
    Mutant(
        "a host that begins like ours is ours",
        ACCESS,
        "return host in LOOPBACK_NAMES or host in names",
        'return host.startswith("localhost") or host in LOOPBACK_NAMES or host in names',
        [in_test("test_access", "which_hosts_are_ours")],
    ),
    Mutant(
        "an Origin of another port is our own",
        ACCESS,
        "return bool(where) and (where == here or where in names)",
        'return bool(where) and (where.split(":")[0] == request.hosts[0].split(":")[0] or where in names)',
        [in_test("test_access", "pages_of_other_sites")],
    ),
    Mutant(
        "a form of another site is a link",
        ACCESS,
        "elif request.method in SAFE_METHODS and request.navigates and not request.origins:",
        "elif request.navigates and not request.origins:",
        [in_test("test_access", "pages_of_other_sites")],
    ),
    Mutant(
        "a write with a cookie needs no proof",
        ACCESS,
        "        if not secret and request.cookie:\n            if (trouble := proof_trouble(",
        "        if not secret and request.cookie:\n            if (trouble := origin_trouble(",
        [in_test("test_access", "logs_in_writes")],
    ),
    Mutant(
        "of two cookies the first counts",
        ACCESS,
        'return found[0] if len(found) == 1 else ""',
        'return found[0] if found else ""',
        [in_test("test_access", "a_cookie_counts_once")],
    ),
    Mutant(
        "callers behind a proxy are of this machine",
        ACCESS,
        "if not settings.anonymous or request.forwarded or len(request.hosts) != 1:",
        "if not settings.anonymous or len(request.hosts) != 1:",
        [in_test("test_access", "only_from_this_machine")],
    ),
    Mutant(
        "a login leads to any site",
        ACCESS,
        'return wanted if plain and wanted.startswith(home) and not wanted.startswith("//") else home',
        "return wanted if plain and wanted.startswith(home) else home",
        [in_test("test_access", "a_login_leads_to_no_other")],
    ),
    Mutant(
        "a read-only gateway lets a token write",
        "gateway/callers.py",
        'if needs not in self.allow or (self.read_only and needs != "look"):',
        "if needs not in self.allow:",
        [in_test("test_access", "a_caller_may_what_its_token")],
    ),
    Mutant(
        "the rest of a refused body is read for ever",
        "gateway/connections.py",
        "        elif self._coming is None:\n",
        "        elif self._coming is None and cycle is None:\n",
        [in_test("test_http_bad_input", "goes_on_sending")],
    ),
    Mutant(
        "a body may drip",
        "gateway/requests.py",
        "left = until + size / SLOWEST - loop.time()",
        "left = settings.body_seconds",
        [in_test("test_http_bad_input", "a_body_that_comes_slowly")],
    ),
    Mutant(
        "the memory of bodies is never given back",
        "gateway/requests.py",
        "        self.step_aside()\n        self.count_bytes(0)",
        "        self.step_aside()",
        [in_test("test_http_bad_input", "starves_no_other")],
    ),
]
