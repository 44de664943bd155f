"""Tasks of which a foreign hand has deleted all but a trace: they come back, and a purge leaves no trace of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rig.invariants import a_minute_later
from timeoutq import Politeness, Queue
from timeoutq.watch import doctor

A, B = "http://a.example/", "http://b.example/"


@pytest.mark.parametrize(
    "hand", ["deletes hosts", "hosts is a string", "deletes hosts and waiting", "a lock of no task"]
)
def test_a_purge_removes_what_a_foreign_hand_has_cut_off(url: str, name: str, raw: Any, hand: str) -> None:
    with Queue(name, url, politeness=Politeness(60, 1)) as queue:
        key = queue.operations.key
        queue.put(f"{A}1", f"{A}2", f"{B}1")
        queue.claim(1)
        if hand == "a lock of no task":
            raw.set(key("lock") + "nobody's", "w#1")
        else:
            raw.delete(key("hosts"))
        if hand == "hosts is a string":
            raw.set(key("hosts"), "x")
        if hand == "deletes hosts and waiting":
            raw.delete(key("waiting"))
        queue.purge()
        assert list(raw.scan_iter(key("") + "*")) == []
        assert not queue.exists()


def test_records_of_no_task_are_removed_when_a_minute_has_gone_by(url: str, name: str, raw: Any) -> None:
    with Queue(name, url) as queue:
        key = queue.operations.key
        queue.put({str(i): {"n": "x" * 100} for i in range(3000)})
        raw.hset(key("attempts"), "7", "2")
        raw.delete(key("todos"))
        assert "nothing to mend; noted: 3,001 records" in doctor.repair(queue).found
        assert raw.hlen(key("payload")) == 3000
        a_minute_later(raw, name)
        assert doctor.repair(queue).found == "mended: 3,001 records that no task uses"
        assert raw.exists(key("payload"), key("attempts")) == 0, "all of them, on each server"
        queue.purge()
