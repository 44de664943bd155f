"""The verbs of `POST /v1/{queue}/{verb}`: one function each, whose arguments are the fields of the body."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

import msgspec

from timeoutq.gateway import bodies
from timeoutq.gateway.bodies import NONE, Answers, Count, Done, Id, LeaseIn, Leases, NewTask, Pulled
from timeoutq.gateway.claims import Wish
from timeoutq.gateway.polls import Polls
from timeoutq.gateway.problems import Problem, spelled
from timeoutq.gateway.requests import Request
from timeoutq.words import arguments
from timeoutq.words.model import Answer, Lease, Outcome

NewTasks = list[str | NewTask]
Given = LeaseIn | None
Many = list[LeaseIn] | None

TOKEN = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)
"""The name that a client may give a claim. The marks of our own tokens, # and @ and /, are not among its letters."""


def answers(found: Iterable[Answer] | Answer) -> Answers:
    """Give the answers to a batch, or to the end of one lease."""
    words = [str(found)] if isinstance(found, Answer) else [str(answer) for answer in found]
    return Answers(words, dict(Counter(words)))


# ---- tasks in


def moment_of(at: float | str | None) -> float | datetime | None:
    """Give a time as the queue takes it: Unix seconds, or a text in ISO 8601, which needs a zone."""
    if not isinstance(at, str):
        return at
    try:
        return datetime.fromisoformat(at)
    except ValueError:
        words = f"{at!r:.80} is not a time: write Unix seconds or 2027-01-31T12:00+01:00 `$.at`"
        raise msgspec.ValidationError(words) from None


async def put(
    request: Request, *, tasks: NewTasks, again: bool = False, group: str | None = None, priority: int | None = None,
    improve: bool = False, rerun: bool = False, durable: int = 0,
) -> Answers:  # fmt: skip
    """Put tasks: each answer is `added`, or the state that holds the id already."""
    how: Any = {"again": again, "group": group, "priority": priority, "improve": improve, "durable": durable}
    return answers(await (await request.queue()).put(bodies.tasks_of(tasks), rerun=rerun, **how))


async def schedule(
    request: Request, *, tasks: NewTasks, at: float | str | None = None, after: float | None = None,
    again: bool = False, group: str | None = None, priority: int | None = None, improve: bool = False, durable: int = 0,
) -> Answers:  # fmt: skip
    """Schedule tasks `at` a time (Unix seconds, or ISO 8601 with a zone), or `after` a number of seconds."""
    how: Any = {"again": again, "group": group, "priority": priority, "improve": improve, "durable": durable}
    return answers(await (await request.queue()).schedule(bodies.tasks_of(tasks), at=moment_of(at), after=after, **how))


async def requeue(request: Request, *, tasks: list[Id]) -> Answers:
    """Make done and failed tasks ready again, with a clean record; others stay, and an unknown one stays unknown."""
    queue = await request.known()
    ids = [*map(bodies.id_of, tasks)]
    # a put would add the tasks that the queue does not know: a mistyped id would become a task
    states = await queue.states(ids)
    there = [id for id, state in zip(ids, states, strict=True) if state is not Answer.UNKNOWN]
    found = iter(await queue.put(there, again=True) if there else ())
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
    seconds = arguments.seconds(wait, "wait")
    queue = await request.queue()
    if token is not None and not TOKEN.fullmatch(token):
        raise msgspec.ValidationError("a token is 1 to 64 of A-Z a-z 0-9 . _ : - `$.token`")
    token = f"{request.caller.name}/{token or secrets.token_hex(8)}"
    wish = Wish.of(queue, token, n, timeout, max_runtime, age)
    polls: Polls = request.state.polls
    leases = await polls.claim(request, queue, wish, min(seconds, request.state.settings.longest_wait))
    return Leases([bodies.lease_out(lease, as_text=payloads == "text") for lease in leases])


async def extend(
    request: Request, *, lease: Given = None, leases: Many = None, timeout: float | None = None
) -> Answers:
    """Let leases run for `timeout` seconds from now."""
    queue: Any = await request.queue()
    found: Outcome | Lease | None = await queue.extend(leases_of(request, lease, leases), timeout)
    return answers(found if isinstance(found, Outcome) else Answer.OK)


async def ack(
    request: Request, *, lease: Given = None, leases: Many = None, put: NewTasks | None = None,
    again_in: float | None = None, payload: msgspec.Raw = NONE,
) -> Answers:  # fmt: skip
    """End leases as done; one lease may put the tasks that it found, in the same step."""
    queue: Any = await request.queue()
    given = leases_of(request, lease, leases)
    if lease is None:
        if put is not None or bytes(payload) != bytes(NONE):
            raise msgspec.ValidationError('"put" and "payload" go with one "lease" only')
        many: Outcome = await queue.ack(given, again_in=again_in)
        return answers(many)
    if put is not None:
        request.caller.require("put", request.name)
    found = None if put is None else bodies.tasks_of(put)
    one: Answer = await queue.ack(given, found, again_in=again_in, payload=bodies.payload_of(payload))
    return answers(one)


async def fail(
    request: Request, *, lease: Given = None, leases: Many = None, error: str, retry_in: float | None = None,
    give_up: bool = False,
) -> Answers:  # fmt: skip
    """End leases as failed; tasks are tried again in `retry_in` seconds, never (`give_up`), or as usual."""
    queue: Any = await request.queue()
    given = leases_of(request, lease, leases)
    if retry_in is None and not give_up and any(one.attempt is None for one in leases or ([lease] if lease else ())):
        # the number of the attempt decides: the queue has counted it
        many: list[Lease] = [given] if lease is not None else given
        infos = await asyncio.gather(*(queue.inspect(one.task) for one in many))
        many = [replace(one, attempt=info.failures + 1) for one, info in zip(many, infos, strict=True)]
        given = many[0] if lease is not None else many
    ended: Outcome | Answer = await queue.fail(given, error, retry_in=retry_in, give_up=give_up)
    return answers(ended)


async def release(
    request: Request, *, lease: Given = None, leases: Many = None, delay: float = 0.0, block_host: float = 0.0
) -> Answers:
    """Give leases back; their tasks are ready at once, or after `delay` seconds."""
    queue: Any = await request.queue()
    found: Outcome | Answer = await queue.release(leases_of(request, lease, leases), delay, block_host=block_host)
    return answers(found)


async def note(request: Request, *, lease: LeaseIn, done: float, total: float | None = None, text: str = "") -> Answers:
    """Note how far the work on a lease is."""
    queue = await request.queue()
    return answers(await queue.note(leases_of(request, lease, None), done, total, text))


async def pull(request: Request, *, n: int = 1) -> Pulled:
    """Take tasks without a lease: they count as done at once, and are lost if the answer is."""
    queue = await request.queue()
    return Pulled([bodies.PulledTask(spelled(one.task), bodies.told(one.payload)) for one in await queue.pull(n)])


# ---- the operator's


async def states(request: Request, *, tasks: list[Id]) -> Answers:
    """Tell the state of each task; `unknown` for a task in no state."""
    return answers(await (await request.known()).states([*map(bodies.id_of, tasks)]))


async def forget(request: Request, *, tasks: list[Id]) -> Answers:
    """Remove tasks from every state; each answer is the state in which the task was."""
    return answers(await (await request.known()).forget([*map(bodies.id_of, tasks)]))


async def cancel(request: Request, *, tasks: list[Id], by: str | None = None) -> Answers:
    """Cancel tasks that have not ended; `by` tells on whose behalf, and stands behind the name of the caller."""
    name = request.caller.name
    return answers(await (await request.known()).cancel([*map(bodies.id_of, tasks)], by=f"{name}/{by}" if by else name))


async def retry(
    request: Request, *, tasks: list[Id] | None = None, all: bool = False, kind: str | None = None,
    at_most: int = 10_000, before: float | None = None,
) -> Count:  # fmt: skip
    """Make failed tasks ready again with a clean record: these, all, or those of a kind of failure.

    `kind` is the id of a kind, or its text. One call retries `at_most` tasks of a kind; the next one goes on with the
    `before` of the answer.
    """
    queue = await request.known()
    if kind is not None:
        if tasks is not None or all:
            raise msgspec.ValidationError('"kind" goes without "tasks" and without "all"')
        moved = await queue.failures.retry(kind, at_most=at_most, before=before)
        return Count(moved.moved, moved.left, moved.before)
    ids = [*map(bodies.id_of, tasks or ())]
    if tasks is not None and not ids:
        return Count(0)
    return Count(await (queue.retry_failed(ids, all=all) if ids else queue.retry_failed(all=all)))


async def pause(request: Request) -> Done:
    """Stop giving out tasks."""
    await (await request.known()).pause()
    return Done()


async def resume(request: Request) -> Done:
    """Give out tasks again."""
    await (await request.known()).resume()
    return Done()


async def purge(request: Request) -> Done:
    """Remove the queue with all its tasks."""
    await (await request.known()).purge()
    await request.state.queues.forget(request.name)
    return Done()


async def block(
    request: Request, *, host: str, until: float | None = None, seconds: float | None = None, reason: str | None = None
) -> Done:
    """Keep all workers from a host until a time, or for a number of seconds."""
    hosts = (await request.known()).hosts
    await hosts.block(host, until=until, for_=seconds, reason=reason or request.caller.name)
    return Done()


async def unblock(request: Request, *, host: str) -> Done:
    """End a block or a ban of a host."""
    await (await request.known()).hosts.unblock(host)
    return Done()


async def ban(request: Request, *, host: str, reason: str = "banned") -> Done:
    """Never visit a host again; its tasks go to failed."""
    await (await request.known()).hosts.ban(host, reason)
    return Done()
