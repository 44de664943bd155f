"""The acts of the page: one function for each form. Each ends with a redirect, and a message on the page it leads to.

Acts that cannot be undone ask first: the script of the page asks in a dialog and sends `sure=1`; without the script,
the same form is answered with a page that asks.
"""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
from timeoutq.words.model import Answer, Entry, Lease, Outcome, State, Task, raw
from timeoutq.words.text import all_of, counted, length_of, safe

MOST_IDS = 10_000  # ids in the form for new tasks
STEP = 200  # tasks in one step of a walk

Done = tuple[str, bool]  # the message of an act, and whether it has done anything


class Instead(Exception):
    """An act that is not carried out: the answer says why, or asks whether it is meant."""

    def __init__(self, answer: Response) -> None:
        super().__init__()
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Doing:
    """One act that a form asks for."""

    name: str
    visit: Visit
    form: Form
    queue: AnyAsyncQueue

    def sure(self, tasks: Sequence[str] = (), **words: Any) -> None:
        """Ask whether the act is meant, unless the form says that somebody was asked, or it needs no question."""
        if paint.ACTS[self.name].sure and self.form.get("sure") != "1":
            question = paint.question(self.name, queue=self.visit.name, **words)
            fields, back = self.form.pairs, self.form.get("back")
            raise Instead(_asked(self.visit, self.name, question, fields, back, tasks=tasks))

    def tasks(self) -> list[str]:
        """Give the chosen tasks, of which somebody is sure; whoever has chosen none is led back, and told so."""
        tasks = self.form.tasks
        if not tasks:
            words = "choose a task first: check its box, then press the button"
            raise Instead(self.visit.back(self.form.get("back"), words, "bad"))
        self.sure(tasks, n=counted(len(tasks), "task"))
        return tasks

    def begin(self, doing: str, tasks: str, total: int, steps: AsyncIterator[int]) -> Done:
        """Begin a walk; raises `InvalidInput` if it is under way already."""
        self.visit.hub.walks.begin(self.visit.name, f"{doing} {tasks}", total, steps)
        return f"{doing} {counted(total, 'task')}: see below", True


def act(do: Callable[[Doing], Awaitable[Done]]) -> Callable[[Visit], Awaitable[Response]]:
    """Make the endpoint of an act, which has the name of the function."""

    @functools.wraps(do)
    async def acting(visit: Visit) -> Response:
        doing = Doing(do.__name__.replace("_", "-"), visit, await visit.form(), await visit.queue())
        try:
            message, good = await do(doing)
        except Instead as instead:
            return instead.answer
        return visit.back(doing.form.get("back"), message, "good" if good else "bad")

    return acting


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
    names = ("ids", "payload", "after", "at", "group", "priority", "again")
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
    to = f"task?{spelling.query(tasks[0].task)}" if len(tasks) == 1 else ""
    to = to if "look" in visit.at.rights else "put"
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
    """Read when the tasks are due; nothing for now."""
    after, at = form.get("after").strip(), form.get("at").strip()
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
async def retry(do: Doing) -> Done:
    """Make failed tasks ready again."""
    tasks = do.tasks()
    count = await do.queue.retry_failed(*tasks)
    return f"{counted(count, 'task')} ready again" + _but(len(tasks) - count, "not in failed"), count > 0


@act
async def run_now(do: Doing) -> Done:
    """Make tasks ready that are done or scheduled."""
    tasks, queue = do.tasks(), do.queue
    states = await queue.states(tasks)
    soon = [task for task, state in states.items() if state is Answer.SCHEDULED]
    if soon:
        await queue.schedule(*soon, after=0.0)
        await queue.promote_due()
    done = [task for task, state in states.items() if state is Answer.DONE]
    count = len(soon) + ((await queue.put(*done, again=True)).added if done else 0)
    return f"{counted(count, 'task')} ready" + _but(len(tasks) - count, "neither done nor scheduled"), count > 0


@act
async def forget(do: Doing) -> Done:
    """Remove tasks from every state."""
    gone = await _forget(do.queue, do.tasks())
    return f"{counted(gone, 'task')} forgotten", gone > 0


async def _forget(queue: AnyAsyncQueue, tasks: list[str]) -> int:
    outcome = await queue.forget(*tasks)
    return len(outcome) - outcome.counts().get(Answer.UNKNOWN, 0)


@act
async def cancel(do: Doing) -> Done:
    """Cancel tasks."""
    outcome = await do.queue.cancel(*do.tasks(), by=do.visit.caller.name)
    return told(outcome, "{} in {}"), any(answer in (Answer.CANCELLED, Answer.CANCELLING) for answer in outcome)


@act
async def release(do: Doing) -> Done:
    """Take the leases of tasks from their workers: the tasks are ready at once."""
    tasks, released = do.tasks(), 0
    for task in tasks:
        for lease in await leases_of(do.queue, task):
            with suppress(LeaseLost):
                await do.queue.release(lease)
                released += 1
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


@act
async def pause(do: Doing) -> Done:
    """Stop giving out tasks."""
    do.sure()
    await do.queue.pause()
    return f"{do.visit.name} is paused; tasks that have a lease are finished", True


@act
async def resume(do: Doing) -> Done:
    """Give out tasks again."""
    await do.queue.resume()
    return f"{do.visit.name} gives out tasks again", True


def _host(form: Form) -> str:
    name = form.get("host")
    return spelling.decoded(name) if form.get("spelt") == "b64" else name


@act
async def block(do: Doing) -> Done:
    """Keep all workers from a host for a time."""
    host, seconds = _host(do.form), _length(do.form.get("for", "3600"), "for")
    time = spelling.lasting(seconds)
    do.sure(host=host, time=time)
    await do.queue.hosts.block(host, for_=seconds, reason=do.visit.caller.name)
    return f"{host} is not visited for {time}", True


@act
async def unblock(do: Doing) -> Done:
    """End a block or a ban of a host."""
    host = _host(do.form)
    await do.queue.hosts.unblock(host)
    return f"{host} is visited again", True


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


@act
async def empty(do: Doing) -> Done:
    """Forget all tasks of a state, in steps, with progress."""
    state = arguments.state(do.form.get("state"))
    total = int(getattr(await do.queue.stats(), state))
    do.sure(all=all_of(total, "task"), state=state)
    steps = _through(do.queue, state, lambda tasks: _forget(do.queue, tasks), lambda entry: True)
    return do.begin("forgetting", f"tasks in {state}", total, steps)


@act
async def retry_all(do: Doing) -> Done:
    """Make all failed tasks ready again that were not cancelled, in steps, with progress."""
    total = (await do.queue.stats()).failed
    do.sure(all=all_of(total, "task"))
    steps = _through(do.queue, State.FAILED, lambda tasks: do.queue.retry_failed(*tasks), _was_not_cancelled)
    return do.begin("retrying", "failed tasks", total, steps)


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


@act
async def retry_kind(do: Doing) -> Done:
    """Make all failed tasks of a kind ready again, in steps, with progress."""
    return await _move_kind(do, "retrying")


@act
async def forget_kind(do: Doing) -> Done:
    """Forget all failed tasks of a kind, in steps, with progress."""
    return await _move_kind(do, "forgetting")


async def _move_kind(do: Doing, doing: str) -> Done:
    kinds = {one.id: one for one in await do.queue.failures.list(KINDS + 1)}
    kind = kinds.get(do.form.get("kind"))
    if kind is None:
        return "no task of this kind is in failed", False
    do.sure(all=all_of(kind.count, "task"), error=kind.text)

    async def steps() -> AsyncIterator[int]:
        before, move = None, do.queue.failures.retry if doing == "retrying" else do.queue.failures.forget
        while True:
            moved = await move(kind, at_most=STEP, before=before)
            yield moved.moved
            before = moved.before
            if not moved.left or not moved.moved:
                return

    return do.begin(doing, safe(kind.text, 80), kind.count, steps())
