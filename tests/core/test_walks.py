"""Going through all of a state or all hosts, and asking where many tasks are: the same on both faces."""

from __future__ import annotations

from typing import Any

import pytest

from timeoutq import Politeness, State


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
