"""Calls as values: what callers choose for one call, chains, and what is put in the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import tenacity

from timeoutq.functions import App, BadArguments, Call, CallTooLarge, Forged, Limit
from timeoutq.functions.calls import posted
from timeoutq.functions.envelope import Secrets, unseal
from timeoutq.functions.options import Chosen
from timeoutq.functions.sender import Answers, Posted
from timeoutq.words.errors import InvalidInput
from timeoutq.words.retry import LONGEST, RetryPolicy

app = App("mail", queues=["mail.high", "mail"], secret="a secret of 21 bytes.")


@app.task
def send(to: str, *, subject: str = "Hi") -> int: ...  # type: ignore[empty-body]  # never called
@app.task(key="thumb:{path}", unique=timedelta(hours=1), keep_result=60)
def thumb(path: str, size: int = 64) -> None: ...
@app.task(queue="mail.high", keep_result=0)
def parse(page: int, depth: int = 0) -> list[str]: ...  # type: ignore[empty-body]  # never called
@app.task(keep_result=60)
def count(links: list[str], most: int = 64) -> None: ...
@app.task(limit=Limit(3, per="tenant:{tenant}"))
def bill(tenant: str) -> None: ...
@app.task(limit=Limit(1))
def alone(tenant: str) -> None: ...


def put(call: Call[Any]) -> Posted:
    return posted(call, app.secrets)


def payload(call: Posted) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call.payload)
    return found


def test_a_call_is_a_value() -> None:
    assert send.call("a") == send.call(to="a") != send.call("b")
    assert thumb.call("a") != thumb.options(after=1).call("a")
    assert {send.call("a"): 1}[send.call("a")] == 1
    with pytest.raises(AttributeError):
        send.call("a").function = "thumb"  # type: ignore[misc]  # this is what is refused


def test_a_call_shows_no_argument() -> None:
    call = send.call("a@example.com")
    assert "example" not in repr(call)
    assert "example" not in repr(put(call))


def test_arguments_are_checked_when_the_call_is_made_and_not_when_it_is_put() -> None:
    with pytest.raises(BadArguments, match="'to'"):
        send.call(1)  # type: ignore[arg-type]  # this is what is refused


def test_a_call_that_is_put_twice_runs_twice() -> None:
    call = send.call("a")
    one, other = put(call), put(call)
    assert one.id.startswith(b"send:")
    assert one.id != other.id
    assert one.unique is None


def test_a_key_gives_equal_calls_one_id() -> None:
    assert put(thumb.call("a")).id == put(thumb.call("a", 5)).id == b"thumb:a"
    assert put(thumb.call("a")).unique == timedelta(hours=1)
    assert put(thumb.options(unique="forever").call("a")).unique == "forever"


def test_a_long_key_becomes_a_digest() -> None:
    found = {put(thumb.call("x" * 500 + end)).id for end in ("a", "b", "b")}
    assert len(found) == 2
    assert all(len(id) == 133 for id in found)


def test_an_id_wins_over_a_key() -> None:
    assert put(thumb.options(id="welcome:42").call("a")).id == b"welcome:42"
    found = put(send.options(id=b"\xff\0").call("a"))
    assert (found.id, found.unique) == (b"\xff\0", "active")
    assert unseal(found.payload, "mail", b"\xff\0", app.secrets).function == "send"


def test_a_call_goes_to_the_queue_of_its_function_or_to_the_one_that_is_chosen() -> None:
    assert put(send.call("a")).queue == "mail"
    assert put(parse.call(1)).queue == "mail.high"
    assert put(send.options(queue="mail.high").call("a")).queue == "mail.high"
    with pytest.raises(InvalidInput, match=r"queue='mial' is no queue of this app: one of mail\.high, mail"):
        send.options(queue="mial")


def test_a_limit_makes_the_group_of_a_call() -> None:
    assert put(send.call("a")).group is None
    assert put(bill.call("t1")).group == "tenant:t1"
    assert put(alone.call("t1")).group == "alone"
    assert len((put(bill.call("t" * 500)).group or "").encode()) <= 255


def test_options_travel_with_the_call_as_far_as_a_worker_must_know_them() -> None:
    call = put(send.options(retry=[1, timedelta(minutes=1)], max_runtime=5, keep_result=0, priority=7).call("a"))
    assert payload(call)["o"] == {"retry": [1.0, 60.0], "max_runtime": 5.0, "keep_result": 0.0}
    assert (call.priority, call.answers.keep_result) == (7, 0.0)
    assert "o" not in payload(put(send.options(after=5, id="x", queue="mail.high").call("a")))


@pytest.mark.parametrize(
    ("unique", "travels"), [("active", "active"), ("forever", "forever"), (timedelta(minutes=1), 60.0)]
)
def test_how_long_an_id_keeps_others_away_travels_with_its_call(unique: Any, travels: object) -> None:
    found = put(thumb.options(unique=unique).call("a"))
    assert payload(found)["o"] == {"unique": travels}
    opened = app.open(found.payload, found.queue, found.id)
    assert opened.keep_id == {"active": False, "forever": True}.get(unique, unique)
    assert opened.leaves_no_id == (unique == "active")


def test_nobody_changes_how_long_the_id_of_a_signed_call_keeps_others_away() -> None:
    found = put(thumb.options(unique="active").call("a"))
    with pytest.raises(Forged):
        app.open(found.payload.replace(b'"active"', b'"forever"'), found.queue, found.id)


def test_options_are_added_to_those_of_before() -> None:
    first = send.options(after=5, priority=3)
    assert first.options(priority=4).chosen == Chosen(after=5.0, priority=4)
    assert first.options(at=7).chosen == Chosen(at=7.0, priority=3)
    assert first.chosen == Chosen(after=5.0, priority=3)
    assert send.chosen == Chosen()


def test_a_time_is_in_seconds_or_says_its_zone() -> None:
    assert put(send.options(after=timedelta(minutes=1)).call("a")).after == 60
    assert put(send.options(at=1_790_000_000.5).call("a")).at == 1_790_000_000.5
    zone = timezone(timedelta(hours=9))
    midnight = datetime(2027, 1, 1, tzinfo=UTC)
    assert put(send.options(at=midnight.astimezone(zone)).call("a")).at == midnight.timestamp()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"at": datetime(2027, 1, 1)}, "has no time zone"),  # noqa: DTZ001  # this is what is refused
        ({"at": "2027-01-01"}, "at must be"),
        ({"at": -1}, "at must be"),
        ({"after": -1}, "after must be"),
        ({"after": float("nan")}, "after must be"),
        ({"after": 1e300}, "past the year 9999"),
        ({"at": 1, "after": 1}, "both say when"),
        ({"id": ""}, "must not be empty"),
        ({"id": "x" * 1025}, "1,025 bytes"),
        ({"id": "\ud800"}, "lone surrogate"),
        ({"id": 5}, "a task id is str or bytes"),
        ({"priority": 1001}, "priority must be"),
        ({"priority": "high"}, "priority must be"),
        ({"unique": "always", "id": "x"}, "unique must be"),
        ({"unique": timedelta(0), "id": "x"}, "unique must be"),
        ({"retry": RetryPolicy.of([1])}, "policies of tenacity do not travel"),
        ({"retry": tenacity.wait_fixed(5)}, "policies of tenacity do not travel"),
        ({"retry": "often"}, "a list of up to 1,000 seconds"),
        ({"retry": [1] * 1001}, "a list of up to 1,000 seconds"),
        ({"retry": [-1]}, r"retry=\[…\] must be"),
        ({"max_runtime": 0}, "max_runtime"),
        ({"max_runtime": timedelta(days=8)}, "max_runtime"),
        ({"keep_result": -1}, "keep_result must be"),
        ({"keep_result": "forever"}, "keep_result must be"),
        ({"queue": 5}, "is no queue of this app"),
    ],
)
def test_an_option_that_cannot_be_is_refused_at_once(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        send.options(**wrong)


def test_the_longest_times_are_a_year() -> None:
    found = send.options(retry=[10**12], keep_result=10**10).chosen
    assert (found.retry, found.keep_result) == ((LONGEST,), LONGEST)


def test_a_result_is_where_the_call_is() -> None:
    call = put(thumb.call("a"))
    assert call.answers == Answers("mail", b"thumb:a", 60.0, type(None), keep_none=True)
    assert put(send.call("a")).answers.keep_result == 3600
    assert put(parse.call(1)).answers.keep_result == 0


# ---- chains


def test_a_function_that_cannot_take_the_result_is_refused() -> None:
    app = App("fit")

    @app.task
    def length(text: str) -> int:
        return len(text)

    @app.task
    def halve(x: float) -> float:
        return x / 2

    @app.task
    def free(x: Any) -> Any:
        return x

    @app.task
    def maybe(x: str | None = None) -> str | None:
        return x

    follows: Any = length
    anything: Any = free
    with pytest.raises(BadArguments, match=r"length\(\) takes str as 'text', but length\(\) returns int: let them fit"):
        length.call("a").then(follows)
    with pytest.raises(BadArguments, match=r"takes str as 'text', but halve\(\) returns float"):
        length.call("a").then(halve).then(follows)
    length.call("a").then(halve)
    length.call("a").then(anything)
    assert anything.call("a").then(follows).following
    assert maybe.call("a").then(follows).following


def test_what_follows_travels_with_the_call() -> None:
    chain = send.call("a").then(parse, depth=3).then(count.options(max_runtime=5), 7)
    assert payload(put(chain))["t"] == [
        {"f": "parse", "a": [], "k": {"depth": 3}},
        {"f": "count", "a": [], "k": {"most": 7}, "o": {"max_runtime": 5.0}},
    ]


def test_the_result_of_a_chain_is_that_of_its_last_call() -> None:
    call = put(send.options(id="a").call("a").then(parse).then(count))
    assert (call.queue, call.id) == ("mail", b"a")
    before = (("mail", b"a"), ("mail.high", b"a>parse"))
    assert call.answers == Answers("mail", b"a>parse>count", 60.0, type(None), keep_none=True, before=before)
    assert put(send.call("a").then(parse)).answers.queue == "mail.high"
    assert put(send.call("a").then(parse.options(keep_result=9))).answers.keep_result == 9


def test_a_chain_is_another_call_than_its_beginning() -> None:
    begin: Call[Any] = send.call("a")
    assert begin.then(parse) == send.call("a").then(parse) != begin
    assert begin.following == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [("id", "x"), ("after", 1), ("at", 1), ("priority", 1), ("queue", "mail.high")],
)
def test_what_follows_a_call_cannot_be_put_otherwise(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"leave out {name}="):
        send.call("a").then(thumb.options(**{name: value}))  # type: ignore[arg-type]  # types are tested elsewhere


def test_how_long_an_id_keeps_others_away_needs_an_id_where_a_call_is_made_and_not_where_it_follows() -> None:
    once = parse.options(unique="forever")
    with pytest.raises(InvalidInput, match=r"unique= is about an id: give the function a key=, or choose an id="):
        once.call(1)
    found = put(send.call("a").then(once))
    (step,) = app.open(found.payload, found.queue, found.id).then
    assert step.options.unique == "forever"


def test_other_arguments_of_what_follows_are_checked_at_once() -> None:
    then: Callable[..., Any] = send.call("a").then
    for args, kwargs, said in [
        ((parse, "deep"), {}, "'depth'"),
        ((parse,), {"page": 1}, "no parameter 'page'"),
        ((parse, 1, 2), {}, "takes 1 positional argument, but got 2"),
    ]:
        with pytest.raises(BadArguments, match=said):
            then(*args, **kwargs)


def test_the_whole_chain_is_signed_and_counts_for_the_size() -> None:
    call = put(send.options(id="a").call("a").then(parse))
    changed = call.payload.replace(b'"f":"parse"', b'"f":"thumb"')
    assert changed != call.payload
    with pytest.raises(Exception, match="signature"):
        unseal(changed, "mail", b"a", app.secrets)
    last: Any = send  # types are tested elsewhere
    with pytest.raises(CallTooLarge):
        put(send.call("a").then(parse).then(count).then(last, subject="x" * 300_000))


def test_without_a_secret_nothing_is_signed() -> None:
    assert "s" not in payload(posted(send.call("a"), Secrets()))
    assert "s" in payload(put(send.call("a")))
