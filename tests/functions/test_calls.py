"""Calls as values: what callers choose for one call, chains, and what is put in the end."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from timeoutq.functions import App, BadArguments, CallTooLarge, FunctionCall
from timeoutq.functions.calls import posted, result_of
from timeoutq.functions.client import Posted, Result
from timeoutq.functions.envelope import unseal
from timeoutq.functions.options import Chosen
from timeoutq.words.errors import InvalidInput
from timeoutq.words.retry import RetryPolicy

app = App("mail", queues=["mail.high", "mail"], secret="a secret of 21 bytes.")


@app.task
def send(to: str, *, subject: str = "Hi") -> int: ...  # type: ignore[empty-body]  # never called
@app.task(key="thumb:{path}", unique=timedelta(hours=1), keep_result=60)
def thumb(path: str, size: int = 64) -> None: ...
@app.task(queue="mail.high", keep_result=0)
def parse(page: int, depth: int = 0) -> list[str]: ...  # type: ignore[empty-body]  # never called
@app.task(keep_result=60)
def count(links: list[str], most: int = 64) -> None: ...


def put(call: FunctionCall[Any]) -> Posted:
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


def test_a_key_gives_equal_calls_one_id() -> None:
    assert put(thumb.call("a")).id == put(thumb.call("a", 5)).id == b"thumb:a"
    assert put(thumb.call("a")).unique == timedelta(hours=1)
    assert put(thumb.options(unique="forever").call("a")).unique == "forever"


def test_an_id_wins_over_a_key() -> None:
    assert put(thumb.options(id="welcome:42").call("a")).id == b"welcome:42"
    found = put(send.options(id=b"\xff\0").call("a"))
    assert (found.id, found.unique) == (b"\xff\0", "active")
    assert unseal(found.payload, "mail", b"\xff\0", app.secrets).function == "send"


def test_options_travel_with_the_call_as_far_as_a_worker_must_know_them() -> None:
    call = put(send.options(retry=[1, timedelta(minutes=1)], max_runtime=5, keep_result=0, priority=7).call("a"))
    assert payload(call)["o"] == {"retry": [1.0, 60.0], "max_runtime": 5.0, "keep_result": 0.0}
    assert call.priority == 7
    assert "o" not in payload(put(send.options(after=5, id="x", queue="mail.high").call("a")))


@pytest.mark.parametrize(
    ("unique", "travels"), [("active", "active"), ("forever", "forever"), (timedelta(minutes=1), 60.0)]
)
def test_how_long_an_id_keeps_others_away_travels_with_its_call(unique: Any, travels: object) -> None:
    found = put(thumb.options(unique=unique).call("a"))
    assert payload(found)["o"] == {"unique": travels}
    opened = app.open(found.payload, found.queue, found.id)
    assert opened.keep_id == {"active": False, "forever": True}.get(unique, unique)


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
        ({"after": -1}, "after must be"),
        ({"delay": 5}, r"options\(\) has no option delay=; it has id, at"),
        ({"at": 1, "after": 1}, "both say when"),
        ({"unique": "always", "id": "x"}, "unique must be"),
        ({"retry": RetryPolicy.of([1])}, "policies of tenacity do not travel"),
        ({"retry": [-1]}, r"retry=\[…\] must be"),
        ({"max_runtime": 0}, "max_runtime"),
    ],
)
def test_an_option_that_cannot_be_is_refused_at_once(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        send.options(**wrong)


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
    halves: Any = halve
    with pytest.raises(BadArguments, match=r"length\(\) takes str as 'text', but length\(\) returns int: let them fit"):
        length.call("a").then(follows)
    with pytest.raises(BadArguments, match=r"takes str as 'text', but halve\(\) returns float"):
        length.call("a").then(halve).then(follows)
    with pytest.raises(BadArguments, match="takes 0 positional arguments behind the result"):
        length.call("a").then(halves, 2.0)
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
    def result(call: FunctionCall[Any]) -> Result[Any]:
        return result_of(app.sender, call, put(call))

    chain = send.options(id="a").call("a").then(parse)
    found = result(chain.then(count))
    assert found._places == (("mail", b"a"), ("mail.high", b"a>parse"), ("mail", b"a>parse>count"))
    assert (found._keep_result, found._returns, found._keep_none) == (60.0, type(None), True)
    assert (put(chain).queue, put(chain).id, result(chain).queue) == ("mail", b"a", "mail.high")
    assert result(send.call("a").then(parse.options(keep_result=9)))._keep_result == 9


@pytest.mark.parametrize(
    ("name", "value"),
    [("id", "x"), ("after", 1), ("at", 1), ("priority", 1), ("queue", "mail.high")],
)
def test_what_follows_a_call_cannot_be_put_otherwise(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=f"leave out {name}="):
        send.call("a").then(thumb.options(**{name: value}))  # type: ignore[arg-type]  # types are tested elsewhere


def test_the_whole_chain_is_signed_and_counts_for_the_size() -> None:
    call = put(send.options(id="a").call("a").then(parse))
    changed = call.payload.replace(b'"f":"parse"', b'"f":"thumb"')
    assert changed != call.payload
    with pytest.raises(Exception, match="signature"):
        unseal(changed, "mail", b"a", app.secrets)
    last: Any = send  # types are tested elsewhere
    with pytest.raises(CallTooLarge):
        put(send.call("a").then(parse).then(count).then(last, subject="x" * 300_000))
