"""Bugs seeded into the live dashboard."""

from __future__ import annotations

from tests.rig.seeded import Mutant, in_test

KEYS = "test_dashboard_keys"

MUTANTS: list[Mutant] = [
    Mutant(
        "any key answers a question of the dashboard with yes",
        "watch/screen.py",
        'if key in ("y", "Y"):',
        "if True:",
        [in_test(KEYS, "answered_by_y")],
    ),
    Mutant(
        "a dashboard that only looks acts",
        "watch/screen.py",
        "        if self.read_only:\n",
        "        if not self.queue:\n",
        [in_test(KEYS, "no_key_of_a_screen")],
    ),
    Mutant(
        "a selected row is a place, not a task",
        "watch/screen.py",
        "            if not any(row.key == self.selected for row in found.rows):\n",
        "            if found.rows or not found.rows:\n",
        [in_test(KEYS, "stays_selected")],
    ),
    Mutant(
        "rows of a view that was left are shown",
        "watch/screen.py",
        "if found.view == self.view and (",
        "if found.view and (found.view == HOSTS or found.view == TASKS) or (",
        [in_test(KEYS, "not_wanted_any_more")],
    ),
    Mutant(
        "a release by hand names no owner",
        "watch/hands.py",
        "release([Lease(task, token, 0.0)])",
        'release([Lease(task, "nobody", 0.0)])',
        [in_test(KEYS, "forgotten_released")],
    ),
    Mutant(
        "the bytes of a hostile id reach the terminal from a list of tasks",
        "watch/draw.py",
        "            text = safe(text, size)\n",
        "",
        [in_test("test_dashboard", "hostile_text_is_shown")],
    ),
    Mutant(
        "an escape sequence that came in two parts is two keys",
        "watch/live.py",
        "            if _BEGUN.match(typed):\n                return found, typed\n",
        "",
        [in_test(KEYS, "told_apart")],
    ),
    Mutant(
        "a filter acts while it is typed",
        "watch/screen.py",
        "        if self.typing is not None:\n            return self._type(key)\n        if key in",
        "        if self.typing is not None and key.islower():\n            return self._type(key)\n        if key in",
        [in_test(KEYS, "letters_are_text")],
    ),
]
