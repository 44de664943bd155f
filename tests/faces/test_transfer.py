"""Sets of tasks: what two of them share, tasks put back, and whole queues carried from one server to another."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rig.command import Say, say, server
from tests.rig.corpus import CORPUS, as_bytes
from tests.rig.invariants import check
from tests.rig.processes import ROOT
from tests.rig.terminal import on_a_terminal
from tests.rig.waiting import wait_until
from timeoutq import InvalidInput, Queue
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.watch import transfer
from timeoutq.words.model import Record, State

__all__ = ["say", "server"]

NO_HOSTS = {"hosts": 0, "hosts_known": 0}
IDS = sorted({as_bytes(task) for task in CORPUS.values()})
BODIES: list[Any] = [{"depth": 1, "é": [None, 1.5, "\ud800"]}, "text", 0, False, [], b"", b"\x00\xff", "\x00"]


@pytest.fixture
def other(url: str, name: str) -> Iterator[Queue]:
    """A second queue; its invariants hold in the end too."""
    with Queue(f"{name}-other", url, timeout=5) as opened:
        yield opened
        check(url, opened.name)
        opened.purge()


@contextmanager
def command(url: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command as a process of its own, whose stdin is held; it ends with the test."""
    process = subprocess.Popen(
        [sys.executable, "-m", "timeoutq", *words],
        cwd=ROOT,
        env={**os.environ, "TIMEOUTQ_URL": url, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):  # what it did not read any more
                    stream.close()


def move(queue: Queue, done: Sequence[str] = (), failed: Sequence[str] = ()) -> None:
    """Put tasks and bring them into done and failed."""
    queue.put(done, failed)
    for lease in queue.claim(500):
        if lease.task in done:
            queue.ack(lease)
        elif lease.task in failed:
            queue.fail(lease, f"HTTP 500 for {lease.task}", give_up=True)
        else:
            queue.release(lease)


def contents(queue: Queue, ready: bool = False) -> dict[bytes, Record]:
    """All that an export tells of a queue; `ready`: as it is after an import, which brings no lease along."""
    found: dict[bytes, Record] = {}
    for records in transfer.export(queue):
        for record in records:
            assert record.task not in found, f"{record.task!r} came twice"
            found[record.task] = record
    if ready:
        for task, record in found.items():
            if record.state is State.IN_PROGRESS:
                found[task] = replace(record, state=State.TODOS)
    return found


def every_kind(queue: Queue, ids: Sequence[bytes] = IDS) -> None:
    """Bring these ids into all states, with all there can be on record."""
    third = len(ids) // 3
    queue.put({task: BODIES[i % len(BODIES)] for i, task in enumerate(ids[: 2 * third])})
    for i, task in enumerate(ids[2 * third :]):
        queue.schedule({task: BODIES[i % len(BODIES)]}, at=4_000_000_000.123 + i)
    for i, lease in enumerate(queue.claim(2 * third)):
        match i % 6:
            case 0:
                queue.ack(lease)
            case 1:
                queue.fail(lease, "HTTP 500\n\x1b[2J é", give_up=True)
            case 2:
                queue.fail(lease, "HTTP 503", retry_in=3600)
            case 3:
                queue.release(lease)
            case 4:
                queue.run(_crash(queue, lease))
            case _:
                pass  # it is held on


def _crash(queue: Queue, lease: Any) -> Any:
    from timeoutq.verbs import sending

    return sending.answers(queue.talk, queue.operations.crash([lease], "killed by signal 9"))


# ---- diff and intersect


def test_diff_prints_what_only_the_first_has_and_intersect_what_both_have(
    say: Say, queue: Queue, tmp_path: Path
) -> None:
    move(queue, done=["a", "b", "c"])
    queue.put("d")
    queue.schedule("e", after=3600)
    seeds = tmp_path / "seeds.txt"
    seeds.write_bytes(b"b\r\nc\n\nd\nx")
    assert sorted(say("diff", f"{queue.name}:done", seeds).texts) == ["a"]
    assert sorted(say("intersect", f"{queue.name}:done", seeds).texts) == ["b", "c"]
    assert say("diff", seeds, f"{queue.name}:done").texts == ["d", "x"], "in the order of the file"
    assert say("intersect", seeds, f"{queue.name}:todos").texts == ["d"]
    assert say("intersect", "-", f"{queue.name}:scheduled", stdin=b"d\ne\n").texts == ["e"]
    assert say("diff", f"{queue.name}:scheduled", "-", stdin=b"d\n").texts == ["e"]
    assert sorted(say("diff", f"{queue.name}:done", f"{queue.name}:todos").texts) == ["a", "b", "c"]
    assert say("diff", seeds, seeds).code == 1


def test_count_only_counts_and_none_is_exit_code_1(say: Say, queue: Queue, tmp_path: Path) -> None:
    move(queue, done=["a", "b"])
    queue.put("c")
    done, todos = f"{queue.name}:done", f"{queue.name}:todos"
    assert (say("diff", done, todos, "--count").code, say("diff", done, todos, "--count").raw) == (0, b"2\n")
    assert say("intersect", done, todos, "--count", "--json").documents == [{"count": 0}]
    assert say("intersect", done, todos, "--count").code == 1
    assert (say("intersect", done, todos).code, say("intersect", done, todos).raw) == (1, b"")
    assert {line["task"] for line in say("diff", done, todos, "--json").documents} == {"a", "b"}


def test_hostile_ids_go_in_and_out_as_they_are_between_nuls(say: Say, queue: Queue, tmp_path: Path) -> None:
    ids = [task for task in IDS if b"\0" not in task]
    queue.put(ids)
    file = tmp_path / "ids"
    file.write_bytes(b"\0".join(ids))
    sides = [f"{queue.name}:todos", str(file)]
    for both in (sides, sides[::-1]):
        done = say("intersect", "--null", *both)
        assert sorted(done.raw.removesuffix(b"\0").split(b"\0")) == ids
        assert say("diff", "-0", *both).raw == b""


def test_a_name_with_a_slash_is_a_file_else_a_state_comes_first(
    say: Say, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    queue.put("in the queue")
    name = f"{queue.name}:todos"
    Path(name).write_text("in the file\n")
    Path("odd:name").write_text("odd\n")
    assert say("diff", name, f"{queue.name}:done").texts == ["in the queue"]
    assert say("diff", f"./{name}", f"{queue.name}:done").texts == ["in the file"]
    assert say("diff", "odd:name", f"{queue.name}:done").texts == ["odd"]
    assert "with a / is always a file" in " ".join(say("diff", "--help").out.replace("│", "").split())


NO_SIDES = {
    "crawl:dne -": "'dne' is not a state, and no file has this name: todos",
    "crawl -": "there is no file 'crawl'; for the tasks of a queue name a state too, as in crawl:done",
    "no/such -": "there is no file 'no/such'",
    "- -": "only one side can be stdin",
    "- q:done -0 --json": "give --null or --json, not both",
    "/ q:done": "cannot read /",
}


def test_a_side_that_is_nothing_is_named_with_the_cure(say: Say, queue: Queue) -> None:
    queue.put("a")
    for words, said in NO_SIDES.items():
        done = say("diff", *words.replace("q:", f"{queue.name}:").split())
        assert (done.code, done.raw, said in done.err) == (2, b"", True), done.err


# ---- requeue


def test_requeue_puts_done_tasks_back_that_match(say: Say, queue: Queue) -> None:
    move(queue, done=["https://example.com/a", "https://example.com/b", "https://example.org/"], failed=["f"])
    dry = say("requeue", queue.name, "--from", "done", "--match", "https://example.com/*", "--dry-run")
    assert (dry.code, dry.texts, queue.stats().done) == (0, ["2 would be put back"], 3)
    done = say("requeue", queue.name, "--from", "done", "--match", "https://example.com/*", "--json")
    assert (done.code, done.documents) == (0, [{"matched": 2, "requeued": 2}])
    assert {entry.task for entry in queue.list("done").entries} == {"https://example.org/"}
    assert say("requeue", queue.name, "--from", "failed").texts == ["1 put back"]
    assert queue.inspect("f").failures == 0
    assert say("requeue", queue.name, "--from", "failed").code == 1
    assert say("requeue", queue.name, "--from", "todos").code == 2


def test_requeue_asks_before_it_puts_more_than_a_thousand_back(
    say: Say, queue: Queue, raw: redis.Redis, url: str
) -> None:
    raw.sadd(f"timeoutq:{{{queue.name}}}:done", *[f"t{i}" for i in range(2500)])
    raw.hincrby(f"timeoutq:{{{queue.name}}}:stats", "put", 2500)
    refused = say("requeue", queue.name, "--from", "done")
    assert (refused.code, queue.stats().todos) == (2, 0)
    assert "more than 1,000 tasks" in refused.err
    code, shown = on_a_terminal(url, "requeue", queue.name, "--from", "done", typed="n\n")
    assert (code, b"[y/N]" in shown, queue.stats().todos) == (1, True, 0)
    assert say("requeue", queue.name, "--from", "done", "--match", "t1?").texts == ["10 put back"]
    code, shown = on_a_terminal(url, "requeue", queue.name, "--from", "done", typed="y\n")
    assert (code, queue.stats().todos, b"2490 put back" in shown) == (0, 2500, True)
    raw.hset(f"timeoutq:{{{queue.name}}}:stats", "put", 2500)


# ---- export and import


def test_an_import_brings_in_all_that_an_export_tells(say: Say, queue: Queue, other: Queue) -> None:
    every_kind(queue)
    assert {record.state for record in contents(queue).values()} == set(State) - {State.WAITING}
    exported = say("export", queue.name)
    assert (exported.code, exported.err) == (0, "")
    assert exported.raw.isascii()
    first, *lines = exported.documents
    assert (first["timeoutq"], first["queue"]) == (2, queue.name)
    assert lines.pop() == {"timeoutq": 2, "end": True}
    assert len(lines) == len(IDS)
    done = say("import", other.name, "--json", stdin=exported.raw)
    assert done.documents == [{"lines": len(IDS) + 2, "restored": len(IDS), "known": 0, "broken": 0, **NO_HOSTS}]
    assert contents(other) == contents(queue, ready=True)
    for task in IDS:  # and the queue says the same of each, to whoever asks
        ours, theirs = queue.inspect(task), other.inspect(task)
        if ours.state is not State.IN_PROGRESS:
            assert ours == theirs
    assert say("import", other.name, "--json", stdin=exported.raw).documents[0]["known"] == len(IDS)
    assert contents(other) == contents(queue, ready=True)


def test_a_broken_line_ends_it_with_its_number_and_nothing_behind_it(say: Say, queue: Queue) -> None:
    lines = [b'{"timeoutq": 1}', b'{"task": "a"}', b'{"task": "b", "state": "nowhere"}', b'{"task": "c"}']
    done = say("import", queue.name, "--json", stdin=b"\n".join(lines))
    assert (done.code, done.documents) == (1, [{"lines": 2, "restored": 1, "known": 0, "broken": 0, **NO_HOSTS}])
    assert "line 3 is broken: 'nowhere' is not a state: one of todos" in done.err
    assert queue.stats().known == 1
    done = say("import", queue.name, "--json", "--lenient", stdin=b"\n".join(lines))
    assert (done.code, done.documents) == (0, [{"lines": 4, "restored": 1, "known": 1, "broken": 1, **NO_HOSTS}])
    assert "line 3 is left out" in done.err
    assert queue.stats().todos == 2


BROKEN = {
    "{": "not JSON",
    "[" * 200_000: "nested too deeply",
    "[1]": "not an object",
    '{"state": "done"}': 'without "task"',
    '{"task": 5}': "str or bytes, not int",
    '{"task": "a", "task_b64": "YQ=="}': 'both "task" and "task_b64"',
    '{"task_b64": "%"}': "is not base64",
    '{"task": "a", "state": []}': "is not a state",
    '{"task": "a", "state": "scheduled"}': 'without the time "due"',
    '{"task": "a", "state": "scheduled", "due": 1e300}': "past the year 9999",
    '{"task": "a", "failures": -1}': "failures must be a whole number",
    '{"task": "a", "error": {}}': '"error" is a text',
    '{"task": "a", "payload": NaN}': "neither bytes nor JSON",
    '{"task": "a", "priority": 1001}': "from -1,000 to 1,000, not 1001",
    '{"host": ""}': "a host is a name like example.com",
    '{"host": "a", "per_host": 0}': "per_host must be a whole number from 1 to 10,000",
    '{"host": "a", "banned": true}': '"banned" is a text',
}


def test_what_is_wrong_with_a_line_is_said() -> None:
    for line, said in BROKEN.items():
        with pytest.raises(InvalidInput, match=said.replace('"', ".")):
            transfer.read(line.encode())


def test_what_is_no_export_is_refused_before_anything_is_written(say: Say, queue: Queue, tmp_path: Path) -> None:
    later = "this timeoutq reads formats 1 to 2: install a later"
    for stdin, said in ((b"<html>", "not the first line of an export"), (b'{"timeoutq": 3}\n{"task": "a"}\n', later)):
        done = say("import", queue.name, "--lenient", stdin=stdin)
        assert (done.code, said in done.err, queue.stats().known) == (1, True, 0)
    assert say("import", queue.name, tmp_path / "none").code == 2
    assert "pipe in what export printed" in say("import", queue.name, stdin=None).err


def test_an_import_that_is_killed_goes_on_when_it_is_run_again(
    say: Say, queue: Queue, other: Queue, url: str, tmp_path: Path
) -> None:
    queue.put([f"https://example.com/{i}" for i in range(3000)])
    queue.schedule([f"https://example.com/later/{i}" for i in range(1000)], at=4_000_000_000)
    file = tmp_path / "export.jsonl"
    file.write_bytes(say("export", queue.name).raw)
    with command(url, "import", other.name) as process:
        assert process.stdin is not None
        process.stdin.write(b"".join(file.read_bytes().splitlines(keepends=True)[:1800]))
        process.stdin.flush()
        wait_until(lambda: other.stats().known >= 1000)
        process.send_signal(signal.SIGKILL)
        process.wait(20)
    check(url, other.name)
    known = other.stats().known
    assert 1000 <= known < 2000
    done = say("import", other.name, file, "--json")
    assert done.documents == [{"lines": 4002, "restored": 4000 - known, "known": known, "broken": 0, **NO_HOSTS}]
    assert contents(other) == contents(queue)


def test_ctrl_c_says_how_far_it_got_and_skip_lines_goes_on_there(
    say: Say, queue: Queue, other: Queue, url: str
) -> None:
    queue.put([f"https://example.com/{i}" for i in range(2000)])
    exported = say("export", queue.name).raw
    with command(url, "import", other.name) as process:
        assert process.stdin is not None
        process.stdin.write(b"".join(exported.splitlines(keepends=True)[:1501]))
        process.stdin.flush()
        wait_until(lambda: other.stats().known == 1500)
        process.send_signal(signal.SIGINT)
        process.wait(20)
        assert process.stderr is not None
        assert process.returncode == 130
        said = process.stderr.read().decode()
    told = re.fullmatch(r"timeoutq: ended early: [\d,]+ lines were taken; go on with --skip-lines (\d+)\n", said)
    assert told is not None, said
    taken, known = int(told[1]), other.stats().known
    assert taken - 1 <= known == 1500, "what it says is there, and at most one step more"
    done = say("import", other.name, "--skip-lines", taken, "--json", stdin=exported)
    assert done.documents == [{"lines": 2002, "restored": 500, "known": 1500 - (taken - 1), "broken": 0, **NO_HOSTS}]
    assert contents(other) == contents(queue)


def test_lines_that_are_skipped_are_neither_taken_nor_judged(say: Say, queue: Queue) -> None:
    # lines are counted from 1, the head and empty ones among them; what is skipped may be broken
    lines = b'{"timeoutq": 2, "ends": true}\n{"task": "t1"}\nbroken\n{"task": "t3"}\n\n{"task": "t5"}\n'
    done = say("import", queue.name, "--skip-lines", 4, "--json", stdin=lines + b'{"timeoutq": 2, "end": true}\n')
    assert (done.code, [entry.task for entry in queue.each("todos")]) == (0, ["t5"])
    assert done.documents == [{"lines": 7, "restored": 1, "known": 0, "broken": 0, **NO_HOSTS}]


def test_a_task_that_moves_while_it_is_exported_is_still_told_once(queue: Queue) -> None:
    move(queue, failed=["moves"])
    queue.put([f"t{i}" for i in range(1500)])
    found: list[bytes] = []
    for records in transfer.export(queue):
        if not found:  # todos was begun; failed has not been looked at
            assert records[0].state is State.TODOS
            queue.retry_failed("moves")
        found += [record.task for record in records]
    assert sorted(found) == sorted([b"moves", *(b"t%d" % i for i in range(1500))])


MEASURED = """
import resource, subprocess, sys
code = subprocess.run([sys.executable, "-m", "timeoutq", *sys.argv[1:]]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


def ends(url: str, *words: str, stdout: Any = subprocess.DEVNULL) -> int:
    """Run the command to its end; give how much memory it took at most, KiB."""
    # a small process in between: a child counts what its parent held when it was forked
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *words],
        cwd=ROOT,
        env={**os.environ, "TIMEOUTQ_URL": url, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stderr.split()[-1])


@pytest.mark.breaking
@pytest.mark.timeout(600)  # ten commands, half of them with 300,000 tasks
def test_ten_times_as_many_tasks_take_no_more_memory(tmp_path: Path) -> None:
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as raw:
        used: dict[int, list[int]] = {}
        for size in (30_000, 300_000):
            name, file, lines = f"q{size}", tmp_path / f"{size}.jsonl", tmp_path / f"{size}.txt"
            for start in range(0, size, 10_000):
                raw.sadd(
                    f"timeoutq:{{{name}}}:done", *[f"https://example.com/{i}" for i in range(start, start + 10_000)]
                )
            lines.write_text("".join(f"https://example.com/{i}\n" for i in range(1, size, 2)))
            used[size] = []
            with file.open("wb") as out:
                used[size].append(ends(server.url, "export", name, stdout=out))
            used[size].append(ends(server.url, "import", f"{name}-other", str(file)))
            used[size].append(ends(server.url, "diff", f"{name}:done", str(lines)))
            used[size].append(ends(server.url, "intersect", str(lines), f"{name}-other:done"))
            used[size].append(ends(server.url, "requeue", name, "--from", "done", "--yes"))
            assert raw.scard(f"timeoutq:{{{name}-other}}:done") == raw.scard(f"timeoutq:{{{name}}}:todos") == size
        # the pages that SQLite may hold; all ids in memory were 8 MiB and more
        more = [large - small for small, large in zip(used[30_000], used[300_000], strict=True)]
        assert max(more) < 6 * 1024, used


# ---- lines

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
moments = st.integers(0, 253_402_300_799_000).map(lambda ms: ms / 1000)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    record=st.builds(
        Record,
        task=st.binary(min_size=1, max_size=60)
        | st.text(st.characters(codec="utf-8"), min_size=1, max_size=60).map(str.encode),
        state=st.sampled_from(State),
        due=moments,
        acked=st.none() | moments,
        failures=st.integers(0, 1000),
        crashes=st.integers(0, 1000),
        error=st.none() | st.text(min_size=1),
        error_at=st.none() | moments,
        payload=json_values | st.binary(),
        priority=st.integers(-1000, 1000),
    )
)
def test_a_line_is_read_as_it_was_written(record: Record) -> None:
    line = transfer.write(record)
    assert line.isascii()
    assert "\n" not in line
    assert transfer.read(line.encode()) == record
