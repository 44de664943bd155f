"""What people met at the command line: lines and files, times without a zone, pipes, help, advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rig.command import Say, say, server
from tests.rig.terminal import on_a_terminal
from timeoutq import Politeness, Queue
from timeoutq.cli.lines import length
from timeoutq.verbs import sending, why
from timeoutq.watch import records
from timeoutq.watch.hands import told_of

__all__ = ["say", "server"]


def test_a_line_of_json_may_name_its_group(say: Say, queue: Queue) -> None:
    queue.configure(politeness=Politeness(3600, 1))
    lines = (
        b'{"task": "a", "group": "One"}\n{"task": "b", "group": "two", "payload": [1]}\n'
        b'{"task": "c"}\n{"task": "d", "group": "one"}\n'
    )
    assert say("put", queue.name, "--jsonl", "--group", "usual", "--json", stdin=lines).documents == [{"added": 4}]
    assert [queue.inspect(task).host for task in "abcd"] == ["one", "two", "usual", "one"]
    assert queue.inspect("b").payload == [1]
    assert say("schedule", queue.name, "--after", "1h", "--jsonl", stdin=b'{"task": "e", "group": "x"}').code == 0
    assert queue.inspect("e").host == "x"


def test_lines_of_json_that_are_put_as_ids_are_told_of_once(say: Say, queue: Queue) -> None:
    lines = b'{"url": "https://a.example/"}\n{"url": "https://b.example/"}\n'
    done = say("put", queue.name, stdin=lines)
    assert (done.code, done.facts) == (0, {"added": "2"})
    words = "timeoutq: line 1 is put as the id of a task, as it stands: for lines of JSON, give --jsonl"
    assert done.err.splitlines() == [words]


WRONG_LINES = {
    b'{"task": "a", "grp": "x"}': "unknown key 'grp': a line has task, payload, group, priority, improve, rerun",
    b'{"task": "a", "priority": "1"}': "priority must be a whole number from -1,000 to 1,000, not '1'",
    b'{"task": "a", "rerun": 2}': "rerun must be True or False, not 2",
    b'{"task": "a", "improve": true}': '"improve" compares priorities: add "priority" to the line',
}


def test_what_a_line_of_json_says_wrongly_is_refused_by_its_number(say: Say, queue: Queue) -> None:
    for line, complaint in WRONG_LINES.items():
        done = say("put", queue.name, "--jsonl", stdin=b'{"task": "first"}\n' + line)
        assert (done.code, f"line 2: {complaint}" in done.err) == (2, True), done.err
    assert queue.stats().known == 0


def test_a_file_that_an_editor_wrote_gives_ids_without_its_mark_and_the_blanks_around_them(
    say: Say, queue: Queue, tmp_path: Path
) -> None:
    urls = tmp_path / "urls.txt"
    urls.write_bytes("\ufeffhttps://a.example/ \r\n\t\n https://b.example/\t\r\nhttps://c.example/".encode())
    assert say("put", queue.name, "-f", str(urls)).lines == [["added", "3"]]
    assert {entry.task for entry in queue.each("todos")} == {f"https://{name}.example/" for name in "abc"}
    assert say("diff", str(urls), f"{queue.name}:todos").code == 1
    assert say("states", queue.name, "-f", str(urls), "--count").lines == [["todos", "3"]]
    assert say("put", queue.name, "--jsonl", stdin='\ufeff{"task": "kept "}\n'.encode()).code == 0
    assert queue.states("kept ").counts() == {"todos": 1}


def test_a_time_without_a_zone_is_refused_with_what_to_write(say: Say, queue: Queue) -> None:
    done = say("schedule", queue.name, "a", "--at", "2027-01-01T12:30")
    assert (done.code, "has no zone: write 2027-01-01T12:30Z for UTC" in done.err) == (2, True)
    assert say("schedule", queue.name, "a", "--at", "2099-01-01T01:00+01:00").code == 0
    assert queue.inspect("a").due == 4070908800


def test_status_on_a_pipe_is_lines_that_a_program_can_read(say: Say, queue: Queue) -> None:
    queue.put([f"t{i}" for i in range(3)])
    queue.fail(queue.claim()[0], "HTTP\t404", give_up=True)
    done = say("status", queue.name)
    facts = {line[0]: line[1:] for line in done.lines}
    assert facts["queue"] == [queue.name]
    assert (facts["todos"], facts["failed"], facts["known"], facts["workers"]) == (["2"], ["1"], ["3"], ["0"])
    assert facts["error"][-1] == r"HTTP\x09404"
    assert say("dashboard", queue.name).lines[0] == ["queue", queue.name]
    assert say("status", queue.name, "--json").documents[0]["queue"] == queue.name


def test_settings_are_shown_in_the_words_that_options_take(say: Say, queue: Queue) -> None:
    assert say("configure", queue.name, "--keep-done", "36h", "--max-crashes", "3", "--delay", "1500ms").code == 0
    queue.pause()
    assert say("configure", queue.name).lines == [
        ["keep-done", "36h"], ["max-crashes", "3"], ["delay", "1.5s"], ["per-host", "1"], ["paused", "yes"],
        ["schema", queue.stats().settings["schema"]],
    ]  # fmt: skip
    assert say("configure", queue.name, "--json").documents[0]["max_crashes"] == 3
    for given in ("forever", "0", "1000", "7d"):
        assert say("configure", queue.name, "--keep-done", given).code == 0
        assert say("configure", queue.name).lines[0] == ["keep-done", given]


def test_a_length_of_time_is_written_as_options_take_it() -> None:
    given = {0: "0ms", 0.25: "250ms", 1: "1s", 1.5: "1.5s", 90: "90s", 120: "2m", 3600: "1h", 604_800: "7d"}
    assert {seconds: length(seconds) for seconds in given} == given


def test_why_advises_commands_and_keys_to_people_and_methods_to_programs(say: Say, queue: Queue) -> None:
    queue.put("it's")
    queue.fail(queue.claim()[0], "boom", give_up=True)
    told = {line[0]: line[1] for line in say("why", queue.name, "it's").lines}["why"]
    assert told.endswith(f"; `timeoutq retry {queue.name} 'it'\"'\"'s'` brings it back")
    assert queue.why("it's").message.endswith("; retry_failed brings it back")
    shown, _ = told_of(queue, "it's")  # the dashboard, which has a key for it
    assert any(line.endswith("boom; R makes it ready again") for line, _ in shown)
    queue.put("done")
    queue.ack(queue.claim())
    queue.run(sending.answer(queue.talk, queue.operations.configure({"scrapy_spider": b"shop"})))
    told = {line[0]: line[1] for line in say("why", queue.name, "done").lines}["why"]
    assert told.endswith("makes it ready again; a spider owns the queue, and the response then goes to its `parse`: "
                         "callback and meta went with the ack")  # fmt: skip
    assert records.ADVICE.keys() == why.ADVICE.keys()


@pytest.mark.parametrize("words", ["list {} todos", "hosts {}"])
def test_on_a_terminal_tables_have_heads(words: str, url: str, queue: Queue) -> None:
    queue.configure(politeness=Politeness(3600, 1))
    queue.put("https://a.example/")
    code, shown = on_a_terminal(url, *words.format(queue.name).split())
    assert code == 0
    assert shown.decode().split()[0].removeprefix("\x1b[1m") in ("task", "host")


def test_put_with_rerun_has_a_run_of_each_task_begin_after_it(say: Say, queue: Queue) -> None:
    queue.put({"held": 1, "done": 1})
    leases = {lease.task: lease for lease in queue.claim(2)}
    queue.ack(leases["done"])
    words = ("put", queue.name, "--payload", "2")
    assert say(*words, "held", "done").lines == [["held", "in_progress"], ["done", "done"]]
    assert say(*words, "held", "done", "--rerun").lines == [["held", "rerun"], ["done", "added"]]
    queue.ack(leases["held"])
    leases = {lease.task: lease for lease in queue.claim(2)}
    assert {task: lease.payload for task, lease in leases.items()} == {"held": 2, "done": 2}
    lines = b'{"task": "held", "payload": 3, "rerun": true}\n{"task": "done", "payload": 3}\n'
    done = say("put", queue.name, "--jsonl", "--json", stdin=lines)
    assert done.documents == [{"rerun": 1, "in_progress": 1}]
    assert say("put", queue.name, "--json", "held", "--rerun").documents == [{"task": "held", "answer": "rerun"}]
    done = say("schedule", queue.name, "--after", "1h", "--jsonl", stdin=lines)
    assert (done.code, "rerun=True has a run begin after a put" in done.err) == (2, True)
