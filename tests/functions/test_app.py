"""Apps: functions by name, what a decorator refuses, calls on their way to a sender, and what a worker reads."""

from __future__ import annotations

import asyncio
import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import timeoutq.functions
from timeoutq.functions import (
    App,
    BadArguments,
    BadFunction,
    CallTooLarge,
    Context,
    Forged,
    Limit,
    NewerCall,
    NotACall,
    UnknownFunction,
    UnknownSecret,
)
from timeoutq.functions.errors import MAY_FIT_LATER
from timeoutq.functions.posting import Posting
from timeoutq.functions.sender import Answers, Posted
from timeoutq.words.errors import InvalidInput, TimeoutqError, Unavailable
from timeoutq.words.model import Answer, TaskInfo
from timeoutq.words.retry import RetryPolicy


class Put:
    """What stands for the result of a call in these tests: where it was put."""

    def __init__(self, answers: Answers, answer: Answer | None) -> None:
        self.answers, self.answer = answers, answer

    @property
    def id(self) -> str:
        return self.answers.id.decode()

    @property
    def queue(self) -> str:
        return self.answers.queue

    @property
    def added(self) -> bool | None:
        raise NotImplementedError

    def wait(self, timeout: float | None = None) -> Any:
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, Any]:
        raise NotImplementedError

    def info(self) -> TaskInfo:
        raise NotImplementedError

    async def ainfo(self) -> TaskInfo:
        raise NotImplementedError

    def cancel(self, by: str | None = None) -> Answer:
        raise NotImplementedError

    async def acancel(self, by: str | None = None) -> Answer:
        raise NotImplementedError


class Outbox:
    """A sender that keeps what it is given."""

    def __init__(self) -> None:
        self.puts: list[list[Posted]] = []

    def put(self, calls: Sequence[Posted], /) -> Sequence[Answer]:
        self.puts.append(list(calls))
        return [Answer.ADDED] * len(calls)

    async def aput(self, calls: Sequence[Posted], /) -> Sequence[Answer]:
        await asyncio.sleep(0)
        return self.put(calls)

    def result(self, answers: Answers, answer: Answer | None = None, /) -> Put:
        return Put(answers, answer)

    def close(self) -> None: ...

    async def aclose(self) -> None: ...


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

    assert add(2) == 3
    assert add(2, y=5) == 7
    assert (add.__name__, add.__doc__, add.name) == ("add", "Add two numbers.", "add")  # type: ignore[attr-defined]  # as of any function
    assert list(inspect.signature(add).parameters) == ["x", "y"]
    assert repr(add) == "<function add of App('mail')>"
    assert app.functions == {"add": add}


async def test_a_coroutine_function_is_still_awaited(app: App) -> None:
    @app.task
    async def add(x: int, y: int = 1) -> int:
        return x + y

    assert await add(2) == 3
    assert add.definition.is_async


def test_a_function_that_takes_a_context_is_given_one_in_a_plain_call(app: App) -> None:
    @app.task
    def attempt(ctx: Context[None], more: int) -> int:
        return ctx.attempt + more

    assert attempt(Context("attempt", "id", 3, 1, None), 4) == 7
    assert attempt.call(4).arguments.k == b'{"more":4}'


def test_a_name_of_its_own_stands_in_calls_and_ids(app: App, outbox: Outbox) -> None:
    @app.task(name="billing.send")
    def send(to: str) -> None: ...

    send.delay("a")
    (call,) = outbox.puts[0]
    assert call.id.startswith(b"billing.send:")
    assert json.loads(call.payload)["f"] == "billing.send"
    assert list(app.functions) == ["billing.send"]


def test_a_name_stands_for_one_function(app: App) -> None:
    def send(to: str) -> None: ...

    app.task(send)
    assert bad(app, send) == "App('mail') has a function 'send' already: pass another name=, such as 'billing.send'"
    app.task(name="billing.send")(send)
    assert list(app.functions) == ["send", "billing.send"]


def test_a_function_may_be_made_by_another_function(app: App) -> None:
    def make(factor: int) -> Callable[[int], int]:
        def times(x: int) -> int:
            return x * factor

        return times

    assert app.task(make(3)).name == "times"
    assert app.task(name="ten")(make(10))(2) == 20


class Shop:
    def open(self) -> None: ...

    @staticmethod
    def close() -> None: ...

    def __call__(self) -> None: ...


def numbers() -> Generator[int, None, None]:
    yield 1


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (Shop.open, "Shop.open is a method: a call has no object to run it on; move it out of Shop"),
        (Shop.close, "Shop.close is a method"),
        (Shop().open, "is no function (method): decorate what def or async def makes"),
        (Shop(), "is no function (Shop)"),
        (Shop, "is no function (a class)"),
        (partial(print, 5), "is no function (partial)"),
        (print, "is no function (builtin_function_or_method)"),
        (staticmethod(numbers), "is no function (staticmethod)"),
        (lambda: None, "a lambda has no name under which a worker could find it"),
        (numbers, "numbers() is a generator function: calling it runs nothing"),
        (5, "5 is no function (int)"),
        (None, "None is no function (NoneType)"),
    ],
)
def test_what_no_worker_could_find_or_run_is_refused(app: App, function: Any, said: str) -> None:
    assert said in bad(app, function)
    assert not app.functions


def test_a_lambda_with_a_name_is_a_function(app: App) -> None:
    assert app.task(name="nothing")(lambda: None).name == "nothing"


def test_functions_whose_keys_could_make_the_same_id_are_refused(app: App) -> None:
    def thumb(path: str) -> None: ...
    def resize(path: str) -> None: ...

    app.task(key="thumb:{path}")(thumb)
    for key in ("thumb:{path}", "thumb:{path}:big", "thumb:big:{path}", "{path}", "thu{path}"):
        assert bad(app, resize, key=key).startswith("the keys of resize() and thumb() may make the same id")
    app.task(key="resize:{path}")(resize)
    app.task(key=True, name="send")(resize)
    assert "may make the same id" in bad(app, resize, key="send:{path}", name="other")


def test_a_function_whose_results_nobody_keeps_may_return_anything(app: App) -> None:
    def opened() -> Shop: ...  # type: ignore[empty-body]  # never called
    def counted() -> int: ...  # type: ignore[empty-body]  # never called

    assert "what it returns cannot be kept: Shop is no type of JSON" in bad(app, opened)
    assert app.task(keep_result=0)(opened).returns is Any
    assert app.task(keep_result=0)(counted).returns is int


def test_a_key_of_all_arguments_needs_defaults_that_are_json(app: App) -> None:
    def thumb(path: str, cache: Any = Shop()) -> None: ...  # noqa: B008  # this is what is refused

    assert bad(app, thumb, key=True) == "thumb(): the default of 'cache' is no JSON, so no key can name it"
    assert app.task(key="thumb:{path}")(thumb).call("a").key == "thumb:a"


@pytest.mark.parametrize("key", [False, 5, b"thumb:{path}"])
def test_a_key_is_true_or_a_text(app: App, key: Any) -> None:
    def thumb(path: str) -> None: ...

    expected = f"thumb(): key={key!r} is neither True nor a text such as key='thumb:{{path}}'"
    assert bad(app, thumb, key=key) == expected


def test_equal_keys_on_other_queues_are_other_ids() -> None:
    app = App("crawl", queues=["crawl", "parse"])

    def fetch(url: str) -> None: ...
    def parse(url: str) -> None: ...

    app.task(key="{url}")(fetch)
    app.task(key="{url}", queue="parse")(parse)
    assert "may make the same id" in bad(app, parse, key="{url}", name="other")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retries": 3}, "task() has no option retries=; it has name, queue, retry"),
        ({"key": "send:{too}"}, "there is no parameter 'too'; there is to"),
        ({"key": 5}, "is neither True nor a text such as key='send:{path}'"),
        ({"unique": "forever"}, "send(): unique= is about ids that a key makes: add key="),
        ({"unique": "always", "key": True}, "unique must be"),
        ({"limit": 3}, "limit= takes a Limit("),
        ({"limit": Limit(per="{too}")}, "send(): per='{too}': there is no parameter 'too'"),
        ({"queue": "other"}, "queue='other' is no queue of this app: one of mail"),
        ({"retry": "often"}, "retry= takes"),
        ({"max_runtime": 0}, "max_runtime"),
        ({"keep_result": -1}, "keep_result must be"),
        ({"name": "a b"}, "'a b' is no name for a function"),
        ({"name": ""}, "'' is no name for a function"),
        ({"cron": "* * * * *"}, "send() is called by its schedule without arguments, but needs 'to'"),
        ({"cron": "* * * * *", "every": 5}, "this has both of cron= and every="),
        ({"cron": "* * *"}, "cron='* * *' has 3 fields"),
        ({"cron": "* * * * *", "tz": "Europe/Nowhere"}, "Europe/Nowhere"),
        ({"every": 0.5}, "out of range: 1 s to 3,660 days"),
        ({"every": 5, "missed": "some"}, "missed='some' is unknown"),
        ({"every": 5, "missed": "all"}, "add overlap=True"),
        ({"cron": "* * * * *", "missed": "all", "overlap": False}, "add overlap=True"),
        ({"tz": "UTC"}, "tz= is for schedules: add cron= or every="),
        ({"overlap": False}, "overlap= is for schedules"),
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

    assert usual.settings.retry is not None
    assert usual.settings.retry.decide(2, "x") == 2
    assert (usual.settings.max_runtime, usual.settings.keep_result, usual.settings.keep_none) == (60.0, 5.0, True)
    assert own.settings.retry is not None
    assert own.settings.retry.decide(1, "x") is None
    assert (own.settings.max_runtime, own.settings.keep_result, own.settings.keep_none) == (7.0, 0.0, False)


def test_results_are_kept_for_an_hour_and_none_only_where_somebody_asked(app: App) -> None:
    @app.task
    def usual() -> None: ...

    @app.task(keep_result=60)
    def asked() -> None: ...

    assert (usual.settings.keep_result, usual.settings.keep_none) == (3600.0, False)
    assert (asked.settings.keep_result, asked.settings.keep_none) == (60.0, True)


def test_a_schedule_is_kept_as_it_was_written(app: App) -> None:
    @app.task(cron="0 9 * * 1-5", tz="Europe/Berlin", missed="last", grace=timedelta(hours=6))
    def report(ctx: Context[None], n: int = 5) -> None: ...

    timed = report.settings.timed
    assert timed is not None
    assert (timed.cron, timed.tz, timed.missed, timed.grace, timed.overlap) == (
        "0 9 * * 1-5", "Europe/Berlin", "last", timedelta(hours=6), False,
    )  # fmt: skip


# ---- queues and secrets


def test_an_app_has_a_queue_of_its_name_or_those_that_it_is_given() -> None:
    assert App("mail").queues.names == ("mail",)
    assert App("mail", queues=["mail.high", "mail"]).queues.weights is None
    assert App("mail", queues={"mail": 3, "bulk": 1}).queues.weights == (3, 1)


def test_functions_say_their_queue_where_no_queue_is_the_usual_one() -> None:
    app = App("mail", queues=["high", "low"])

    def send(to: str) -> None: ...

    assert "several queues, and none is called 'mail': say queue=" in bad(app, send)
    assert app.task(queue="low")(send).settings.queue == "low"
    assert App("mail", queues=["only"]).task(send).settings.queue == "only"
    assert App("mail", queues=["high", "mail"]).task(send).settings.queue == "mail"


@pytest.mark.parametrize(
    "options",
    [
        {"queues": []}, {"queues": {}}, {"queues": "mail"}, {"queues": ["a", "a"]}, {"queues": ["a b"]}, {"queues": 5},
        {"queues": {"a": 0}}, {"queues": {"a": 1.5}}, {"queues": ["a"] * 101}, {"secret": "short"}, {"retry": "often"},
        {"max_runtime": -1}, {"keep_result": "long"}, {"name": "a b"}, {"name": 5},
    ],
)  # fmt: skip
def test_an_app_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        App(options.pop("name", "mail"), **options)


def test_an_app_shows_no_secret() -> None:
    assert "a secret" not in repr(App("mail", secret="a secret of 21 bytes."))
    assert "a secret" not in str(vars(App("mail", secret="a secret of 21 bytes.")))


@pytest.mark.parametrize(
    "options",
    [{"concurrency": 0}, {"concurrency": True}, {"every": -1}, {"every": float("inf")}, {"concurrency": 10_001}],
)
def test_a_limit_that_lets_nothing_run_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Limit(**options)


# ---- on the way to a sender


def test_delay_puts_one_call_and_gives_what_stands_for_its_result(app: App, outbox: Outbox) -> None:
    @app.task
    def add(x: int, y: int = 1) -> int:
        return x + y

    result = add.options(after=60).delay(2, y=5)
    assert [[(call.queue, call.after) for call in calls] for calls in outbox.puts] == [[("mail", 60.0)]]
    assert result.id == outbox.puts[0][0].id.decode()
    assert carried_out(app, outbox.puts[0][0]) == 7


async def test_adelay_and_aput_do_the_same(app: App, outbox: Outbox) -> None:
    @app.task
    async def add(x: int, y: int = 1) -> int:
        return x + y

    await add.adelay(2)
    await add.call(3).adelay()
    results = await app.aput(add.call(n) for n in range(3))
    assert [len(calls) for calls in outbox.puts] == [1, 1, 3]
    assert [await carried_out(app, call) for calls in outbox.puts for call in calls] == [3, 4, 1, 2, 3]
    assert [one.id for one in results] == [call.id.decode() for call in outbox.puts[2]]


def test_put_takes_any_number_of_calls_of_any_functions(app: App, outbox: Outbox) -> None:
    @app.task
    def add(x: int, y: int = 1) -> int:
        return x + y

    @app.task
    def double(x: int) -> int:
        return 2 * x

    results = app.put([add.call(1), double.call(4), add.call(1).then(double)])
    assert [carried_out(app, call) for call in outbox.puts[0]] == [2, 8, 2]
    assert len({one.id for one in results}) == 3
    assert app.put([]) == []


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


def test_an_app_whose_server_is_away_can_make_calls_but_not_put_them() -> None:
    app = App("mail", sender=Posting("redis://127.0.0.1:1", deadline=0.1))

    @app.task
    def add(x: int) -> None: ...

    call = add.call(1)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        call.delay()
    app.sender = Outbox()
    call.delay()


async def test_a_sender_that_knows_no_batches_is_named(app: App, outbox: Outbox) -> None:
    @app.task
    def nothing() -> None: ...

    says = "Outbox .* puts no batches: give the app url= instead of this sender"
    with pytest.raises(InvalidInput, match=says):
        app.batch([nothing.call()])
    with pytest.raises(InvalidInput, match=says):
        await app.abatch([nothing.call()])
    assert outbox.puts == []


# ---- what a worker reads


def test_a_worker_gets_the_function_its_arguments_and_its_options(app: App, outbox: Outbox) -> None:
    @app.task(retry=[1, 2], max_runtime=60)
    def add(x: int, /, y: int = 1, *more: int, z: int = 0) -> int:
        return x + y + sum(more) + z

    add.delay(1, 2, 3, z=4)
    add.options(retry=[9], max_runtime=5, keep_result=7).delay(1)
    usual, own = (app.open(calls[0].payload, "mail", calls[0].id) for calls in outbox.puts)
    assert (usual.definition, usual.args, usual.kwargs) == (add.definition, [1, 2, 3], {"z": 4})
    assert (usual.max_runtime, usual.keep_result, usual.keep_none) == (60.0, 3600.0, False)
    assert isinstance(usual.retry, RetryPolicy)
    assert (own.max_runtime, own.keep_result, own.keep_none) == (5.0, 7.0, True)
    assert own.retry is not None
    assert (own.retry.decide(1, "x"), own.retry.decide(2, "x")) == (9.0, None)


def test_a_function_that_a_worker_does_not_know_may_come(app: App) -> None:
    with pytest.raises(UnknownFunction, match=r"App\('mail'\) has no function 'os\.system' here") as caught:
        app.open(b'{"v":1,"f":"os.system","a":["rm"]}', "mail", b"x")
    assert caught.value.function == "os.system"
    assert isinstance(caught.value, MAY_FIT_LATER)


def test_what_may_fit_later_and_what_never_will() -> None:
    assert set(MAY_FIT_LATER) == {BadArguments, NewerCall, UnknownFunction, UnknownSecret}
    never = {BadFunction, CallTooLarge, NotACall, Forged}
    assert not any(issubclass(one, MAY_FIT_LATER) for one in never)
    assert all(issubclass(one, TimeoutqError) for one in never | set(MAY_FIT_LATER))


def test_arguments_of_another_version_of_a_function_may_fit_later(app: App) -> None:
    @app.task
    def send(to: str) -> None: ...

    with pytest.raises(MAY_FIT_LATER, match="has no parameter 'subject'"):
        app.open(b'{"v":1,"f":"send","k":{"to":"a","subject":"b"}}', "mail", b"x")


def test_the_call_that_follows_has_the_result_as_its_first_argument(app: App, outbox: Outbox) -> None:
    @app.task
    def fetch(url: str) -> list[int]:
        return [len(url)]

    @app.task(keep_result=5)
    def parse(sizes: list[int], factor: int = 1) -> int:
        return sizes[0] * factor

    @app.task
    def show(text: int, /, *more: str) -> str:
        return f"{text} {more}"

    chain = fetch.call("abc").then(parse, factor=5).then(show, "x", "y").delay()
    (first,) = outbox.puts[0]
    opened = app.open(first.payload, first.queue, first.id)
    second = app.follow(opened, first.queue, first.id, b"[3]")
    assert second is not None
    assert (second.id, second.answers.keep_result) == (first.id + b">parse", 5.0)
    assert carried_out(app, second) == 15
    third = app.follow(app.open(second.payload, second.queue, second.id), second.queue, second.id, b"15")
    assert third is not None
    assert (third.queue, third.id) == (first.answers.queue, first.answers.id)
    assert carried_out(app, third) == "15 ('x', 'y')"
    assert app.follow(app.open(third.payload, third.queue, third.id), third.queue, third.id, b'"x"') is None
    assert chain.id == third.id.decode()


def test_a_result_that_does_not_fit_what_follows_is_told_before_anything_is_put(app: App, outbox: Outbox) -> None:
    @app.task
    def fetch(url: str) -> Any: ...

    @app.task
    def parse(size: int) -> None: ...

    fetch.call("abc").then(parse).delay()
    (first,) = outbox.puts[0]
    opened = app.open(first.payload, first.queue, first.id)
    with pytest.raises(BadArguments, match="cannot take 'size': expected int, got str"):
        app.follow(opened, first.queue, first.id, b'"three"')


def test_what_follows_is_signed_for_its_own_queue_and_id() -> None:
    outbox = Outbox()
    app = App("mail", queues=["mail", "parsing"], secret="a secret of 21 bytes.", sender=outbox)

    @app.task
    def fetch(url: str) -> int: ...  # type: ignore[empty-body]  # never called

    @app.task(queue="parsing")
    def parse(size: int) -> None: ...

    fetch.call("abc").then(parse).delay()
    (first,) = outbox.puts[0]
    second = app.follow(app.open(first.payload, first.queue, first.id), first.queue, first.id, b"3")
    assert second is not None
    assert (second.queue, second.id) == ("parsing", first.id + b">parse") == (first.answers.queue, first.answers.id)
    app.open(second.payload, second.queue, second.id)
    with pytest.raises(Forged):
        app.open(second.payload, first.queue, second.id)
    with pytest.raises(Forged):
        app.open(second.payload, second.queue, first.id)


def test_schemas_are_json(app: App) -> None:
    @app.task
    def send(to: str, n: int = 5, when: timedelta = timedelta(0)) -> None: ...

    schemas = json.loads(json.dumps(app.schemas()))
    assert schemas["send"]["properties"]["k"]["properties"]["n"] == {"type": "integer", "default": 5}
    assert schemas["send"] == send.schema()


# ---- the room


def test_all_names_of_the_room_can_be_imported_and_each_says_what_it_is() -> None:
    for name in timeoutq.functions.__all__:
        assert getattr(timeoutq.functions, name).__doc__ or name == "Unique"


def test_the_room_speaks_to_no_server() -> None:
    code = "import sys, timeoutq.functions; print(*sorted({'redis', 'asyncio'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() in ([], ["asyncio"]), "tenacity imports asyncio"


def test_without_its_extra_the_room_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['msgspec'] = None\ntry: import timeoutq.functions\nexcept ImportError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("pip install 'timeoutq[functions]'")
