"""Put of any number of tasks as NDJSON: each line is an id in quotes, or a task as an object, as in the list of a put.

Lines are put by the thousand while more come, so nothing grows with the length of the body. When it ends early, the
problem says how many lines are in: a put is safe to repeat.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from timeoutq.gateway import bodies
from timeoutq.gateway.access import unauthorized
from timeoutq.gateway.problems import Problem, problem_of
from timeoutq.gateway.requests import ClientGone, Request
from timeoutq.words.model import Task

AT_ONCE = 4000  # how many lines are put in one go, at most
SIZE = 1024 * 1024  # how many bytes of lines are put in one go, if the lines are long

_decoder = msgspec.json.Decoder(str | bodies.NewTask)


async def put_lines(
    request: Request, *, again: bool = False, rerun: bool = False, improve: bool = False, group: str | None = None,
    priority: int | None = None, durable: int = 0,
) -> bodies.Lines:  # fmt: skip
    """Put tasks that come as NDJSON; the options are for all of them."""
    queue, places, who = await request.queue(), request.state.places, request.caller.name
    request.step_aside()
    passed, put, counts = 0, 0, Counter[str]()

    async def put_some(data: bytes) -> None:
        nonlocal passed, put
        if not await request.answer.still_counts():
            raise unauthorized()
        await places.take(who)
        try:
            lines = data.split(b"\n")
            tasks, bad = _decoded(lines, passed)
            passed += len(lines)
            for at in range(0, len(tasks), AT_ONCE):
                outcome = await queue.put(
                    tasks[at : at + AT_ONCE], again=again, rerun=rerun, improve=improve, group=group, priority=priority,
                    durable=durable,
                )  # fmt: skip
                put += len(outcome)
                counts.update(outcome.counts())
        finally:
            places.give(who)
        if bad is not None:
            raise bad

    data, newlines = bytearray(), 0
    try:
        async for part in request.parts():
            data += part
            newlines += part.count(b"\n")
            request.count_bytes(len(data))
            if newlines >= AT_ONCE or (newlines and len(data) >= SIZE):
                whole, _, data = data.rpartition(b"\n")
                newlines = 0
                await put_some(bytes(whole))
            if len(data) > request.state.settings.body_limit:
                raise Problem(413, "too-large", f"line {passed + 1} is longer than a body may be")
        await put_some(bytes(data))
    except ClientGone:
        raise
    except Exception as error:
        found = problem_of(error)
        detail = f"{found.detail}. The first {put:,} lines are in; to go on, send the others, or all again"
        more = {**found.more, "lines": put, "counts": dict(counts)}
        raise Problem(found.status, found.name, detail, headers=found.headers, more=more) from error
    return bodies.Lines(put, dict(counts))


def _decoded(lines: list[bytes], passed: int) -> tuple[list[str | Task], Problem | None]:
    """Give the tasks of lines, up to the first line that cannot be read, and the problem of that line."""
    tasks: list[str | Task] = []
    for number, line in enumerate(lines, passed + 1):
        try:
            if line.strip():
                tasks += bodies.tasks_of([_decoder.decode(line)])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            is_json = isinstance(error, msgspec.ValidationError)
            status, name = (422, "bad-body") if is_json else (400, "bad-json")
            why = error if is_json else f"it is not JSON in UTF-8, or nested too deeply: {error}"
            return tasks, Problem(status, name, f"line {number} cannot be read: {why}", more={"line": number})
    return tasks, None
