"""The verbs of `POST /v1/{queue}/{verb}`: one function each, whose arguments are the fields of the body."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import Counter
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

import msgspec

from timeoutq.gateway import bodies
from timeoutq.gateway.access import unauthorized
from timeoutq.gateway.bodies import NONE, Answers, Count, Id, LeaseIn, Leases, NewTask, Pulled
from timeoutq.gateway.polls import Polls, Wish
from timeoutq.gateway.problems import Problem, problem_of, spelled
from timeoutq.gateway.requests import ClientGone, Request
from timeoutq.server.calls import BATCH
from timeoutq.words import arguments
from timeoutq.words.model import Answer, Lease, Task

NewTasks = list[str | NewTask]
Given = LeaseIn | None
Many = list[LeaseIn] | None

TOKEN = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)
"""The name that a client may give a claim. The marks of our own tokens, # and @ and /, are not among its letters."""
AT_ONCE = 4000  # how many lines of NDJSON are put in one go, at most
SIZE = 1024 * 1024  # how many bytes of lines are put in one go, if the lines are long

_line = msgspec.json.Decoder(str | NewTask)


def answers(found: Any) -> Answers:
    """Give the answers to a batch, or to the end of one lease."""
    words = [str(found)] if isinstance(found, Answer) else [str(answer) for answer in found]
    return Answers(words, dict(Counter(words)))


# ---- tasks in


async def put(
    request: Request, *, tasks: NewTasks, again: bool = False, group: str | None = None, priority: int | None = None,
    improve: bool = False, rerun: bool = False, durable: int = 0,
) -> Answers:  # fmt: skip
    """Put tasks: each answer is `added`, or the state that holds the id already."""
    how: Any = {"again": again, "group": group, "priority": priority, "improve": improve, "durable": durable}
    return answers(await request.queue.put([*map(bodies.task_of, tasks)], rerun=rerun, **how))


async def put_lines(
    request: Request, *, again: bool = False, rerun: bool = False, improve: bool = False, group: str | None = None,
    priority: int | None = None, durable: int = 0,
) -> bodies.Lines:  # fmt: skip
    """Put tasks that come as NDJSON, by the thousand while more come, so that nothing grows with their number."""
    how: Any = {"again": again, "group": group, "priority": priority, "improve": improve, "durable": durable}
    passed, put, counts = 0, 0, Counter[str]()
    request.step_aside()

    async def put_some(data: bytes) -> None:
        nonlocal passed, put
        if not await request.still_counts():
            raise unauthorized()
        await request.take(request.state.places)
        try:
            lines = data.split(b"\n")
            tasks, bad = _decoded(lines, passed)
            passed += len(lines)
            for at in range(0, len(tasks), AT_ONCE):
                outcome = await request.queue.put(tasks[at : at + AT_ONCE], rerun=rerun, **how)
                put += len(outcome)
                counts.update(outcome.counts())
        finally:
            request.step_aside()
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
        raise Problem(found.status, found.name, detail, headers=found.headers, **more) from error
    return bodies.Lines(put, dict(counts))


def _decoded(lines: list[bytes], passed: int) -> tuple[list[str | Task], Problem | None]:
    """Give the tasks of lines, up to the first line that cannot be read, and the problem of that line."""
    tasks: list[str | Task] = []
    for number, line in enumerate(lines, passed + 1):
        try:
            if line.strip():
                tasks.append(bodies.task_of(_line.decode(line)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            is_json = isinstance(error, msgspec.ValidationError)
            status, name = (422, "bad-body") if is_json else (400, "bad-json")
            why = error if is_json else f"it is not JSON in UTF-8, or nested too deeply: {error}"
            return tasks, Problem(status, name, f"line {number} cannot be read: {why}", line=number)
    return tasks, None


async def schedule(
    request: Request, *, tasks: NewTasks, at: float | str | None = None, after: float | None = None,
    again: bool = False, group: str | None = None, priority: int | None = None, improve: bool = False, durable: int = 0,
) -> Answers:  # fmt: skip
    """Schedule tasks `at` a time (Unix seconds, or ISO 8601 with a zone), or `after` a number of seconds."""
    try:
        moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    except ValueError:
        words = f"{at!r:.80} is not a time: write Unix seconds or 2027-01-31T12:00+01:00 `$.at`"
        raise msgspec.ValidationError(words) from None
    how: Any = {"again": again, "group": group, "priority": priority, "improve": improve, "durable": durable}
    return answers(await request.queue.schedule([*map(bodies.task_of, tasks)], at=moment, after=after, **how))


async def requeue(request: Request, *, tasks: list[Id]) -> Answers:
    """Make done and failed tasks ready again, with a clean record; others stay, and an unknown one stays unknown."""
    ids = [*map(bodies.id_of, tasks)]
    # a put would add the tasks that the queue does not know: a mistyped id would become a task
    states = await request.queue.states(ids)
    there = [id for id, state in zip(ids, states, strict=True) if state is not Answer.UNKNOWN]
    found = iter(await request.queue.put(there, again=True) if there else ())
    return answers([state if state is Answer.UNKNOWN else next(found) for state in states])


# ---- leases


def leases_of(request: Request, lease: Given, leases: Many) -> Any:
    """Give the lease or the leases of a body; refuses those of others, unless the caller may manage the queue."""
    if (lease is None) == (leases is None):
        raise msgspec.ValidationError('name one "lease", or many "leases"')
    for one in leases or ([lease] if lease else ()):
        # the name of a caller may have slashes; the name of a claim has none
        is_own = one.token.rpartition("/")[0] == request.caller.name
        if not is_own and not request.caller.may("manage", request.name):
            detail = f"a lease is not one of {request.caller.name}: whoever has claimed the task ends its lease"
            raise Problem(403, "forbidden", detail)
    return bodies.lease_of(lease) if lease is not None else [*map(bodies.lease_of, leases or ())]


async def claim(
    request: Request, *, n: int = 1, timeout: float | None = None, max_runtime: float | None = None, wait: float = 0.0,
    token: str | None = None, age: float = 0.0, payloads: Literal["json", "text"] = "json",
) -> Leases:  # fmt: skip
    """Lease ready tasks; wait up to `wait` seconds for the first one.

    If the client hangs up, its leases go back at once, unless it sends the claim again meanwhile: with the same
    `token`, which no other claim has, and its `age`, the seconds since it was first sent.
    """
    seconds = min(arguments.seconds(wait, "wait"), request.state.settings.longest_wait)
    if token is not None and not TOKEN.fullmatch(token):
        raise msgspec.ValidationError("a token is 1 to 64 of A-Z a-z 0-9 . _ : - `$.token`")
    age_ms = arguments.delay_ms(age, "age")
    wish = Wish(
        f"{request.caller.name}/{token or secrets.token_hex(8)}",
        arguments.count(n, high=BATCH),
        request.queue.talk.terms.timeout_ms if timeout is None else arguments.timeout_ms(timeout),
        0 if max_runtime is None else arguments.timeout_ms(max_runtime, "max_runtime"),
        max(1, age_ms) if age > 0 else 0,
    )
    polls: Polls = request.state.polls
    leases = await polls.claim(request, wish, seconds)
    return Leases([bodies.lease_out(lease, as_text=payloads == "text") for lease in leases])


async def extend(
    request: Request, *, lease: Given = None, leases: Many = None, timeout: float | None = None
) -> Answers:
    """Let leases run for `timeout` seconds from now."""
    queue: Any = request.queue
    found = await queue.extend(leases_of(request, lease, leases), timeout)
    return answers(Answer.OK if leases is None else found)


async def ack(
    request: Request, *, lease: Given = None, leases: Many = None, put: NewTasks | None = None,
    again_in: float | None = None, payload: msgspec.Raw = NONE,
) -> Answers:  # fmt: skip
    """End leases as done; one lease may put the tasks that it found, in the same step."""
    given = leases_of(request, lease, leases)
    if lease is None:
        if put is not None or bytes(payload) != bytes(NONE):
            raise msgspec.ValidationError('"put" and "payload" go with one "lease" only')
        return answers(await request.queue.ack(given, again_in=again_in))
    if put is not None:
        request.caller.require("put", request.name)
    found = None if put is None else [*map(bodies.task_of, put)]
    return answers(await request.queue.ack(given, found, again_in=again_in, payload=bodies.payload_of(payload)))


async def fail(
    request: Request, *, lease: Given = None, leases: Many = None, error: str, retry_in: float | None = None,
    give_up: bool = False,
) -> Answers:  # fmt: skip
    """End leases as failed; tasks are tried again in `retry_in` seconds, never (`give_up`), or as usual."""
    given = leases_of(request, lease, leases)
    if retry_in is None and not give_up and any(one.attempt is None for one in leases or ([lease] if lease else ())):
        # the number of the attempt decides: the queue has counted it
        many: list[Lease] = [given] if lease is not None else given
        infos = await asyncio.gather(*(request.queue.inspect(one.task) for one in many))
        many = [replace(one, attempt=info.failures + 1) for one, info in zip(many, infos, strict=True)]
        given = many[0] if lease is not None else many
    return answers(await request.queue.fail(given, error, retry_in=retry_in, give_up=give_up))


async def release(
    request: Request, *, lease: Given = None, leases: Many = None, delay: float = 0.0, block_host: float = 0.0
) -> Answers:
    """Give leases back; their tasks are ready at once, or after `delay` seconds."""
    given = leases_of(request, lease, leases)
    return answers(await request.queue.release(given, delay, block_host=block_host))


async def note(request: Request, *, lease: LeaseIn, done: float, total: float | None = None, text: str = "") -> Answers:
    """Note how far the work on a lease is."""
    return answers(await request.queue.note(leases_of(request, lease, None), done, total, text))


async def pull(request: Request, *, n: int = 1) -> Pulled:
    """Take tasks without a lease: they count as done at once, and are lost if the answer is."""
    found = await request.queue.pull(n)
    return Pulled([bodies.PulledTask(spelled(one.task), bodies.told(one.payload)) for one in found])


# ---- the operator's


async def states(request: Request, *, tasks: list[Id]) -> Answers:
    """Tell the state of each task; `unknown` for a task in no state."""
    return answers(await request.queue.states([*map(bodies.id_of, tasks)]))


async def forget(request: Request, *, tasks: list[Id]) -> Answers:
    """Remove tasks from every state; each answer is the state in which the task was."""
    return answers(await request.queue.forget([*map(bodies.id_of, tasks)]))


async def cancel(request: Request, *, tasks: list[Id], by: str | None = None) -> Answers:
    """Cancel tasks that have not ended; `by` tells on whose behalf, and stands behind the name of the caller."""
    name = request.caller.name
    return answers(await request.queue.cancel([*map(bodies.id_of, tasks)], by=f"{name}/{by}" if by else name))


async def retry(
    request: Request, *, tasks: list[Id] | None = None, all: bool = False, kind: str | None = None,
    at_most: int = 10_000, before: float | None = None,
) -> Count:  # fmt: skip
    """Make failed tasks ready again with a clean record: these, all, or those of a kind of failure.

    `kind` is the id of a kind, or its text. One call retries `at_most` tasks of a kind; the next one goes on with the
    `before` of the answer.
    """
    if kind is not None:
        if tasks is not None or all:
            raise msgspec.ValidationError('"kind" goes without "tasks" and without "all"')
        moved = await request.queue.failures.retry(kind, at_most=at_most, before=before)
        return Count(moved.moved, moved.left, moved.before)
    ids = [*map(bodies.id_of, tasks or ())]
    if tasks is not None and not ids:
        return Count(0)
    return Count(await (request.queue.retry_failed(ids, all=all) if ids else request.queue.retry_failed(all=all)))


async def pause(request: Request) -> None:
    """Stop giving out tasks."""
    await request.queue.pause()


async def resume(request: Request) -> None:
    """Give out tasks again."""
    await request.queue.resume()


async def purge(request: Request) -> None:
    """Remove the queue with all its tasks."""
    await request.queue.purge()
    await request.state.queues.gone(request.name)


async def block(
    request: Request, *, host: str, until: float | None = None, seconds: float | None = None, reason: str | None = None
) -> None:
    """Keep all workers from a host until a time, or for a number of seconds."""
    await request.queue.hosts.block(host, until=until, for_=seconds, reason=reason or request.caller.name)


async def unblock(request: Request, *, host: str) -> None:
    """End a block or a ban of a host."""
    await request.queue.hosts.unblock(host)


async def ban(request: Request, *, host: str, reason: str = "banned") -> None:
    """Never visit a host again; its tasks go to failed."""
    await request.queue.hosts.ban(host, reason)
