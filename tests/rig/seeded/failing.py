"""Bugs seeded into the kinds of failures, the history, the pictures and the report."""

from __future__ import annotations

from tests.rig.seeded import Mutant, in_test

GIVEN_UP = [in_test("test_failures", "however_a_task_is_given_up")]
LEAVES = [in_test("test_failures", "however_a_task_leaves")]
GAPS = [in_test("test_history", "nobody_noted")]
SHORT = [in_test("test_history", "short_crawl")]

MUTANTS: list[Mutant] = [
    Mutant("a cancelled task has no kind", "lua/cancel.lua", "  kinds.note(ids)\n", "", GIVEN_UP),
    Mutant("a task of a banned host has no kind", "lua/hosts.lua", "    failures.spent(moved)\n", "", GIVEN_UP),
    Mutant(
        "a task that is put again stays in its kind",
        "lua/tasks.lua",
        "      kinds.leave(back)\n",
        "",
        LEAVES,
    ),
    Mutant(
        "a retried task stays in its kind",
        "lua/tasks.lua",
        "    if #moved == 0 then return moved end\n    kinds.leave(moved)\n",
        "    if #moved == 0 then return moved end\n",
        LEAVES,
    ),
    Mutant(
        "a kind without tasks stays",
        "lua/kinds.lua",
        "        call('HDEL', key.kinds, '#' .. at, '+' .. at)\n",
        "",
        [in_test("test_failures", "of_one_kind_are_retried")],
    ),
    Mutant(
        "there is no end of kinds",
        "lua/kinds.lua",
        "if call('HLEN', key.kinds) > 3 * kinds.MOST then return 0 end",
        "",
        [in_test("test_failures", "beyond_a_thousand")],
    ),
    Mutant(
        "codes are masked like other numbers",
        "lua/kinds.lua",
        "#digits <= 3 and CODES[",
        "#digits <= 0 and CODES[",
        [in_test("test_failures", "grouped_by_type")],
    ),
    Mutant(
        "to retry a kind retries what fails anew",
        "lua/verbs/kind.lua",
        "at * kinds.SPAN + math.min(before, kinds.SPAN - 1))",
        "at * kinds.SPAN + kinds.SPAN - 1)",
        [in_test("test_failures", "stops_after_so_many")],
    ),
    Mutant(
        "to forget a kind forgets what is not failed any more",
        "lua/verbs/kind.lua",
        "call('SREM', key.failed, ids[i]) == 1 end",
        "call('SREM', key.failed, ids[i]) and true end",
        [in_test("test_failures", "not_failed_any_more")],
    ),
    Mutant(
        "a missed minute is that before it",
        "words/counts.py",
        "        began = noted.get(number)\n",
        "        began = noted.setdefault(number, noted.get(number - 1, lines[0]))\n",
        GAPS,
    ),
    Mutant(
        "what happens after the last line of the history is not counted",
        "verbs/reads.py",
        "            latest, now = stats.noted, stats.now\n",
        "            now = stats.now\n",
        SHORT,
    ),
    Mutant(
        "what happened before the first line of the history is not counted",
        "words/counts.py",
        "Noted(0.0) if whole and at == 0 else one",
        "one",
        SHORT,
    ),
    Mutant(
        "the first line of a history that was cut counts from 0",
        "verbs/reads.py",
        "whole=len(lines) < most",
        "whole=True",
        [in_test("test_history", "a_day_of_minutes")],
    ),
    Mutant(
        "minutes are kept without end",
        "lua/verbs/plan.lua",
        "        call('LTRIM', list, 0, most - 2)\n",
        "",
        [in_test("test_history", "a_day_of_minutes")],
    ),
    Mutant(
        "text of a picture is not escaped",
        "watch/charts.py",
        "    return escape(value, quote=True)\n",
        "    return value\n",
        [in_test("test_report", "hostile_text_is_text")],
    ),
    Mutant(
        "text of a table is not escaped",
        "watch/report.py",
        "    return escape(safe(value, most), quote=True)\n",
        "    return safe(value, most)\n",
        [in_test("test_report", "report_has_no_other_elements")],
    ),
    Mutant(
        "a line is drawn across a gap",
        "watch/charts.py",
        "        for first, last in _runs([value is not None for _, value in points]):\n",
        "        for first, last in _runs([True for _, value in points]):\n",
        [in_test("test_report", "gaps_are_shaded")],
    ),
]
