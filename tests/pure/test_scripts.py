"""The library: its headers are true, and it runs wherever timeoutq promises to."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import timeoutq
from timeoutq.rooms import batches as of_batches
from timeoutq.rooms import failures as of_failures
from timeoutq.rooms import hosts as of_hosts
from timeoutq.rooms import results as of_results
from timeoutq.rooms.batches import Joined, Sealed
from timeoutq.rooms.schedules import definition as of_schedules
from timeoutq.rooms.schedules.definition import Definition, Stored
from timeoutq.rooms.schedules.timing import Timing
from timeoutq.server import scripts
from timeoutq.server.calls import Call, Kept, section
from timeoutq.verbs import repairs
from timeoutq.verbs.operations import Operations, how_words
from timeoutq.words import arguments
from timeoutq.words.arguments import How
from timeoutq.words.durations import Delta
from timeoutq.words.model import HostRecord, Lease, Record, State, Task

LUA = Path(timeoutq.__file__).parent / "lua"
NAMES = scripts.verbs()
TEXTS = {path.relative_to(LUA).with_suffix("").as_posix(): path.read_text("utf-8") for path in LUA.glob("**/*.lua")}
CODE = {name: re.sub(r"--.*", "", text) for name, text in TEXTS.items()}
DEFINITION = Definition(Timing(), b"a", b"1", "g", 1)
STORED = Stored(b"s", "running", "set", "n", 1, 0, 0, 0, 0, 0, b"{}")
OTHERS = [
    *section("anew"),
    *section("counts", 1, 2, 3, 4),
    *section("skipped", 5),
    *section("unread"),
    *section("zones", "2026b"),
]
LEASES = [Lease("a", "w#1", 0.0), Lease("b", "w#1", 0.0), Lease("c", "w#2", 0.0)]


def calls() -> dict[str, Call[Any]]:
    """One call of every operation, with all its options."""
    ops = Operations("q")
    nonce = lambda: b"n"  # noqa: E731  # a name for a constant
    tasks = (Task("a", payload=1, group="h", priority=2, unique=1), "b")
    record = Record(b"a", State.FAILED, 1.0, 1.0, 1, 1, "x", 1.0, 1, "h", 5, 1.0)
    some, how = arguments.tasks(tasks), How(again=True, group="g", priority=1, improve=True, batch="b", rerun=True)
    found: list[Call[Any]] = [
        *ops.put_checked(some, nonce, [*how_words(some, how), *section("visited", b"a")]),
        *ops.schedule(tasks, nonce, after=1, how=How(again=True, group="g", priority=1, improve=True, batch="b")),
        ops.claim(b"w#1", 5, 1000, 2000, 2, b"0 1 a"),
        *ops.extend(LEASES, 1000),
        ops.ack_put(
            LEASES[0],
            arguments.tasks((*tasks, Task("c", priority=1, improve=True, rerun=True))),
            5,
            b"1",
            Kept(b"r", 1),
            bare=True,
            until_ms=1,
            record=b"1 0 5 - f",
        ),
        *ops.release(LEASES, 1, 2, 3, 4, 5, b"x", b"1 0 5 - f"),
        *ops.publish("w", {"f": ("d", "{}")}),
        *ops.fail(LEASES, [0, -1, 5], [b"x", b"y", b"z"], [b"", b"t", b""], {1: 5}, {1: Kept(b"r", 1)}, {1: b"1"}),
        *ops.crash(LEASES, "x"),
        ops.pull(1),
        ops.retry_any(),
        *ops.retry_failed(("a",)),
        *ops.forget(("a",)),
        *ops.cancel(("a",), b"me", nonce),
        ops.note(LEASES[0], "1", "-", b"x"),
        ops.purge([b"host:h"]),
        ops.requeue_expired(),
        ops.promote_due(),
        ops.prune(),
        ops.repair(),
        ops.probe([1, 1, "TIME"], [0]),
        ops.plan(1000),
        ops.beat("w", {"pid": 1}, Delta(1, {0: 1})),
        ops.inspect("a"),
        *ops.states(("a",)),
        ops.describe([b"a"]),
        ops.restore([record], nonce),
        ops.stats(),
        ops.why("a"),
        of_hosts.call_host(ops, "h", [("delay", 5)]),
        of_hosts.call_page(ops, 0, 5),
        of_hosts.describe_hosts(ops, [b"h"]),
        of_hosts.restore_hosts(ops, [HostRecord(b"h", 1.0, 2, 3, 4, 5, 6.0, 7.0, "x")], nonce),
        of_schedules.call_write(ops, b"n", b"s", None, ["r", 1, *DEFINITION.sections("d", "set"), *OTHERS]),
        of_schedules.call_tick(ops, b"n", STORED, DEFINITION, [b"a"], 2, 1, 0),
        of_schedules.call_renew(ops, {b"s": "d"}),
        of_schedules.call_rows(ops, "page", "0", 5),
        of_batches.call_seal(ops, b"n", "b", arguments.tasks((Task("c", 1, "g", priority=1),)), "done", 5),
        of_batches.call_members(ops, "b", 1, 5),
        of_batches.restore_batch(ops, nonce, "b", [Joined("b", b"a", "done")], Sealed("b", "done", 5, "d", b"c")),
        of_results.call_look(ops, [b"a"], "c"),
        of_failures.move_kind(ops, "retry", b"E", 1.0, 5),
        ops.convert(),
        ops.drained(),
        ops.configure({"paused": b"1"}),
    ]
    return {call.name: call for call in found}


REVISIONS = {6: "c42de7ebcce7a52cc86792dd520ad1ea8a0809441e16e3aa2a41cdc837c9cacb"}
"""The digest of the text of each revision."""


def test_a_text_that_changes_has_a_revision_of_its_own() -> None:
    # two texts of one revision would replace each other for ever, or never
    assert {scripts.REVISION: scripts.digest()} == REVISIONS, "raise scripts.REVISION"


def test_every_verb_is_an_operation_and_every_file_is_in_the_library() -> None:
    assert set(calls()) == set(NAMES), "calls() of this file and the verbs in lua/verbs/ differ"
    assert {*scripts.ROOMS, *(f"verbs/{name}" for name in NAMES)} == TEXTS.keys()


def test_a_verb_is_registered_under_the_name_of_its_file_and_says_what_travels() -> None:
    for name in NAMES:
        text = TEXTS[f"verbs/{name}"]
        assert text.startswith(f"-- {name}: ")
        assert "\n-- ARGS  " in text, name
        assert "\n-- Reply " in text, name
        assert re.findall(r"^ *verb\('(\w+)', ", text, re.MULTILINE) == [name]


@pytest.mark.parametrize("name", NAMES)
def test_a_call_has_the_function_of_its_verb_and_the_arguments_that_the_header_counts(name: str) -> None:
    call, text = calls()[name], TEXTS[f"verbs/{name}"]
    reads = "flags = {'no-writes'}" in text
    command, function, count, *keys = call.head
    assert command == (b"FCALL_RO" if reads else b"FCALL")
    assert isinstance(function, bytes)
    assert function.decode().removesuffix("_if_room") == f"timeoutq5_{name}"
    assert (count, keys) == (2, [b"timeoutq:{q}:meta", b"timeoutq:{q}:lock:"])
    header = re.search(r"-- ARGS +(.*?)\n-- (?:Reply|ONCE)", text, re.DOTALL)
    assert header is not None
    numbers = [int(number) for number in re.findall(r"(?:^|   |\n-- +)(\d+)(?= |\.\.)", header.group(1))]
    assert numbers == list(range(1, len(numbers) + 1))
    # each argument that the body reads by a number is one that the header names
    read = {int(number) for number in re.findall(r"args\[(\d+)\]", CODE[f"verbs/{name}"])}
    assert read <= set(numbers), read
    assert len(call.command()) - len(call.head) >= max(numbers)


@pytest.mark.parametrize("name", NAMES)
def test_sections_are_those_that_the_header_names_and_that_the_table_of_operations_writes(name: str) -> None:
    text = TEXTS[f"verbs/{name}"]
    header = re.search(r"-- SECTIONS +(.*?)\n-- Reply", text, re.DOTALL)
    named = re.findall(r"(?<![\w=])[a-z_]+=(?:\d+|numbers|n|pairs|ms)(?!\w)", header.group(1)) if header else []
    joined = re.sub(r"'\s*\.\. '", "", text)
    taken = re.findall(r" sections\([^']*'( [a-z_ =\d]+)'\)\n *if refused then return refused end\n", joined)
    assert sorted(word for takes in taken for word in takes.split()) == sorted(named)
    # the sections of a call with all options, read from its end; `full` is in the call that a full server gets
    words, forms = list(calls()[name].args), dict(section.split("=") for section in named if section != "full=0")
    while forms:
        at = max(i for i, word in enumerate(words) if word in forms)
        form, count = forms.pop(str(words[at])), words[at + 1]
        assert isinstance(count, int)
        assert count == len(words) - at - 2, words[at]
        exact = {"ms": 1, **{str(n): n for n in range(10)}}
        assert count == exact[form] if form in exact else count % (2 if form in ("pairs", "numbers") else 1) == 0, (
            words[at]
        )
        del words[at:]


@pytest.mark.parametrize("version", ["lua51", "lua54"])
def test_it_compiles_in_lua_5_1_and_5_4(version: str) -> None:
    # in a process of its own: the two versions of the interpreter do not live in one
    code = (
        f"import lupa.{version} as lua, timeoutq.server.scripts as o\n"
        "check = lua.LuaRuntime().eval('function(t) local f, e = (loadstring or load)(t) return e end')\n"
        "print(check(o.library().split('\\n', 1)[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "None", done.stdout + done.stderr


def test_only_the_room_open_makes_the_names_of_keys() -> None:
    assert {name for name, text in CODE.items() if "prefix" in text} == {"open", "events", "leases"}
    assert re.findall(r"prefix.*", CODE["leases"]) == ["prefix .. 'lock:' .. ids[i]"]
    assert re.findall(r"#prefix \+ 1", CODE["events"]) == ["#prefix + 1"]
    assert {name for name, text in CODE.items() if re.search(r"\bKEYS\b|\bARGV\b", text)} == set()


def test_tasks_become_ready_and_done_through_their_doors() -> None:
    asks = re.compile(r"\bnot polite\b|\bpolite (?:then|and)\b")
    assert {name for name, text in CODE.items() if asks.search(text)} == {
        "hosts", "priority", "tasks",
        *(f"verbs/{name}" for name in ("convert", "drained", "host", "hosts", "describe_hosts", "restore_hosts")),
        "verbs/promote_due", "verbs/prune",
    }  # fmt: skip
    assert {name for name, text in CODE.items() if re.search(r"key\.done(_at)?\b", text)} == {"by_id"}
    assert {name for name, text in CODE.items() if "seen:" in text} == {
        "by_print",
        "settings",
        "verbs/purge",
    }


def test_nothing_that_reads_a_whole_state_and_nothing_that_some_servers_lack() -> None:
    for name, text in CODE.items():
        for word in ("SMEMBERS", "'KEYS'", "cmsgpack", "struct.", "bit.", "replicate_commands", "HVALS", "SUNION"):
            assert word not in text, (name, word)
        for command, key in re.findall(r"'(HGETALL|HKEYS|LRANGE)', ([\w.]+)", text):
            assert key in ("key.stats", "key.meta", "key.durations", "key.durations0", "key.durations1"), (
                name,
                command,
            )
    package = Path(timeoutq.__file__).parent
    for path in package.glob("*.py"):
        assert "SMEMBERS" not in path.read_text("utf-8").replace("never SMEMBERS", ""), path.name


def test_lua_names_are_taken_at_the_first_call() -> None:
    # while a server loads a library, not even `string` is there
    version = pytest.importorskip("lupa.lua51")
    load = version.LuaRuntime().eval(
        "function(text) local f = loadstring(text)\n"
        "setfenv(f, {redis = {register_function = function() end}}) return pcall(f) end"
    )
    assert load(scripts.library().split("\n", 1)[1]) is True


def test_what_repair_finds_has_its_words_and_stands_in_its_header() -> None:
    repair = TEXTS["verbs/repair"]
    header = repair.partition("-- What was found, and is mended:\n")[2].partition("\ndo\n")[0]
    assert set(re.findall(r"^--       ([a-z]+)  ", header, re.MULTILINE)) == set(repairs.WORDS)
    assert set(re.findall(r"\bwrong\('([a-z]+)'\)", repair)) == set(repairs.WORDS)
