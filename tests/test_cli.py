"""The command, as transcripts: what it prints, what it answers, how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from timeoutq import Queue
from timeoutq.embedded import EmbeddedServer
from timeoutq.text import safe

ROOT = Path(__file__).resolve().parent.parent
Run = Callable[..., "Done"]


class Done:
    """What a command said and how it ended."""

    def __init__(self, done: subprocess.CompletedProcess[bytes]) -> None:
        self.code = done.returncode
        self.out = done.stdout.decode("utf-8", "surrogateescape")
        self.err = done.stderr.decode("utf-8", "surrogateescape")

    @property
    def lines(self) -> list[list[str]]:
        return [line.split("\t") for line in self.out.splitlines()]

    @property
    def documents(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def run(url: str) -> Run:
    def call(*words: str | bytes, stdin: bytes | None = None, **environment: str) -> Done:
        return Done(
            subprocess.run(
                [sys.executable, "-m", "timeoutq", *words],
                input=b"" if stdin is None else stdin,
                env={**os.environ, "TIMEOUTQ_URL": url, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **environment},
                cwd=ROOT,
                capture_output=True,
                timeout=60,
                check=False,
            )
        )

    return call


def test_put_claim_ack_as_a_script_would(run: Run, name: str) -> None:
    done = run("put", name, "a", "b")
    assert (done.code, done.lines) == (0, [["a", "added"], ["b", "added"]])
    assert run("put", name, "a").lines == [["a", "todos"]]
    claimed = run("claim", name, "-n", "5", "--timeout", "1m", "--json")
    assert {document["task"] for document in claimed.documents} == {"a", "b"}
    acked = run("ack", name, stdin=claimed.out.encode())
    assert acked.code == 0
    assert {answer for _, answer in acked.lines} == {"ok"}
    assert run("claim", name).code == 1
    assert run("drained", name).out == "yes\n"


def test_a_lost_lease_ends_with_four(run: Run, name: str, queue: Queue) -> None:
    run("put", queue.name, "a")
    (task, token, *_) = run("claim", queue.name).lines[0]
    assert run("extend", queue.name, task, "--token", token, "--timeout", "2m").code == 0
    assert run("release", queue.name, task, "--token", token).code == 0
    for verb in ("ack", "extend", "release", "fail"):
        done = run(verb, queue.name, task, "--token", "someone#1")
        assert (done.code, done.lines) == (4, [["a", "lost"]]), verb


def test_fail_retry_inspect_and_list(run: Run, queue: Queue) -> None:
    name = queue.name
    run("put", name, "a", "--payload", '{"depth": 2}')
    token = run("claim", name).lines[0][1]
    assert run("fail", name, "a", "--token", token, "--error", "HTTP 404", "--give-up").code == 0
    facts = {line[0]: line[1] for line in run("inspect", name, "a").lines}
    assert facts["state"] == "failed"
    assert facts["last error"] == "HTTP 404"
    assert facts["payload"] == '{"depth": 2}'
    assert run("list", name, "failed").lines[0][0] == "a"
    assert run("retry", name, "--all").out == "1 retried\n"
    assert run("retry", name, "--all").code == 1
    unknown = run("inspect", name, "nothing", "--json")
    assert unknown.code == 1
    assert unknown.documents[0]["state"] is None


def test_put_reads_files_and_pipes(run: Run, queue: Queue, tmp_path: Path) -> None:
    urls = tmp_path / "urls.txt"
    urls.write_text("".join(f"https://example.com/{i}\n\n" for i in range(12_000)))
    assert run("put", queue.name, "--file", str(urls)).lines == [["added", "12000"]]
    assert run("put", queue.name, "--json", stdin=b"https://example.com/1\nnew\r\n").documents == [
        {"todos": 1, "added": 1}
    ]
    assert run("put", queue.name, "--jsonl", stdin=b'{"task": "p", "payload": [1]}\n').code == 0
    assert queue.inspect("p").payload == [1]
    assert queue.stats().todos == 12_002


def test_a_bad_line_is_named_and_its_chunk_is_not_put(run: Run, queue: Queue) -> None:
    done = run("put", queue.name, stdin=b"good\n" + b"x" * 1025 + b"\n")
    assert done.code == 2
    assert "line 2: task id" in done.err
    assert queue.stats().known == 0
    done = run("put", queue.name, "--jsonl", stdin=b'{"task": "a"}\n{"nothing": 1}\n')
    assert done.code == 2
    assert 'line 2: not an object with "task"' in done.err


def test_schedule_pause_and_settings(run: Run, queue: Queue) -> None:
    assert run("schedule", queue.name, "a", "--after", "2h").code == 0
    assert run("schedule", queue.name, "b", "--at", "2099-01-01T00:00:00+00:00").code == 0
    assert queue.inspect("b").due == 4070908800
    assert run("pause", queue.name).code == run("resume", queue.name).code == 0
    assert run("configure", queue.name, "--keep-done", "7d", "--max-crashes", "3").code == 0
    assert queue.stats().settings["keep_done"] == "t604800000"
    assert queue.stats().settings["max_crashes"] == "3"
    assert run("drained", queue.name).code == 1


def test_dangerous_commands_do_nothing_without_a_yes(run: Run, queue: Queue) -> None:
    queue.put("a", "b")
    for words in (("purge", queue.name), ("forget", queue.name, "a")):
        done = run(*words)
        assert done.code == 2
        assert "Not without --yes" in done.err
    assert queue.stats().known == 2
    assert run("forget", queue.name, "a", "--yes").lines == [["a", "todos"]]
    assert run("purge", queue.name, "-y").code == 0
    assert queue.stats().known == 0


def test_status_and_dashboard_are_plain_without_a_terminal(run: Run, queue: Queue) -> None:
    queue.put([f"t{i}" for i in range(20)])
    for words in (("status", queue.name), ("dashboard", queue.name)):
        done = run(*words)
        assert done.code == 0
        assert "20 todos" in done.out
        assert "\x1b" not in done.out
    (document,) = run("status", queue.name, "--json").documents
    assert document["queue"] == queue.name


def test_a_worker_works_and_a_handler_that_is_missing_is_named(run: Run, queue: Queue) -> None:
    queue.put("a", "b", "c")
    done = run("worker", queue.name, "tests.rig.handlers:work", "--burst", "--timeout", "5s")
    assert done.code == 0, done.err
    assert queue.stats().done == 3
    done = run("worker", queue.name, "nowhere:f")
    assert done.code == 2
    assert "importing nowhere raised ModuleNotFoundError" in done.err
    assert "Traceback" not in done.err


HOSTILE = ["\x1b[31mred", "\x1b]52;c;aGk=\x07", "\r",
           "line\nbreak", "\u202eturned", "[bold]x[/bold]", "[/x]", "\x9b2J", "\u200b"]  # fmt: skip


def test_no_command_lets_control_bytes_of_a_task_through(run: Run, queue: Queue) -> None:
    queue.put(HOSTILE, b"\xff\xfe")
    leases = queue.claim(100)
    queue.fail(leases[:5], "boom \x1b[2J \x07 \n next", give_up=True)
    words = [
        ("list", "in_progress"),
        ("list", "failed"),
        ("status",),
        ("status", "--json"),
        ("list", "failed", "--json"),
        *(("inspect", lease.task) for lease in leases if "\0" not in lease.task),
    ]
    for command, *rest in words:
        done = run(command, queue.name, *rest)
        assert done.code == 0, done.err
        for line in done.out.splitlines():
            assert safe(line.replace("\t", " ")) == line.replace("\t", " "), (command, rest)


def test_ids_that_are_not_utf8_survive_json(run: Run, queue: Queue) -> None:
    queue.put(b"\xff\x00x")
    claimed = run("claim", queue.name, "--json")
    assert "\\udcff" in claimed.out
    assert run("ack", queue.name, stdin=claimed.out.encode()).code == 0
    assert queue.inspect(b"\xff\x00x").state == "done"


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (("put", "bad name", "a"), 2, "is not a queue name"),
        (("put", "q", ""), 2, "must not be empty"),
        (("put", "q", "a", "--payload", "{"), 2, "--payload is not JSON"),
        (("schedule", "q", "a"), 2, "say when"),
        (("schedule", "q", "a", "--after", "soon"), 2, "is not a length of time"),
        (("schedule", "q", "a", "--at", "soon"), 2, "is not a time"),
        (("claim", "q", "-n", "0"), 2, "--count"),
        (("claim", "q", "--timeout", "0"), 2, "out of range"),
        (("ack", "q", "a"), 2, "tasks need the --token"),
        (("ack", "q", "a", "--url", "http://x"), 2, "tasks need the --token"),
        (("pause", "q", "--url", "http://x"), 2, "does not parse"),
        (("pause", "q", "--url", "redis://127.0.0.1:1/0"), 3, "is the server up"),
        (("pause", "q", "--url-file", "/nowhere"), 2, "cannot read --url-file"),
        (("list", "q", "nowhere"), 2, "nowhere"),
        (("retry", "q"), 2, "name failed tasks, or give --all"),
        (("configure", "q"), 2, "say what to change"),
        (("worker", "q", "json:loads", "--log-level", "loud"), 2, "is not one of debug"),
        (("nothing",), 2, "No such command"),
    ],
)
def test_wrong_words_are_one_clear_line(run: Run, words: tuple[str, ...], code: int, complaint: str) -> None:
    done = run(*words)
    assert done.code == code, done.err
    assert complaint in done.err
    assert "Traceback" not in done.err


def test_a_password_is_in_no_output(run: Run, tmp_path: Path) -> None:
    with EmbeddedServer(config={"requirepass": "right"}) as server:
        wrong = f"redis://:c4n4ry@127.0.0.1:{server.port}/0"
        kept = tmp_path / "url"
        kept.write_text(wrong)
        for words in (
            ("pause", "q", "--url", wrong),
            ("status", "q", "--url-file", str(kept)),
            ("doctor", "q", "--url", wrong),
            ("worker", "q", "json:loads", "--url", wrong, "--no-supervise"),
            ("cleaner", "q", "--url", wrong),
        ):
            done = run(*words)
            assert done.code == 3, (words, done.err)
            assert "c4n4ry" not in done.out + done.err, words
        assert "can be seen by all users" in run("pause", "q", "--url", wrong).err


def test_a_closed_pipe_is_quiet(url: str, queue: Queue) -> None:
    queue.put([f"t{i}" for i in range(5000)])
    done = subprocess.run(
        f"{sys.executable} -m timeoutq list {queue.name} todos --all | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TIMEOUTQ_URL": url, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.startswith("t")
    assert done.stderr == ""


def test_doctor_is_red_where_tasks_may_be_lost(run: Run) -> None:
    with EmbeddedServer(config={"maxmemory-policy": "allkeys-lru"}) as server:
        done = run("doctor", TIMEOUTQ_URL=server.url)
        assert done.code == 1
        verdicts = {line[0]: line[1] for line in done.lines}
        assert verdicts["eviction"] == "red"
        assert verdicts["durability"] == "yellow"
        assert verdicts["version"] == "green"
        assert "CONFIG SET maxmemory-policy noeviction" in done.out


def test_doctor_names_the_class_of_persistence(run: Run, tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "a", config={"appendfsync": "always"}) as server:
        assert "nothing accepted is lost" in run("doctor", TIMEOUTQ_URL=server.url).out
    with EmbeddedServer(tmp_path / "b") as server:
        done = run("doctor", "--json", TIMEOUTQ_URL=server.url)
        assert done.code == 0
        found = {document["check"]: document for document in done.documents}
        assert "up to 2 s may be lost" in str(found["durability"]["found"])


def test_the_server_command_runs_one_and_ends_with_it() -> None:
    import signal

    process = subprocess.Popen(
        [sys.executable, "-m", "timeoutq", "server"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    with Queue("q", address) as queue:
        assert queue.put("a").added == 1
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode in (0, 130)
    with pytest.raises(Exception, match="is the server up"):
        Queue("q", address, deadline=0.5).put("a")
