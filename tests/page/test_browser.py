"""The page in a real Chromium: hostile text does nothing; all is done by keyboard alone, and without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from tests.page.test_hostile_page import fill, say_as_workers
from tests.rig.browsers import Watched, browser, tab
from tests.rig.pages import Served, settings
from tests.rig.waiting import wait_until
from timeoutq import Politeness, Queue, State
from timeoutq.gateway.page import spelling

pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)
"""The server makes no difference to a browser, and each of these tests takes long."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


def test_hostile_text_in_every_field_does_nothing(chromium: Any, url: str, raw: Redis, queue: Queue) -> None:
    ids = fill(queue)
    say_as_workers(raw, queue)
    with Served(settings(url)) as served, tab(chromium) as seen:
        paths = [
            "/", f"/q/{queue.name}", f"/q/{queue.name}/failures", f"/q/{queue.name}/workers",
            f"/q/{queue.name}/log", *(f"/q/{queue.name}/tasks?state={state}" for state in State),
            *(f"/q/{queue.name}/task?{spelling.query(id)}" for id in ids if "owned" in id or "evil" in id),
        ]  # fmt: skip
        for path in paths:
            answer = seen.page.goto(served.base + path)
            assert answer.status == 200, path
            seen.page.wait_for_selector("#alive.on")  # the fragments have come by the stream, too
            assert seen.page.evaluate("document.querySelectorAll('main script, main img, main iframe').length") == 0
        assert seen.wrong == []
    raw.delete(f"timeoutq:{{{queue.name}}}:workers", f"timeoutq:{{{queue.name}}}:worker_info")


def keys(seen: Watched, *pressed: str) -> None:
    for key in pressed:
        seen.page.keyboard.press(key)


def says(seen: Watched, words: str) -> None:
    # the page before may still be there, with what it has said
    seen.page.wait_for_selector(f'.said >> text="{words}"')


def act(seen: Watched, key: str, words: str) -> None:
    """Press a key that acts, say yes, and wait for what the page says then."""
    keys(seen, key)
    seen.page.wait_for_selector("#ask[open]")
    keys(seen, "Enter")
    says(seen, words)


def tab_to(seen: Watched, what: str, *pressed: str) -> None:
    """Press Tab until the focus is on what has this text or id, and then keys."""
    focused = "what => ((one) => one.id === what || one.textContent.trim() === what)(document.activeElement)"
    for _ in range(60):  # a time has a stop for each of its parts
        keys(seen, "Tab")
        if seen.page.evaluate(focused, what):
            return keys(seen, *pressed)
    raise AssertionError(f"no {what} by Tab on {seen.page.url}")


@pytest.mark.parametrize("prefix", ["", "/ops/queues"])
def test_everything_is_done_by_keyboard_alone(chromium: Any, url: str, queue: Queue, prefix: str) -> None:
    with Served(settings(url, prefix=prefix)) as served, tab(chromium) as seen:
        asked: list[str] = []
        seen.page.on("request", lambda request: asked.append(request.url))
        by_keyboard_alone(seen, f"{served.base}{prefix}/", queue)
        assert [one for one in asked if not one.startswith(f"{served.base}{prefix}/")] == []


def test_without_scripts_all_of_it_is_done_by_tab_and_enter(chromium: Any, url: str, queue: Queue) -> None:
    queue.put("old")
    queue.ack(queue.claim())
    with Served(settings(url)) as served, tab(chromium, scripts=False) as seen:
        page = seen.page
        page.goto(served.base)

        def act(button: str, key: str, said: str, *, asked: bool = False) -> None:
            tab_to(seen, f"{button} {key}".strip(), "Enter")
            if asked:
                page.wait_for_selector("h1 >> text=?")
                tab_to(seen, button, "Enter")
            says(seen, said)

        def find(id: str, state: State) -> None:
            tab_to(seen, "find")
            page.keyboard.type(id)
            keys(seen, "Enter")
            page.wait_for_selector(f".badge.{state}")

        tab_to(seen, queue.name, "Enter")
        page.wait_for_selector("#rates")
        tab_to(seen, "Put", "Enter")
        page.wait_for_selector("#ids")
        tab_to(seen, "ids")
        page.keyboard.type("plain")
        act("Put", "", "1 task put")
        (lease,) = queue.claim()
        find("plain", State.IN_PROGRESS)
        assert lease.holder in page.inner_text("main")
        queue.fail(lease, "ValueError: no", give_up=True)
        find("plain", State.FAILED)
        act("Retry", "R", "1 task ready again")
        act("Cancel", "C", "1 task cancelled", asked=True)
        act("Forget", "F", "1 task forgotten", asked=True)
        find("old", State.DONE)
        act("Run again", "A", "1 task ready")
        assert queue.list("todos").entries[0].task == "old"
        tab_to(seen, queue.name, "Enter")
        page.wait_for_selector("#rates")
        act("Pause", "P", f"{queue.name} is paused; tasks that have a lease are finished", asked=True)
        assert (queue.stats().paused, queue.inspect("plain").state, seen.wrong) == (True, None, [])


def by_keyboard_alone(seen: Watched, base: str, queue: Queue) -> None:
    """Put, watch, cancel, forget, retry, requeue and pause: no mouse, and no address but the first one."""
    queue.put("old")
    queue.ack(queue.claim())
    page = seen.page
    page.goto(base)
    page.wait_for_selector("#alive.on")
    keys(seen, "j", "Enter")
    page.wait_for_selector("h1 >> text=" + queue.name)
    # put
    keys(seen, "n")
    page.wait_for_selector("#ids")
    tab_to(seen, "ids")
    page.keyboard.type("by keyboard")
    tab_to(seen, "Put", "Enter")
    says(seen, "1 task put")
    assert queue.inspect("by keyboard").state is State.TODOS
    # watch: a worker takes it, and the page shows this by itself
    (lease,) = queue.claim(timeout=30)
    page.wait_for_selector(".badge.in_progress")
    page.wait_for_selector(f"text={lease.holder}")
    queue.fail(lease, "ValueError: no", give_up=True)
    page.wait_for_selector(".badge.failed")
    # retry, from the list of failed tasks
    keys(seen, "q")
    page.wait_for_selector("#rates")
    keys(seen, "5")
    page.wait_for_selector("h1 >> text=Tasks in failed")
    keys(seen, "j", "x")
    act(seen, "R", "1 task ready again")
    assert queue.inspect("by keyboard").state is State.TODOS
    # cancel, found by its id; an act that is not confirmed is not done
    keys(seen, "/")
    page.keyboard.type("by keyboard")
    keys(seen, "Enter")
    page.wait_for_selector(".badge.todos")
    keys(seen, "C")
    page.wait_for_selector("#ask[open]")
    keys(seen, "Escape")
    page.wait_for_selector("#ask", state="hidden")
    assert queue.inspect("by keyboard").state is State.TODOS
    act(seen, "C", "1 task cancelled")
    act(seen, "F", "1 task forgotten")
    assert queue.inspect("by keyboard").state is None
    # requeue a done task
    keys(seen, "/")
    page.keyboard.type("old")
    keys(seen, "Enter")
    page.wait_for_selector(".badge.done")
    act(seen, "A", "1 task ready")
    assert queue.inspect("old").state is State.TODOS
    # pause, and resume
    for paused in (True, False):
        keys(seen, "q")
        page.wait_for_selector("#rates")
        done = "is paused; tasks that have a lease are finished" if paused else "gives out tasks again"
        act(seen, "P", f"{queue.name} {done}")
        assert queue.stats().paused is paused
    # help
    page.wait_for_selector("#head button >> text=Pause")
    keys(seen, "?")
    assert "pause" in page.wait_for_selector("#help[open]").inner_text()
    keys(seen, "Escape")
    assert seen.wrong == []


def test_a_chosen_length_of_a_block_outlives_fresh_fragments_and_is_asked(
    chromium: Any, url: str, queue: Queue
) -> None:
    queue.configure(politeness=Politeness(0.0, 1))
    queue.put("https://a.example/1")
    with Served(settings(url)) as served, tab(chromium) as seen:
        page = seen.page
        page.goto(f"{served.base}/q/{queue.name}/hosts")
        page.wait_for_selector("#alive.on")
        page.select_option("select[name=for]", "86400")
        page.focus("#main")
        queue.put("https://b.example/1")
        page.wait_for_selector("th >> text=b.example")  # the table is a new one
        page.locator("tr", has_text="a.example").get_by_role("button").click()
        asked = page.wait_for_selector("#ask[open] h2").inner_text()
        assert asked == "Do not visit a.example for a day?"
        keys(seen, "Enter")
        says(seen, "a.example is not visited for a day")
        assert seen.wrong == []


def test_what_is_done_to_chosen_tasks_is_asked_with_their_number_and_of_none_not_at_all(
    chromium: Any, url: str, queue: Queue
) -> None:
    queue.put(["a", "b"])
    queue.ack(queue.claim(2))
    with Served(settings(url)) as served, tab(chromium) as seen:
        page = seen.page
        page.goto(f"{served.base}/q/{queue.name}/tasks?state=done")
        page.click("button >> text=Run again")
        assert page.inner_text("#chosen").startswith("Choose a task first")
        assert not page.is_visible("#ask")
        page.check("#all")
        page.click("button >> text=Run again")
        assert page.wait_for_selector("#ask[open] h2").inner_text() == "Run 2 tasks again?"
        keys(seen, "Escape")
        page.locator("tbody input").first.uncheck()
        page.click("button >> text=Run again")
        assert page.wait_for_selector("#ask[open] h2").inner_text() == "Run 1 task again?"
        keys(seen, "Enter")
        says(seen, "1 task ready")
        assert seen.wrong == []


def test_a_hidden_tab_has_no_stream_and_one_that_is_seen_again_has(chromium: Any, url: str, queue: Queue) -> None:
    queue.put("x")
    with Served(settings(url)) as served, tab(chromium) as seen:
        seen.page.goto(f"{served.base}/q/{queue.name}")
        seen.page.wait_for_selector("#alive.on")
        hub = served.app.state.page
        assert hub.watched == 1
        hide = (
            "Object.defineProperty(document, 'hidden', {get: () => %s, configurable: true});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        seen.page.evaluate(hide % "true")
        wait_until(lambda: hub.watched == 0)
        seen.page.evaluate(hide % "false")
        wait_until(lambda: hub.watched == 1)
        assert seen.wrong == []


@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_is_wider_than_the_screen(chromium: Any, url: str, raw: Redis, queue: Queue, width: int) -> None:
    queue.configure(events="1MB")
    fill(queue)
    queue.configure(politeness=Politeness(60, 1))
    queue.put([f"https://a-shop-with-a-long-name-{i}.example/" for i in range(8)])
    with Served(settings(url)) as served, tab(chromium, width=width) as seen:
        for view in ("tasks?state=failed", "tasks?state=todos", "failures", "hosts", "workers", "log", "put", ""):
            path = f"/{view}" if view else ""
            seen.page.goto(f"{served.base}/q/{queue.name}{path}")
            assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (path, width)
            fields = "[...document.querySelectorAll('main :is(input, textarea, button)')]"
            beyond = f"{fields}.filter(one => one.getBoundingClientRect().right > innerWidth).map(one => one.outerHTML)"
            assert seen.page.evaluate(beyond) == [], (path, width)
            cut = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth).length"
            assert seen.page.evaluate(cut) == 0, (path, width)
            assert seen.page.evaluate("document.documentElement.scrollHeight") < 20_000, (path, width)
