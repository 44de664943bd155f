"""The queues in the admin: counts, states, retry, forget, why; who may do what."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest

from timeoutq import State, Task

pytest.importorskip("django", reason="Django 6.0 needs Python 3.12: `.ci/long django` runs these tests")

from django.contrib.auth.models import Permission, User
from django.tasks import default_task_backend
from django.test import Client, override_settings

PAGE = "/admin/timeoutq/queue/"


@pytest.fixture
def queue(project: None, url: str) -> Iterator[Any]:
    settings = {"default": {"BACKEND": "timeoutq.django.Backend", "OPTIONS": {"url": url}}}
    with override_settings(TASKS=settings):
        yield default_task_backend.app.queue()


@pytest.fixture
def staff(project: None) -> Iterator[Any]:
    """Give what makes a client of a member of the staff with some permissions; None is all of them."""

    def make(*permissions: str, superuser: bool = False) -> Client:
        user = User.objects.create_user("ann", is_staff=True, is_superuser=superuser)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client = Client()
        client.force_login(user)
        return client

    yield make
    User.objects.all().delete()


def fail_two(queue: Any) -> list[str]:
    from tests.rig.market import tasks

    ids = sorted(tasks.sold_out.enqueue(words).id for words in ("<b>gone</b>", "none"))
    asyncio.run(default_task_backend.app.worker(burst=True).run())
    assert list(queue.states(*ids)) == ["failed", "failed"]
    return ids


def test_counts_states_why_retry_and_forget(queue: Any, staff: Any) -> None:
    first, second = fail_two(queue)
    client = staff(superuser=True)
    assert f'href="{PAGE}"' in client.get("/admin/").text
    assert '<a href="?queue=default%3Adefault&amp;state=failed">2</a>' in client.get(PAGE).text
    where = f"{PAGE}?queue=default:default&state=failed"
    shown = client.get(where).text
    assert first in shown
    assert "OutOfStock: &lt;b&gt;gone&lt;/b&gt;" in shown
    shown = client.get(f"{where}&task={first}").text
    assert re.search("<p>it failed .*; Retry brings it back</p>", shown)
    assert "Traceback (most recent call last)" in shown
    assert "market.tasks.sold_out" in shown
    assert "Made ready again: 1" in client.post(where, {"action": "retry", "task": first}, follow=True).text
    assert "Forgotten: 1" in client.post(where, {"action": "forget", "task": second}, follow=True).text
    assert "Choose tasks" in client.post(where, {"action": "forget"}, follow=True).text
    assert list(queue.states(first, second)) == ["todos", "unknown"]


def test_ids_of_any_bytes(queue: Any, staff: Any) -> None:
    odd = ["<script>", "a b&c=d+%41/é", b"\xff\xfe".decode("utf-8", "surrogateescape"), "line\nbreak"]
    queue.put([Task(one) for one in odd])
    client, where = staff(superuser=True), f"{PAGE}?queue=default:default&state=todos"
    shown = client.get(where)
    assert shown.status_code == 200
    assert "<script>" not in shown.text.partition("<form method")[2]
    for id, _, entry in shown.context["tasks"]:
        page = client.get(f"{PAGE}", {"queue": "default:default", "state": "todos", "task": id})
        assert page.status_code == 200
        client.post(where, {"action": "forget", "task": id})
        assert queue.inspect(entry.task).state is None


def test_who_may_view_and_who_may_change(queue: Any, staff: Any) -> None:
    first, _ = fail_two(queue)
    where = f"{PAGE}?queue=default:default"
    client = staff()
    assert client.get(where).status_code == 403
    User.objects.all().delete()
    client = staff("view_queue")
    assert "Retry" not in client.get(where).text
    assert client.post(where, {"action": "retry", "task": first}).status_code == 403
    User.objects.all().delete()
    client = staff("change_queue")
    strict = Client(enforce_csrf_checks=True, headers={})
    strict.force_login(User.objects.get())
    assert strict.post(where, {"action": "retry", "task": first}).status_code == 403
    assert queue.inspect(first).state is State.FAILED
    assert client.post(where, {"action": "retry", "task": first}).status_code == 302
    assert queue.inspect(first).state is State.TODOS
    assert Client().get(where).status_code == 302  # to the login


@pytest.mark.parametrize("words", ["queue=default:nowhere", "queue=x", "queue=default:default&state=odd"])
def test_a_queue_or_state_that_is_not_there(queue: Any, staff: Any, words: str) -> None:
    assert staff(superuser=True).get(f"{PAGE}?{words}").status_code == 404


def test_a_server_that_is_away_or_a_bad_cursor_is_told_on_the_page(project: None, queue: Any, staff: Any) -> None:
    client = staff(superuser=True)
    shown = client.get(f"{PAGE}?queue=default:default&cursor=odd")
    assert "is not a cursor" in shown.text
    options = {"url": "redis://127.0.0.1:1"}
    with override_settings(TASKS={"default": {"BACKEND": "timeoutq.django.Backend", "OPTIONS": options}}):
        assert "127.0.0.1:1" in client.get(PAGE).text
        assert "127.0.0.1:1" in client.get(f"{PAGE}?queue=default:default").text
