"""The commands about calls and schedules, as transcripts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
import redis

from tests.functions.running import carry_out, twice_failing
from tests.rig.command import Say, say, server
from tests.rig.post import app
from timeoutq import Queue
from timeoutq.functions import App
from timeoutq.verbs import sending

__all__ = ["say", "server"]

APP = "tests.rig.post:app"


@pytest.fixture
def post(url: str) -> Iterator[Queue]:
    """The queue of the app."""
    with Queue("post", url, timeout=5) as opened:
        yield opened


@pytest.fixture
def worker(post: Queue) -> Iterator[None]:
    """Carries out the calls of a test, as they come."""
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            carry_out(app, post)
            ended.wait(0.01)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    ended.set()
    thread.join(30)


def test_a_call_is_put_and_its_result_is_asked_for_later(say: Say, post: Queue) -> None:
    done = say("call", APP, "write", '["a@example.com"]', "--id", "w1", "--kwargs", '{"pages": 2}')
    assert done.code == 2
    assert "behind the function, or with --args and --kwargs, not both" in done.err
    done = say("call", APP, "write", "--args", '["a@example.com"]', "--kwargs", '{"pages": 2}', "--id", "w1")
    assert (done.code, done.lines) == (0, [["w1", "added"]])
    assert say("call", APP, "write", '{"to": "b"}', "--id", "w1").lines == [["w1", "todos"]]
    told = say("result", "post", "w1")
    assert (told.code, told.out) == (1, "")
    assert "call 'w1' has not ended: `timeoutq inspect post w1` tells where it is" in told.err
    assert say("result", "post", "w1", "--wait", "10ms").code == 5
    carry_out(app, post)
    told = say("result", "post", "w1")
    assert (told.code, json.loads(told.out)) == (0, {"to": "a@example.com", "pages": 2})
    assert say("result", "post", "w1", "--json").documents == [
        {"id": "w1", "state": None, "result": {"to": "a@example.com", "pages": 2}}
    ]


def test_the_end_of_a_chain_is_told_before_it_is_put(say: Say, post: Queue, url: str) -> None:
    made = App("post", url=url)

    @made.task
    def halve(number: int) -> int:
        return number // 2

    late = halve.options(id="w2", after=3600).call(8).then(halve).delay().id
    made.close()
    assert say("result", "post", late, "--wait", "10ms").code == 5
    assert "`timeoutq inspect post w2` tells where it is" in say("result", "post", late).err
    why = say("why", "post", late)
    assert "it is put when 'w2' has returned, which is scheduled" in why.out + why.err
    assert "it was never put" in say("why", "post", ">w2").out + say("why", "post", ">w2").err
    assert "nothing is known of what call '>w2' returned" in say("result", "post", ">w2").err
    post.cancel("w2", by="Ada")
    assert "call 'w2' failed: cancelled by Ada" in say("result", "post", late).err


def test_a_result_that_is_not_there_is_said_so_with_its_cause(say: Say, post: Queue, url: str) -> None:
    say("call", APP, "write", '["a@example.com"]', "--id", "w1")
    carry_out(app, post)
    with redis.Redis.from_url(url) as raw:
        raw.set("timeoutq:{post}:result:w1", b"", keepttl=True)  # as a full server keeps it
        told = say("result", "post", "w1")
        assert (told.code, told.out) == (1, "")
        assert "call 'w1' has returned, but the server had no memory for its result: give the server more" in told.err
        raw.delete("timeoutq:{post}:result:w1")
    assert "it went to another queue than post, or its result was not kept" in say("result", "post", "w1").err


def test_a_call_that_does_not_end_in_time_is_said_so(say: Say, post: Queue) -> None:
    done = say("call", APP, "write", '["a"]', "--wait", "50ms", "--id", "w1")
    assert (done.code, done.out) == (5, "")
    assert "call 'w1' has not ended within 0.05 s: `timeoutq why post w1` says what it waits for" in done.err
    assert say("call", APP, "write", '["a"]', "--after", "1h", "--id", "w2").lines == [["w2", "added"]]
    assert post.inspect("w2").state == "scheduled"


def test_a_failed_call_tells_its_error_and_its_traceback(say: Say, post: Queue, worker: None) -> None:
    done = say("call", APP, "write", "--args", '["a"]', "--kwargs", '{"pages": -1}', "--wait", "30s", "--id", "w1")
    assert (done.code, done.out) == (1, "")
    assert "call 'w1' failed: ValueError: a letter has no" in done.err
    assert "`timeoutq result post w1` prints the traceback" in done.err
    told = say("result", "post", "w1")
    assert told.code == 1
    assert told.texts[0] == "Traceback (most recent call last):"
    (document,) = say("result", "post", "w1", "--json").documents
    assert (document["state"], document["error"]) == ("failed", "ValueError")
    assert document["message"].startswith("a letter has no")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nosuch:app", "write"], "importing nosuch raised ModuleNotFoundError"),
        ([APP, "read"], "has no function 'read'; it has write, burn, collect"),
        ([APP, "write"], "write() needs 'to'"),
        (
            [APP, "write", "a"],
            "the arguments 'a' cannot be read as JSON: write a list or an object, with texts in double quotes",
        ),
        (["tests.rig.post.app", "write"], "'tests.rig.post.app' is no app: write module:app, like shop.tasks:app"),
        ([APP, "write", '["a"]', "--queue", "other"], "queue='other' is no queue of this app"),
    ],
)
def test_a_call_that_cannot_be_is_refused(say: Say, words: list[str], said: str) -> None:
    done = say("call", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["worker", APP], f"if that is an App, use --app {APP}"),
        (["worker", "post"], "or name an App whose functions are to run, with --app MODULE:APP"),
        (
            ["worker", "post", APP, "--no-supervise"],
            f"{APP!r} is an App, which brings its functions: leave the handler",
        ),
        (["worker", "post", "tests.rig.post:write", "--no-supervise"], "write() is a function of an App, and takes no"),
        (["result", APP, "w1"], "is not a queue name: calls of an App are in"),
    ],
)
def test_what_newcomers_type_is_refused_with_the_cure(say: Say, post: Queue, words: list[str], said: str) -> None:
    done = say(*words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_functions_of_an_app_are_listed(say: Say) -> None:
    assert say("functions", APP).lines == [
        ["burn", "post", "letter", "-", "-", "-"],
        ["collect", "post", "_, _, …", "0 9 * * 1-5 in Europe/Berlin", "-", "-"],
        ["write", "post", "to, pages=", "-", "-", "-"],
    ]
    documents = say("functions", APP, "--json").documents
    assert [(one["function"], one["schema"]["title"]) for one in documents] == [
        (name, name) for name in sorted(app.functions)
    ]


def test_functions_of_a_queue_are_those_that_its_workers_have_published(say: Say, post: Queue) -> None:
    post.put("a")
    done = say("functions", "post")
    assert (done.code, "there are no functions in post" in done.err) == (1, True)
    told = {name: one.version for name, one in app.functions.items()}
    for call in post.operations.publish("w7", told):
        post.run(sending.answer(post.talk, call))
    assert [line[:3] for line in say("functions", "post").lines] == [
        ["burn", "post", "letter"], ["collect", "post", "_, _, …"], ["write", "post", "to, pages="],
    ]  # fmt: skip
    (burn, *_) = say("functions", "post", "--json").documents
    assert burn["worker"] == "w7"
    assert datetime.fromisoformat(burn["published"]).tzinfo is not None
    assert burn["schema"] == app.functions["burn"].schema()


def test_a_schedule_of_a_task_is_set_moved_paused_resumed_and_cancelled(say: Say, post: Queue) -> None:
    set_ = say("schedules", "set", "post", "digest", "digest-task", "--every", "1h", "--payload", '{"to": 42}')
    assert set_.code == 0
    (name, state, timing, following, last, put, skipped, missed, task, source) = set_.lines[0]
    assert (name, state, timing, task, source) == ("digest", "running", "every 1h", "digest-task", "set")
    assert (last, put, skipped, missed) == ("-", "0", "0", "0")
    assert following.endswith("+00:00")
    moved = say("schedules", "move", "post", "digest", "--cron", "0 9 * * 1-5", "--tz", "Europe/Berlin", "--times", "3")
    assert moved.lines[0][2] == "0 9 * * 1-5 Europe/Berlin, 3 times"
    assert say("schedules", "pause", "post", "digest").lines[0][1] == "paused"
    assert say("schedules", "resume", "post", "digest").lines[0][1] == "running"
    (document,) = say("schedules", "list", "post", "--json").documents
    assert (document["name"], document["payload"], document["timing"]["cron"]) == ("digest", {"to": 42}, "0 9 * * 1-5")
    assert say("schedules", "cancel", "post", "digest", "--json").documents == [
        {"schedule": "digest", "cancelled": True}
    ]
    assert say("schedules", "cancel", "post", "digest").code == 1
    assert say("schedules", "list", "post").code == 1
    assert say("schedules", "pause", "post", "digest").code == 2


def test_a_schedule_of_a_call_is_set(say: Say, post: Queue) -> None:
    words = ["schedules", "set", APP, "weekly", "write", "--args", '["c"]', "--cron", "0 7 * * 1"]
    done = say(*words)
    assert (done.code, done.lines[0][:3]) == (0, ["weekly", "running", "0 7 * * 1 UTC"])
    found: Any = post.schedules.get("weekly")
    assert found.payload == {"v": 1, "f": "write", "a": [], "k": {"to": "c"}}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["set", "post", "a"], "this has neither of cron= and every="),
        (["set", "post", "a", "--every", "1h", "--args", "[]"], "--args and --kwargs are for calls of functions"),
        (["set", APP, "a", "--every", "1h"], "with an app, name the function"),
        (["set", APP, "a", "read", "--every", "1h"], "has no function 'read'"),
        (["set", "post", "a", "--every", "1h", "--missed", "all"], "add overlap=True"),
        (["set", APP, "n\udcff", "write", "--args", '["c"]', "--every", "60"], "'n\\udcff' is no name of a schedule"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(say: Say, words: list[str], said: str) -> None:
    done = say("schedules", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_the_schedules_of_all_queues_of_an_app_are_listed(say: Say, post: Queue) -> None:
    none = say("schedules", "list", APP)
    assert (none.code, none.err) == (1, f"timeoutq: the queues of {APP} have no schedules\n")
    say("schedules", "set", APP, "weekly", "write", "--args", '["c"]', "--cron", "0 7 * * 1")
    say("schedules", "set", "post", "daily", "--every", "24h")
    assert [line[:3] for line in say("schedules", "list", APP).lines] == [
        ["post", "daily", "running"],
        ["post", "weekly", "running"],
    ]
    documents = say("schedules", "list", APP, "--json").documents
    assert documents[0]["timing"]["every"] == 86_400
    assert [(one["queue"], one["name"], one["state"]) for one in documents] == [
        ("post", "daily", "running"),
        ("post", "weekly", "running"),
    ]


def test_the_command_shows_records_and_lists_calls(say: Say, post: Queue, url: str) -> None:
    post.configure(max_crashes=5)
    none = say("calls", "post")
    assert (none.code, none.out) == (1, "")
    shop = App("post", url=url)
    call = twice_failing(shop)
    shop.close()
    ((id, how, ended, attempts, put, first, last, worker, error),) = say("calls", "post").lines
    assert (id, how, attempts, error) == (call.id, "done", "3", "-")
    assert first < last
    # the clock of the server, as the worker knows it, may be some ms off
    times = [datetime.fromisoformat(one) for one in (put, first, last, ended)]
    assert all(before <= after + timedelta(milliseconds=50) for before, after in pairwise(times))
    facts = say("inspect", "post", call.id).facts
    assert worker in facts["attempt 3"]
    assert facts["attempt 1"].startswith("failed, 2")
    assert facts["attempt 1"].endswith(": ValueError: boom 1")
    assert facts["ended"].endswith(", done")
    (document,) = say("calls", "post", "--json").documents
    (info,) = say("inspect", "post", call.id, "--json").documents
    assert document == info["record"]
    assert [one["how"] for one in document["attempts"]] == ["failed", "failed", "done"]
