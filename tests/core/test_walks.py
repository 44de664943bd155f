"""Going through all of a state or all hosts, and asking where many tasks are: the same on both faces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.rig.command import Say, say
from timeoutq import InvalidInput, Politeness, State

__all__ = ["say"]


def test_a_for_loop_goes_through_all_failed_tasks_not_only_a_page_of_them(face: Any) -> None:
    face.put([f"t{i}" for i in range(1200)])
    while leases := face.claim(500):
        face.fail(leases, "HTTP 404", give_up=True)
    found = {entry.task: entry.error for entry in face.each("failed")}
    assert found == {f"t{i}": "HTTP 404" for i in range(1200)}
    page = face.list("failed")
    assert [entry.task for entry in page] == [entry.task for entry in page.entries]
    assert len(page) == len(page.entries) < 1200


@pytest.mark.parametrize("state", list(State))
def test_each_state_can_be_gone_through_with_what_list_tells_of_it(state: State, face: Any) -> None:
    face.configure(politeness=Politeness(3600, 1))
    face.schedule("https://s.example/", after=60)
    face.put([f"https://{host}.example/" for host in "pdf"])
    for lease in face.claim(10):
        if "d." in lease.task:
            face.ack(lease)
        elif "f." in lease.task:
            face.fail(lease, "boom", give_up=True)
    face.put("https://t.example/1", "https://t.example/2")
    assert sorted(face.each(state), key=str) == sorted(face.list(state), key=str)
    assert len(list(face.each(state.value))) == 1


def test_what_is_forgotten_on_the_way_does_not_hide_what_comes_after(face: Any) -> None:
    face.schedule([f"t{i}" for i in range(1500)], after=3600)
    seen = 0
    for entry in face.each("scheduled"):
        face.forget(entry.task)
        seen += 1
    assert seen == 1500
    assert face.stats().scheduled == 0


def test_a_state_that_there_is_not_is_named(face: Any) -> None:
    with pytest.raises(InvalidInput, match="'nowhere' is not a state: one of todos, waiting"):
        list(face.each("nowhere"))


def test_a_for_loop_goes_through_all_hosts(face: Any) -> None:
    face.configure(politeness=Politeness(3600, 1))
    assert list(face.hosts.each()) == []
    face.put([f"https://h{i}.example/{n}" for i in range(300) for n in range(2)])
    face.put("x", group="Some Group")
    found = {info.host: info for info in face.hosts.each()}
    assert found.keys() == {f"h{i}.example" for i in range(300)} | {"some group"}
    assert found["h7.example"] == face.hosts.inspect("h7.example")
    assert [info.host for info in face.hosts.list(n=5)] == [info.host for info in face.hosts.list(n=5).hosts]
    assert len(face.hosts.list(n=5)) == 5


def test_hosts_of_a_queue_that_is_not_polite_are_refused_by_name(face: Any, raw: redis.Redis) -> None:
    raw.zadd(face.operations.key("hosts"), {"odd": 1})
    with pytest.raises(InvalidInput, match="is not polite"):
        list(face.hosts.each())
    raw.delete(face.operations.key("hosts"))


def test_where_a_thousand_tasks_are_is_asked_at_once(face: Any) -> None:
    face.put([f"t{i}" for i in range(900)], {"body": {"depth": 1}})
    face.schedule("later", after=60)
    leases = {lease.task: lease for lease in face.claim(3)}
    done, failed, held = leases.values()
    face.ack(done)
    face.fail(failed, "boom", give_up=True)
    asked = [*(f"t{i}" for i in range(900)), "body", "later", "never", b"\xff", done.task]
    found = face.states(asked)
    assert len(found) == len(asked)
    answers = dict(found.items())
    assert (answers[done.task], answers[failed.task], answers[held.task]) == ("done", "failed", "in_progress")
    assert (answers["later"], answers["never"], answers["\udcff"]) == ("scheduled", "unknown", "unknown")
    assert found[-1] == "done"
    assert found.counts() == {"todos": 898, "scheduled": 1, "in_progress": 1, "done": 2, "failed": 1, "unknown": 2}
    assert list(face.states("later", ["never"])) == ["scheduled", "unknown"]
    assert len(face.states()) == 0


def test_where_tasks_are_is_told_of_polite_queues_too(face: Any) -> None:
    face.configure(politeness=Politeness(3600, 1))
    face.put("https://a.example/1", "https://a.example/2")
    assert sorted(face.states("https://a.example/1", "https://a.example/2")) == ["todos", "waiting"]


def test_the_states_of_a_file_of_ids_are_a_line_each_or_counts(say: Say, queue: Any, tmp_path: Path) -> None:
    queue.put([f"t{i}" for i in range(1500)])
    queue.pull(500)
    ids = tmp_path / "ids"
    ids.write_text("".join(f"t{i}\n" for i in range(1501)))
    lines = say("states", queue.name, "--file", str(ids)).lines
    assert [line[0] for line in lines] == [f"t{i}" for i in range(1501)]
    assert lines[-1] == ["t1500", "unknown"]
    counted = say("states", queue.name, "-f", str(ids), "--count", "--json")
    assert counted.documents == [{"todos": 1000, "done": 500, "unknown": 1}]
    assert sorted(say("states", queue.name, "-f", "-", "--count", stdin=ids.read_bytes()).lines) == [
        ["done", "500"], ["todos", "1000"], ["unknown", "1"],
    ]  # fmt: skip
    assert say("states", queue.name, "never", "--json").documents == [{"task": "never", "state": "unknown"}]
    assert say("states", queue.name, "never").code == 1
    assert say("states", queue.name, "never", "t1").code == 0
    ids.write_bytes(b"t1\0a\nb\0")
    assert say("states", queue.name, "-0", "-f", str(ids), "--json").out.splitlines()[1] == json.dumps(
        {"task": "a\nb", "state": "unknown"}
    )


@pytest.mark.parametrize("words", [(), ("a", "--file", "x")])
def test_the_states_of_nothing_are_refused(say: Say, queue: Any, words: tuple[str, ...]) -> None:
    queue.put("a")
    done = say("states", queue.name, *words)
    assert done.code == 2
    assert "name tasks, or give --file" in done.err


def test_an_answer_is_found_by_its_task(face: Any) -> None:
    face.put("a", b"\xff")
    found = face.states("a", "nosuch", b"\xff", "a")
    assert (found["a"], found["nosuch"], found[b"\xff"], found["\udcff"]) == ("todos", "unknown", "todos", "todos")
    assert (found[1], found[-1], found[:1]) == ("unknown", "todos", ["todos"])
    with pytest.raises(KeyError, match="never named"):
        found["never named"]
