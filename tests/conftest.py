"""Servers and queues for the tests: a real Valkey and a real Redis, each started once by the tests and ended by pid."""

from __future__ import annotations

import asyncio
import gc
import importlib.metadata
import logging
import signal
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import redis

from tests.rig import canary, levels, traces
from tests.rig.faces import Blocking
from tests.rig.invariants import check
from tests.rig.servers import redis_server
from timeoutq import Queue
from timeoutq.server.embedded import EmbeddedServer

_numbers = count(1)

# how long an example takes is the load of the machine
hypothesis.settings.register_profile("timeoutq", deadline=None)
hypothesis.settings.load_profile("timeoutq")

# redis-py 8 asks for its own version with each connection, and reads a file for it: a tenth of a run
importlib.metadata.version = cache(importlib.metadata.version)

_skipped: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the length of a storm."""
    parser.addoption("--storm", metavar="TIME", help="how long each storm lasts: 10m, 8h (default: some seconds)")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to look for the canary, and keep temporary files together."""
    canary.watch()
    asyncio.set_event_loop(None)  # otherwise pytest-asyncio asks for one, and leaves it open: a random test is blamed
    traces.hear_ctrl_c()
    traces.keep_compiled()
    if not hasattr(config, "workerinput"):  # those that run in parallel use the folder of the one that started them
        traces.begin()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files of the slower tier in an everyday run: to compile them would take half as long again."""
    return (config.option.markexpr == "not breaking" and levels.is_breaking(str(collection_path))) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Let the processes of pytest-xdist compile the tests together."""
    worker = getattr(session.config, "workerinput", None)
    if worker is not None and session.config.args == session.config.getini("testpaths"):
        # each begins with another part, and finds the others compiled; all tests are put in order afterwards
        folders = sorted(str(path) for path in Path(__file__).parent.glob("[a-z]*/") if path.name != "rig")
        first = int(worker["workerid"].removeprefix("gw")) * len(folders) // worker["workercount"]
        session.config.args = folders[first:] + folders[:first]


def pytest_collection_finish() -> None:
    """Let no collection of garbage look at the tests and their modules again: they stay to the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, object, object]:
    """Mark the slower tier; and let the files with the longest tests begin, and then those with the most tests."""
    items.sort(key=lambda item: str(item.path))
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if levels.is_alone(str(item.path)):
            item.add_marker(pytest.mark.alone)
        is_copy = params.get("server") == "redis" or params.get("face") == "async"
        if item.get_closest_marker("alone") or levels.is_breaking(str(item.path), is_copy=is_copy):
            item.add_marker(pytest.mark.breaking)
    result = yield
    longest: defaultdict[str, float] = defaultdict(float)
    for item in items:
        limit = item.get_closest_marker("timeout")
        longest[str(item.path)] = max(longest[str(item.path)], limit.args[0] if limit and limit.args else 0)
    most = Counter(str(item.path) for item in items)
    items.sort(key=lambda item: (-longest[str(item.path)], -most[str(item.path)]))
    return result


def pytest_unconfigure() -> None:
    """End looking for it, and remove the files."""
    canary.unwatch()
    traces.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test in whose output, logs, files or programs the canary is seen."""
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path") if call.when == "teardown" else None
    places = canary.seen(report.sections, folder)
    # lone surrogates, which hostile texts hold, cannot be handed from one process of pytest-xdist to another
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    if places:
        report.outcome = "failed"
        report.longrepr = f"the password of the server is shown in {', '.join(dict.fromkeys(places))}"
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note which files have tests that were skipped."""
    if report.skipped:
        _skipped.add(report.location[0])


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in which tests were skipped that must run here."""
    missed = sorted(filter(levels.must_run, _skipped))
    if missed and session.exitstatus == pytest.ExitCode.OK and not hasattr(session.config, "workeroutput"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        session.config.pluginmanager.get_plugin("terminalreporter").write_line(  # type: ignore[union-attr]  # always there
            f"\ntests that must run here were skipped: {', '.join(missed)}", red=True
        )


@pytest.fixture(scope="session", params=["valkey", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """One server a session, of each kind; its password is the canary."""
    if request.param == "redis":
        started = EmbeddedServer(binary=redis_server(), config={"requirepass": canary.PASSWORD})
    else:
        started = EmbeddedServer(config={"requirepass": canary.PASSWORD})
    with started:
        yield started


@pytest.fixture(autouse=True)
def _process_as_it_was() -> Iterator[None]:
    """A command that runs inside the tests sets up logs and signals of its process; each test finds the usual."""
    names = ("", "timeoutq", "httpx", "httpcore", "asyncio")
    logs = [(found, found.level, found.propagate) for found in map(logging.getLogger, names)]
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP)
    signals = [(number, signal.getsignal(number)) for number in numbers]
    yield
    for number, handler in signals:
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    for found, level, propagate in logs:
        found.setLevel(level)
        found.propagate = propagate
    for stream in list(logging.getLogger().handlers):
        if type(stream) is logging.StreamHandler:
            logging.getLogger().removeHandler(stream)


@pytest.fixture
def url(server: EmbeddedServer) -> str:
    """Where the server is; it is empty."""
    with redis.Redis.from_url(server.url) as raw:
        raw.flushall()
        raw.config_set("maxmemory", "0")
    return server.url


@pytest.fixture
def raw(url: str) -> Iterator[redis.Redis]:
    """A plain client, to look at the keys as anyone can."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        yield client


@pytest.fixture
def name() -> str:
    """The name of a queue that no other test uses."""
    return f"q{next(_numbers)}"


@pytest.fixture
def queue(url: str, name: str) -> Iterator[Queue]:
    """A queue; after the test its invariants must hold, and a purge must leave no key."""
    with Queue(name, url, timeout=5) as opened:
        yield opened
        check(url, name)
        opened.purge()
        with redis.Redis.from_url(url) as client:
            left = list(client.scan_iter(f"timeoutq:{{{name}}}:*"))
            assert left == [], f"a purge left keys; purge.lua must remove them: {left}"


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest, url: str, name: str) -> Iterator[Any]:
    """The same queue through either face; after the test its invariants must hold, and a purge must leave no key."""
    kind: Any = Queue if request.param == "sync" else Blocking
    with kind(name, url, timeout=5) as opened:
        yield opened
        check(url, name)
        opened.purge()
        with redis.Redis.from_url(url) as client:
            left = list(client.scan_iter(f"timeoutq:{{{name}}}:*"))
            assert left == [], f"a purge left keys; purge.lua must remove them: {left}"
