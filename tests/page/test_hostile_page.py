"""Hostile text in every field that the page shows: whatever it is, it is text, and nothing else, in the HTML."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from redis import Redis

from tests.rig.hostile_html import EVERYTHING, HTML, live_parts
from tests.rig.pages import Served, settings
from timeoutq import Politeness, Queue, State
from timeoutq.gateway.page import spelling
from timeoutq.words.model import raw
from timeoutq.words.model import text as text_of


@pytest.fixture
def served(url: str) -> Iterator[Served]:
    with Served(settings(url)) as one:
        yield one


def hostile(value: str | bytes) -> str:
    return text_of(value) if isinstance(value, bytes) else value


def text_for(value: str | bytes) -> str:
    """The same as text that UTF-8 can write."""
    return hostile(value).encode("utf-8", "replace").decode()


def fill(queue: Queue) -> list[str]:
    """Have the queue hold all hostile text as ids, payloads, errors, tracebacks, hosts, kinds and names of workers."""
    queue.configure(politeness=Politeness(0.0, 1000))
    ids: list[str] = []
    for value in EVERYTHING.values():
        id, words = hostile(value), text_for(value)
        if not 0 < len(raw(id)) <= 1024:
            continue
        ids.append(id)
        queue.put({id: {"text": words, words: [words]}})
    third = len(ids) // 3
    for number, lease in enumerate(queue.claim(500)):
        words = text_for(raw(lease.task))
        if number < third:
            continue
        if number < 2 * third:
            try:
                raise ValueError(words)
            except ValueError as error:
                queue.fail(lease, error, give_up=True)
        else:
            queue.fail(lease, f"{words} {words}", give_up=number % 2 == 0, retry_in=None if number % 2 == 0 else 600.0)
    return ids


def say_as_workers(raw_client: Redis, queue: Queue) -> None:
    """Write hostile names of workers and hosts where a foreign hand could write them."""
    now = queue.stats().now
    for number, value in enumerate(HTML.values()):
        name = f"{value}{number}"
        told = {"host": value, "pid": number, "started": now * 1000, "concurrency": 1, "held": 0, "acked": 0}
        raw_client.zadd(f"timeoutq:{{{queue.name}}}:workers", {name: now * 1000})
        raw_client.hset(
            f"timeoutq:{{{queue.name}}}:worker_info", name, json.dumps({**told, "failed": 0, "trouble": value})
        )


def test_no_text_becomes_more_than_text_on_any_page(url: str, raw: Redis, queue: Queue, served: Served) -> None:
    ids = fill(queue)
    say_as_workers(raw, queue)
    assert len(ids) >= 140
    assert len(HTML) >= 40
    pages = [
        "/", f"/q/{queue.name}", f"/q/{queue.name}/failures", f"/q/{queue.name}/workers", f"/q/{queue.name}/hosts",
        f"/q/{queue.name}/log", *(f"/q/{queue.name}/tasks?state={state}" for state in State),
        *(f"/q/{queue.name}/kind?kind={one.id}" for one in queue.failures.list()[:40]),
        *(f"/q/{queue.name}/task?{spelling.query(id)}" for id in ids),
    ]  # fmt: skip
    shown = 0
    with httpx.Client(base_url=served.base, headers={"accept": "text/html"}, timeout=20) as client:
        for path in pages:
            answer = client.get(path)
            assert answer.status_code == 200, (path, answer.text[:2000])
            assert live_parts(answer.text) == [], path
            shown += answer.text.count("owned")
    assert shown > 200, "the text itself is to be seen"
    raw.delete(f"timeoutq:{{{queue.name}}}:workers", f"timeoutq:{{{queue.name}}}:worker_info")


def test_every_id_comes_back_from_its_link_and_its_form_as_it_was() -> None:
    for name, value in EVERYTHING.items():
        id = hostile(value)
        if not id:
            continue
        params = httpx.URL(f"http://x/?{spelling.query(id)}").params.multi_items()
        assert spelling.read(params) == [id], name
        assert spelling.read([spelling.field(id)]) == [id], name


def test_the_gateway_does_not_take_an_id_for_a_token(queue: Queue, served: Served) -> None:
    id = "https://a.example/?token=1&key=2&secret=tq_" + "x" * 43
    queue.put(id)
    answer = httpx.get(f"{served.base}/q/{queue.name}/task?{spelling.query(id)}")
    assert answer.status_code == 200
    assert "todos" in answer.text


def test_a_hostile_query_or_form_is_told_as_text(queue: Queue, served: Served) -> None:
    queue.put("x")
    with httpx.Client(base_url=served.base, headers={"accept": "text/html"}, timeout=20) as client:
        for name, value in HTML.items():
            given: dict[str, Any] = {"state": value, "cursor": value, "b64": value, "kind": value, "view": value}
            for path in ("tasks", "task", "kind", "live", "hosts", "log"):
                answer = client.get(f"/q/{queue.name}/{path}", params=given)
                if answer.headers["content-type"].startswith("text/html"):
                    assert live_parts(answer.text) == [], (name, path)
            fields = {"ids": value, "payload": value, "after": value, "at": value, "host": value}
            for verb in ("put", "block", "forget", "empty", "retry-kind", "purge"):
                form = {**fields, "kind": value, "name": value, "state": value, "back": value}
                answer = client.post(f"/q/{queue.name}/{verb}", data={**form, "id": value}, follow_redirects=True)
                # a form that has to be mended holds what was typed, as it was
                assert live_parts(answer.text, typed=True) == [], (name, verb)


def test_a_cookie_with_a_message_that_is_none_shows_none(served: Served) -> None:
    for said in (b"[" * 3000, b"null", b"{}", b"\xff", b'{"kind": "good"}'):
        cookie = f"timeoutq-said={base64.urlsafe_b64encode(said).decode()}"
        found = httpx.get(f"{served.base}/", headers={"cookie": cookie})
        assert found.status_code == 200, said
        assert 'class="said' not in found.text, said
