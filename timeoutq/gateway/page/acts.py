"""What the page does: one function for each form. Each ends with a redirect, and a message on the page it leads to.

`routes.py` names them. What cannot be undone asks first: the script of the page asks in a dialog and sends `sure=1`;
without the script, the same form is answered with a page that asks.
"""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

from timeoutq.client.shards import AnyAsyncQueue, AsyncShardedQueue
from timeoutq.gateway.page import spelling
from timeoutq.gateway.page.visits import Form, Visit
from timeoutq.rooms.failures.operations import KINDS
from timeoutq.verbs.sending import ask
from timeoutq.words.errors import InvalidInput, LeaseLost
from timeoutq.words.model import Answer, Entry, Lease, Outcome, State, Task, raw
from timeoutq.words.text import all_of, counted, length_of, safe

MOST_IDS = 10_000
"""Ids in the form for new tasks."""
STEP = 200
"""Tasks in one step of a walk."""


@dataclass(frozen=True, slots=True)
class Question:
    """What an act asks before it is done, if the form does not say that somebody was asked."""

    label: str
    asks: str
    """`{n}` stands for how many tasks it is about, `{all}` for all of so many; `{queue}`, `{state}`, `{host}`,
    `{time}` and `{error}` for what the form names."""
    kind: str = ""


QUESTIONS: Mapping[str, Question] = {
    "forget": Question("Forget", "Forget {n}?", "danger"),
    "cancel": Question("Cancel", "Cancel {n}?"),
    "release": Question("Release", "Take the leases of {n} from their workers?"),
    "pause": Question("Pause", "Give out no tasks of {queue} until somebody resumes it?"),
    "block": Question("Block", "Do not visit {host} for {time}?"),
    "empty": Question("Empty", "Forget {all} in {state} of {queue}?", "danger"),
    "forget-kind": Question("Forget all", "Forget {all} of {queue} that failed with: {error}?", "danger"),
    "retry-kind": Question("Retry all", "Make {all} of {queue} ready again that failed with: {error}?"),
    "retry-all": Question("Retry all", "Make {all} in failed of {queue} ready again?"),
}


def _sure(visit: Visit, form: Form, verb: str, tasks: list[str] | None = None, **about: Any) -> Response | None:
    if form.is_sure:
        return None
    asked = QUESTIONS[verb]
    words = {name: safe(value, spelling.SHORT) for name, value in about.items()}
    question = asked.asks.format(n=counted(len(tasks or ()), "task"), queue=visit.name, **words)
    return visit.page(
        "sure.html", question=question, verb=verb, label=asked.label, kind=asked.kind, tasks=tasks or [],
        fields=form.pairs, back=form.get("back"), typed=False, error="",
    )  # fmt: skip


TasksAct = Callable[[Visit, Form, AnyAsyncQueue, list[str]], Awaitable[Response]]


def _on_tasks(act: TasksAct) -> Callable[[Visit], Awaitable[Response]]:
    """Make an act of one on chosen tasks; whoever has chosen none is led back to the list, and told so."""

    @functools.wraps(act)
    async def acting(visit: Visit) -> Response:
        form, queue = await visit.form(), await visit.queue()
        tasks = form.tasks
        if not tasks:
            return visit.back(form.get("back"), "choose a task first: check its box, then press the button", "bad")
        return await act(visit, form, queue, tasks)

    return acting


# ---- tasks in


async def put_form(visit: Visit) -> Response:
    """Show the form for new tasks."""
    queue = await visit.queues.get(visit.name, visit.caller.name)
    return await _put_page(visit, queue, Form([]))


async def _put_page(visit: Visit, queue: AnyAsyncQueue, form: Form, error: str = "") -> Response:
    names = ("ids", "payload", "when", "after", "at", "group", "priority", "again")
    given = {name: form.get(name) for name in names}
    polite = (await visit.hub.snapshot(visit.name)).stats.politeness is not None
    return visit.page("put.html", 422 if error else 200, given=given, polite=polite, error=error, tab="Put")


async def put(visit: Visit) -> Response:
    """Put or schedule the tasks of the form."""
    form, queue = await visit.form(), await visit.queues.get(visit.name, visit.caller.name)
    try:
        tasks, when = _wanted(form)
        again = form.get("again") == "1"
        if when:
            outcome = await queue.schedule(*tasks, again=again, **when)
        else:
            outcome = await queue.put(*tasks, again=again)
    except InvalidInput as error:
        return await _put_page(visit, queue, form, str(error))
    if "look" not in visit.at.rights:
        to = "put"
    elif len(tasks) == 1:
        to = f"task?{spelling.query(tasks[0].task)}"
    else:
        # most of them: on a polite queue, of each host one is in todos, and the others are in waiting
        counts = (await queue.states(*tasks[:STEP])).counts()
        held = [state for state in State if state in counts]
        to = f"tasks?state={max(held, key=lambda state: counts[state], default=State.TODOS)}"
    return visit.back(to, told(outcome))


def _wanted(form: Form) -> tuple[list[Task], dict[str, Any]]:
    # without blanks at both ends, as `timeoutq put -f` reads a file
    ids = [line.strip(" \t\r") for line in form.get("ids").removeprefix("\ufeff").split("\n")]
    ids = [line for line in ids if line]
    if not ids:
        raise InvalidInput("no id was given: write one on each line")
    if len(ids) > MOST_IDS:
        raise InvalidInput(f"{len(ids):,} ids; at most {MOST_IDS:,} at once: use the command or the API")
    payload = _payload(form.get("payload"))
    group, priority = form.get("group").strip() or None, _whole(form.get("priority"), "priority")
    tasks = [Task(id, payload, group, priority=priority) for id in ids]
    return tasks, _when(form)


def _when(form: Form) -> dict[str, Any]:
    """Read when the tasks are due. Raises `InvalidInput` if a field is filled whose choice was not made."""
    how = form.get("when", "now")
    filled = {name: text for name in ("after", "at") if (text := form.get(name).strip())}
    for name, text in filled.items():
        if name != how:
            raise InvalidInput(
                f"'{name}' is filled with {text[:40]!r}, and '{how}' is chosen: choose '{name}', or empty the field"
            )
    if how == "after":
        return {"after": _length(filled.get("after", ""), "after")}
    return {"at": _moment(filled.get("at", ""))} if how == "at" else {}


def _payload(text: str) -> Any:
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the payload is not JSON: {error}") from None


def _whole(text: str, name: str) -> int | None:
    if not text.strip():
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidInput(f"{name}: {text[:40]!r} is not a whole number") from None


def _length(text: str, name: str) -> float:
    found = length_of(text)
    if found is None:
        raise InvalidInput(f"{name}: {text[:40]!r} is not a length of time: write 30, 250ms, 30s, 5m, 2h or 1d")
    return found


def _moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"at: {text[:40]!r} is not a time such as 2026-11-23T08:15") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


# ---- tasks that are there


TOLD: Mapping[Answer, str] = {
    Answer.ADDED: "{} put", Answer.CANCELLED: "{} cancelled", Answer.CANCELLING: "{} told to stop",
    Answer.UNKNOWN: "{} in no state", Answer.RAISED: "{} raised", Answer.RERUN: "{} will run again",
}  # fmt: skip


def told(outcome: Outcome, words: str = "{} in {} already") -> str:
    """Say what became of tasks: `3 tasks put, 1 task in done already`."""
    parts: list[str] = []
    for name, count in outcome.counts().items():
        many, answer = counted(count, "task"), Answer(name)
        parts.append(TOLD[answer].format(many) if answer in TOLD else words.format(many, name))
    return ", ".join(parts) or "nothing to do"


@_on_tasks
async def retry(visit: Visit, form: Form, queue: AnyAsyncQueue, tasks: list[str]) -> Response:
    """Make the failed tasks of the form ready again."""
    count = await queue.retry_failed(*tasks)
    left = len(tasks) - count
    message = f"{counted(count, 'task')} ready again" + (f", {counted(left, 'task')} not in failed" if left else "")
    return visit.back(form.get("back"), message, "good" if count else "bad")


@_on_tasks
async def run_now(visit: Visit, form: Form, queue: AnyAsyncQueue, tasks: list[str]) -> Response:
    """Make tasks ready that are done or scheduled."""
    states = await queue.states(tasks)
    soon = [task for task, state in states.items() if state is Answer.SCHEDULED]
    if soon:
        await queue.schedule(*soon, after=0.0)
        await queue.promote_due()
    done = [task for task, state in states.items() if state is Answer.DONE]
    outcome = await queue.put(*done, again=True) if done else None
    count = len(soon) + (outcome.added if outcome is not None else 0)
    left = len(tasks) - count
    others = f", {counted(left, 'task')} neither done nor scheduled" if left else ""
    message = f"{counted(count, 'task')} ready{others}"
    return visit.back(form.get("back"), message, "good" if count else "bad")


@_on_tasks
async def forget(visit: Visit, form: Form, queue: AnyAsyncQueue, tasks: list[str]) -> Response:
    """Remove the tasks of the form from every state."""
    if (question := _sure(visit, form, "forget", tasks)) is not None:
        return question
    outcome = await queue.forget(*tasks)
    gone = len(outcome) - outcome.counts().get(Answer.UNKNOWN, 0)
    return visit.back(form.get("back"), f"{counted(gone, 'task')} forgotten", "good" if gone else "bad")


@_on_tasks
async def cancel(visit: Visit, form: Form, queue: AnyAsyncQueue, tasks: list[str]) -> Response:
    """Cancel the tasks of the form."""
    if (question := _sure(visit, form, "cancel", tasks)) is not None:
        return question
    outcome = await queue.cancel(*tasks, by=visit.caller.name)
    good = any(answer in (Answer.CANCELLED, Answer.CANCELLING) for answer in outcome)
    return visit.back(form.get("back"), told(outcome, "{} in {}"), "good" if good else "bad")


@_on_tasks
async def release(visit: Visit, form: Form, queue: AnyAsyncQueue, tasks: list[str]) -> Response:
    """Take the leases of tasks from their workers: the tasks are ready at once."""
    if (question := _sure(visit, form, "release", tasks)) is not None:
        return question
    released = 0
    for task in tasks:
        for lease in await leases_of(queue, task):
            try:
                await queue.release(lease)
                released += 1
            except LeaseLost:
                continue
    left = len(tasks) - released
    message = f"{counted(released, 'task')} ready again" + (f", {counted(left, 'task')} had no lease" if left else "")
    return visit.back(form.get("back"), message, "good" if released else "bad")


async def leases_of(queue: AnyAsyncQueue, task: str) -> list[Lease]:
    """Give the leases on a task, as its holder has them: one, or none if nobody holds the task."""
    if isinstance(queue, AsyncShardedQueue):
        await queue.exists()  # which looks at the record of the queue
        talks = enumerate(queue.shards.talks)
        found: list[Lease] = []
        for shard, talk in talks:
            (token,) = await queue.run(ask(talk, [("HGET", talk.operations.key("owners"), raw(task))]))
            if token:
                found.append(Lease(task, f"{token.decode('utf-8', 'surrogateescape')}@{shard}", 0.0))
        return found
    (token,) = await queue.run(ask(queue.talk, [("HGET", queue.talk.operations.key("owners"), raw(task))]))
    return [Lease(task, token.decode("utf-8", "surrogateescape"), 0.0)] if token else []


# ---- the queue


async def pause(visit: Visit) -> Response:
    """Stop giving out tasks."""
    form, queue = await visit.form(), await visit.queue()
    if (question := _sure(visit, form, "pause")) is not None:
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
    if (question := _sure(visit, form, "block", host=host, time=spelling.lasting(seconds))) is not None:
        return question
    await queue.hosts.block(host, for_=seconds, reason=visit.caller.name)
    return visit.back(form.get("back"), f"{host} is not visited for {spelling.lasting(seconds)}")


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
    question = f"Remove {visit.name} with all its tasks, settings and history?"
    return visit.page(
        "sure.html", 422 if error else 200, question=question, verb="purge", label="Purge", kind="danger", tasks=[],
        fields=[], back="", typed=True, error=error,
    )  # fmt: skip


async def purge(visit: Visit) -> Response:
    """Remove the queue with all its keys."""
    form = await visit.form()
    if form.get("name") != visit.name:
        return _purge_page(visit, f"That is not the name: type {visit.name}")
    await (await visit.queue()).purge()
    await visit.queues.forget(visit.name)
    return visit.go(f"{visit.at.base}/", f"{visit.name} is purged")


# ---- walks


Step = Callable[[list[str]], Awaitable[int]]


async def empty(visit: Visit) -> Response:
    """Forget all tasks of a state, in steps, with progress."""
    form, queue = await visit.form(), await visit.queue()
    state = form.get("state")
    if state not in list(State):
        raise InvalidInput(f"{state!r:.40} is not a state: one of {', '.join(State)}")
    total = int(getattr(await queue.stats(), state))
    if (question := _sure(visit, form, "empty", all=all_of(total, "task"), state=state)) is not None:
        return question

    async def step(tasks: list[str]) -> int:
        outcome = await queue.forget(*tasks)
        return len(outcome) - outcome.counts().get(Answer.UNKNOWN, 0)

    visit.walks.begin(visit.name, f"forgetting tasks in {state}", total, _through(queue, State(state), step))
    return visit.back(form.get("back"), f"forgetting {counted(total, 'task')}: see below")


async def retry_all(visit: Visit) -> Response:
    """Make all failed tasks ready again, in steps, with progress."""
    form, queue = await visit.form(), await visit.queue()
    total = (await queue.stats()).failed
    if (question := _sure(visit, form, "retry-all", all=all_of(total, "task"))) is not None:
        return question

    async def step(tasks: list[str]) -> int:
        return await queue.retry_failed(*tasks)

    visit.walks.begin(
        visit.name, "retrying failed tasks", total, _through(queue, State.FAILED, step, _was_not_cancelled)
    )
    return visit.back(form.get("back"), f"retrying {counted(total, 'task')}: see below")


async def retry_kind(visit: Visit) -> Response:
    """Make all failed tasks of a kind ready again, in steps, with progress."""
    return await _move_kind(visit, "retry-kind")


async def forget_kind(visit: Visit) -> Response:
    """Forget all failed tasks of a kind, in steps, with progress."""
    return await _move_kind(visit, "forget-kind")


async def _move_kind(visit: Visit, verb: str) -> Response:
    form, queue = await visit.form(), await visit.queue()
    wanted = form.get("kind")
    kinds = {one.id: one for one in await queue.failures.list(KINDS + 1)}
    if wanted not in kinds:
        return visit.back(form.get("back"), "no task of this kind is in failed", "bad")
    kind = kinds[wanted]
    if (question := _sure(visit, form, verb, all=all_of(kind.count, "task"), error=kind.text)) is not None:
        return question

    async def steps() -> AsyncIterator[int]:
        before, move = None, queue.failures.retry if verb == "retry-kind" else queue.failures.forget
        while True:
            moved = await move(kind, at_most=STEP, before=before)
            yield moved.moved
            before = moved.before
            if not moved.left or not moved.moved:
                return

    doing = "retrying" if verb == "retry-kind" else "forgetting"
    visit.walks.begin(visit.name, f"{doing} {safe(kind.text, 80)}", kind.count, steps())
    return visit.back(form.get("back"), f"{doing} {counted(kind.count, 'task')}: see below")


def _was_not_cancelled(entry: Entry) -> bool:
    return not (entry.error or "").startswith("cancelled by ")


async def _through(
    queue: AnyAsyncQueue, state: State, step: Step, wanted: Callable[[Entry], bool] = bool
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
