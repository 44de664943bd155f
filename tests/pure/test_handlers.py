"""What a handler is: its kind, its parameters, its name, where it is found; and that decisions are plain values."""

from __future__ import annotations

import copy
import functools
import os
import pickle
import sysconfig
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any

import pytest

from timeoutq import Ack, GiveUp, HandlerNotFound, InvalidInput, Lease, Politeness, Release, Retry, Worker
from timeoutq.testing import fake_async_queue
from timeoutq.words.arguments import error_text
from timeoutq.worker.handlers import Surroundings, load, name_of, released, shape_of

DECISIONS = [
    Ack(put=["a"], again_in=3, payload={"x": 1}),
    Ack(result=b"8", keep_result=60, keep_id=False),
    Release(delay=1, block_host=2),
    Retry(5, "busy", block_host=60),
    GiveUp("gone"),
]


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda one: type(one).__name__)
def test_a_decision_is_a_value_that_can_be_raised(decision: Any) -> None:
    for other in (pickle.loads(pickle.dumps(decision)), copy.copy(decision), copy.deepcopy(decision)):
        assert other == decision
        assert hash(other) == hash(decision)
        assert repr(other) == repr(decision)
    assert eval(repr(decision)) == decision
    assert decision != type(decision)()
    assert decision != "Ack"
    with pytest.raises(type(decision)) as raised:
        raise decision
    assert raised.value is decision


def test_a_group_of_releases_waits_and_blocks_for_the_longest() -> None:
    found = released(ExceptionGroup("both", [Release(1, block_host=60), Release(5, block_host=2)]))
    assert found == Release(5, block_host=60)


def repr_of(value: object) -> str:
    return str(value) if isinstance(value, bool) else name_of(value)


def one(lease: Lease) -> None: ...
def one_and_default(lease: Lease, times: int = 3) -> None: ...
def one_and_state(lease: Lease, state: Any = None) -> None: ...
def two(lease: Lease, database: Any) -> None: ...
def any_number(*arguments: Any) -> None: ...
def one_and_any(lease: Lease, *arguments: Any, **named: Any) -> None: ...
def with_optional_keyword(lease: Lease, *, times: int = 3) -> None: ...


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return wrapper


def injecting(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(lease: Lease) -> Any:
        return function(lease, "database")

    return wrapper


class Crawler:
    def fetch(self, lease: Lease) -> None: ...

    def with_state(self, lease: Lease, state: Any) -> None: ...

    @wrapped
    def decorated(self, lease: Lease, state: Any) -> None: ...

    def __call__(self, lease: Lease, state: Any) -> None: ...


@pytest.mark.parametrize(
    ("handler", "given"),
    [
        (one, False),
        (one_and_default, False),
        (one_and_state, True),
        (two, True),
        (any_number, True),
        (wrapped(one), False),
        (wrapped(two), True),
        (injecting(two), False),
        (functools.partial(two, database=1), False),
        (Crawler().fetch, False),
        (Crawler().with_state, True),
        (Crawler().decorated, True),
        (Crawler(), True),
        (min, False),
    ],
    ids=repr_of,
)
def test_the_state_is_given_to_a_handler_that_takes_it(handler: Callable[..., Any], given: bool) -> None:
    assert shape_of(handler, has_state=True).takes_state == given


def test_without_a_lifespan_there_is_no_state() -> None:
    for handler in (one, one_and_state, any_number, wrapped(one)):
        assert not shape_of(handler).takes_state
    with pytest.raises(
        InvalidInput, match=r"two takes \(lease, database\), but there is no state .* lifespan= .*--lifespan m"
    ):
        shape_of(two)


async def fetch(lease: Lease) -> None: ...


class AsyncCall:
    async def __call__(self, lease: Lease) -> None: ...

    async def method(self, lease: Lease) -> None: ...


@pytest.mark.parametrize(
    ("handler", "is_async"),
    [
        (fetch, True),
        (functools.partial(fetch), True),
        (AsyncCall(), True),
        (AsyncCall().method, True),
        (wrapped(fetch), False),
        (lambda lease: fetch(lease), False),
        (one, False),
        (Crawler().fetch, False),
    ],
    ids=repr_of,
)
def test_only_what_surely_does_not_block_is_called_in_the_event_loop(handler: Any, is_async: bool) -> None:
    assert shape_of(handler).is_async == is_async


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("mymodule.py:fetch", "a module has no .py, write mymodule:fetch"),
        ("mymodule", "write module:function"),
        ("asyncio:nothing", "module asyncio has no nothing"),
        ("asyncio:__name__", "is not callable but str"),
        ("no_such_module_at_all:fetch", "No module named 'no_such_module_at_all' (searched from "),
    ],
)
def test_a_path_that_names_no_handler_says_what_to_write(path: str, message: str) -> None:
    with pytest.raises(HandlerNotFound) as raised:
        load(path)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("x = {}\nx['key']\n", "raised KeyError: 'key' (part.py, line 2)"),
        ("import json\njson.loads('')\n", "(char 0) (part.py, line 2)"),
        ("import none_of_this_name\n", "No module named 'none_of_this_name' (part.py, line 1; searched from "),
        ("x = (\n", "raised SyntaxError: '(' was never closed (part.py, line 1)"),
        ("\neval('1 +')\n", "raised SyntaxError: invalid syntax (<string>, line 1) (part.py, line 2)"),
    ],
)
def test_an_import_that_fails_names_the_line_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, message: str
) -> None:
    (tmp_path / "program.py").write_text("import part\n")
    (tmp_path / "part.py").write_text(lines)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HandlerNotFound) as raised:
        load("program:fetch")
    assert message in str(raised.value)


def test_the_program_of_an_import_that_fails_may_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site" / "shop").mkdir(parents=True)
    (tmp_path / "site" / "shop" / "__init__.py").write_text("")
    (tmp_path / "site" / "shop" / "tasks.py").write_text("import settings_of_some_library\n")
    (tmp_path / "site" / "settings_of_some_library.py").write_text("raise ValueError('no settings')\n")
    paths = {"stdlib": str(Path(os.__file__).parent), "purelib": str(tmp_path), "platlib": str(tmp_path)}
    monkeypatch.setattr(sysconfig, "get_path", paths.__getitem__)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HandlerNotFound, match=r"raised ValueError: no settings \(site/shop/tasks.py, line 1\)"):
        load("shop.tasks:fetch")


def test_an_error_is_text_of_four_kilobytes_at_most() -> None:
    assert error_text("as it is") == b"as it is"
    assert error_text("") == b"unknown error"
    assert error_text(ValueError("x" * 10_000)) == b"ValueError: " + b"x" * (4096 - 12)
    assert error_text(KeyError()) == b"KeyError"


variable: ContextVar[object] = ContextVar("variable")
other: ContextVar[object] = ContextVar("other")


# ---- exception groups


def test_the_error_of_a_group_names_its_members_and_is_bounded() -> None:
    group = ExceptionGroup("g", [ValueError("a"), GiveUp("b"), ExceptionGroup("inner", [KeyError("c")])])
    assert (
        error_text(group).decode()
        == "ExceptionGroup: g (ValueError: a; GiveUp: b; ExceptionGroup: inner (KeyError: 'c'))"
    )
    many = error_text(ExceptionGroup("many", [ValueError("x" * 5000)] * 1000))
    assert many.endswith(b"; and 990 more)")
    assert len(many) < 3000
    deep = ValueError("bottom")
    for _ in range(500):
        deep = ExceptionGroup("deep", [deep])  # type: ignore[assignment]  # a group in a group
    assert error_text(deep).endswith(b"deep (1 in it))))")


@pytest.mark.parametrize(
    ("inside", "state", "due"),
    [
        ([ValueError("a"), GiveUp("b")], "failed", None),
        ([Retry(60), ExceptionGroup("inner", [GiveUp("b")])], "failed", None),
        ([Retry(60, block_host=120), ValueError("a"), Retry(90), Retry()], "scheduled", 90),
        ([ValueError("a"), KeyError("b")], "scheduled", 7),
        ([Release(30), ExceptionGroup("inner", [Release(50)])], "scheduled", 50),
        ([Release(30), ValueError("a")], "scheduled", 7),
        ([Ack()], "scheduled", 7),
    ],
)
async def test_a_decision_in_a_group_counts(inside: list[Exception], state: str, due: float | None) -> None:
    async def handler(lease: Lease) -> None:
        raise ExceptionGroup("g", inside)

    async with fake_async_queue(retry=[7]) as queue:
        await queue.configure(politeness=Politeness(delay=0))
        await queue.put("https://a.example/")
        await Worker(queue, handler, signals=False, max_tasks=1).run()
        found = await queue.inspect("https://a.example/")
        assert found.state == state
        assert found.due == (None if due is None else pytest.approx(queue.clock.now + due, abs=0.01))
        assert found.failures == (0 if due == 50 else 1)
        host = await queue.hosts.inspect("https://a.example/")
        assert (host.blocked_until or 0) == (pytest.approx(queue.clock.now + 120, abs=0.01) if due == 90 else 0)
        if found.failures:
            assert str(found.error).startswith("ExceptionGroup: g (")


def test_a_context_has_changed_when_a_variable_is_another_object() -> None:
    def look() -> None:
        around = Surroundings(copy_context())
        assert not around.changed()
        token = variable.set([])
        assert around.changed()
        variable.reset(token)
        assert not around.changed()
        variable.set([])
        around = Surroundings(copy_context())
        assert not around.changed()
        variable.set([])  # it is equal, but what is put into it would be seen by the next
        assert around.changed()
        assert not around.fresh().run(around.changed)
        around.fresh().run(other.set, 1)
        assert not around.fresh().run(around.changed)

    copy_context().run(look)
