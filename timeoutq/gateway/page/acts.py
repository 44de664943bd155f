"""The acts of the page: one function for each form, which leads to a page with a message."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

from timeoutq.client.shards import AnyAsyncQueue, AsyncShardedQueue
from timeoutq.gateway.page import paint, spelling
from timeoutq.gateway.page.visits import Form, Visit
from timeoutq.rooms.failures import KINDS
from timeoutq.verbs.sending import ask
from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput, LeaseLost
from timeoutq.words.model import CANCELLED, EXPIRED, Answer, Entry, Lease, Outcome, State, Task, raw
from timeoutq.words.text import age, all_of, counted, length_of, safe

MOST_IDS = 10_000  # ids in the form for new tasks
STEP = 200  # tasks in one step of a walk

Done = tuple[str, bool]  # the message of an act, and whether it has done anything
Act = Callable[[Visit, Form, AnyAsyncQueue], Awaitable[Done]]


class Instead(Exception):
    """An act that is not carried out: the answer says why, or asks whether it is meant."""

    def __init__(self, answer: Response) -> None:
        super().__init__()
        self.answer = answer


ACTS: dict[str, Callable[[Visit], Awaitable[Response]]] = {}
"""The endpoints of the acts, by their names in paths."""


def act(do: Act) -> Act:
    """Make the endpoint of an act, which has the name of the function."""

    async def acting(visit: Visit) -> Response:
        form = await visit.form()
        try:
            message, good = await do(visit, form, visit.queue)
        except Instead as instead:
            return instead.answer
        return visit.back(form.get("back", ""), message, "good" if good else "bad")

    ACTS[do.__name__.replace("_", "-")] = acting
    return do


def sure(visit: Visit, form: Form, tasks: Sequence[str] = (), **words: Any) -> None:
    """Ask on a page whether the act is meant, unless it needs no question, or the script has asked in a dialog."""
    name = visit.head.path.rpartition("/")[2]
    if paint.ACTS[name].sure and form.get("sure") != "1":
        fields, back = form.multi_items(), form.get("back", "")
        raise Instead(_asked(visit, name, fields=fields, back=back, tasks=tasks, words=words))


def chosen(visit: Visit, form: Form) -> list[str]:
    """Give the chosen tasks, of which somebody is sure; whoever has chosen none is led back, and told so."""
    tasks = list(dict.fromkeys(spelling.read(form.multi_items())))
    if not tasks:
        words = "choose a task first: check its box, then press the button"
        raise Instead(visit.back(form.get("back", ""), words, "bad"))
    sure(visit, form, tasks, n=counted(len(tasks), "task"))
    return tasks


def _asked(visit: Visit, name: str, error: str = "", *, words: Mapping[str, Any], **given: Any) -> Response:
    question = paint.question(name, queue=visit.name, **words)
    usual = {"fields": (), "back": "", "tasks": (), "typed": False, "act": paint.ACTS[name]}
    return visit.page(
        "sure.html", 422 if error else 200, question=question, verb=name, error=error, **{**usual, **given}
    )


# ---- tasks in


async def put_form(visit: Visit, form: Form | None = None, error: str = "") -> Response:
    names = ("ids", "payload", "after", "at", "group", "priority", "again")
    polite = (await visit.hub.snapshot(visit.name)).stats.politeness is not None
    given = {name: form.get(name, "") if form else "" for name in names}
    return visit.page("put.html", 422 if error else 200, given=given, polite=polite, error=error, tab="Put")


async def put(visit: Visit) -> Response:
    form = await visit.form()
    try:
        tasks, when, again = _wanted(form), _when(form), form.get("again") == "1"
        call = visit.queue.schedule(*tasks, again=again, **when) if when else visit.queue.put(*tasks, again=again)
        outcome = await call
    except InvalidInput as error:
        return await put_form(visit, form, str(error))
    to = f"task?{spelling.query(tasks[0].task)}" if len(tasks) == 1 else ""
    return visit.back(to if "look" in visit.at.rights else "put", told(outcome))


def _wanted(form: Form) -> list[Task]:
    # without blanks at both ends, as `timeoutq put -f` reads a file
    lines = (line.strip(" \t\r") for line in form.get("ids", "").removeprefix("\ufeff").split("\n"))
    ids = [line for line in lines if line]
    if not ids:
        raise InvalidInput("no id was given: write one on each line")
    if len(ids) > MOST_IDS:
        raise InvalidInput(f"{len(ids):,} ids; at most {MOST_IDS:,} at once: use the command or the API")
    words = form.get("payload", "")
    try:
        payload = json.loads(words) if words.strip() else None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the payload is not JSON: {error}") from None
    words = form.get("priority", "").strip()
    try:
        priority = int(words) if words else None
    except ValueError:
        raise InvalidInput(f"priority: {words[:40]!r} is not a whole number") from None
    return [Task(id, payload, form.get("group", "").strip() or None, priority=priority) for id in ids]


def _when(form: Form) -> dict[str, Any]:
    """Read when the tasks are due; nothing for now."""
    after, at = form.get("after", "").strip(), form.get("at", "").strip()
    if after and at:
        raise InvalidInput(f"after {after[:40]!r} or at {at[:40]!r}: empty one of the two fields")
    if after:
        return {"after": _length(after, "after")}
    if not at:
        return {}
    try:
        found = datetime.fromisoformat(at)
    except ValueError:
        raise InvalidInput(f"at: {at[:40]!r} is not a time such as 2026-11-23T08:15") from None
    return {"at": found.replace(tzinfo=UTC) if found.tzinfo is None else found}


def _length(words: str, name: str) -> float:
    found = length_of(words)
    if found is None:
        raise InvalidInput(f"{name}: {words[:40]!r} is not a length of time: write 30, 250ms, 30s, 5m, 2h or 1d")
    return found


# ---- tasks that are there


TOLD: Mapping[Answer, str] = {
    Answer.ADDED: "{} put", Answer.CANCELLED: "{} cancelled", Answer.CANCELLING: "{} told to stop",
    Answer.UNKNOWN: "{} in no state", Answer.RAISED: "{} raised", Answer.RERUN: "{} will run again",
}  # fmt: skip


def told(outcome: Outcome, words: str = "{} in {} already") -> str:
    """Say how a call on tasks ended: `3 tasks put, 1 task in done already`."""
    found = ((TOLD.get(Answer(name), words), count, name) for name, count in outcome.counts().items())
    return ", ".join(form.format(counted(count, "task"), name) for form, count, name in found) or "nothing to do"


def _but(left: int, words: str) -> str:
    return f", {counted(left, 'task')} {words}" if left else ""


@act
async def retry(visit: Visit, form: Form, queue: AnyAsyncQueue) -> Done:
    tasks = chosen(visit, form)
    count = await queue.retry_failed(*tasks)
    return f"{counted(count, 'task')} ready again" + _but(len(tasks) - count, "not in failed"), count > 0


@act
async def run_now(visit: Visit, form: Form, queue: AnyAsyncQueue) -> Done:
    """Make tasks ready that are done or scheduled."""
    tasks = chosen(visit, form)
    states = await queue.states(tasks)
    soon = [task for task, state in states.items() if state is Answer.SCHEDULED]
    if soon:
        await queue.schedule(*soon, after=0.0)
        await queue.promote_due()
    done = [task for task, state in states.items() if state is Answer.DONE]
    count = len(soon) + ((await queue.put(*done, again=True)).added if done else 0)
    return f"{counted(count, 'task')} ready" + _but(len(tasks) - count, "neither done nor scheduled"), count > 0


@act
async def forget(visit: Visit, form: Form, queue: AnyAsyncQueue) -> Done:
    gone = await _forget(queue, chosen(visit, form))
    return f"{counted(gone, 'task')} forgotten", gone > 0


async def _forget(queue: AnyAsyncQueue, tasks: list[str]) -> int:
    outcome = await queue.forget(*tasks)
    return len(outcome) - outcome.counts().get(Answer.UNKNOWN, 0)


@act
async def cancel(visit: Visit, form: Form, queue: AnyAsyncQueue) -> Done:
    outcome = await queue.cancel(*chosen(visit, form), by=visit.caller.name)
    return told(outcome, "{} in {}"), any(answer in (Answer.CANCELLED, Answer.CANCELLING) for answer in outcome)


@act
async def release(visit: Visit, form: Form, queue: AnyAsyncQueue) -> Done:
    """Take the leases of tasks from their workers: the tasks are ready at once."""
    tasks, released = chosen(visit, form), 0
    await queue.exists()  # which looks at the record of the shards
    for task in tasks:
        for shard, talk in enumerate(queue.division.talks):
            (token,) = await queue.run(ask(talk, [("HGET", talk.operations.key("owners"), raw(task))]))
            if token:  # as the holder of the lease has it
                at = f"@{shard}" if isinstance(queue, AsyncShardedQueue) else ""
                with suppress(LeaseLost):
                    await queue.release(Lease(task, token.decode("utf-8", "surrogateescape") + at, 0.0))
                    released += 1
    return f"{counted(released, 'task')} ready again" + _but(len(tasks) - released, "had no lease"), released > 0


# ---- the queue


@act
async def pause(visit: Visit, form: Form, queue: AnyAsyncQueue) -> Done:
    sure(visit, form)
    await queue.pause()
    return f"{visit.name} is paused; tasks that have a lease are finished", True


@act
async def resume(visit: Visit, form: Form, queue: AnyAsyncQueue) -> Done:
    await queue.resume()
    return f"{visit.name} gives out tasks again", True


@act
async def block(visit: Visit, form: Form, queue: AnyAsyncQueue) -> Done:
    host, seconds = _host(form), _length(form.get("for", "3600"), "for")
    time = paint.LENGTHS.get(seconds) or age(seconds)
    sure(visit, form, host=host, time=time)
    await queue.hosts.block(host, for_=seconds, reason=visit.caller.name)
    return f"{host} is not visited for {time}", True


@act
async def unblock(visit: Visit, form: Form, queue: AnyAsyncQueue) -> Done:
    await queue.hosts.unblock(_host(form))
    return f"{_host(form)} is visited again", True


def _host(form: Form) -> str:
    name = form.get("host", "")
    return spelling.decoded(name) if form.get("spelt") == "b64" else name


async def purge_form(visit: Visit, error: str = "") -> Response:
    """Ask for the name of the queue before it is purged."""
    return _asked(visit, "purge", error, words={}, typed=True)


async def purge(visit: Visit) -> Response:
    form = await visit.form()
    if form.get("name") != visit.name:
        return await purge_form(visit, f"That is not the name: type {visit.name}")
    await visit.queue.purge()
    await visit.state.queues.gone(visit.name)
    return visit.go(f"{visit.at.base}/", f"{visit.name} is purged")


# ---- walks


def _begin(visit: Visit, doing: str, tasks: str, total: int, steps: AsyncIterator[int]) -> Done:
    visit.hub.walks.begin(visit.name, f"{doing} {tasks}", total, steps)
    return f"{doing} {counted(total, 'task')}: see below", True


@act
async def empty(visit: Visit, form: Form, queue: AnyAsyncQueue) -> Done:
    """Forget all tasks of a state, in steps, with progress."""
    state = arguments.state(form.get("state", ""))
    total = int(getattr(await queue.stats(), state))
    sure(visit, form, all=all_of(total, "task"), state=state)
    steps = _through(queue, state, lambda tasks: _forget(queue, tasks), lambda entry: True)
    return _begin(visit, "forgetting", f"tasks in {state}", total, steps)


@act
async def retry_all(visit: Visit, form: Form, queue: AnyAsyncQueue) -> Done:
    """Make all failed tasks ready again that were not cancelled and have not expired, in steps, with progress."""
    total = (await queue.stats()).failed
    sure(visit, form, all=all_of(total, "task"))
    steps = _through(
        queue, State.FAILED, lambda tasks: queue.retry_failed(*tasks),
        lambda entry: not (entry.error or "").startswith((CANCELLED, EXPIRED)),
    )  # fmt: skip
    return _begin(visit, "retrying", "failed tasks", total, steps)


async def _through(
    queue: AnyAsyncQueue, state: State, step: Callable[[list[str]], Awaitable[int]], wanted: Callable[[Entry], bool]
) -> AsyncIterator[int]:
    part: list[str] = []
    async for entry in queue.each(state):
        if wanted(entry):
            part.append(entry.task)
        if len(part) >= STEP:
            yield await step(part)
            part = []
    if part:
        yield await step(part)


@act
async def retry_kind(visit: Visit, form: Form, queue: AnyAsyncQueue) -> Done:
    return await _move_kind(visit, form, queue, "retrying")


@act
async def forget_kind(visit: Visit, form: Form, queue: AnyAsyncQueue) -> Done:
    return await _move_kind(visit, form, queue, "forgetting")


async def _move_kind(visit: Visit, form: Form, queue: AnyAsyncQueue, doing: str) -> Done:
    kinds = {one.id: one for one in await queue.failures.list(KINDS + 1)}
    kind = kinds.get(form.get("kind", ""))
    if kind is None:
        return "no task of this kind is in failed", False
    sure(visit, form, all=all_of(kind.count, "task"), error=kind.text)

    async def steps() -> AsyncIterator[int]:
        before, move = None, queue.failures.retry if doing == "retrying" else queue.failures.forget
        while True:
            moved = await move(kind, at_most=STEP, before=before)
            yield moved.moved
            before = moved.before
            if not moved.left or not moved.moved:
                return

    return _begin(visit, doing, safe(kind.text, 80), kind.count, steps())
