"""What becomes of each thing that a request may be: all spiders of `mapping.py` run once, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.rig.spiders.site import Answer, Seen, Site, html
from tests.rig.spiders.starting import Spiders, order
from tests.rig.waiting import wait_until
from timeoutq import Politeness, Queue, Reason, State, Task
from timeoutq.server.embedded import EmbeddedServer

pytest.importorskip("scrapy")

NAMES = {
    "links": "Links", "retries": "Retries", "retried_in_callback": "RetriedInCallback", "gives_up": "GivesUp",
    "retried_otherwise": "RetriedOtherwise",
    "redirects": "Redirects", "errbacks": "Errbacks", "again": "Again", "carries": "Carries", "refused": "Refused",
    "misses": "Misses", "asynchronous": "Asynchronous", "raises": "Raises", "pipelines": "Pipelines",
    "depths": "Depths", "robots": "Robots", "rules": "Rules", "closes": "Closes", "busy": "Busy", "spread": "Spread",
    "printed": "Printed", "starts": "Starts", "refused_start": "RefusedStart",
    "ordered": "Ordered", "tutorial": "Tutorial", "methods": "Methods", "home": "Home",
}  # fmt: skip
NOBODY = "http://127.0.0.1:1"


def pages(seen: Seen) -> Answer:
    """Answer a visit: each spider has a folder of its own."""
    folder, _, page = seen.path[1:].partition("/")
    match folder, page:
        case "robots.txt", _:
            return 200, {"Content-Type": "text/plain"}, b"User-agent: *\nDisallow: /robots/private\n"
        case "links", "":
            return html("a?y=1&x=2", "a?x=2&y=1", "a?x=2&y=1#part", "A", "%7Etilde", "~tilde", "./b/../c", "")
        case "retries", _:
            return html(status=200 if seen.number > 2 else 503)
        case "retried_in_callback", "":
            return html(title="ready" if seen.number > 1 else "busy")
        case "retried_otherwise", "banned":
            return html(status=200 if seen.headers["User-Agent"] == "another" else 403)
        case "gives_up", "always503":
            return html(status=503)
        case _, "gone404":
            return html(status=404)
        case "redirects", "old":
            return html(status=302, headers={"Location": "new"})
        case "redirects", "itself":
            return html(status=302, headers={"Location": "itself"})
        case "redirects", "circle1" | "circle2":
            return html(status=301, headers={"Location": "circle2" if page == "circle1" else "circle1"})
        case "carries", "":
            return html(headers={"Set-Cookie": "fromsite=1; Path=/carries"})
        case "rules", "":
            return html("page1", "page2", "other")
        case "home", "moved":
            return html(status=301, headers={"Location": "new"})
        case "home", _:
            return html("./", "a", "new", title=page)
        case "busy", "":
            return html(status=200 if seen.number > 1 else 429, headers={"Retry-After": "1"})
        case _:
            return html(title=page)


@dataclass
class Ran:
    """What came of all spiders."""

    site: Site
    url: str
    results: dict[str, dict[str, Any]]
    log: str
    reason: Reason
    """Why the task whose callback is missing waits, while the spiders ran."""

    def items(self, name: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.results[name]["items"]
        return items

    def queue(self, name: str) -> Queue:
        return Queue(name, self.url)

    def path(self, name: str, page: str) -> str:
        return f"{self.site.url}/{name}/{page}"

    def states(self, name: str, *pages: str) -> list[str]:
        with self.queue(name) as queue:
            return [str(answer) for answer in queue.states([self.path(name, page) for page in pages])]


@pytest.fixture(scope="module")
def ran(server: EmbeddedServer) -> Iterator[Ran]:
    with Site(pages) as site:
        for name in NAMES:
            with Queue(name, server.url) as queue:
                queue.purge()
        late = f"{site.url}/misses/late"
        with Queue("misses", server.url, politeness=Politeness(0, 8)) as queue:
            queue.put(Task(late, payload={"callback": "parse_late"}))
        times = {"errbacks": 0, "gives_up": 1}
        orders = [order(f"mapping:{kind}", site.url, RETRY_TIMES=times.get(name, 2)) for name, kind in NAMES.items()]
        with Spiders(server.url, orders) as spiders, Queue("misses", server.url) as queue:
            wait_until(lambda: queue.inspect(late).error or spiders.process.poll() is not None, 300)
            reason = queue.why(late)
            results = dict(zip(NAMES, spiders.results(300), strict=True))
            log = spiders.log()
        yield Ran(site, server.url, results, log, reason)
        for name in NAMES:
            with Queue(name, server.url) as queue:
                queue.purge()


def test_each_spider_ends_when_its_queue_is_drained(ran: Ran) -> None:
    reasons = {name: result["reason"] for name, result in ran.results.items()}
    assert [result["error"] for result in ran.results.values()] == [""] * len(NAMES)
    assert "was never retrieved" not in ran.log
    assert reasons.pop("closes") == "enough"
    assert reasons.pop("misses") == "closespider_itemcount"
    assert set(reasons.values()) == {"finished"}
    for name in reasons:
        with ran.queue(name) as queue:
            assert queue.drained(), name
            assert queue.workers() == [], name


def test_the_id_of_a_plain_request_is_its_canonical_url(ran: Ran) -> None:
    with ran.queue("links") as queue:
        done = sorted(entry.task.removeprefix(ran.site.url) for entry in queue.each("done"))
    assert done == sorted(["start:links", "/links/", "/links/a?x=2&y=1", "/links/A", "/links/~tilde", "/links/c"])
    assert len(ran.items("links")) == 5
    assert ran.results["links"]["stats"]["dupefilter/filtered"] >= 3


def test_a_retry_is_a_failed_attempt_of_the_same_task(ran: Ran) -> None:
    assert ran.items("retries") == [{"times": 2}]
    assert len(ran.site.of("/retries/")) == 3
    with ran.queue("retries") as queue:
        counters = queue.stats().counters
        assert (counters["put"], counters["failed"], counters["acked"]) == (2, 2, 2)
    assert ran.results["retries"]["stats"]["timeoutq/retried"] == 2
    assert ran.results["retries"]["stats"]["retry/reason_count/503 Service Unavailable"] == 2


def test_a_callback_may_ask_for_a_retry_and_what_else_it_has_found_is_kept(ran: Ran) -> None:
    items = ran.items("retried_in_callback")
    assert [item["times"] for item in items if "times" in item] == [0, 1]
    assert {"other": True} in items
    with ran.queue("retried_in_callback") as queue:
        assert queue.stats().counters["failed"] == 1


def test_a_retry_is_made_with_what_was_changed_in_its_request(ran: Ran) -> None:
    items = ran.items("retried_otherwise")
    assert {"agent": "another"} in items
    assert [item for item in items if "token" in item] == [
        {"token": "", "before": None, "sent": None, "retry_times": None},
        {"token": "new", "before": "new", "sent": "new", "retry_times": 1},
    ]  # fmt: skip
    assert [seen.headers.get("X-Token") for seen in ran.site.of("/retried_otherwise/")] == [None, "new"]
    assert {"mark": 1} in items


def test_what_cannot_travel_keeps_no_page_from_a_retry(ran: Ran) -> None:
    assert {"handled": False} in ran.items("retried_otherwise")
    with ran.queue("retried_otherwise") as queue:
        assert (queue.stats().counters["failed"], queue.stats().failed) == (1, 0)


def test_what_cannot_be_had_goes_to_failed_with_the_status(ran: Ran) -> None:
    with ran.queue("gives_up") as queue:
        busy, gone = (queue.inspect(ran.path("gives_up", page)) for page in ("always503", "gone404"))
    assert (busy.state, busy.error, busy.failures) == (State.FAILED, "GiveUp: HTTP 503", 2)
    assert (gone.state, gone.error, gone.failures) == (State.FAILED, "GiveUp: HTTP 404", 1)
    assert len(ran.site.of("/gives_up/always503")) == 2


def test_the_stats_of_a_spider_count_what_went_to_failed(ran: Ran) -> None:
    counted = {name: result["stats"].get("timeoutq/given_up", 0) for name, result in ran.results.items()}
    failed: dict[str, int] = {}
    for name in NAMES:
        with ran.queue(name) as queue:
            failed[name] = queue.stats().failed
    assert counted == failed
    assert counted["gives_up"] == 2


def test_a_redirect_is_a_task_of_its_own_and_one_that_is_known_is_dropped(ran: Ran) -> None:
    assert ran.items("redirects") == [{"path": "new", "mine": "old", "from": ["old"]}]
    assert ran.states("redirects", "itself", "circle1", "circle2") == ["done"] * 3
    with ran.queue("redirects") as queue:  # those of a start request with dont_filter
        done = sorted(entry.task.partition("#again:")[0] for entry in queue.each("done") if "#again:" in entry.task)
    assert done == [ran.path("redirects", "new"), ran.path("redirects", "old")]
    assert [len(ran.site.of(f"/redirects/{page}")) for page in ("itself", "circle1", "circle2")] == [1, 1, 1]


def test_what_errbacks_yield_is_gathered_as_well(ran: Ran) -> None:
    items = ran.items("errbacks")
    failed = {item["failed"]: item["kind"] for item in items if "failed" in item}
    assert failed.keys() == {"plain", "async", "coroutine", "gone404"}
    assert "ConnectionRefusedError" in failed["plain"]  # in newer versions, DownloadConnectionRefusedError
    assert failed["gone404"] == "HttpError"
    assert next(item for item in items if item.get("failed") == "plain")["kwargs"] == {"a": 1}
    fetched = {item["fetched"] for item in items if "fetched" in item}
    assert fetched == {"after-plain", "after-async", "after-co", "after-gone404"}
    with ran.queue("errbacks") as queue:
        tasks = [f"{NOBODY}/{page}" for page in ("plain", "async", "coroutine", "again", "raises")]
        assert [str(state) for state in queue.states(tasks)] == ["done", "done", "done", "failed", "failed"]
        assert "Refused" in (queue.inspect(tasks[3]).error or "")
        assert queue.inspect(tasks[4]).error == "KeyError: 'the errback is wrong'"
        assert str(queue.states(ran.path("errbacks", "gone404"))[0]) == "done"


def test_a_request_with_dont_filter_is_made_however_often_it_was_made_before(ran: Ran) -> None:
    items = ran.items("again")
    assert [item["turn"] for item in items if "turn" in item] == [0, 1, 2, 3]
    assert sorted(str(item["known"]) for item in items if "known" in item) == ["0", "1", "None"]
    with ran.queue("again") as queue:
        done = [entry.task for entry in queue.each("done")]
    assert len(done) == 5  # start, the page, the known page, and twice the known page again
    assert len([task for task in done if task.startswith(ran.path("again", "known#again:"))]) == 2


def test_all_that_a_request_carries_arrives(ran: Ran) -> None:
    shown = {item["path"]: item for item in ran.items("carries")}
    one = shown["one"]
    assert (one["method"], one["priority"], one["flags"], one["depth"]) == ("PUT", 7, ["f"], 1)
    assert one["deep"] == {"list": [1, 2.5, None, True, "é"]}
    assert one["tuple"] == "(1, 2)"
    assert one["k"] == "{1: b'v'}"
    (seen,) = ran.site.of("/carries/one")
    assert seen.body == "größe".encode()
    assert "c=1" in seen.headers["Cookie"]
    assert [seen.headers["X-Odd"].encode("latin-1")] == [b"\xff"]
    assert sorted(seen.body for seen in ran.site.of("/carries/form")) == [b"a=1", b"a=2"]
    assert ran.site.of("/carries/json")[0].headers["Content-Type"] == "application/json"
    assert ran.site.of("/carries/bytes")[0].body == b"\xff\x00"
    assert shown["x" * 2000]["k"] == "'long'"
    assert shown["jar"]["jar"] == "mine"
    assert "Cookie" not in ran.site.of("/carries/jar")[0].headers  # another jar than that of the first page


def test_an_item_in_meta_arrives_as_the_item_that_it_was(ran: Ran) -> None:
    assert sorted(item["text"] for item in ran.items("tutorial")) == ["quote 0", "quote 1", "quote 2"]
    assert {(item["kind"], item["year"]) for item in ran.items("tutorial")} == {("Quote", 1775)}


def test_every_kind_of_method_of_the_spider_may_be_a_callback(ran: Ran) -> None:
    assert sorted(item["by"] for item in ran.items("methods")) == [
        "decorated", "decorated", "private", "private errback", "private of the parent", "static",
        "the class methods",
    ]  # fmt: skip


def test_the_id_of_another_request_has_its_fingerprint(ran: Ran) -> None:
    with ran.queue("carries") as queue:
        done = [entry.task for entry in queue.each("done")]
    marked = [task.removeprefix(ran.site.url) for task in done if "#" in task]
    assert sorted(task.partition(":")[0][:30] for task in marked) == [
        "/carries/bytes#POST", "/carries/form#POST", "/carries/form#POST", "/carries/json#POST", "/carries/one#PUT",
        "/carries/" + 21 * "x",
    ]  # fmt: skip
    assert max(map(len, done)) < 1024


def test_a_fingerprinter_of_the_project_decides_which_requests_are_one(ran: Ran) -> None:
    assert len(ran.items("printed")) == 2  # the first page, and one of the two
    with ran.queue("printed") as queue:
        done = [entry.task.removeprefix(ran.site.url) for entry in queue.each("done")]
    assert sorted(done) == sorted(
        ["start:printed", *(f"/#GET:{ran.path('printed', page).encode()[-20:].hex()}" for page in ("", "page"))]
    )


def test_start_requests_may_be_any_and_their_own_dont_filter_counts(ran: Ran) -> None:
    items = ran.items("starts")
    assert sorted(item["path"] for item in items if "path" in item) == ["one", "one", "two"]
    assert {"form": "POST"} in items
    assert len(ran.site.of("/starts/one")) == 2
    if ran.results["starts"]["scrapy"] >= [2, 13]:  # before, a start could bring no items
        assert {"item": "of the start"} in items


@pytest.mark.parametrize(
    ("page", "cause"),
    [
        ("object", "meta['a'][0]['b'] holds an object of type object"),
        ("lambda", "a lambda will not do"),
        ("nested", "the nested function Refused.parse.<locals>.nested will not do"),
        ("outside", "outside of tests.rig.spiders.mapping will not do"),
        ("number", "cannot be put into the queue: the payload of"),
        ("deep", "meta is nested too deep"),
        ("large", "cannot be put into the queue: the payload of"),
        ("odd", "cannot be put into the queue: "),
        ("slot", "cannot be put into the queue: "),
        ("long", "cannot be put into the queue: "),
    ],
)
def test_what_cannot_travel_is_an_error_that_names_the_request_and_the_key(ran: Ran, page: str, cause: str) -> None:
    lines = [line for line in ran.log.splitlines() if f"<GET {ran.path('refused', page)}>" in line]
    assert any(cause in line for line in lines), [line[:500] for line in lines]
    assert ran.site.of(f"/refused/{page}") == []


def test_a_page_with_a_request_that_cannot_travel_fails_and_its_other_requests_are_made(ran: Ran) -> None:
    assert ran.items("refused") == [{"good": True}]
    assert ran.results["refused"]["stats"]["timeoutq/refused"] == 11
    with ran.queue("refused") as queue:
        info = queue.inspect(ran.path("refused", ""))
    assert info.state is State.FAILED
    assert "meta['a'][0]['b']" in (info.error or "")


def test_a_task_waits_whose_callback_the_spider_lacks_and_why_says_so(ran: Ran) -> None:
    assert ran.items("misses") == [{"fetched": True}]
    assert ran.reason.code == "due"
    assert "spider 'misses' has no method 'parse_late' in this version" in ran.reason.message
    with ran.queue("misses") as queue:
        assert queue.inspect(ran.path("misses", "late")).state == State.SCHEDULED
    assert ran.site.of("/misses/late") == []


def test_callbacks_may_be_asynchronous(ran: Ran) -> None:
    assert sorted(item["kind"] for item in ran.items("asynchronous")) == ["coroutine", "generator", "plain"]


def test_a_callback_that_raises_fails_its_task_with_the_traceback_and_what_it_has_found_is_kept(ran: Ran) -> None:
    items = [str(item) for item in ran.items("raises")]
    assert sorted(items) == ["{'async': True}", "{'before': True}", "{'found': True}"]
    with ran.queue("raises") as queue:
        infos = [queue.inspect(ran.path("raises", page)) for page in ("", "at-once", "async")]
        assert str(queue.states(ran.path("raises", "found"))[0]) == "done"
    assert [info.error for info in infos] == [
        "KeyError: 'title'",
        "ZeroDivisionError: at once",
        "ZeroDivisionError: later",
    ]
    for info, function in zip(infos, ("parse", "raise_at_once", "raise_async"), strict=True):
        assert info.state is State.FAILED
        assert f"in Raises.{function}" in (info.traceback or "").replace(f"in {function}", f"in Raises.{function}")


def test_an_item_that_breaks_the_pipeline_fails_its_page_and_one_that_is_dropped_does_not(ran: Ran) -> None:
    assert sorted(item["n"] for item in ran.items("pipelines")) == [1, 4, 5]
    assert ran.states("pipelines", "", "breaks", "found") == ["done", "failed", "done"]
    with ran.queue("pipelines") as queue:
        assert queue.inspect(ran.path("pipelines", "breaks")).error == "OSError: the disk is full"


def test_what_scrapys_own_middlewares_filter_is_not_put(ran: Ran) -> None:
    assert sorted(item["depth"] for item in ran.items("depths")) == [0, 1, 2]
    with ran.queue("depths") as queue:
        known = {entry.task.removeprefix(ran.site.url) for state in ("done", "failed") for entry in queue.each(state)}
    assert known == {"start:depths", "/depths/", "/depths/d1", "/depths/d2"}


def test_pages_that_robots_txt_forbids_fail_with_this_reason(ran: Ran) -> None:
    assert sorted(item["path"] for item in ran.items("robots")) == ["", "open"]
    assert ran.site.of("/robots/private") == []
    with ran.queue("robots") as queue:
        assert "Forbidden by robots.txt" in (queue.inspect(ran.path("robots", "private")).error or "")


def test_a_crawl_spider_with_rules_works(ran: Ran) -> None:
    assert sorted((item["path"], item["text"]) for item in ran.items("rules")) == [
        ("page1", "page1"),
        ("page2", "page2"),
    ]


def test_a_callback_that_closes_the_spider_gives_its_page_back_and_what_it_has_found(ran: Ran) -> None:
    assert ran.states("closes", "")[0] in ("todos", "waiting", "scheduled")
    with ran.queue("closes") as queue:
        assert queue.stats().in_progress == 0


def test_a_host_that_asks_to_be_left_alone_is_left_alone(ran: Ran) -> None:
    assert sorted(item["times"] for item in ran.items("busy")) == [0, 1]
    first, *later = sorted([*ran.site.of("/busy/"), *ran.site.of("/busy/other")], key=lambda seen: seen.at)
    assert (first.path, len(later)) == ("/busy/", 2)
    assert min(seen.at for seen in later) - first.at > 0.95  # the other page of the host, too


def test_a_download_slot_of_its_own_is_a_group_and_one_that_was_copied_is_not(ran: Ran) -> None:
    with ran.queue("spread") as queue:
        assert {host.host for host in queue.hosts.each()} == {"elsewhere", ran.site.url.removeprefix("http://")}


def test_the_priority_of_a_request_is_that_of_its_task(ran: Ran) -> None:
    seen = [visit.path.rpartition("/")[2] for visit in ran.site.visits if visit.path.startswith("/ordered/")]
    seen.remove("slot")  # it counts for another host
    # the start page
    assert seen[0] == ""
    assert [page for page in seen[1:] if page != "p3"] == ["p2000", "p9", "late", "p5", "p0", "p-2", "p-2000"]
    items = {item["path"]: item["again"] for item in ran.items("ordered")}
    assert items["late"], "the page was raised, and what the newer request carries counts"
    assert not items["p3"], "a request with a lower priority changes nothing"
    with ran.queue("ordered") as queue:
        assert queue.drained()
        assert str(queue.states("data:text/html,nowhere")[0]) == "done"


@pytest.mark.parametrize(
    ("id", "given"),
    [
        ("https://a.example/1", True),
        ("http://me:secret@a.example:8080/#POST:1f", True),
        ("start:links", False),
        ("data:text/html,<a href=http://a.example>", False),
        ("file:///etc/hosts", False),
        ("http://...:80/", False),
        ("http://:80/", False),
    ],
)
def test_a_task_has_a_priority_only_where_the_queue_finds_a_host(server: EmbeddedServer, id: str, given: bool) -> None:
    from scrapy import Request

    from timeoutq.scrapy.tasks import task_of

    request = Request("https://a.example/")
    task = task_of(request, id, {"priority": 2000})
    assert (task.priority, task_of(request, id, {"priority": 0}).priority) == (1000 if given else None, None)
    assert task_of(request, id, {"priority": 1}, "a group").priority == 1
    # the queues of the spiders are on this server, too
    with Queue("hosts-of-ids", server.url, politeness=Politeness(0, 1)) as queue:
        assert list(queue.put(task)) == ["added"]  # it is not refused
        queue.purge()


def test_stats_go_into_scrapys_collector(ran: Ran) -> None:
    stats = ran.results["links"]["stats"]
    assert (stats["timeoutq/claimed"], stats["timeoutq/acked"]) == (6, 6)
    assert stats["scheduler/dequeued"] == 5


def test_no_password_is_in_the_log(ran: Ran) -> None:
    assert ran.url.partition("@")[0].rpartition(":")[2] not in ran.log


def test_a_crawl_spider_gives_the_item_of_its_start_page_to_which_links_lead(ran: Ran) -> None:
    assert sorted(item["path"] for item in ran.items("home")) == ["", "a", "new"]
    assert [len(ran.site.of(f"/home/{page}")) for page in ("", "a", "moved", "new")] == [2, 1, 1, 2]  # as in Scrapy


def test_a_start_with_a_request_that_cannot_travel_fails_and_its_other_requests_are_made(ran: Ran) -> None:
    assert sorted(item["path"] for item in ran.items("refused_start")) == ["first", "last"]
    with ran.queue("refused_start") as queue:
        info = queue.inspect("start:refused_start")
    assert info.state is State.FAILED
    assert "it is a start request of the spider" in (info.error or "")
