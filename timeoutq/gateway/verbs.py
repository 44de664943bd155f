"""What `POST /v1/{queue}/{verb}` does: one function for each verb, which takes the request and its body.

`routes.py` names them. Each checks nothing that the queue checks by itself.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

import msgspec

from timeoutq.gateway import bodies, claims
from timeoutq.gateway.bodies import Answers, Count, Done
from timeoutq.gateway.callers import Forbidden
from timeoutq.gateway.claims import Wish
from timeoutq.gateway.problems import encode, spelled
from timeoutq.gateway.requests import Request
from timeoutq.words import arguments
from timeoutq.words.model import Answer, Deep, Lease, Outcome, Payload

TOKEN = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)
"""What a client may name a claim. The marks of our own tokens, # and @ and /, are not among it."""


def answers(outcome: Outcome) -> Answers:
    """Give the answers to a batch."""
    if len(outcome) == 1:
        word = str(outcome[0])
        return Answers([word], {word: 1})
    return Answers([str(answer) for answer in outcome], outcome.counts())


# ---- tasks in


def moment_of(at: float | str | None) -> float | datetime | None:
    """Give a time as the queue takes it: Unix seconds, or a text in ISO 8601, which needs a zone."""
    if not isinstance(at, str):
        return at
    try:
        found = datetime.fromisoformat(at)
    except ValueError:
        raise msgspec.ValidationError(
            f"{at!r:.80} is not a time: write Unix seconds or 2027-01-31T12:00+01:00 `$.at`"
        ) from None
    if found.tzinfo is None:
        raise msgspec.ValidationError(f"{at!r:.80} has no zone: end it with Z for UTC, or with +01:00 `$.at`")
    return found


async def put(request: Request, body: bodies.Put) -> Answers:
    """Put tasks: each answer is `added`, or the state that holds the id already."""
    queue = await request.queue()
    return answers(
        await queue.put(
            bodies.tasks_of(body.tasks), again=body.again, group=body.group, priority=body.priority,
            improve=body.improve, rerun=body.rerun, durable=body.durable,
        )
    )  # fmt: skip


async def schedule(request: Request, body: bodies.Schedule) -> Answers:
    """Schedule tasks `at` a time, or `after` a number of seconds."""
    queue = await request.queue()
    return answers(
        await queue.schedule(
            bodies.tasks_of(body.tasks), at=moment_of(body.at), after=body.after, again=body.again, group=body.group,
            priority=body.priority, improve=body.improve, durable=body.durable,
        )
    )  # fmt: skip


async def requeue(request: Request, body: bodies.Ids) -> Answers:
    """Make done and failed tasks ready again, with a clean record; others stay, and an unknown one stays unknown."""
    queue = await request.known()
    ids = [bodies.id_of(task) for task in body.tasks]
    # a put would add the tasks that the queue does not know: a mistyped id would become a task
    states = await queue.states(ids)
    there = [id for id, state in zip(ids, states, strict=True) if state is not Answer.UNKNOWN]
    found = iter(await queue.put(there, again=True) if there else ())
    words = [str(state if state is Answer.UNKNOWN else next(found)) for state in states]
    return Answers(words, dict(Counter(words)))


# ---- leases


def text_of(payload: Payload) -> str:
    """Give the JSON of a payload; one that is nested too deeply to be read comes as it was put."""
    if isinstance(payload, Deep):
        with suppress(UnicodeDecodeError):
            return payload.decode()
    return encode({"b64": bytes(payload)} if isinstance(payload, bytes) else payload).decode()


def lease_out(lease: Lease, *, as_text: bool = False) -> bodies.LeaseOut:
    """Give a lease as JSON has it; `as_text`: with a string of JSON for its payload, if it has one."""
    payload = lease.payload
    if as_text and payload is not None:
        payload = text_of(payload)
    elif isinstance(payload, bytes):
        payload = {"b64": bytes(payload)}
    return bodies.LeaseOut(
        spelled(lease.task), lease.token, lease.deadline,
        # as `LeaseIn` takes them, also if a foreign hand has damaged them
        max(1, min(lease.attempt, bodies.MOST_COUNTED)), max(0, min(lease.crashes, bodies.MOST_COUNTED)),
        str(lease.fence), payload,
    )  # fmt: skip


def leases_of(request: Request, body: bodies.Leased) -> Lease | list[Lease]:
    """Give the lease or the leases of a body; refuses those of others, unless the caller may manage the queue."""
    if (body.lease is None) == (body.leases is None):
        raise msgspec.ValidationError('name one "lease", or many "leases"')
    check_holder(request, [body.lease] if body.lease is not None else body.leases or [])
    if body.lease is not None:
        return bodies.lease_of(body.lease)
    return [bodies.lease_of(one) for one in body.leases or ()]


def check_holder(request: Request, leases: Sequence[bodies.LeaseIn]) -> None:
    """Refuse leases of others, unless the caller may manage the queue."""
    for lease in leases:
        # the name of a caller may have slashes; what a client names a claim has none
        is_own = lease.token.rpartition("/")[0] == request.caller.name
        if not is_own and not request.caller.may("manage", request.name):
            raise Forbidden(f"a lease is not one of {request.caller.name}: whoever has claimed the task ends its lease")


def ended(found: Answer | Outcome) -> Answers:
    """Give the answers to the end of one lease, or of many."""
    return Answers([str(found)], {str(found): 1}) if isinstance(found, Answer) else answers(found)


async def claim(request: Request, body: bodies.Claim) -> bodies.Leases:
    """Lease ready tasks; wait up to `wait` seconds for the first one.

    If the client hangs up, its leases go back at once, unless it sends the claim again meanwhile.
    """
    wait = arguments.seconds(body.wait, "wait")
    state = request.state
    queue = await request.queue()
    if body.token is None:
        token = secrets.token_hex(8)
    elif TOKEN.fullmatch(body.token):
        token = body.token
    else:
        raise msgspec.ValidationError("a token is 1 to 64 of A-Z a-z 0-9 . _ : - `$.token`")
    token = f"{request.caller.name}/{token}"
    wish = Wish.of(queue, token, body.n, body.timeout, body.max_runtime, body.age)
    leases = await state.polls.claim(request, queue, wish, min(wait, state.settings.longest_wait))
    return bodies.Leases([lease_out(lease, as_text=body.payloads == "text") for lease in leases])


async def extend(request: Request, body: bodies.Extend) -> Answers:
    """Let leases run for `timeout` seconds from now."""
    queue = await request.queue()
    leases = leases_of(request, body)
    if isinstance(leases, Lease):
        await queue.extend(leases, body.timeout)
        return ended(Answer.OK)
    return ended(await queue.extend(leases, body.timeout))


async def ack(request: Request, body: bodies.Ack) -> Answers:
    """End leases as done; one lease may put the tasks that it found, in the same step."""
    queue = await request.queue()
    leases = leases_of(request, body)
    if isinstance(leases, Lease):
        if body.put is not None:
            request.caller.require("put", request.name)
        found = None if body.put is None else bodies.tasks_of(body.put)
        payload = bodies.payload_of(body.payload)
        return ended(await queue.ack(leases, found, again_in=body.again_in, payload=payload))
    if body.put is not None or bytes(body.payload) != bytes(bodies.NONE):
        raise msgspec.ValidationError('"put" and "payload" go with one "lease" only')
    return ended(await queue.ack(leases, again_in=body.again_in))


async def fail(request: Request, body: bodies.Fail) -> Answers:
    """End leases as failed; tasks are tried again in `retry_in` seconds, never (`give_up`), or as usual."""
    queue = await request.queue()
    leases = leases_of(request, body)
    told = [body.lease] if body.lease is not None else body.leases or []
    if body.retry_in is None and not body.give_up and any(one.attempt is None for one in told):
        leases = await queue.run(claims.counted(queue, leases))
    # the same call twice: with one lease it raises LeaseLost, with many it gives an answer for each
    if isinstance(leases, Lease):
        return ended(await queue.fail(leases, body.error, retry_in=body.retry_in, give_up=body.give_up))
    return ended(await queue.fail(leases, body.error, retry_in=body.retry_in, give_up=body.give_up))


async def release(request: Request, body: bodies.Release) -> Answers:
    """Give leases back; their tasks are ready at once, or after `delay` seconds."""
    queue = await request.queue()
    leases = leases_of(request, body)
    # the same call twice, as in `fail`
    if isinstance(leases, Lease):
        return ended(await queue.release(leases, body.delay, block_host=body.block_host))
    return ended(await queue.release(leases, body.delay, block_host=body.block_host))


async def note(request: Request, body: bodies.Note) -> Answers:
    """Note how far the work on a lease is."""
    queue = await request.queue()
    check_holder(request, [body.lease])
    return ended(await queue.note(bodies.lease_of(body.lease), body.done, body.total, body.text))


async def pull(request: Request, body: bodies.Pull) -> bodies.Pulled:
    """Take tasks without a lease: they count as done at once, and are lost if the answer is."""
    queue = await request.queue()
    tasks = await queue.pull(body.n)
    return bodies.Pulled(
        [
            bodies.PulledTask(
                spelled(one.task), {"b64": bytes(one.payload)} if isinstance(one.payload, bytes) else one.payload
            )
            for one in tasks
        ]
    )


# ---- the operator's


async def states(request: Request, body: bodies.Ids) -> Answers:
    """Tell the state of each task; `unknown` for a task in no state."""
    queue = await request.known()
    return answers(await queue.states([bodies.id_of(task) for task in body.tasks]))


async def forget(request: Request, body: bodies.Ids) -> Answers:
    """Remove tasks from every state; each answer is the state in which the task was."""
    queue = await request.known()
    return answers(await queue.forget([bodies.id_of(task) for task in body.tasks]))


async def cancel(request: Request, body: bodies.Cancel) -> Answers:
    """Cancel tasks that have not ended."""
    queue = await request.known()
    # in front stands who has asked, whatever name is told
    by = request.caller.name if body.by is None else f"{request.caller.name}/{body.by}"
    return answers(await queue.cancel([bodies.id_of(task) for task in body.tasks], by=by))


async def retry(request: Request, body: bodies.Retry) -> Count:
    """Make failed tasks ready again with a clean record: these, all, or those of a kind of failure."""
    queue = await request.known()
    if body.kind is not None:
        if body.tasks is not None or body.all:
            raise msgspec.ValidationError('"kind" goes without "tasks" and without "all"')
        moved = await queue.failures.retry(body.kind, at_most=body.at_most, before=body.before)
        return Count(moved.moved, moved.left, moved.before)
    ids = [bodies.id_of(task) for task in body.tasks or ()]
    if body.tasks is not None and not ids:
        return Count(0)
    return Count(await (queue.retry_failed(ids, all=body.all) if ids else queue.retry_failed(all=body.all)))


async def pause(request: Request, body: bodies.Nothing) -> Done:
    """Stop giving out tasks."""
    await (await request.known()).pause()
    return Done()


async def resume(request: Request, body: bodies.Nothing) -> Done:
    """Give out tasks again."""
    await (await request.known()).resume()
    return Done()


async def purge(request: Request, body: bodies.Nothing) -> Done:
    """Remove the queue with all its tasks."""
    await (await request.known()).purge()
    await request.state.queues.forget(request.name)
    return Done()


async def block(request: Request, body: bodies.Block) -> Done:
    """Keep all workers from a host for a time."""
    queue = await request.known()
    await queue.hosts.block(body.host, until=body.until, for_=body.seconds, reason=body.reason or request.caller.name)
    return Done()


async def unblock(request: Request, body: bodies.Unblock) -> Done:
    """End a block or a ban of a host."""
    await (await request.known()).hosts.unblock(body.host)
    return Done()


async def ban(request: Request, body: bodies.Ban) -> Done:
    """Never visit a host again; its tasks go to failed."""
    await (await request.known()).hosts.ban(body.host, body.reason)
    return Done()
