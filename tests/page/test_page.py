"""The page without scripts: whatever can be looked at and done, by links and forms, on a real gateway and server."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.rig.command import say
from tests.rig.pages import Reader, Served, settings
from tests.rig.waiting import wait_until
from timeoutq import Politeness, Queue, State
from timeoutq.gateway.callers import Caller
from timeoutq.gateway.page import hub, make_app
from timeoutq.gateway.tokens import TokenBook
from timeoutq.verbs.sending import answers

__all__ = ["say"]


@pytest.fixture
def served(url: str) -> Iterator[Served]:
    with Served(settings(url)) as one:
        yield one


@pytest.fixture
def reader(served: Served) -> Iterator[Reader]:
    with Reader(served.base) as one:
        yield one


def fail(queue: Queue, task: str, error: str) -> None:
    queue.put(task)
    (lease,) = [lease for lease in queue.claim(500) if lease.task == task]
    queue.fail(lease, error, give_up=True)


def test_tasks_are_put_by_the_form_and_a_bad_form_keeps_what_was_typed(queue: Queue, reader: Reader) -> None:
    queue.put("first")
    page = reader.go(f"/q/{queue.name}/put")
    page = reader.press(page, "Put", ids="a\r\nb\r\n\r\n", payload='{"depth": 1}')
    assert page.said == "2 tasks put"
    assert queue.inspect("a").payload == {"depth": 1}
    page = reader.press(reader.go(f"/q/{queue.name}/put"), "Put", ids="c", payload="{no json")
    assert page.status == 422
    assert "not JSON" in page.said
    assert ("ids", "c") in [pair for form in page.forms for pair in form.fields]
    assert queue.inspect("c").state is None
    page = reader.press(reader.go(f"/q/{queue.name}/put"), "Put", ids="\n".join(map(str, range(10_001))))
    assert (page.status, queue.stats().known) == (422, 3)
    assert "10,001 ids; at most 10,000 at once" in page.said
    page = reader.press(reader.go(f"/q/{queue.name}/put"), "Put", ids="\n".join(map(str, range(10_000))))
    assert page.said == "10,000 tasks put"


def test_tasks_are_scheduled_by_the_form(queue: Queue, reader: Reader) -> None:
    queue.put("first")
    page = reader.go(f"/q/{queue.name}/put")
    page = reader.press(page, "Put", ids="later", after="600")
    assert page.said == "1 task put"
    assert queue.inspect("later").state is State.SCHEDULED
    page = reader.press(reader.go(f"/q/{queue.name}/put"), "Put", ids="on time", at="2030-01-01T08:00")
    assert queue.inspect("on time").due == 1893484800.0
    typed = reader.press(reader.go(f"/q/{queue.name}/put"), "Put", ids="none", after="1h", at="2030-01-01T08:00")
    assert (typed.status, queue.inspect("none").state) == (422, None)
    assert "after '1h' or at '2030-01-01T08:00': empty one of the two fields" in typed.said
    page = reader.go(f"/q/{queue.name}/task?id=later")
    page = reader.press(page, "Run now")
    assert queue.inspect("later").state is State.TODOS


def test_a_failed_task_is_retried_and_another_forgotten(queue: Queue, reader: Reader) -> None:
    fail(queue, "x", "ValueError: no")
    page = reader.go(f"/q/{queue.name}/tasks?state=failed")
    assert "ValueError: no" in page.text
    page = reader.press(page, "Retry", ("id", "x"))
    assert page.said == "1 task ready again"
    assert queue.inspect("x").state is State.TODOS
    page = reader.go(f"/q/{queue.name}/task?id=x")
    page = reader.press(page, "Forget")
    assert "Forget 1 task?" in page.text
    assert queue.inspect("x").state is State.TODOS, "nobody was sure yet"
    page = reader.press(page, "Forget")
    assert page.said == "1 task forgotten"
    assert queue.inspect("x").state is None


def test_a_lease_is_taken_from_its_worker(queue: Queue, reader: Reader) -> None:
    queue.put("x")
    (lease,) = queue.claim()
    page = reader.go(f"/q/{queue.name}/task?id=x")
    assert lease.holder in page.text
    page = reader.press(reader.press(page, "Release"), "Release")
    assert page.said == "1 task ready again"
    assert queue.inspect("x").state is State.TODOS


def test_the_page_of_a_task_says_how_much_of_the_log_it_shows(queue: Queue, reader: Reader) -> None:
    queue.put("before the log")
    assert "History" not in reader.go(f"/q/{queue.name}/task?id=before%20the%20log").text
    assert "The event log has no entries" in reader.go(f"/q/{queue.name}/log").text
    queue.configure(events="1MB")
    queue.put("x")
    told = "History, from the last 500 entries of the log"
    wait_until(lambda: told in reader.go(f"/q/{queue.name}/task?id=x").text)
    assert f"timeoutq log {queue.name} --task ID reads all of the log" in reader.go(f"/q/{queue.name}/task?id=x").text
    page = reader.go(f"/q/{queue.name}/task?id=before%20the%20log")
    assert "The last 500 entries of the log do not name this task" in page.text


def test_an_act_leads_back_only_to_the_page(queue: Queue, served: Served) -> None:
    queue.put("x")
    for back in ("//evil.example/", "https://evil.example/", "../../evil", "task\\evil", "tasks?\r\nx: y", "/etc"):
        form = {"back": back, "sure": "1"}
        answer = httpx.post(f"{served.base}/q/{queue.name}/pause", data=form)
        assert answer.headers["location"] == f"/q/{queue.name}", back


def test_failures_are_grouped_and_all_of_a_kind_are_retried(queue: Queue, reader: Reader) -> None:
    for i in range(3):
        fail(queue, f"t{i}", f"ValueError: no price on page {i}")
    fail(queue, "other", "KeyError: 'x'")
    page = reader.go(f"/q/{queue.name}/failures")
    assert re.search(r"ValueError: no price on page # 3\b", page.text), page.text
    kind = next(one for one in queue.failures.list() if one.count == 3)
    listed = reader.follow(page, "ValueError: no price on page #")
    assert {f"t{i}" for i in range(3)} <= {said for said, _ in listed.links}
    assert "other" not in {said for said, _ in listed.links}
    page = reader.press(reader.press(page, "Retry all", about=kind.id), "Retry all")
    assert page.said.startswith("retrying 3 tasks")
    wait_until(lambda: queue.stats().failed == 1)
    wait_until(lambda: "finished: 3 tasks" in reader.go(f"/q/{queue.name}/failures").text)
    assert queue.inspect("other").state is State.FAILED


def test_all_failed_tasks_are_retried_or_emptied_with_progress(queue: Queue, reader: Reader) -> None:
    for i in range(4):
        fail(queue, f"t{i}", f"ValueError{i}")
    queue.put("sent by mistake")
    queue.cancel("sent by mistake", by="ann")
    queue.put("late")
    queue.run(answers(queue.talk, queue.operations.fail(queue.claim(1), [-1], [b"expired: it was to begin earlier"])))
    page = reader.go(f"/q/{queue.name}/tasks?state=failed")
    page = reader.press(reader.press(page, "Retry all failed…"), "Retry all")
    wait_until(lambda: queue.stats().todos == 4)
    assert {entry.task for entry in queue.list("failed").entries} == {"sent by mistake", "late"}
    page = reader.go(f"/q/{queue.name}/tasks?state=todos")
    page = reader.press(reader.press(page, "Empty todos…"), "Empty")
    wait_until(lambda: queue.stats().todos == 0)
    assert "finished: 4 tasks" in wait_until(lambda: reader.go(f"/q/{queue.name}/tasks?state=todos").text)


def test_a_queue_is_purged_only_by_its_name(queue: Queue, reader: Reader) -> None:
    queue.put("x")
    page = reader.go(f"/q/{queue.name}")
    assert "No host has been met" not in page.text, "the queue is not polite: it knows no hosts"
    page = reader.follow(page, "Purge the queue…")
    page = reader.press(page, "Purge", name="another")
    assert page.status == 422
    assert queue.exists()
    page = reader.press(page, "Purge", name=queue.name)
    assert page.said == f"{queue.name} is purged"
    assert not queue.exists()


def test_hosts_are_blocked_and_visited_again(queue: Queue, reader: Reader) -> None:
    queue.configure(politeness=Politeness(1.0, 1))
    queue.put("https://a.example/1", "https://a.example/2")
    page = reader.go(f"/q/{queue.name}/hosts")
    page = reader.press(page, "Block", about="a.example")
    assert "Do not visit a.example for an hour?" in page.text
    page = reader.press(page, "Block")
    assert page.said == "a.example is not visited for an hour"
    assert "blocked for" in page.text
    assert queue.hosts.inspect("a.example").blocked_by == "anybody"
    page = reader.press(page, "Unblock")
    assert queue.hosts.inspect("a.example").blocked_until is None


def test_what_is_asked_names_what_will_be_done_and_to_how_many(queue: Queue, reader: Reader) -> None:
    for i in range(2):
        fail(queue, f"t{i}", "ValueError: no price")
    fail(queue, "other", "KeyError: 'x'")
    (lone, many) = sorted(queue.failures.list(), key=lambda one: one.count)
    page, name, failed = reader.go(f"/q/{queue.name}/failures"), queue.name, "that failed with:"
    listed = reader.go(f"/q/{name}/tasks?state=failed")
    asked = [
        (reader.press(page, "Forget all", about=many.id), f"Forget all 2 tasks of {name} {failed} {many.text}?"),
        (reader.press(page, "Forget all", about=lone.id), f"Forget the only task of {name} {failed} {lone.text}?"),
        (reader.press(listed, "Empty failed…"), f"Forget all 3 tasks in failed of {name}?"),
        (reader.press(listed, "Retry all failed…"), f"Make all 3 tasks in failed of {name} ready again?"),
    ]
    for found, question in asked:
        assert question in found.text
    assert queue.stats().failed == 3, "nobody was sure yet"
    # with the script, the same is asked in a dialog
    dialogs = [given["data-ask"] for _, given in page.tags if "data-ask" in given]
    assert {question for _, question in asked[:2]} <= set(dialogs)


def test_lists_go_on_by_cursor_and_hold_no_payload(queue: Queue, reader: Reader) -> None:
    queue.schedule({f"t{i:03}": {"secret": "payload-text"} for i in range(120)}, after=600)
    page = reader.go(f"/q/{queue.name}/tasks?state=scheduled")
    met: set[str] = set()
    for _ in range(10):
        assert "payload-text" not in page.response.text
        met |= {said for said, _ in page.links if re.fullmatch(r"t\d{3}", said)}
        if not any(said.startswith("More") for said, _ in page.links):
            break
        page = reader.follow(page, "More")
    assert len(met) == 120
    assert "payload-text" in reader.go(f"/q/{queue.name}/task?id=t001").text


def test_what_is_not_there_is_told_on_a_page(queue: Queue, reader: Reader, served: Served) -> None:
    queue.put("x")
    for path, status in (
        ("/q/none", 404), ("/nowhere", 404), (f"/q/{queue.name}/task", 422), (f"/q/{queue.name}/task?b64=!", 422),
        (f"/q/{queue.name}/task?id=x&id=y", 422), (f"/q/{queue.name}/task?id=x&b64=eQ==", 422),
        (f"/q/{queue.name}/tasks?state=nonsense", 422), (f"/q/{queue.name}/tasks?cursor=x", 422),
        ("/static/../page.py", 404), ("/static/nothing.js", 404), (f"/q/{queue.name}/live?view=nothing", 404),
        (f"/q/{queue.name}/purge?x", 200), (f"/static/{'x' * 300}.js", 404),
    ):  # fmt: skip
        page = reader.go(path)
        assert page.status == status, path
        assert page.tags[0][0] == "html", path
    # whoever wants no page gets a problem
    answer = httpx.get(f"{served.base}/nowhere")
    assert answer.json()["type"] == "/problems/not-found"


def test_forms_that_are_none_are_refused(queue: Queue, served: Served) -> None:
    queue.put("x")
    where = f"{served.base}/q/{queue.name}/forget"
    assert httpx.post(where, json={"id": "x"}).status_code == 415
    kind = {"content-type": "application/x-www-form-urlencoded"}
    assert httpx.post(where, content=b"id=x&sure=1" * 500_000, headers=kind).status_code == 413
    assert httpx.post(where, content=b"\xff\xfe", headers=kind).status_code == 422
    assert httpx.post(where, content=b"b64=!!&sure=1", headers=kind).status_code == 422
    assert httpx.get(where).status_code == 405
    assert queue.inspect("x").state is State.TODOS


def test_a_token_logs_in_and_its_scopes_hide_what_it_may_not_do(url: str, queue: Queue) -> None:
    queue.put("x")
    with TokenBook(url) as book:
        secret, _ = book.new("viewer", queues=["*"], allow=["look"])
    with Served(settings(url)) as served, Reader(served.base) as reader:
        page = reader.go(f"/q/{queue.name}")
        assert page.response.url.path == "/login"
        page = reader.press(page, "Log in", token="tq_wrong")
        assert page.status == 403
        page = reader.press(page, "Log in", token=secret)
        page = reader.go(f"/q/{queue.name}")
        assert page.status == 200
        assert not [form for form in page.forms if "Pause" in " ".join(form.buttons)]
        assert "Put" not in {said for said, _ in page.links}
        assert "Log" in {said for said, _ in page.links}
        page = reader.go(f"/q/{queue.name}/put")
        assert page.status == 403
        assert "may not put" in page.text
        page = reader.press(reader.go("/"), "Log out")
        assert page.response.url.path == "/login"
        assert reader.go("/").response.url.path == "/login"


def test_a_token_that_may_only_put_gets_to_its_forms_and_can_log_out(url: str, queue: Queue) -> None:
    queue.put("x")
    with TokenBook(url) as book:
        secret, _ = book.new("producer", queues=[f"{queue.name[:-1]}*", "to-be"], allow=["put"])
    with Queue("elsewhere", url) as other:
        other.put("y")
    with Served(settings(url)) as served, Reader(served.base) as reader:
        page = reader.press(reader.go("/"), "Log in", token=secret)
        assert page.status == 200
        assert page.response.url.path == "/put"
        names = {said for said, _ in page.links}
        assert {queue.name, "to-be"} <= names
        assert "elsewhere" not in names
        page = reader.press(reader.follow(page, queue.name), "Put", ids="z")
        assert page.said == "1 task put"
        assert page.status == 200
        assert queue.inspect("z").state is State.TODOS
        page = reader.go(f"/q/{queue.name}/tasks")
        assert page.status == 403
        assert reader.follow(page, "All queues").response.url.path == "/put"
        assert reader.press(page, "Log out").response.url.path == "/login"


def test_the_overview_shows_the_first_queues_of_those_that_a_caller_may_see(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a1", "a2", "a3", "zz1", "zz2", "zz3"):
        with Queue(name, url) as queue:
            queue.put("x")
    with TokenBook(url) as book:
        secret, _ = book.new("narrow", queues=["zz*"], allow=["look"])
    monkeypatch.setattr(hub, "MOST", 2)
    with Served(settings(url)) as served, Reader(served.base) as reader:
        page = reader.press(reader.go("/"), "Log in", token=secret)
        assert {said for said, _ in page.links if said[0] in "az"} == {"zz1", "zz2"}
        assert "1 further queues are not shown" in page.text


def test_a_read_only_gateway_shows_no_button_and_refuses_acts(url: str, queue: Queue) -> None:
    queue.put("x")
    with Served(settings(url, read_only=True)) as served, Reader(served.base) as reader:
        page = reader.go(f"/q/{queue.name}/task?id=x")
        assert "read only" in page.text
        assert "Put" not in {said for said, _ in page.links}
        assert [form.action for form in page.forms if form.action] == [f"/q/{queue.name}/task"]
        form = {"id": "x", "sure": "1"}
        assert httpx.post(f"{served.base}/q/{queue.name}/forget", data=form).status_code == 403


def test_it_works_under_a_prefix(url: str, queue: Queue) -> None:
    queue.put("x")
    with Served(settings(url, prefix="/ops/queues")) as served, Reader(served.base) as reader:
        page = reader.go("/ops/queues/")
        assert all(where.startswith(("/ops/queues/", "#")) for _, where in page.links)
        page = reader.follow(page, queue.name)
        page = reader.press(reader.press(page, "Pause"), "Pause")
        assert page.said
        assert page.response.url.path == f"/ops/queues/q/{queue.name}"
        # other applications of the host do not get what the page keeps in the browser
        kept = [one for answer in page.response.history for one in answer.headers.get_list("set-cookie")]
        assert kept
        assert all("; Path=/ops/queues/;" in f"{cookie};" for cookie in kept), kept
        assert queue.stats().paused
        description = httpx.get(f"{served.base}/ops/queues/v1/openapi.json").json()
        assert description["servers"] == [{"url": "/ops/queues"}]


def test_a_host_application_mounts_it_with_its_own_login(url: str, queue: Queue) -> None:
    queue.put("x")
    inner = make_app(
        settings(url, login=lambda scope: Caller("boss") if (b"x-user", b"boss") in scope["headers"] else None)
    )

    @asynccontextmanager
    async def living(app: Starlette) -> AsyncIterator[None]:
        yield
        await inner.close()

    host = Starlette(routes=[Mount("/admin/queues", app=inner)], lifespan=living)
    with Served(app=host) as served:
        with Reader(served.base) as stranger:
            assert stranger.go(f"/admin/queues/q/{queue.name}").status in (401, 404)
        with httpx.Client(headers={"x-user": "boss", "accept": "text/html"}) as client:
            found = client.get(f"{served.base}/admin/queues/q/{queue.name}")
            assert found.status_code == 200
            assert f'action="/admin/queues/q/{queue.name}/pause"' in found.text


def test_a_stream_sends_the_parts_that_change(queue: Queue, served: Served) -> None:
    queue.put("x")
    with httpx.stream("GET", f"{served.base}/q/{queue.name}/live?view=queue", timeout=10) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        first = json.loads(next(line for line in lines if line.startswith("data: "))[6:])
        assert {"counts", "rates", "workers"} <= first.keys()
        queue.put("y")
        while "counts" not in (parts := json.loads(next(line for line in lines if line.startswith("data: "))[6:])):
            pass
        assert ">2</b> <span>todos" in parts["counts"]
        assert served.app.state.page.watched == 1
    wait_until(lambda: served.app.state.page.watched == 0)  # a viewer that hangs up is forgotten


def test_an_id_with_control_characters_is_acted_on_as_it_is(queue: Queue, reader: Reader) -> None:
    id = "two\nlines\r\t\u202e "
    queue.put(id)
    page = reader.go(f"/q/{queue.name}/tasks?state=todos")
    page = reader.follow(page, "two")
    page = reader.press(reader.press(page, "Forget"), "Forget")
    assert page.said == "1 task forgotten"
    assert queue.inspect(id).state is None
