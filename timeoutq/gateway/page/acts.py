"""The acts of the page: one function for each form. Each ends with a redirect, and a message on the page it leads to.

Acts that cannot be undone ask first: the script of the page asks in a dialog and sends `sure=1`; without the script,
the same form is answered with a page that asks.
"""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

from timeoutq.client.shards import AnyAsyncQueue, AsyncShardedQueue
from timeoutq.gateway.page import paint, spelling
from timeoutq.gateway.page.visits import Form, Visit
from timeoutq.rooms.failures import KINDS
from timeoutq.verbs.sending import ask
from timeoutq.words.errors import InvalidInput, LeaseLost
from timeoutq.words.model import Answer, Entry, Lease, Outcome, State, Task, raw
from timeoutq.words.text import all_of, counted, length_of, safe

MOST_IDS = 10_000
"""Ids in the form for new tasks."""
STEP = 200
"""Tasks in one step of a walk."""

Done = tuple[str, bool]
"""The message of an act, and whether it has done anything."""


def _unsure(visit: Visit, form: Form, name: str, tasks: Sequence[str] = (), **words: Any) -> Response | None:
    """Ask whether an act is meant, unless the form says that somebody was asked, or the act needs no question."""
    act = paint.ACTS[name]
    if not act.sure or form.get("sure") == "1":
        return None
    question = paint.question(name, n=counted(len(tasks), "task"), queue=visit.name, **words)
    return _asked(visit, name, question, form.pairs, form.get("back"), tasks=tasks)


def _asked(
    visit: Visit, name: str, question: str, fields: Sequence[tuple[str, str]], back: str, error: str = "", **given: Any
) -> Response:
    return visit.page(
        "sure.html", 422 if error else 200, question=question, verb=name, act=paint.ACTS[name], fields=fields,
        back=back, error=error, **{"tasks": (), "typed": False, **given},
    )  # fmt: skip


# ---- tasks in


async def put_form(visit: Visit) -> Response:
    """Show the form for new tasks."""
    return await _put_page(visit, Form([]))


async def _put_page(visit: Visit, form: Form, error: str = "") -> Response:
    names = ("ids", "payload", "when", "after", "at", "group", "priority", "again")
    polite = (await visit.hub.snapshot(visit.name)).stats.politeness is not None
    given = {name: form.get(name) for name in names}
    return visit.page("put.html", 422 if error else 200, given=given, polite=polite, error=error, tab="Put")


async def put(visit: Visit) -> Response:
    """Put or schedule the tasks of the form."""
    form, queue = await visit.form(), await visit.queues.get(visit.name, visit.caller.name)
    try:
        tasks, when = _wanted(form), _when(form)
        again = form.get("again") == "1"
        outcome = await (queue.schedule(*tasks, again=again, **when) if when else queue.put(*tasks, again=again))
    except InvalidInput as error:
        return await _put_page(visit, form, str(error))
    if "look" not in visit.at.rights:
        to = "put"
    elif len(tasks) == 1:
        to = f"task?{spelling.query(tasks[0].task)}"
    else:
        # the state of most of them: on a polite queue, one of each host is in todos, and the others are in waiting
        counts = (await queue.states(*tasks[:STEP])).counts()
        held = [state for state in State if state in counts]
        to = f"tasks?state={max(held, key=lambda state: counts[state], default=State.TODOS)}"
    return visit.back(to, told(outcome))


def _wanted(form: Form) -> list[Task]:
    # without blanks at both ends, as `timeoutq put -f` reads a file
    lines = (line.strip(" \t\r") for line in form.get("ids").removeprefix("\ufeff").split("\n"))
    ids = [line for line in lines if line]
    if not ids:
        raise InvalidInput("no id was given: write one on each line")
    if len(ids) > MOST_IDS:
        raise InvalidInput(f"{len(ids):,} ids; at most {MOST_IDS:,} at once: use the command or the API")
    words = form.get("payload")
    try:
        payload = json.loads(words) if words.strip() else None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the payload is not JSON: {error}") from None
    words = form.get("priority").strip()
    try:
        priority = int(words) if words else None
    except ValueError:
        raise InvalidInput(f"priority: {words[:40]!r} is not a whole number") from None
    return [Task(id, payload, form.get("group").strip() or None, priority=priority) for id in ids]


def _when(form: Form) -> dict[str, Any]:
    """Read when the tasks are due. Raises `InvalidInput` if a field is filled whose choice was not made."""
    how = form.get("when", "now")
    for name in ("after", "at"):
        words = form.get(name).strip()
        if words and name != how:
            raise InvalidInput(
                f"'{name}' is filled with {words[:40]!r}, and '{how}' is chosen: choose '{name}', or empty the field"
            )
    words = form.get(how).strip()
    if how == "after":
        return {"after": _length(words, "after")}
    if how != "at":
        return {}
    try:
        found = datetime.fromisoformat(words)
    except ValueError:
        raise InvalidInput(f"at: {words[:40]!r} is not a time such as 2026-11-23T08:15") from None
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


Act = Callable[[Visit, AnyAsyncQueue, list[str]], Awaitable[Done]]


def _on_tasks(name: str) -> Callable[[Act], Callable[[Visit], Awaitable[Response]]]:
    """Make an act on chosen tasks; whoever has chosen none is led back to the list, and told so."""

    def make(act: Act) -> Callable[[Visit], Awaitable[Response]]:
        @functools.wraps(act)
        async def acting(visit: Visit) -> Response:
            form, queue = await visit.form(), await visit.queue()
            tasks, back = form.tasks, form.get("back")
            if not tasks:
                return visit.back(back, "choose a task first: check its box, then press the button", "bad")
            if (question := _unsure(visit, form, name, tasks)) is not None:
                return question
            message, good = await act(visit, queue, tasks)
            return visit.back(back, message, "good" if good else "bad")

        return acting

    return make


@_on_tasks("retry")
async def retry(visit: Visit, queue: AnyAsyncQueue, tasks: list[str]) -> Done:
    """Make failed tasks ready again."""
    count = await queue.retry_failed(*tasks)
    return f"{counted(count, 'task')} ready again" + _but(len(tasks) - count, "not in failed"), count > 0


@_on_tasks("run-now")
async def run_now(visit: Visit, queue: AnyAsyncQueue, tasks: list[str]) -> Done:
    """Make tasks ready that are done or scheduled."""
    states = await queue.states(tasks)
    soon = [task for task, state in states.items() if state is Answer.SCHEDULED]
    if soon:
        await queue.schedule(*soon, after=0.0)
        await queue.promote_due()
    done = [task for task, state in states.items() if state is Answer.DONE]
    count = len(soon) + ((await queue.put(*done, again=True)).added if done else 0)
    return f"{counted(count, 'task')} ready" + _but(len(tasks) - count, "neither done nor scheduled"), count > 0


@_on_tasks("forget")
async def forget(visit: Visit, queue: AnyAsyncQueue, tasks: list[str]) -> Done:
    """Remove tasks from every state."""
    gone = await _forget(queue, tasks)
    return f"{counted(gone, 'task')} forgotten", gone > 0


async def _forget(queue: AnyAsyncQueue, tasks: list[str]) -> int:
    outcome = await queue.forget(*tasks)
    return len(outcome) - outcome.counts().get(Answer.UNKNOWN, 0)


@_on_tasks("cancel")
async def cancel(visit: Visit, queue: AnyAsyncQueue, tasks: list[str]) -> Done:
    """Cancel tasks."""
    outcome = await queue.cancel(*tasks, by=visit.caller.name)
    return told(outcome, "{} in {}"), any(answer in (Answer.CANCELLED, Answer.CANCELLING) for answer in outcome)


@_on_tasks("release")
async def release(visit: Visit, queue: AnyAsyncQueue, tasks: list[str]) -> Done:
    """Take the leases of tasks from their workers: the tasks are ready at once."""
    released = 0
    for task in tasks:
        for lease in await leases_of(queue, task):
            try:
                await queue.release(lease)
                released += 1
            except LeaseLost:
                continue
    return f"{counted(released, 'task')} ready again" + _but(len(tasks) - released, "had no lease"), released > 0


async def leases_of(queue: AnyAsyncQueue, task: str) -> list[Lease]:
    """Give the leases on a task, as its holder has them: one, or none if nobody holds the task."""
    await queue.exists()  # which looks at the record of the shards
    found: list[Lease] = []
    for shard, talk in enumerate(queue.division.talks):
        (token,) = await queue.run(ask(talk, [("HGET", talk.operations.key("owners"), raw(task))]))
        if token:
            at = f"@{shard}" if isinstance(queue, AsyncShardedQueue) else ""
            found.append(Lease(task, token.decode("utf-8", "surrogateescape") + at, 0.0))
    return found


# ---- the queue


async def pause(visit: Visit) -> Response:
    """Stop giving out tasks."""
    form, queue = await visit.form(), await visit.queue()
    if (question := _unsure(visit, form, "pause")) is not None:
        return question
    await queue.pause()
    return visit.back(form.get("back"), f"{visit.name} is paused; tasks that have a lease are finished")


async def resume(visit: Visit) -> Response:
    """Give out tasks again."""
    form, queue = await visit.form(), await visit.queue()
    await queue.resume()
    return visit.back(form.get("back"), f"{visit.name} gives out tasks again")


def _host(form: Form) -> str:
    name = form.get("host")
    return spelling.decoded(name) if form.get("spelt") == "b64" else name


async def block(visit: Visit) -> Response:
    """Keep all workers from a host for a time."""
    form, queue = await visit.form(), await visit.queue()
    host, seconds = _host(form), _length(form.get("for", "3600"), "for")
    time = spelling.lasting(seconds)
    if (question := _unsure(visit, form, "block", host=host, time=time)) is not None:
        return question
    await queue.hosts.block(host, for_=seconds, reason=visit.caller.name)
    return visit.back(form.get("back"), f"{host} is not visited for {time}")


async def unblock(visit: Visit) -> Response:
    """End a block or a ban of a host."""
    form, queue = await visit.form(), await visit.queue()
    host = _host(form)
    await queue.hosts.unblock(host)
    return visit.back(form.get("back"), f"{host} is visited again")


async def purge_form(visit: Visit) -> Response:
    """Ask for the name of the queue before it is purged."""
    await visit.queue()
    return _purge_page(visit, "")


def _purge_page(visit: Visit, error: str) -> Response:
    question = paint.question("purge", queue=visit.name)
    return _asked(visit, "purge", question, (), "", error, typed=True)


async def purge(visit: Visit) -> Response:
    """Remove the queue with all its keys."""
    form = await visit.form()
    if form.get("name") != visit.name:
        return _purge_page(visit, f"That is not the name: type {visit.name}")
    await (await visit.queue()).purge()
    await visit.queues.forget(visit.name)
    return visit.go(f"{visit.at.base}/", f"{visit.name} is purged")


# ---- walks


async def empty(visit: Visit) -> Response:
    """Forget all tasks of a state, in steps, with progress."""
    form, queue = await visit.form(), await visit.queue()
    state = form.get("state")
    if state not in list(State):
        raise InvalidInput(f"{state!r:.40} is not a state: one of {', '.join(State)}")
    total = int(getattr(await queue.stats(), state))
    if (question := _unsure(visit, form, "empty", all=all_of(total, "task"), state=state)) is not None:
        return question
    steps = _through(queue, State(state), lambda tasks: _forget(queue, tasks), lambda entry: True)
    return _begun(visit, form, "forgetting", f"tasks in {state}", total, steps)


async def retry_all(visit: Visit) -> Response:
    """Make all failed tasks ready again that were not cancelled, in steps, with progress."""
    form, queue = await visit.form(), await visit.queue()
    total = (await queue.stats()).failed
    if (question := _unsure(visit, form, "retry-all", all=all_of(total, "task"))) is not None:
        return question
    steps = _through(queue, State.FAILED, lambda tasks: queue.retry_failed(*tasks), _was_not_cancelled)
    return _begun(visit, form, "retrying", "failed tasks", total, steps)


def _was_not_cancelled(entry: Entry) -> bool:
    return not (entry.error or "").startswith("cancelled by ")


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


async def retry_kind(visit: Visit) -> Response:
    """Make all failed tasks of a kind ready again, in steps, with progress."""
    return await _move_kind(visit, "retry-kind", "retrying")


async def forget_kind(visit: Visit) -> Response:
    """Forget all failed tasks of a kind, in steps, with progress."""
    return await _move_kind(visit, "forget-kind", "forgetting")


async def _move_kind(visit: Visit, name: str, doing: str) -> Response:
    form, queue = await visit.form(), await visit.queue()
    kinds = {one.id: one for one in await queue.failures.list(KINDS + 1)}
    kind = kinds.get(form.get("kind"))
    if kind is None:
        return visit.back(form.get("back"), "no task of this kind is in failed", "bad")
    if (question := _unsure(visit, form, name, all=all_of(kind.count, "task"), error=kind.text)) is not None:
        return question

    async def steps() -> AsyncIterator[int]:
        before, move = None, queue.failures.retry if name == "retry-kind" else queue.failures.forget
        while True:
            moved = await move(kind, at_most=STEP, before=before)
            yield moved.moved
            before = moved.before
            if not moved.left or not moved.moved:
                return

    return _begun(visit, form, doing, safe(kind.text, 80), kind.count, steps())


def _begun(visit: Visit, form: Form, doing: str, tasks: str, total: int, steps: AsyncIterator[int]) -> Response:
    visit.walks.begin(visit.name, f"{doing} {tasks}", total, steps)
    return visit.back(form.get("back"), f"{doing} {counted(total, 'task')}: see below")
