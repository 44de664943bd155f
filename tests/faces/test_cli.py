"""The command, as transcripts: what it prints, what it answers, how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from tests.rig.command import Say, say, server, started
from tests.rig.processes import ROOT
from tests.rig.terminal import on_a_terminal
from tests.rig.waiting import wait_until
from timeoutq import Queue
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.verbs.sending import answers

__all__ = ["say", "server"]


def test_put_claim_ack_as_a_script_would(say: Say, name: str) -> None:
    done = say("put", name, "a", "b")
    assert (done.code, done.lines) == (0, [["a", "added"], ["b", "added"]])
    assert say("put", name, "a").lines == [["a", "todos"]]
    claimed = say("claim", name, "-n", "5", "--timeout", "1m", "--json")
    assert {document["task"] for document in claimed.documents} == {"a", "b"}
    acked = say("ack", name, stdin=claimed.out.encode())
    assert acked.code == 0
    assert {answer for _, answer in acked.lines} == {"ok"}
    assert say("claim", name).code == 1
    assert say("drained", name).out == "yes\n"


def test_a_lost_lease_ends_with_four(say: Say, name: str, queue: Queue) -> None:
    assert say("schedule", queue.name, "a", "--at", "1").code == say("pause", queue.name).code == 0
    assert say("claim", queue.name).code == say("drained", queue.name).code == 1
    assert say("resume", queue.name).code == 0
    (task, token, *_) = say("claim", queue.name).lines[0]
    assert say("extend", queue.name, task, "--token", token, "--timeout", "2m").code == 0
    assert say("release", queue.name, task, "--token", token).code == 0
    for verb in ("ack", "extend", "release", "fail"):
        done = say(verb, queue.name, task, "--token", "someone#1")
        assert (done.code, done.lines) == (4, [["a", "lost"]]), verb


def test_fail_retry_inspect_and_list(say: Say, queue: Queue) -> None:
    name = queue.name
    say("put", name, "a", "--payload", '{"depth": 2}')
    token = say("claim", name).lines[0][1]
    assert say("fail", name, "a", "--token", token, "--error", "HTTP 404", "--give-up").code == 0
    facts = {line[0]: line[1] for line in say("inspect", name, "a").lines}
    assert facts["state"] == "failed"
    assert facts["last error"] == "HTTP 404"
    assert facts["payload"] == '{"depth": 2}'
    assert say("list", name, "failed").lines[0][0] == "a"
    assert say("retry", name, "--all").out == "1 retried\n"
    assert say("retry", name, "--all").code == 1
    say("put", name, "ready")
    say("fail", name, "a", "--token", say("claim", name, "-n", "9").lines[0][1], "--error", "no", "--give-up")
    told = say("retry", name, "a", "ready", "nosuch")
    assert (told.code, told.lines) == (0, [["a", "retried"], ["ready", "in_progress"], ["nosuch", "unknown"]])
    told = say("retry", name, "a", "nosuch", "--json")
    assert told.documents == [{"task": "a", "answer": "todos"}, {"task": "nosuch", "answer": "unknown"}]
    assert told.code == 1
    unknown = say("inspect", name, "nothing", "--json")
    assert unknown.code == 1
    assert unknown.documents[0]["state"] is None


def test_retry_all_and_requeue_leave_what_somebody_has_cancelled(say: Say, queue: Queue) -> None:
    name = queue.name
    say("put", name, "a", "sent by mistake")
    say("cancel", name, "sent by mistake", "--by", "ann")
    say("fail", name, "a", "--token", say("claim", name).lines[0][1], "--give-up")
    assert say("requeue", name, "--from", "failed", "--dry-run").out == "1 would be put back\n"
    assert say("retry", name, "--all").out == "1 retried\n"
    assert say("requeue", name, "--from", "failed").code == 1
    assert say("states", name, "sent by mistake").lines == [["sent by mistake", "failed"]]
    assert say("requeue", name, "--from", "failed", "--cancelled").out == "1 put back\n"
    say("cancel", name, "sent by mistake")
    assert say("retry", name, "--all", "--cancelled").out == "1 retried\n"


def test_retry_all_and_requeue_leave_calls_that_have_expired(say: Say, queue: Queue) -> None:
    name = queue.name
    queue.put("a")
    queue.run(answers(queue.talk, queue.operations.fail(queue.claim(1), [-1], [b"expired: it was to begin earlier"])))
    assert "calls expired" in say("status", name).out
    done = say("retry", name, "--all")
    assert done.out == "0 retried\n"
    assert "1 task in failed: --cancelled and --expired retry those that are left out else" in done.err
    assert say("requeue", name, "--from", "failed").code == 1
    assert say("requeue", name, "--from", "failed", "--expired").out == "1 put back\n"
    queue.run(answers(queue.talk, queue.operations.fail(queue.claim(1), [-1], [b"expired: it was to begin earlier"])))
    assert say("retry", name, "a", "--expired").code == 2
    assert say("retry", name, "--all", "--expired").out == "1 retried\n"


def test_put_reads_files_and_pipes(say: Say, queue: Queue, tmp_path: Path) -> None:
    urls = tmp_path / "urls.txt"
    urls.write_text("".join(f"https://example.com/{i}\n\n" for i in range(12_000)))
    assert say("put", queue.name, "--file", str(urls)).lines == [["added", "12000"]]
    assert say("put", queue.name, "--json", stdin=b"https://example.com/1\nnew\r\n").documents == [
        {"todos": 1, "added": 1}
    ]
    assert say("put", queue.name, "--jsonl", stdin=b'{"task": "p", "payload": [1]}\n').code == 0
    assert say("put", queue.name, "--jsonl", stdin=b'{"task": {"b64": "/w=="}}\n').code == 0
    assert queue.states(b"\xff") == ["todos"]
    assert "line 1: the id is not base64" in say("put", queue.name, "--jsonl", stdin=b'{"task": {"b64": "!"}}').err
    assert queue.inspect("p").payload == [1]
    assert queue.stats().todos == 12_003


def test_dangerous_commands_do_nothing_without_a_yes(say: Say, queue: Queue) -> None:
    queue.put("a", "b")
    for words in (("purge", queue.name), ("forget", queue.name, "a")):
        done = say(*words)
        assert done.code == 2
        assert "add --yes to go on" in done.err
    assert queue.stats().known == 2
    assert say("forget", queue.name, "a", "--yes").lines == [["a", "todos"]]
    assert say("purge", queue.name, "-y").code == 0
    assert queue.stats().known == 0


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (("put", "bad name", "a"), 2, "is not a queue name"),
        (("claim", "q", "-n", "0"), 2, "--count"),
        (("pause", "q", "--url", "redis://127.0.0.1:1/0"), 3, "is the server up"),
        (("pause", "q", "--url-file", "/nowhere"), 2, "cannot read --url-file"),
        (("retry", "q"), 2, "name failed tasks, or give --all"),
        (("worker", "q", "json:loads", "--log-level", "loud"), 2, "is not one of debug"),
        (("nothing",), 2, "No such command"),
    ],
)
def test_wrong_words_are_one_clear_line(say: Say, words: tuple[str, ...], code: int, complaint: str) -> None:
    done = say(*words)
    assert done.code == code, done.err
    assert complaint in done.err
    assert "Traceback" not in done.err


def test_a_password_is_in_no_output(say: Say, tmp_path: Path) -> None:
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
            done = say(*words)
            assert done.code == 3, (words, done.err)
            assert "c4n4ry" not in done.out + done.err, words
        assert "can be seen by all users" in say("pause", "q", "--url", wrong).err


def shell(url: str, line: str) -> tuple[int, str, str]:
    """Run a line of a shell; give the exit code, stdout and stderr."""
    environment = {**os.environ, "TIMEOUTQ_URL": url, "PYTHONPATH": str(ROOT)}
    line = line.replace("timeoutq", f"{sys.executable} -m timeoutq", 1)
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.breaking
def test_output_that_nobody_reads_is_quiet_and_output_that_cannot_be_written_is_one_line(
    url: str, queue: Queue
) -> None:
    queue.put([f"t{number}" for number in range(5000)])
    _, shown, said = shell(url, f"timeoutq list {queue.name} todos --all | head -n 1")
    assert (shown[:1], said) == ("t", "")
    if Path("/dev/full").exists():
        ended = shell(url, f"timeoutq list {queue.name} todos --all > /dev/full")
        assert ended == (2, "", "timeoutq: No space left on device\n")
    assert shell(url, f"timeoutq put {queue.name} more <&- >&-") == (0, "", "")


def test_the_server_command_runs_one_and_ends_with_it() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "timeoutq", "server"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with Queue("q", address) as queue:
            assert queue.put("a").added == 1
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        assert process.returncode in (0, 130)
    finally:
        process.kill()
    with pytest.raises(Exception, match="is the server up"):
        Queue("q", address, deadline=0.5).put("a")


@pytest.mark.parametrize(
    ("stdin", "words", "complaint"),
    [
        (b"x" * (8 * 1024 * 1024 + 9), ("put", "q"), "line 1: it has more than 8,388,608 bytes"),
        (b'\n{"task": 5}', ("put", "q", "--jsonl"), "line 2: a task id is str or bytes, not int"),
        (b'{"task": "\\ud800"}', ("put", "q", "--jsonl"), "holds a lone surrogate"),
        (b'{"task": "a", "payload": NaN}', ("put", "q", "--jsonl"), "the payload of task b'a' is neither bytes nor"),
        (b"[" * 100_000, ("put", "q", "--jsonl"), "line 1: not JSON"),
        (b"a", ("put", "q", "--jsonl", "--payload", "1"), "give --payload or --jsonl"),
        (b"", ("put", "q", "a", "--jsonl"), "--jsonl goes with --file or stdin"),
        (b"", ("put", "q", "--file", "/"), "cannot read /: Is a directory"),
        (None, ("put", "q"), "name tasks, give --file, or pipe them in"),
        (None, ("put", "q", "-"), "there is no stdin to read from"),
        (b"", ("schedule", "q", "a", "--after", "-5"), "is not a length of time"),
        (b"", ("schedule", "q", "a", "--at", "1", "--after", "1s"), "say when: either"),
        (b"", ("claim", "q", "--max-runtime", "1ms"), "out of range"),
        (b"", ("ack", "q", "a", "--token", "\x1b"), "is not a token"),
        (b"", ("fail", "q", "a", "--token", "w#1", "--retry-in", "3", "--give-up"), "not both"),
        (b"\n{}", ("ack", "q"), "line 2 is not a lease"),
        (b'{"task": "a", "token": 5}', ("ack", "q"), "5 is not a token"),
        (b"", ("list", "q", "todos", "--cursor", "x"), "is not a cursor"),
        (b"", ("configure", "q", "--keep-done", "1.5"), "--keep-done"),
        (b"", ("configure", "q", "--durable", "101"), "durable must be a whole number from 0 to 100"),
        (b"", ("worker", "q", "json:nothing"), "module json has no nothing"),
        (b"", ("pause", "q", "--url", ""), "--url is empty"),
        (b"", ("pause", "q", "--url-file", "/dev/null"), "must hold one line, the URL"),
        (b"", ("pause", "q", "--url", "redis://x", "--url-file", "x"), "not both"),
        (b"", ("server", "--dir", "/dev/null/x"), "/dev/null/x: Not a directory"),
    ],
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else None,  # the environment holds the id
)  # fmt: skip
def test_bad_input_is_named_and_ends_with_two(
    say: Say, url: str, stdin: bytes | None, words: tuple[str, ...], complaint: str
) -> None:
    with redis.Redis.from_url(url) as raw:
        Queue("q", url).pause()
        before = raw.dbsize()
        done = say(*words, stdin=stdin)
        assert done.code == 2, done.err
        assert complaint in done.err
        assert "Traceback" not in done.err
        assert raw.dbsize() == before


def test_a_lost_lease_names_who_has_it_now(say: Say, queue: Queue) -> None:
    queue.put("a", "b", "c", "d", "e")
    queue.claim(5, timeout=60)
    one = say("ack", queue.name, "a", "--token", "w7#1")
    assert (one.code, one.lines) == (4, [["a", "lost"]])
    assert f"lease on 'a' is lost and worker {queue.worker} has it now" in one.err
    found = say("ack", queue.name, "a", "--token", "w7#1", "--put", "new")
    assert (found.code, f"worker {queue.worker} has it now" in found.err) == (4, True)
    assert queue.inspect("new").state is None
    many = say("extend", queue.name, *"abcde", "--token", "w7#1")
    assert len(many.lines) == 5
    assert len(many.err.splitlines()) == 4
    assert "2 more leases are lost" in many.err


def test_a_task_that_is_failed_by_its_token_ends_in_failed_after_the_attempts_of_the_policy(
    say: Say, queue: Queue
) -> None:
    queue.put("a")
    for attempt in range(1, 6):
        token = say("claim", queue.name).lines[0][1]
        assert say("fail", queue.name, "a", "--token", token).code == 0
        assert queue.inspect("a").state == ("failed" if attempt == 5 else "scheduled")
        if attempt < 5:
            queue.schedule("a", at=1)
    assert queue.inspect("a").failures == 5


def test_the_answer_no_ends_with_one(say: Say, queue: Queue) -> None:
    assert say("forget", queue.name, "nothing", "--yes").code == 1
    assert say("pull", queue.name).code == 1
    assert say("ack", queue.name, stdin=b"\n").code == 0
    queue.put("a")
    assert say("forget", queue.name, "nothing", "a", "--yes").lines == [["nothing", "unknown"], ["a", "todos"]]
    queue.put("b", "c")
    assert say("pull", queue.name, "--json").documents[0]["payload"] is None
    assert say("drained", queue.name, "--json").documents == [{"drained": False}]
    assert "3 todos" not in say("purge", queue.name).err
    assert "with its 2 tasks (1 todos, 1 done)" in say("purge", queue.name).err


def test_version_and_help_are_quick_words(say: Say) -> None:
    assert say("--version").out == "0.1.0\n"
    shown = say("--help").out
    for word in ("Exit codes", "put", "schedule", "claim", "doctor", "configure", "130 Ctrl-C", "5 call and result"):
        assert word in " ".join(shown.split())
    anywhere = shown[shown.index("From anywhere") :]
    for command in ("web", "push", "token", "log", "report", "failures"):
        assert re.search(rf"^│? *{command} ", anywhere, re.MULTILINE), command


# ---- what only a real process can show


@pytest.mark.breaking
def test_the_module_is_the_command_and_ends_with_its_exit_codes(url: str, queue: Queue) -> None:
    done = started(url, "put", queue.name, b"\xff")
    assert (done.code, done.lines, done.err) == (0, [["\\xff", "added"]], "")
    done = started(url, "ack", queue.name, "a", "--token", "someone#1")
    assert (done.code, done.lines) == (4, [["a", "lost"]])
    done = started(url, "nothing")
    assert (done.code, done.out) == (2, "")
    assert "No such command" in done.err


def test_ctrl_c_leaves_no_traceback(url: str, queue: Queue) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "timeoutq", "claim", queue.name, "--wait", "60"],
        env={**os.environ, "TIMEOUTQ_URL": url, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        with redis.Redis.from_url(url) as raw:
            wait_until(lambda: any(one["cmd"] == "blpop" for one in raw.client_list()))
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20) == ("", "")
        assert process.returncode == 130
    finally:
        process.kill()
        process.communicate()


def shown_on_a_terminal(url: str, *words: str, typed: str = "") -> tuple[int, str]:
    code, shown = on_a_terminal(url, *words, typed=typed)
    return code, shown.decode("utf-8", "replace")


@pytest.mark.breaking
def test_on_a_terminal_it_asks_and_draws(url: str, queue: Queue, tmp_path: Path) -> None:
    queue.put("a", "\x1b[31mb")
    code, shown = shown_on_a_terminal(url, "purge", queue.name, typed="n\n")
    assert code == 1
    assert "Remove queue" in shown
    assert "2 tasks (2 todos)" in shown
    assert queue.stats().known == 2
    code, shown = shown_on_a_terminal(url, "list", queue.name, "todos")
    assert (code, "task" in shown.splitlines()[0], "\\x1b[31mb" in shown) == (0, True, True)
    code, shown = shown_on_a_terminal(url, "doctor", queue.name)
    assert (code, "✓" in shown) == (0, True)
    many = tmp_path / "many"
    many.write_text("".join(f"{number}\n" for number in range(20_000)))
    code, shown = shown_on_a_terminal(url, "put", queue.name, "--file", str(many))
    assert code == 0
    assert "putting" in shown
    assert "20000" in shown
    code, shown = shown_on_a_terminal(url, "purge", queue.name, typed="y\n")
    assert code == 0
    assert queue.stats().known == 0


def test_a_page_has_no_more_lines_than_asked_for_and_leaves_nothing_out(say: Say, queue: Queue) -> None:
    queue.put([f"t{i}" for i in range(200)])
    seen: set[str] = set()
    cursor: list[str] = []
    while True:
        done = say("list", queue.name, "todos", "-n", "20", *cursor)
        assert len(done.lines) <= 20
        seen.update(line[0] for line in done.lines)
        if "--cursor" not in done.err:
            break
        cursor = ["--cursor", done.err.split("--cursor ")[1].split(",")[0]]
    assert len(seen) == 200


def test_times_are_seconds_in_json_and_iso_elsewhere(say: Say, queue: Queue) -> None:
    queue.schedule("a", at=1_900_000_000)
    assert say("list", queue.name, "scheduled", "--json").documents[0]["at"] == 1_900_000_000
    assert say("list", queue.name, "scheduled").lines[0][1] == "2030-03-17T17:46:40.000+00:00"
