"""Spans of OpenTelemetry: one where a call is made, one around each run of its function, both in one trace.

All of it is off, and costs nothing, unless the program has imported OpenTelemetry and set a tracer provider.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

import msgspec

from timeoutq.words.arguments import class_name
from timeoutq.words.model import Ack, Lease, Release, raw, text
from timeoutq.words.retry import GiveUp, Retry
from timeoutq.worker.handlers import Expired

NAME = "timeoutq"


class _Traced(msgspec.Struct):
    f: str = ""
    p: str | None = None


_TRACED = msgspec.json.Decoder(_Traced)


def api() -> Any:
    """Give the module `opentelemetry.trace`; None if the program has set no tracer provider."""
    found: Any = sys.modules.get("opentelemetry.trace")
    if found is None or isinstance(found.get_tracer_provider(), found.ProxyTracerProvider):
        return None
    return found


def made(trace: Any, function: str, queue: str, id: bytes, parent: Any = None) -> str | None:
    """Note in a span of its own that a call is made; give what the payload says of the trace, None if nothing.

    `trace` is what `api` gives; asking it once for many calls is quicker than asking once for each. The span begins
    under `parent`, a context, or under the span in which this is called.
    """
    if trace is None:
        return None
    span = trace.get_tracer(NAME).start_span(
        f"create {function}", parent, trace.SpanKind.PRODUCER, _about("create", function, queue, id)
    )
    span.end()
    carrier: dict[str, str] = {}
    _propagator().inject(carrier, trace.set_span_in_context(span))
    return carrier.get("traceparent")


def traced(run: Callable[[Lease], Awaitable[Any]], queue: str) -> Callable[[Lease], Awaitable[Any]]:
    """Give what runs the calls of a queue, each run in a span; `run` itself, if tracing is off when a worker begins."""
    if api() is None:
        return run

    async def run_in_span(lease: Lease) -> Any:
        trace = api()
        if trace is None:
            return await run(lease)
        function, parent = read(lease.payload)
        about = _about("process", function, queue, raw(lease.task)) | {"timeoutq.attempt": lease.attempt}
        tracer = trace.get_tracer(NAME)
        with tracer.start_as_current_span(
            f"process {function}", context=parent, kind=trace.SpanKind.CONSUMER, attributes=about,
            record_exception=False, set_status_on_exception=False,
        ) as span:  # fmt: skip
            try:
                result = await run(lease)
            except BaseException as error:
                if not isinstance(error, Ack | Release):  # these end a lease as it should be
                    span.record_exception(error)
                    span.set_attribute("error.type", class_name(error))
                    span.set_status(trace.StatusCode.ERROR)
                raise
            if isinstance(result, Retry | GiveUp | Expired):
                span.set_attribute("error.type", class_name(result))
                span.set_status(trace.StatusCode.ERROR)
            return result

    return run_in_span


def read(payload: object) -> tuple[str, Any]:
    """Read the name of the function, and the context of the trace; None if the payload names no trace."""
    try:
        found = _TRACED.decode(payload)  # type: ignore[arg-type]  # what is no bytes is refused, too
    except (msgspec.MsgspecError, TypeError, UnicodeDecodeError):  # no call: whoever runs it says so
        return "unknown", None
    return found.f, None if found.p is None else _propagator().extract({"traceparent": found.p})


def _propagator() -> Any:
    return import_module("opentelemetry.trace.propagation.tracecontext").TraceContextTextMapPropagator()


def _about(what: str, function: str, queue: str, id: bytes) -> dict[str, Any]:
    return {
        "messaging.system": NAME,
        "messaging.operation.type": what,
        "messaging.operation.name": what,
        "messaging.destination.name": queue,
        "messaging.message.id": text(id),
        "timeoutq.function": function,
    }
