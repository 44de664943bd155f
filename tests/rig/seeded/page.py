"""Bugs seeded into the page for browsers."""

from __future__ import annotations

from tests.rig.seeded import Mutant, in_test

MUTANTS: list[Mutant] = [
    Mutant(
        "an id is written into the page as it is",
        "gateway/page/spelling.py",
        'return Markup("<bdi>{}</bdi>").format(safe(value, width))',
        'return Markup(f"<bdi>{safe(value, width)}</bdi>")',
        [in_test("test_hostile_page", "line_of_hostile_text")],
    ),
    Mutant(
        "the templates escape nothing",
        "gateway/page/paint.py",
        "autoescape=True",
        "autoescape=False",
        [in_test("test_hostile_page", "hostile_query")],
    ),
    Mutant(
        "lines of a traceback keep their control characters",
        "gateway/page/spelling.py",
        "found = [safe(line, LONGEST_LINE) for line in lines[:MOST_LINES]]",
        "found = [line for line in lines[:MOST_LINES]]",
        [in_test("test_hostile_page", "line_of_hostile_text")],
    ),
    Mutant(
        "an id with control characters travels as text",
        "gateway/page/spelling.py",
        'if task.isprintable() and task.strip(" ") == task:',
        "if task.isascii():",
        [in_test("test_page", "control_characters")],
    ),
    Mutant(
        "an act leads to any address",
        "gateway/page/visits.py",
        'below = to if BACK.fullmatch(to) else ""',
        "below = to",
        [in_test("test_page", "leads_back_only")],
    ),
    Mutant(
        "nobody is asked before a task is forgotten",
        "gateway/page/acts.py",
        "if (question := _unsure(visit, form, name, tasks)) is not None:",
        "if (question := None) is not None:",
        [in_test("test_page", "retried_and_another_forgotten")],
    ),
    Mutant(
        "a queue is purged whatever name is typed",
        "gateway/page/acts.py",
        'if form.get("name") != visit.name:',
        'if not form.get("name"):',
        [in_test("test_page", "purged_only_by_its_name")],
    ),
    Mutant(
        "a message is shown again and again",
        "gateway/page/visits.py",
        "        if said is not None:\n            answer.delete_cookie(",
        "        if said is None:\n            answer.delete_cookie(",
        [in_test("test_page", "shown_once")],
    ),
    Mutant(
        "the page after an act shows what was before",
        "gateway/page/visits.py",
        "        self.hub.changed(self.name)\n",
        "",
        [in_test("test_page", "paused_and_resumed")],
    ),
    Mutant(
        "buttons are shown to those who may only look",
        "gateway/page/visits.py",
        "frozenset(needs for needs in EVERYTHING if self.caller.may(needs, self.name or None))",
        "frozenset(EVERYTHING)",
        [in_test("test_page", "read_only_gateway")],
    ),
    Mutant(
        "each viewer has looks of its own",
        "gateway/page/hub.py",
        'await self.shared(queue, ("page", page), look)',
        "await look()",
        [in_test("test_hub", "seen_once")],
    ),
    Mutant(
        "whoever has gone is counted as a viewer",
        "gateway/page/hub.py",
        "            mine[key] -= 1\n",
        "            mine[key] -= 0\n",
        [in_test("test_hub", "nobody_watches")],
    ),
    Mutant(
        "a long look is followed by a short rest",
        "gateway/names.py",
        "return min(LONGEST_REST, max(least, took * share))",
        "return least",
        [in_test("test_hub", "rests_longer")],
    ),
]
