"""The lists of the tests and of the bench that must know each verb: one that a list lacks is told by its name."""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Collection, Mapping

from tests.bench import pauses
from tests.core import test_sections
from tests.faces import test_faults
from tests.pure.test_scripts import NAMES
from tests.rig import rights as rig
from timeoutq.rooms import batches as of_batches
from timeoutq.rooms import failures as of_failures
from timeoutq.rooms import hosts as of_hosts
from timeoutq.rooms import results as of_results
from timeoutq.rooms.schedules import definition as of_schedules
from timeoutq.server import scripts
from timeoutq.verbs import confirming, operations

WITHOUT_FAULTS = {
    "await": "a client that waits looks again by itself; tests/core/test_waits.py cuts its connections",
    "batches": "it changes nothing",
    "beat": "no method of a queue calls it; a sign of life that is lost is given again",
    "convert": "no method calls it alone: `configure` and `prune` go on with it",
    "crash": "no method calls it: a supervisor does; tests/worker/ lets processes die",
    "describe": "only an export calls it, and changes nothing",
    "describe_hosts": "only an export calls it, and changes nothing",
    "plan": "only cleaners call it",
    "probe": "each client's first call is preceded by it",
    "publish": "no method of a queue calls it; a worker tells again which functions it has",
    "repair": "no method calls it alone: `prune` and doctor do a part of it",
    "restore": "only an import calls it; tests/faces/test_transfer.py breaks imports off",
    "renew": "code declares its schedules again within a minute",
    "schedules": "it changes nothing",
    "set_schedule": "tests/schedules/test_schedules_on_servers.py sends it again",
    "seal_batch": "tests/core/test_batches.py sends it again",
    "restore_batch": "only an import calls it; tests/faces/test_export_batches.py sends it again",
    "tick": "only cleaners call it; tests/rig/ticks.py kills them, and fails over",
    "restore_hosts": "only an import calls it; tests/hosts/test_export_hosts.py sends it again",
}
UNCONFIRMED = {
    "note": "a handler says how far it is, again and again",
    "await": "a client that waits looks again by itself",
    "beat": "a worker gives another sign of life soon",
    "configure": "it waits where it changes the politeness; an operator may pause a queue while replicas are away",
    "convert": "cleaners go on with it",
    "crash": "only a supervisor hears of it; where a failover undoes it, the leases run out",
    "promote_due": "a cleaner's: a claim that is confirmed has confirmed what went before it",
    "prune": "a cleaner's",
    "publish": "a worker tells again within a minute which functions it has",
    "pull": "a durable queue refuses it",
    "purge": "it removes the setting, too",
    "renew": "code declares its schedules again within a minute",
    "repair": "a cleaner's",
    "requeue_expired": "a cleaner's",
}
WITHOUT_RIGHTS = {"purge": "it removes everything, and one that was refused is called again"}


def lacking(known: Collection[str], why_not: Mapping[str, str], verbs: Collection[str] = NAMES) -> list[str]:
    """Give the verbs that a list lacks without a reason, and what the list or the reasons name though it is no verb."""
    return sorted(
        (set(verbs) - set(known) - set(why_not)) | ({*known, *why_not} - set(verbs)) | (set(known) & set(why_not))
    )


def test_each_verb_meets_all_faults() -> None:
    known = {operation.sends for operation in test_faults.OPERATIONS if not operation.sends.isupper()}
    assert lacking(known, WITHOUT_FAULTS) == [], "add it to OPERATIONS in tests/faces/test_faults.py"


def test_each_verb_that_writes_is_tried_with_each_right_taken_away() -> None:
    known = {script for script, _ in rig.VERBS.values()} | scripts.READING | {"probe"}
    assert lacking(known, WITHOUT_RIGHTS) == [], "add it to VERBS in tests/rig/rights.py, or to READING in scripts.py"


def test_each_verb_that_writes_waits_for_the_replicas_of_a_durable_queue() -> None:
    writing = set(NAMES) - scripts.READING - {"plan", "probe"}
    assert lacking(confirming.CONFIRMED, UNCONFIRMED, writing) == [], "add it to CONFIRMED in confirming.py"


def test_each_verb_that_takes_sections_is_asked_to_refuse_unknown_ones() -> None:
    taking = [name for name in NAMES if "\n-- SECTIONS" in scripts.source(f"verbs/{name}")]
    assert lacking(test_sections.VERBS, {}, taking) == [], "add it to VERBS in tests/core/test_sections.py"


def test_the_longest_run_of_each_verb_is_measured() -> None:
    texts = defaultdict[str, str](str)
    for module in (of_batches, operations, of_schedules, of_hosts, of_results, of_failures):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.FunctionDef):
                texts[node.name] += ast.unparse(node)
    rooms = "ops|of_hosts|of_schedules|of_batches|of_results|of_failures"
    used = re.findall(rf"\b(?:{rooms})\.(\w+)\(", inspect.getsource(pauses.Scene))
    # a method may let another one make the calls, as `put` does
    used += [name for method in used for name in re.findall(r"\bself\.(\w+)\(", texts[method])]
    known = {script for method in used for script in re.findall(r"\.call\('(\w+)'", texts[method])}
    assert lacking(known, {}) == [], "add it to an act of Scene in tests/bench/pauses.py"


def test_a_list_that_lacks_a_verb_tells_its_name() -> None:
    assert lacking(set(NAMES) - {"put"}, {}) == ["put"]
    assert lacking(set(NAMES), {"put": "why"}) == ["put"]
    assert lacking({*NAMES, "novel"}, {}) == ["novel"]
