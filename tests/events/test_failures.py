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
from timeoutq import FailureKind, InvalidInput, Lease, Politeness, Queue, Task, open_queue
from timeoutq.rooms.failures.operations import Moved, id_of
from timeoutq.verbs import sending
from timeoutq.words.model import Record, State


def give_up(face: Any, **errors: str) -> None:
    """Put tasks and give them up by their names, each with its error."""
    face.put(list(errors))
    for lease in sorted(face.claim(500), key=lambda lease: str(lease.task)):
        if lease.task in errors:
            face.fail(lease, errors[lease.task], give_up=True)
        else:
            face.release(lease)


def counted(face: Any) -> dict[str, int]:
    return {kind.text: kind.count for kind in face.failures.list(1001)}


def test_failures_are_grouped_by_type_and_first_line_without_what_differs(face: Any) -> None:
    give_up(
        face,
        a="ConnectError: no answer from https://a.example/1 after 12 s\nmore",
        b="ConnectError: no answer from https://b.example/?x=2 after 7 s",
        c="HTTPStatusError: HTTP 404",
        d="HTTPStatusError: HTTP 503",
        e="KeyError: 'price'",
        f="KeyError: 'price'",
        g="Gone: 7f3a9c01-52aa-4c1e-9d52-00aa11bb22cc was deleted",
    )
    assert counted(face) == {
        "ConnectError: no answer from <url> after # s": 2,
        "HTTPStatusError: HTTP 404": 1,
        "HTTPStatusError: HTTP 503": 1,
        "KeyError: 'price'": 2,
        "Gone: # was deleted": 1,
    }


def test_an_error_that_names_one_of_the_tasks_that_failed_together_is_grouped_by_each_id(face: Any) -> None:
    face.put("item-0001", "item-0002")
    leases = sorted(face.claim(2), key=lambda lease: str(lease.task))
    face.fail(leases, "Locked: by item-0001", give_up=True)
    assert counted(face) == {"Locked: by <id>": 1, "Locked: by item-#": 1}


def test_a_kind_tells_how_many_when_and_one_of_its_tasks(face: Any) -> None:
    began = face.stats().now
    give_up(face, a="E: 1")
    give_up(face, b="E: 2")
    (kind,) = face.failures.list()
    assert (kind.text, kind.count, kind.task) == ("E: #", 2, "b")
    assert began <= kind.first <= kind.last <= face.stats().now
    page = face.failures.tasks(kind)
    assert [(entry.task, entry.error) for entry in page] == [("b", "E: 2"), ("a", "E: 1")]
    assert page.cursor is None


def test_tasks_of_a_kind_come_in_pages_by_id_or_by_text(face: Any) -> None:
    give_up(face, **{f"t{n}": "E: x" for n in range(5)}, other="F: y")
    kind = face.failures.list()[0]
    found: list[str] = []
    cursor = None
    while True:
        page = face.failures.tasks(kind.id, cursor, n=2)
        found += [entry.task for entry in page]
        if (cursor := page.cursor) is None:
            break
    assert sorted(found) == ["t0", "t1", "t2", "t3", "t4"]
    assert [entry.task for entry in face.failures.tasks("F: y")] == ["other"]
    assert list(face.failures.tasks("no such kind")) == []


def test_all_tasks_of_one_kind_are_retried_and_the_others_stay(face: Any) -> None:
    give_up(face, a="E: 1", b="E: 2", c="F: 1")
    found = face.failures.retry("E: #")
    assert (found.moved, found.left) == (2, 0)
    assert counted(face) == {"F: #": 1}
    assert (face.stats().todos, face.stats().failed) == (2, 1)
    assert {lease.attempt for lease in face.claim(2)} == {1}


def test_all_tasks_of_one_kind_are_forgotten(face: Any) -> None:
    give_up(face, a="E: 1", b="E: 2", c="F: 1")
    assert face.failures.forget(face.failures.list()[0]).moved == 2
    assert face.stats().known == 1
    assert face.inspect("a").state is None


def test_a_walk_stops_after_so_many_and_goes_on_with_the_time_of_its_answer(face: Any) -> None:
    give_up(face, **{f"t{n}": "E" for n in range(5)})
    first = face.failures.retry("E", at_most=2)
    assert (first.moved, first.left) == (2, 3)
    wait_until(lambda: face.stats().now > first.before)
    for lease in face.claim(2):
        face.fail(lease, "E", give_up=True)
    # what fails anew is not retried again
    rest = face.failures.retry("E", before=first.before)
    assert (rest.moved, rest.left, rest.before) == (3, 0, pytest.approx(first.before))
    assert counted(face) == {"E": 2}


def test_what_is_not_failed_any_more_is_not_forgotten_with_its_kind(face: Any, raw: Any) -> None:
    give_up(face, a="E", b="E")
    raw.smove(face.operations.key("failed"), face.operations.key("todos"), "a")  # a foreign hand
    assert face.failures.forget("E").moved == 1
    assert (face.stats().todos, face.stats().failed) == (1, 0)


def test_a_kind_that_nothing_is_of_moves_nothing(face: Any) -> None:
    assert face.failures.retry("E: none") == Moved(0, 0, 0.0)
    assert face.failures.list() == []


@pytest.mark.parametrize("kind", ["", 5, None, b"x", "x" * 401])
def test_what_names_no_kind_is_refused(face: Any, kind: Any) -> None:
    with pytest.raises(InvalidInput, match="a kind of failure is"):
        face.failures.retry(kind)


def test_a_kind_without_tasks_is_gone_and_one_that_comes_back_is_the_same(face: Any, raw: Any) -> None:
    give_up(face, a="E: 1", b="F: 1")
    before: FailureKind = face.failures.list()[0]
    face.failures.retry("E: #")
    give_up(face, a2="E: 2")
    after = next(kind for kind in face.failures.list() if kind.text == "E: #")
    assert before.id in {kind.id for kind in face.failures.list(1001)} | {after.id}
    face.failures.forget("E: #")
    face.failures.forget("F: #")
    assert raw.exists(face.operations.key("kinds"), face.operations.key("kind_of")) == 0


def test_beyond_a_thousand_kinds_all_others_are_counted_together(face: Any) -> None:
    names = [f"{chr(97 + n // 676)}{chr(97 + n // 26 % 26)}{chr(97 + n % 26)}" for n in range(1010)]
    face.put([f"task {name}" for name in names])
    while leases := face.claim(500):
        face.run(_fail_each(face, leases))
    assert len(face.failures.list()) == 100
    found = face.failures.list(1001)
    assert len(found) == 1001
    assert (found[0].id, found[0].count, found[0].text) == ("other", 10, "all kinds beyond the first 1,000")
    assert len(list(face.failures.tasks("other"))) == 10
    assert face.failures.forget("other").moved == 10
    assert face.failures.retry(found[1]).moved == 1
    # there is room for one kind again
    (lease,) = face.claim(1)
    face.fail(lease, "one more: kind", give_up=True)
    assert "one more: kind" in counted(face)


def _fail_each(face: Any, leases: Sequence[Lease]) -> Any:
    errors = [f"E {lease.task[5:]}".encode() for lease in leases]
    return sending.answers(face.talk, face.operations.fail(leases, [-1] * len(leases), errors, [b""] * len(leases)))


ENDS = ["cancel", "cancel later", "release", "crash", "expire", "ban", "restore"]


@pytest.mark.parametrize("how", ENDS)
def test_however_a_task_is_given_up_it_is_counted(face: Any, how: str) -> None:
    def once(call: Any) -> Any:
        return face.run(sending.answer(face.talk, call))

    url = "http://a.example/1"
    if how == "ban":
        face.configure(politeness=Politeness(0, 1))
    if how != "restore":
        face.put(url)
    if how in ("crash", "expire"):
        face.configure(max_crashes=1)
    if how == "cancel":
        face.cancel(url)
    elif how == "cancel later":
        (lease,) = face.claim()
        face.cancel(url)
        face.release(lease)
    elif how == "release":
        (lease,) = face.claim()
        once(face.operations.release([lease], most=1)[0])
    elif how == "crash":
        once(face.operations.crash(face.claim(), "process 71 died")[0])
    elif how == "expire":
        face.claim(timeout=0.01)
        wait_until(lambda: face.requeue_expired() + face.stats().failed)
    elif how == "ban":
        face.put("http://a.example/2")
        face.hosts.ban("a.example", "they asked us to")
    else:
        once(face.operations.restore([Record(url.encode(), State.FAILED, error="E: 7", error_at=1.0)], face.talk.nonce))
    expected = {
        "cancel": "cancelled",
        "cancel later": "cancelled",
        "release": "released # times by its handler; let it return Retry or GiveUp, or allow more with max_releases",
        "crash": "gave up: process # died (crash # of #)",
        "expire": "gave up: the lease ran out (crash # of #)",
        "ban": "gave up: <host> is banned: they asked us to",
        "restore": "E: #",
    }
    assert counted(face) == {expected[how]: face.stats().failed}
    assert face.stats().failed > 0


LEAVES = ["retry", "retry all", "forget", "put again", "schedule again", "unique", "ack and put"]


@pytest.mark.parametrize("how", LEAVES)
def test_however_a_task_leaves_failed_it_is_counted_no_more(face: Any, how: str) -> None:
    give_up(face, a="E", b="F")
    if how == "retry":
        face.retry_failed("a")
    elif how == "retry all":
        face.retry_failed(all=True)
        give_up(face, b="F")
    elif how == "forget":
        face.forget("a")
    elif how == "put again":
        face.put("a", again=True)
    elif how == "schedule again":
        face.schedule("a", after=60, again=True)
    elif how == "unique":
        face.put(Task("a", unique=0))
    else:
        face.put("c")
        (lease,) = face.claim()
        face.ack(lease, put=[Task("a", unique=0)])
    assert counted(face) == ({"F": 1})


PIECES = [
    b"gave up: ", b"cancelled by ", b"host a.example is banned: x", b" of batch b7 are not done",
    b"http://a.example/x?y=1",
    b"HTTP 404", b"status=503", b"Errno 111", b"code 12345", b"7f3a9c01-52aa-4c1e", b"deadbeef", b"2026-11-23T07:00",
    b"the task 77", b"long enough id", b" ", b"\xc3\xa4" * 40, b"\xff\xfe", b"x" * 90, b"'", b"(", b"\n",
    b"a1b2c3d4e5", b"-", b"1",
    b"; it was leased to w#1)", b"://", b"\xe2\x82\xac" * 70,
]  # fmt: skip


def test_scripts_and_the_rig_agree_on_the_kind_of_any_error(face: Any) -> None:
    chance = random.Random(7)
    errors = {
        f"long enough id {n}": b"".join(chance.choices(PIECES, k=chance.randint(0, 9))) or b"?" for n in range(400)
    }
    face.put(list(errors))
    leases = face.claim(400)
    said = [errors[lease.task] for lease in leases]
    face.run(sending.answers(face.talk, face.operations.fail(leases, [-1] * 400, said, [b""] * 400)))
    found = {kind.id: kind.count for kind in face.failures.list(1001)}
    expected: dict[str, int] = {}
    for task, error in errors.items():
        name = id_of(kinds.kind_of(task.encode(), b"1 " + error))
        expected[name] = expected.get(name, 0) + 1
    assert found == expected
    assert len(found) > 100
    # a kind is a line of at most 200 bytes, whose last character is whole
    assert all(len(kind.text.encode()) < 900 for kind in face.failures.list(1001))


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
