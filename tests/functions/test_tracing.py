"""Spans of OpenTelemetry: one trace from the caller through the worker, and nothing at all while tracing is off."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.functions.running import work
from timeoutq import Ack, GiveUp, Lease, Queue, Release, Retry
from timeoutq.functions import App, tracing
from timeoutq.worker.handlers import Expired

SECRET = "a secret of sixteen bytes"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    found, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    # a program sets it once; each test has one of its own
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield found
    provider.shutdown()


@pytest.fixture
def app(url: str, name: str) -> Iterator[App]:
    made = App(name, url=url, secret=SECRET)

    @made.task
    async def add(x: int, y: int = 1) -> int:
        with trace.get_tracer("mine").start_as_current_span("adding"):
            return x + y

    @made.task
    def double(x: int) -> int:
        with trace.get_tracer("mine").start_as_current_span("doubling"):
            return 2 * x

    @made.task(retry=[0.01])
    async def break_once(key: str) -> None:
        raise ValueError(key)

    yield made
    made.close()
    with Queue(name, url) as queue:
        queue.purge()


def called(app: App, name: str, *args: Any) -> Any:
    return app.functions[name].call(*args)


def by_name(spans: InMemorySpanExporter) -> dict[str, list[ReadableSpan]]:
    found: dict[str, list[ReadableSpan]] = {}
    for span in spans.get_finished_spans():
        found.setdefault(span.name, []).append(span)
    return found


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else int(span.parent.span_id)


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def payload_of(app: App, id: str) -> dict[str, Any]:
    with Queue(app.name, app.url) as queue:
        (lease,) = [one for one in queue.claim(9) if one.task == id]
        queue.release(lease)
        found: dict[str, Any] = json.loads(lease.payload) if isinstance(lease.payload, bytes) else dict(lease.payload)
        return found


def test_a_call_and_its_run_are_in_the_trace_of_the_caller(app: App, spans: InMemorySpanExporter) -> None:
    with trace.get_tracer("mine").start_as_current_span("request"):
        result = called(app, "add", 1).delay()
    work(app)
    assert result.wait(5) == 2
    found = {name: many[0] for name, many in by_name(spans).items()}
    assert found.keys() == {"request", "create add", "process add", "adding"}
    assert len({span.context.trace_id for span in found.values() if span.context}) == 1
    assert parent_of(found["create add"]) == id_of(found["request"])
    assert parent_of(found["process add"]) == id_of(found["create add"])
    assert parent_of(found["adding"]) == id_of(found["process add"])
    assert (found["create add"].kind, found["process add"].kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    told = dict(found["process add"].attributes or {})
    assert (told["messaging.destination.name"], told["messaging.message.id"]) == (app.name, result.id)
    assert told["timeoutq.attempt"] == 1


def test_a_chain_is_one_trace_and_a_function_in_a_thread_is_in_it(app: App, spans: InMemorySpanExporter) -> None:
    result = called(app, "add", 1).then(app.functions["double"]).delay()
    work(app)
    assert result.wait(5) == 4
    found = {name: many[0] for name, many in by_name(spans).items()}
    assert parent_of(found["create double"]) == id_of(found["process add"])
    assert parent_of(found["process double"]) == id_of(found["create double"])
    assert parent_of(found["doubling"]) == id_of(found["process double"])


def test_a_call_that_a_function_makes_is_in_the_trace_of_its_caller(app: App, spans: InMemorySpanExporter) -> None:
    @app.task
    async def ask() -> None:
        await app.functions["add"].adelay(1)

    @app.task
    def ask_in_thread() -> None:
        app.functions["double"].delay(1)

    with trace.get_tracer("mine").start_as_current_span("request"):
        ask.delay()
        ask_in_thread.delay()
    work(app)
    found = {name: many[0] for name, many in by_name(spans).items()}
    assert len({span.context.trace_id for span in found.values() if span.context}) == 1
    for outer, inner in (("ask", "add"), ("ask_in_thread", "double")):
        assert parent_of(found[f"create {inner}"]) == id_of(found[f"process {outer}"])
        assert parent_of(found[f"process {inner}"]) == id_of(found[f"create {inner}"])


def test_a_call_that_is_put_because_another_has_failed_is_in_the_trace_of_that_one(
    app: App, spans: InMemorySpanExporter
) -> None:
    @app.task
    async def tell(id: str, error: str) -> None: ...

    @app.task(retry=[], on_failed=tell)
    async def fails() -> None:
        raise ValueError

    fails.delay()
    work(app)
    found = {name: many[0] for name, many in by_name(spans).items()}
    assert len({span.context.trace_id for span in found.values() if span.context}) == 1
    assert parent_of(found["create tell"]) == id_of(found["create fails"])
    assert parent_of(found["process tell"]) == id_of(found["create tell"])


@pytest.mark.parametrize(
    ("end", "is_raised", "is_error"),
    [(Ack(), True, False), (Release(), False, False), (None, False, False), (Retry(after=1), False, True),
     (GiveUp("no"), True, True), (ValueError("x"), True, True), (Expired("expired: "), False, True)],
)  # fmt: skip
async def test_how_a_run_ends_says_whether_it_is_an_error(
    spans: InMemorySpanExporter, end: Any, is_raised: bool, is_error: bool
) -> None:
    async def run(_: Lease) -> Any:
        if is_raised:
            raise end
        return end

    lease = Lease("t", "w/1", 0.0, payload=b'{"v":1,"f":"f"}')
    with pytest.raises(type(end)) if is_raised else nullcontext():
        assert await tracing.traced(run, "q")(lease) is end
    (span,) = spans.get_finished_spans()
    assert (span.status.status_code is StatusCode.ERROR) is is_error


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff", None, b'{"f":"f","p":"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}'],
)
def test_what_tells_of_no_trace_begins_a_new_one(payload: Any) -> None:
    assert trace.get_current_span(tracing.read(payload)[1]) is trace.INVALID_SPAN


# ---- off


def test_without_a_tracer_provider_payloads_and_workers_are_as_ever(app: App) -> None:
    assert tracing.api() is None
    assert tracing.made(tracing.api(), "f", "q", b"x") is None

    async def run(_: Any) -> None: ...

    assert tracing.traced(run, "q") is run
    result = called(app, "add", 1).delay()
    assert "p" not in payload_of(app, result.id)


def test_many_calls_ask_once_for_the_tracer_provider(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Mock(return_value=trace.get_tracer_provider())
    monkeypatch.setattr(trace, "get_tracer_provider", asked)
    app.put([called(app, "add", number) for number in range(100)])
    assert asked.call_count == 1


def test_a_program_without_opentelemetry_imports_none_of_it() -> None:
    code = "import sys, timeoutq.functions; timeoutq.functions.App; print([m for m in sys.modules if 'opentel' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
