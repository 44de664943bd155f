"""Apps: functions by name, what a decorator refuses, and what a worker reads of calls."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Generator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from timeoutq.functions import App, BadArguments, Context, Limit, Sender
from timeoutq.functions.client import Posted, Steps
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Answer


class Outbox(Sender):
    """A sender that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[list[Posted]] = []

    def putting(self, calls: Sequence[Posted]) -> Steps[list[Answer]]:
        self.puts.append(list(calls))
        yield from ()
        return [Answer.ADDED] * len(calls)


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


@pytest.fixture
def app(outbox: Outbox) -> App:
    return App("mail", sender=outbox)


def carried_out(app: App, call: Posted) -> Any:
    """What a worker would do."""
    opened = app.open(call.payload, call.queue, call.id)
    return opened.definition.function(*opened.args, **opened.kwargs)


def bad(app: App, function: Any, **options: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        app.task(**options)(function)
    return str(caught.value)


# ---- functions by name


def test_a_decorated_function_is_still_the_function(app: App) -> None:
    @app.task
    def add(x: int, y: int = 1) -> int:
        """Add two numbers."""
        return x + y

    assert (add(2), add(2, y=5)) == (3, 7)
    assert (add.__name__, add.__doc__, add.name) == ("add", "Add two numbers.", "add")  # type: ignore[attr-defined]  # as of any function
    assert list(inspect.signature(add).parameters) == ["x", "y"]
    assert repr(add) == "<function add of App('mail')>"
    assert app.functions == {"add": add}


def test_a_function_that_takes_a_context_is_given_one_in_a_plain_call(app: App) -> None:
    @app.task
    def attempt(ctx: Context[None], more: int) -> int:
        return ctx.attempt + more

    assert attempt(Context("attempt", "id", 3, 1, None), 4) == 7
    assert attempt.call(4).arguments.k == b'{"more":4}'


def test_a_name_of_its_own_stands_in_calls_and_ids_and_for_one_function(app: App, outbox: Outbox) -> None:
    def send(to: str) -> None: ...

    app.task(name="billing.send")(send).delay("a")
    (call,) = outbox.puts[0]
    assert call.id.startswith(b"billing.send:")
    assert json.loads(call.payload)["f"] == "billing.send"
    app.task(send)
    assert bad(app, send) == "App('mail') has a function 'send' already: pass another name=, such as 'billing.send'"


class Shop:
    def open(self) -> None: ...


def numbers() -> Generator[int, None, None]:
    yield 1


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (Shop.open, "Shop.open is a method: a call has no object to run it on; move it out of Shop"),
        (Shop().open, "is no function (method): decorate what def or async def makes"),
        (Shop, "is no function (a class)"),
        (lambda: None, "a lambda has no name under which a worker could find it"),
        (numbers, "numbers() is a generator function: calling it runs nothing"),
        (5, "5 is no function (int)"),
    ],
)
def test_what_no_worker_could_find_or_run_is_refused(app: App, function: Any, said: str) -> None:
    assert said in bad(app, function)
    assert not app.functions


def test_functions_whose_keys_could_make_the_same_id_are_refused(app: App) -> None:
    def thumb(path: str) -> None: ...
    def resize(path: str) -> None: ...

    app.task(key="thumb:{path}")(thumb)
    longer = App("longer")
    longer.task(key="thumb:{path}:big")(thumb)
    assert "may make the same id" in bad(longer, resize, key="thumb:{path}")
    for key in ("thumb:{path}", "thumb:{path}:big", "{path}", "thu{path}"):
        assert bad(app, resize, key=key).startswith("the keys of resize() and thumb() may make the same id")
    app.task(key=True, name="send")(resize)
    assert "may make the same id" in bad(app, resize, key="send:{path}", name="other")


def test_functions_that_are_counted_together_have_one_limit(app: App) -> None:
    def one(tenant: str) -> None: ...

    app.task(limit=Limit(concurrency=1, per="tenant:{tenant}"))(one)
    app.task(name="two", limit=Limit(concurrency=1, per="tenant:{tenant}"))(one)
    said = bad(app, one, name="three", limit=Limit(concurrency=2, per="tenant:{tenant}"))
    assert said.startswith("three() and one() count their calls together, in queue 'mail', and have different limits")


def test_functions_of_two_queues_may_have_the_same_keys_and_count_apart() -> None:
    app = App("mail", queues=["fast", "slow"])

    def one(tenant: str) -> None: ...

    for number, queue in enumerate(app.queues.names, 1):
        limit = Limit(concurrency=number, per="tenant:{tenant}")
        app.task(name=queue, queue=queue, key="one:{tenant}", limit=limit)(one)
    assert list(app.functions) == ["fast", "slow"]


def test_a_function_whose_results_nobody_keeps_may_return_anything(app: App) -> None:
    def opened() -> Shop: ...  # type: ignore[empty-body]  # never called

    assert "what it returns cannot be kept: Shop is no type of JSON" in bad(app, opened)
    assert app.task(keep_result=0)(opened).definition.returns is Any


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retries": 3}, "task() has no option retries=; it has "),
        ({"key": "send:{too}"}, "there is no parameter 'too'; there is to"),
        ({"key": 5}, "is neither True nor a text such as key='send:{path}'"),
        ({"unique": "forever"}, "unique= is about ids that a key makes: add key=, or, where it follows another call"),
        ({"limit": 3}, "limit= takes a Limit("),
        ({"queue": "other"}, "queue='other' is no queue of this app: one of mail"),
        ({"name": "a b"}, "'a b' is no name for a function"),
        ({"cron": "* * * * *"}, "send() is called by its schedule without arguments, but needs 'to'"),
        ({"tz": "UTC"}, "tz= is for schedules: add cron= or every="),
    ],
)
def test_an_option_that_cannot_be_is_refused_when_the_function_is_decorated(
    app: App, options: dict[str, Any], said: str
) -> None:
    def send(to: str) -> None: ...

    assert said in bad(app, send, **options)
    assert not app.functions


def test_what_a_decorator_leaves_out_is_what_the_app_says() -> None:
    app = App("mail", retry=[1, 2], max_runtime=timedelta(minutes=1), keep_result=5)

    @app.task
    def usual() -> None: ...

    @app.task(retry=[], max_runtime=7, keep_result=0)
    def own() -> None: ...

    found = usual.settings, own.settings
    assert [one.retry is not None and one.retry.decide(1, "x") for one in found] == [1, None]
    assert [(one.max_runtime, one.keep_result, one.keep_none) for one in found] == [(60, 5, True), (7, 0, False)]


# ---- queues and secrets


def test_functions_say_their_queue_where_no_queue_is_the_usual_one() -> None:
    app = App("mail", queues=["high", "low"])

    def send(to: str) -> None: ...

    assert "several queues, and none is called 'mail': say queue=" in bad(app, send)
    assert app.task(queue="low")(send).settings.queue == "low"
    assert App("mail", queues={"only": 3}).task(send).settings.queue == "only"
    assert App("mail", queues=["high", "mail"]).task(send).settings.queue == "mail"


@pytest.mark.parametrize(
    "options",
    [
        {"queues": []}, {"queues": "mail"}, {"queues": ["a", "a"]}, {"queues": {"a": 0}}, {"secret": "short"},
        {"retry": "often"}, {"max_runtime": -1}, {"name": "a b"},
    ],
)  # fmt: skip
def test_an_app_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        App(options.pop("name", "mail"), **options)


def test_an_app_shows_no_secret() -> None:
    app = App("mail", secret="a secret of 21 bytes.")
    assert "a secret" not in f"{app!r} {vars(app)}"


def test_a_limit_that_lets_nothing_run_is_refused() -> None:
    wrong: list[dict[str, Any]] = [{"concurrency": 0}, {"every": -1}, {"every": float("inf")}]
    for options in wrong:
        with pytest.raises(InvalidInput):
            Limit(**options)


# ---- on the way to a server and from it


def test_if_one_call_is_bad_none_is_put(app: App, outbox: Outbox) -> None:
    @app.task
    def add(x: str) -> None: ...

    other = App("other").task(add.definition.function)
    wrong: list[Any] = [add, add.call("x" * 300_000), other.call("a"), "add", None]
    for one in wrong:
        with pytest.raises(InvalidInput):
            app.put([add.call("a"), one])
    with pytest.raises(BadArguments):
        app.put(add.call(one) for one in ["a", 5])  # type: ignore[arg-type]  # this is what is refused
    assert outbox.puts == []


def test_a_worker_gets_the_function_its_arguments_and_its_options(app: App, outbox: Outbox) -> None:
    @app.task(retry=[1, 2], max_runtime=60)
    def add(x: int, /, y: int = 1, *more: int, z: int = 0) -> int:
        return x + y + sum(more) + z

    add.delay(1, 2, 3, z=4)
    add.options(retry=[9], max_runtime=5, keep_result=7).delay(1)
    first, second = (app.open(calls[0].payload, "mail", calls[0].id) for calls in outbox.puts)
    assert (first.definition, first.args, first.kwargs) == (add.definition, [1, 2, 3], {"z": 4})
    usual, own = first.settings, second.settings
    assert (usual.max_runtime, usual.keep_result, usual.keep_none) == (60.0, 3600.0, False)
    assert (own.max_runtime, own.keep_result, own.keep_none) == (5.0, 7.0, True)
    assert own.retry is not None
    assert (own.retry.decide(1, "x"), own.retry.decide(2, "x")) == (9.0, None)


def test_the_call_that_follows_has_the_result_as_its_first_argument(app: App, outbox: Outbox) -> None:
    @app.task
    def fetch(url: str) -> list[int]:
        return [len(url)]

    @app.task
    def parse(sizes: list[int], factor: int = 1) -> int:
        return sizes[0] * factor

    @app.task
    def show(text: int, /, *more: str) -> str:
        return f"{text} {more}"

    chain = fetch.call("abc").then(parse, factor=5).then(show, "x", "y").delay()
    (first,) = outbox.puts[0]
    second = app.follow(app.open(first.payload, first.queue, first.id), first.queue, first.id, b"[3]", now=0)
    assert second is not None
    assert (second.id, carried_out(app, second)) == (first.id + b">parse", 15)
    third = app.follow(app.open(second.payload, second.queue, second.id), second.queue, second.id, b"15", now=0)
    assert third is not None
    assert (third.id.decode(), carried_out(app, third)) == (chain.id, "15 ('x', 'y')")
    assert app.follow(app.open(third.payload, third.queue, third.id), third.queue, third.id, b'"x"', now=0) is None


# ---- the room


def test_the_room_speaks_to_no_server() -> None:
    code = "import sys, timeoutq.functions; print(*sorted({'redis', 'timeoutq.client'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_without_its_extra_the_room_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['msgspec'] = None\ntry: import timeoutq.functions\nexcept ImportError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("pip install 'timeoutq[functions]'")
