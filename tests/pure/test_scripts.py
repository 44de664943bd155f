"""The Lua files: their headers are true, and they run wherever timeoutq promises to."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import timeoutq
from timeoutq import arguments, repairs
from timeoutq.arguments import How
from timeoutq.batches import operations as of_batches
from timeoutq.batches.operations import Joined, Sealed
from timeoutq.calls import Call, Kept, section
from timeoutq.durations import Delta
from timeoutq.failures import operations as of_failures
from timeoutq.hosts import operations as of_hosts
from timeoutq.model import HostRecord, Lease, Record, State, Task
from timeoutq.operations import Operations, how_words
from timeoutq.results import operations as of_results
from timeoutq.schedules import operations as of_schedules
from timeoutq.schedules.definition import Definition, Stored
from timeoutq.scripts import SIZES, script

LUA = Path(timeoutq.__file__).parent / "lua"
NAMES = sorted(path.stem for path in LUA.glob("*.lua"))
UNREPAIRED = {
    "bell": "any line rings",
    "alarm": "any entry sounds",
    "events": "an entry of a foreign hand moves nothing, and prune drops the oldest",
    "calls": "prune removes what is old",
    "trace_at": "`traces` is mended, and prune does the rest",
    "trace_texts": "as `trace_at`",
    "functions": "workers tell them again each minute",
    "minutes": "readers skip what they cannot read, and it goes with time",
    "hours": "as `minutes`",
}
"""The keys that `repair` does not walk through, and why."""
DEFINITION = Definition("{}", b"a", b"1", "g", 1)
STORED = Stored(b"s", "running", "set", "n", "d", 1, 0, 0, 0, 0, 0, b"{}")
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
        ),
        *ops.release(LEASES, 1, 2, 3, 4, ["f -"], 5),
        *ops.publish("w", {"f": ("d", "{}")}),
        *ops.fail(LEASES, [0, -1, 5], [b"x", b"y", b"z"], [b"", b"t", b""], {1: 5}, {1: Kept(b"r", 1)}),
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
        of_hosts.host(ops, "h", [("delay", 5)]),
        of_hosts.page(ops, 0, 5),
        of_hosts.describe_hosts(ops, [b"h"]),
        of_hosts.restore_hosts(ops, [HostRecord(b"h", 1.0, 2, 3, 4, 5, 6.0, 7.0, "x")], nonce),
        of_schedules.write(
            ops, b"n", b"s", None, "r", 1, DEFINITION, "d", anew=True, counts=(1, 2, 3, 4), skipped=5, unread=True
        ),
        of_schedules.tick(ops, b"n", STORED, DEFINITION, [b"a"], 2, 1, 0, 0),
        of_schedules.renew(ops, {b"s": "d"}),
        of_schedules.page(ops, "0", 5),
        of_batches.seal(ops, b"n", "b", arguments.tasks((Task("c", 1, "g", priority=1),)), "done", 5),
        of_batches.members(ops, "b", 1, 5),
        of_batches.restore_batch(ops, nonce, "b", [Joined("b", b"a", "done")], Sealed("b", "done", 5, "d", b"c")),
        of_results.look(ops, [b"a"], "c"),
        of_failures.move_kind(ops, "retry", b"E", 1.0, 5),
        ops.convert(),
        ops.drained(),
        ops.configure({"paused": b"1"}),
    ]
    return {call.name: call for call in found}


def test_every_file_is_an_operation_and_none_is_left_out() -> None:
    assert set(calls()) == set(NAMES), "calls() of this file and the scripts in lua/ differ"


@pytest.mark.parametrize("name", NAMES)
def test_the_header_says_purpose_keys_arguments_and_reply(name: str) -> None:
    head = (LUA / f"{name}.lua").read_text("utf-8").split("\nlocal", 1)[0]
    assert head.startswith(f"-- {name}: ")
    for word in ("KEYS  ", "PARTS ", "ARGV  ", "Reply "):
        assert f"\n-- {word}" in head, word


@pytest.mark.parametrize("name", NAMES)
def test_keys_are_what_the_header_names_and_arguments_what_it_counts(name: str) -> None:
    call, found = calls()[name], script(name)
    _, sha, count, *keys = call.head
    assert sha == found.sha.encode()
    assert count == len(keys) == len(found.keys)
    assert keys == [Operations("q").key(key).encode() for key in found.keys]
    assert all(str(key, "ascii").startswith("timeoutq:{q}:") for key in keys if isinstance(key, bytes))
    header = re.search(r"-- ARGV +(.*?)\n-- Reply", found.text, re.DOTALL)
    assert header is not None
    numbers = [int(number) for number in re.findall(r"(?:^|   |\n-- +)(\d+)(?= |\.\.)", header.group(1))]
    assert numbers == list(range(1, len(numbers) + 1))
    # each argument that the body reads by a number is one that the header names
    body = (LUA / f"{name}.lua").read_text("utf-8")
    read = {int(number) for number in re.findall(r"ARGV\[(\d+)\]", body)}
    assert read <= set(numbers), read
    assert len(call.command()) - 3 - len(keys) >= max(numbers)


@pytest.mark.parametrize("name", NAMES)
def test_sections_are_those_that_the_header_names_and_that_the_table_of_operations_writes(name: str) -> None:
    body = (LUA / f"{name}.lua").read_text("utf-8")
    header = re.search(r"-- SECTIONS +(.*?)\n-- Reply", body, re.DOTALL)
    named = re.findall(r"(?<![\w=])[a-z_]+=(?:\d+|numbers|n|pairs|ms)(?!\w)", header.group(1)) if header else []
    taken = re.findall(r" sections\([^']*'( [a-z_ =\d]+)'\)\nif refused then return refused end\n", body)
    assert [takes.split() for takes in taken] == ([named] if named else [])
    # the sections of a call with all options, read from its end
    words, forms = list(calls()[name].args), dict(section.split("=") for section in named)
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
def test_they_compile_in_lua_5_1_and_5_4(version: str) -> None:
    # in a process of its own: the two versions of the interpreter do not live in one
    code = (
        f"import lupa.{version} as lua, timeoutq.scripts as o\n"
        "check = lua.LuaRuntime().eval('function(t) local f, e = (loadstring or load)(t) return e end')\n"
        f"print([e for e in (check(o.script(n).text) for n in {NAMES}) if e])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_every_key_that_a_script_or_a_part_uses_is_declared(name: str) -> None:
    found = script(name)
    text = re.sub(r"--.*", "", found.text)
    assert {"meta", "lock"} <= set(found.keys), "a slot that moves would tear a script that does not declare `lock`"
    # a key is one that the header declares, or a local name for one that key() or locks_of() has made
    used = set(re.findall(r"call\('[A-Z]+', ([a-z_]+)\b(?!\()", text)) - {"unpack"}
    own = set(re.findall(r"(?:function \w+\(|local |for )([\w, ]+?)(?: =|\)|\n| in )", text))
    locals_ = {word.strip() for group in own for word in group.split(",")}
    assert used <= set(found.keys) | locals_, used - set(found.keys) - locals_
    assert set(re.findall(r"call\('[A-Z]+', ([a-z_.]+)\(", text)) <= MAKERS
    assert re.findall(r"call\('[A-Z]+', [^,()]* \.\. ", text) == []


MAKERS = {"key", "locks_of", "unpack", "set_of", "set_for", "print_of", "batch_key"}
"""What may stand in the place of a key: what makes its name, or the names of several."""


def test_only_two_functions_make_the_names_of_keys() -> None:
    compact = (LUA / "parts" / "compact.lua").read_text("utf-8")
    assert "function set_of(at)\n    return key('seen:' .. at)\n" in compact
    assert re.findall(r"function set_for\(high\)(?:\n.*)*?\n    return (set_of\(at\))\n  end", compact)
    batch = (LUA / "parts" / "batch.lua").read_text("utf-8")
    assert "function batch_key(name)\n  return key('batch:' .. name)\n" in batch
    texts = {path.stem: re.sub(r"--.*", "", path.read_text("utf-8")) for path in LUA.glob("**/*.lua")}
    assert {stem: text.count("prefix") for stem, text in texts.items() if "prefix" in text} == {"open": 2}
    assert {stem for stem, text in texts.items() if re.search(r"\block\b(?!['=:])", text)} == {"locks"}
    assert {stem for stem, text in texts.items() if "KEYS" in text} == {"purge"}  # it removes all that it declares


def test_tasks_become_ready_and_done_through_their_doors() -> None:
    texts = {path: re.sub(r"--.*", "", path.read_text("utf-8")) for path in LUA.glob("**/*.lua")}
    polite = {path.stem for path, text in texts.items() if "polite" in text and path.parent == LUA}
    assert polite == {"convert", "host", "hosts", "describe_hosts", "restore_hosts"}, (
        "these are verbs of the room itself"
    )
    assert {path.stem for path, text in texts.items() if re.search(r"call\('\w+', done(_at)?\b", text)} == {
        "done",
        "ages",
    }
    assert {path.stem for path, text in texts.items() if "seen:" in text} == {"compact", "purge", "switch"}
    moved = {path.stem for path, text in texts.items() if re.search(r"call\('SMOVE', \w+, done\b", text)}
    assert moved == {"done"}


def test_nothing_that_reads_a_whole_state_and_nothing_that_some_servers_lack() -> None:
    for path in [*LUA.glob("**/*.lua")]:
        text = re.sub(r"--.*", "", path.read_text("utf-8"))
        for word in (
            "SMEMBERS",
            "'KEYS'",
            "cmsgpack",
            "struct.",
            "bit.",
            "#!lua",
            "replicate_commands",
            "HVALS",
            "SUNION",
        ):
            assert word not in text, (path.name, word)
        for command, key in re.findall(r"'(HGETALL|HKEYS|LRANGE)', (\w+(?:\('\w+'\))?)", text):
            few = ("stats", "meta", "key('durations')", "key('durations0')", "key('durations1')")
            assert key in few, (path.name, command, key)
    package = Path(timeoutq.__file__).parent
    for path in package.glob("*.py"):
        assert "SMEMBERS" not in path.read_text("utf-8").replace("never SMEMBERS", ""), path.name


def test_what_repair_finds_has_its_words_and_stands_in_its_header() -> None:
    repair, walk = (LUA / "repair.lua").read_text("utf-8"), (LUA / "parts" / "walk.lua").read_text("utf-8")
    header = repair.partition("-- What was found:\n")[2].partition("\nlocal")[0]
    assert set(re.findall(r"^--       ([a-z]+)  ", header, re.MULTILINE)) == set(repairs.WORDS)
    assert set(re.findall(r"\bwrong\('([a-z]+)'\)", repair + walk)) == set(repairs.WORDS)


@pytest.mark.breaking
@pytest.mark.parametrize("name", NAMES)
def test_what_is_asked_for_rarely_is_made_together_once_one_is_needed(name: str) -> None:
    text = script(name).text
    asked = set(re.findall(r"\brarely\('(\w+)'\)", text))
    found = re.search(r"^function make_late\(\)\n(.*)^return \{([^}]*)\}\nend\n", text, re.MULTILINE | re.DOTALL)
    if not asked:
        assert found is None
        return
    assert found is not None
    assert {pair.split(" = ")[0] for pair in found[2].split(", ")} == asked
    made = set(re.findall(r"^local function (\w+)", found[1], re.MULTILINE))
    assert asked <= made
    elsewhere = re.sub(r"\brarely\('\w+'\)", "", text.replace(found[0], ""))
    assert not [one for one in made if re.search(rf"^[^-\n]*\b{one}\(", elsewhere, re.MULTILINE)]


def test_a_script_has_no_function_that_nothing_calls() -> None:
    assert "function host_row(" in script("host").text
    for gone in ("host_row", "overrun", "crowded"):
        assert f"function {gone}(" not in script("put").text
    assert "function bring_back(" in script("ack").text
    assert "function bring_back(" not in script("fail").text


def test_every_key_of_a_queue_is_removed_by_purge_and_looked_at_by_repair() -> None:
    # a new key is easily forgotten there
    keys = {key for names in SIZES.values() for key in names.split()}
    purge, repair = ((LUA / f"{name}.lua").read_text() for name in ("purge", "repair"))
    assert keys - words(purge) == set()
    assert keys - words(re.sub(r"(?m)^--.*$", "", repair)) == UNREPAIRED.keys()


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))
