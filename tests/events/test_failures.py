"""Failed tasks by kind: what makes a kind, which verbs count, and to retry or forget all tasks of one kind."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests.rig import kinds
from tests.rig.command import Say
from tests.rig.command import say as say
from tests.rig.waiting import wait_until
from timeoutq import InvalidInput, Lease, Politeness, Queue, Task, open_queue
from timeoutq.rooms.failures import id_of
from timeoutq.verbs import sending
from timeoutq.words.model import Record, State


def give_up(queue: Any, **errors: str) -> None:
    """Put tasks and give them up by their names, each with its error."""
    queue.put(list(errors))
    for lease in sorted(queue.claim(500), key=lambda lease: str(lease.task)):
        if lease.task in errors:
            queue.fail(lease, errors[lease.task], give_up=True)
        else:
            queue.release(lease)


def counted(queue: Any) -> dict[str, int]:
    return {kind.text: kind.count for kind in queue.failures.list(1001)}


def test_failures_are_grouped_by_type_and_first_line_without_what_differs(queue: Any) -> None:
    give_up(
        queue,
        a="ConnectError: no answer from https://a.example/1 after 12 s\nmore",
        b="ConnectError: no answer from https://b.example/?x=2 after 7 s",
        c="HTTPStatusError: HTTP 404",
        d="HTTPStatusError: HTTP 503",
        e="KeyError: 'price'",
        f="KeyError: 'price'",
        g="Gone: 7f3a9c01-52aa-4c1e-9d52-00aa11bb22cc was deleted",
    )
    assert counted(queue) == {
        "ConnectError: no answer from <url> after # s": 2,
        "HTTPStatusError: HTTP 404": 1,
        "HTTPStatusError: HTTP 503": 1,
        "KeyError: 'price'": 2,
        "Gone: # was deleted": 1,
    }


def test_all_tasks_of_one_kind_are_retried_and_the_others_stay(queue: Any) -> None:
    give_up(queue, a="E: 1", b="E: 2", c="F: 1")
    found = queue.failures.retry("E: #")
    assert (found.moved, found.left) == (2, 0)
    assert counted(queue) == {"F: #": 1}
    assert (queue.stats().todos, queue.stats().failed) == (2, 1)
    assert {lease.attempt for lease in queue.claim(2)} == {1}


def test_a_walk_stops_after_so_many_and_goes_on_with_the_time_of_its_answer(queue: Any) -> None:
    give_up(queue, **{f"t{n}": "E" for n in range(5)})
    first = queue.failures.retry("E", at_most=2)
    assert (first.moved, first.left) == (2, 3)
    wait_until(lambda: queue.stats().now > first.before)
    for lease in queue.claim(2):
        queue.fail(lease, "E", give_up=True)
    # what fails anew is not retried again
    rest = queue.failures.retry("E", before=first.before)
    assert (rest.moved, rest.left, rest.before) == (3, 0, pytest.approx(first.before))
    assert counted(queue) == {"E": 2}


def test_what_is_not_failed_any_more_is_not_forgotten_with_its_kind(queue: Any, raw: Any) -> None:
    give_up(queue, a="E", b="E")
    raw.smove(queue.operations.key("failed"), queue.operations.key("todos"), "a")  # a foreign hand
    assert queue.failures.forget("E").moved == 1
    assert (queue.stats().todos, queue.stats().failed) == (1, 0)


@pytest.mark.parametrize("kind", ["", 5, None, b"x", "x" * 401])
def test_what_names_no_kind_is_refused(queue: Any, kind: Any) -> None:
    with pytest.raises(InvalidInput, match="a kind of failure is"):
        queue.failures.retry(kind)


def test_beyond_a_thousand_kinds_all_others_are_counted_together(queue: Any) -> None:
    names = [f"{chr(97 + n // 676)}{chr(97 + n // 26 % 26)}{chr(97 + n % 26)}" for n in range(1010)]
    queue.put([f"task {name}" for name in names])
    while leases := queue.claim(500):
        queue.run(_fail_each(queue, leases))
    assert len(queue.failures.list()) == 100
    found = queue.failures.list(1001)
    assert len(found) == 1001
    assert (found[0].id, found[0].count, found[0].text) == ("other", 10, "all kinds beyond the first 1,000")
    assert len(list(queue.failures.tasks("other"))) == 10
    assert queue.failures.forget("other").moved == 10
    assert queue.failures.retry(found[1]).moved == 1
    # there is room for one kind again
    (lease,) = queue.claim(1)
    queue.fail(lease, "one more: kind", give_up=True)
    assert "one more: kind" in counted(queue)


def _fail_each(queue: Any, leases: Sequence[Lease]) -> Any:
    errors = [f"E {lease.task[5:]}".encode() for lease in leases]
    return sending.answers(queue.talk, queue.operations.fail(leases, [-1] * len(leases), errors, [b""] * len(leases)))


ENDS = ["cancel", "cancel later", "release", "crash", "expire", "ban", "restore"]


@pytest.mark.parametrize("how", ENDS)
def test_however_a_task_is_given_up_it_is_counted(queue: Any, how: str) -> None:
    def once(call: Any) -> Any:
        return queue.run(sending.answer(queue.talk, call))

    url = "http://a.example/1"
    if how == "ban":
        queue.configure(politeness=Politeness(0, 1))
    if how != "restore":
        queue.put(url)
    if how in ("crash", "expire"):
        queue.configure(max_crashes=1)
    if how == "cancel":
        queue.cancel(url)
    elif how == "cancel later":
        (lease,) = queue.claim()
        queue.cancel(url)
        queue.release(lease)
    elif how == "release":
        (lease,) = queue.claim()
        once(queue.operations.release([lease], most=1)[0])
    elif how == "crash":
        once(queue.operations.crash(queue.claim(), "process 71 died")[0])
    elif how == "expire":
        queue.claim(timeout=0.01)
        wait_until(lambda: queue.requeue_expired() + queue.stats().failed)
    elif how == "ban":
        queue.put("http://a.example/2")
        queue.hosts.ban("a.example", "they asked us to")
    else:
        record = Record(url.encode(), State.FAILED, error="E: 7", error_at=1.0)
        once(queue.operations.restore([record], queue.talk.nonce))
    expected = {
        "cancel": "cancelled",
        "cancel later": "cancelled",
        "release": "released # times by its handler; let it return Retry or GiveUp, or allow more with max_releases",
        "crash": "gave up: process # died (crash # of #)",
        "expire": "gave up: the lease ran out (crash # of #)",
        "ban": "gave up: <host> is banned: they asked us to",
        "restore": "E: #",
    }
    assert counted(queue) == {expected[how]: queue.stats().failed}
    assert queue.stats().failed > 0


LEAVES = ["retry", "retry all", "forget", "put again", "schedule again", "unique", "ack and put"]


@pytest.mark.parametrize("how", LEAVES)
def test_however_a_task_leaves_failed_it_is_counted_no_more(queue: Any, how: str) -> None:
    give_up(queue, a="E", b="F")
    if how == "retry":
        queue.retry_failed("a")
    elif how == "retry all":
        queue.retry_failed(all=True)
        give_up(queue, b="F")
    elif how == "forget":
        queue.forget("a")
    elif how == "put again":
        queue.put("a", again=True)
    elif how == "schedule again":
        queue.schedule("a", after=60, again=True)
    elif how == "unique":
        queue.put(Task("a", unique=0))
    else:
        queue.put("c")
        (lease,) = queue.claim()
        queue.ack(lease, put=[Task("a", unique=0)])
    assert counted(queue) == ({"F": 1})


PIECES = [
    b"gave up: ", b"cancelled by ", b"host a.example is banned: x", b" of batch b7 are not done",
    b"http://a.example/x?y=1",
    b"HTTP 404", b"status=503", b"Errno 111", b"code 12345", b"7f3a9c01-52aa-4c1e", b"deadbeef", b"2026-11-23T07:00",
    b"the task 77", b"long enough id", b" ", b"\xc3\xa4" * 40, b"\xff\xfe", b"x" * 90, b"'", b"(", b"\n",
    b"a1b2c3d4e5", b"-", b"1",
    b"; it was leased to w#1)", b"://", b"\xe2\x82\xac" * 70,
]  # fmt: skip


def test_scripts_and_the_rig_agree_on_the_kind_of_any_error(queue: Any) -> None:
    chance = random.Random(7)
    errors = {
        f"long enough id {n}": b"".join(chance.choices(PIECES, k=chance.randint(0, 9))) or b"?" for n in range(400)
    }
    queue.put(list(errors))
    leases = queue.claim(400)
    said = [errors[lease.task] for lease in leases]
    queue.run(sending.answers(queue.talk, queue.operations.fail(leases, [-1] * 400, said, [b""] * 400)))
    found = {kind.id: kind.count for kind in queue.failures.list(1001)}
    expected: dict[str, int] = {}
    for task, error in errors.items():
        name = id_of(kinds.kind_of(task.encode(), b"1 " + error))
        expected[name] = expected.get(name, 0) + 1
    assert found == expected
    assert len(found) > 100
    # a kind is a line of at most 200 bytes, whose last character is whole
    assert all(len(kind.text.encode()) < 900 for kind in queue.failures.list(1001))


def test_the_command_lists_kinds_shows_their_tasks_and_moves_them(queue: Queue, say: Say) -> None:
    give_up(queue, a="E: 1", b="E: 2", c="F: \x1b[2Jx")
    rows = [line.split("\t") for line in say("failures", queue.name).out.splitlines()]
    assert [(row[1], row[3], row[4]) for row in rows] == [("2", "b", "E: #"), ("1", "c", "F: \\x1b[#Jx")]
    shown = say("failures", queue.name, "--tasks", rows[0][0]).out
    assert [line.split("\t")[0] for line in shown.splitlines()] == ["b", "a"]
    assert say("failures", queue.name, "--retry", rows[0][0]).out == "2 retried\n"
    gone = say("failures", queue.name, "--retry", rows[0][0])
    assert (gone.code, f"`timeoutq failures {queue.name}` lists" in gone.err) == (1, True)
    for option in ("--tasks", "--forget"):
        gone = say("failures", queue.name, option, "E")
        assert (gone.code, f"`timeoutq failures {queue.name}` lists" in gone.err) == (1, True), option
    refused = say("failures", queue.name, "--forget", rows[1][0])
    assert (refused.code, "Nobody can be asked" in refused.err) == (2, True)
    assert say("failures", queue.name, "--forget", rows[1][0], "--yes", "--json").out == '{"forgotten": 1}\n'
    assert say("failures", queue.name).code == 1
    assert say("failures", queue.name, "--retry", "a", "--tasks", "b").code == 2


def test_cancelled_tasks_and_expired_calls_are_retried_only_if_somebody_says_yes(queue: Queue, say: Say) -> None:
    give_up(queue, broken="E")
    queue.put("stopped")
    queue.cancel("stopped", by="ann")
    queue.put("late")
    failing = queue.operations.fail(queue.claim(1), [-1], [b"expired: it was to begin at noon"])
    queue.run(sending.answers(queue.talk, failing))
    kinds = {kind.text: kind.id for kind in queue.failures.list()}
    for kind in ("expired", kinds["expired"], "cancelled", kinds["cancelled"]):
        refused = say("failures", queue.name, "--retry", kind)
        assert (refused.code, "Retry 1 task of queue" in refused.err, "--yes" in refused.err) == (2, True, True), kind
    assert list(queue.states("late", "stopped", "broken")) == ["failed"] * 3
    assert say("failures", queue.name, "--retry", "expired", "--yes").out == "1 retried\n"
    assert say("failures", queue.name, "--retry", "cancelled", "--yes").out == "1 retried\n"
    assert say("failures", queue.name, "--retry", "E").out == "1 retried\n", "it asks nothing about other kinds"


def test_a_kind_of_few_tasks_is_asked_about_beside_many_others(queue: Queue, say: Say) -> None:
    letters = "abcdefghijklmno"
    give_up(queue, **{f"{one}{two}{n}": f"E: {one} {two}" for one in letters for two in letters for n in "12"})
    queue.put("stopped")
    queue.cancel("stopped", by="ann")
    assert len(queue.failures.list(1001)) == 226
    refused = say("failures", queue.name, "--retry", "cancelled")
    assert (refused.code, "Retry 1 task of queue" in refused.err) == (2, True)
    assert say("failures", queue.name, "--forget", "cancelled", "--yes").code == 0


def test_kinds_of_all_shards_are_one_and_are_moved_together(url: str, name: str) -> None:
    with open_queue(name, url, shards=3) as queue:
        give_up(queue, **{f"t{n}": f"E: {n}" for n in range(30)}, other="F")
        assert [(kind.text, kind.count) for kind in queue.failures.list()] == [("E: #", 30), ("F", 1)]
        found: list[str] = []
        cursor = None
        while True:
            page = queue.failures.tasks("E: #", cursor, n=7)
            found += [entry.task for entry in page]
            if (cursor := page.cursor) is None:
                break
        assert sorted(found) == sorted(f"t{n}" for n in range(30))
        part = queue.failures.retry("E: #", at_most=12)
        assert (part.moved, part.left) == (12, 18)
        assert queue.failures.retry("E: #", before=part.before).moved == 18
        assert queue.failures.forget("F").moved == 1
        assert queue.stats().todos == 30
        queue.purge()
