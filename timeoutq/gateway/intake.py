"""Put of any number of tasks as NDJSON: each line is an id in quotes, or a task as an object, as in the list of a put.

`routes.py` names `put_lines` for bodies of this type. Lines are put by the thousand while more come, so nothing grows
with the length of the body. When it ends early, the problem says how many lines are in: a put is safe to repeat.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import msgspec

from timeoutq.client.shards import AnyAsyncQueue
from timeoutq.gateway import bodies
from timeoutq.gateway.access import GONE, unauthorized
from timeoutq.gateway.bodies import NewTask
from timeoutq.gateway.problems import Problem, problem_of
from timeoutq.gateway.requests import ClientGone, Request
from timeoutq.words.model import Task

AT_ONCE = 4000
"""How many lines are put in one go, at most."""
SIZE = 1024 * 1024
"""How many bytes of lines are put in one go, if the lines are long."""
FLAGS = {"": True, "1": True, "true": True, "0": False, "false": False}

_decoder = msgspec.json.Decoder(str | NewTask)


class Intake:
    """One put of lines. They stay bytes until it is their turn: as tasks they take many times the memory."""

    def __init__(self, request: Request, queue: AnyAsyncQueue) -> None:
        self._request = request
        self._queue = queue
        self._data = bytearray()
        """What has come and is not put yet."""
        self._newlines = 0
        self._passed = 0
        """How many lines have been read, blank ones among them."""
        self.put = 0
        """How many of them are in."""
        self.counts = Counter[str]()
        self._how = _how(request)

    async def run(self) -> bodies.Lines:
        """Read all lines and put them; give how many there were, and how often each answer was given."""
        try:
            async for part in self._request.parts():
                self._data += part
                self._newlines += part.count(b"\n")
                self._request.count_bytes(len(self._data))
                if self._newlines >= AT_ONCE or (self._newlines and len(self._data) >= SIZE):
                    await self._put_lines()
                if len(self._data) > self._request.state.settings.body_limit:
                    raise Problem(413, "too-large", f"line {self._passed + 1} is longer than a body may be")
            self._data += b"\n"
            await self._put_lines()
        except ClientGone:
            raise
        except Exception as error:
            raise self._early(error) from error
        return bodies.Lines(self.put, dict(self.counts))

    async def _put_lines(self) -> None:
        """Put the lines that have come to their end; those before one that cannot be read, too."""
        request = self._request
        whole, _, rest = self._data.rpartition(b"\n")
        self._data, self._newlines = rest, 0
        first, self._passed = self._passed + 1, self._passed + whole.count(b"\n") + 1
        if not whole.strip():
            return
        places, who = request.state.places, request.caller.name
        if not await request.still_counts():
            raise unauthorized(GONE)
        await places.take(who)
        try:
            tasks, bad = _decoded(bytes(whole), first)
            for at in range(0, len(tasks), AT_ONCE):
                part = tasks[at : at + AT_ONCE]
                outcome = await self._queue.put(part, **self._how)
                self.put += len(part)
                self.counts.update(outcome.counts())
        finally:
            places.give(who)
        if bad is not None:
            raise bad

    def _early(self, error: Exception) -> Problem:
        found = problem_of(error)
        detail = f"{found.detail}. The first {self.put:,} lines are in; to go on, send the others, or all again"
        more = {**found.more, "lines": self.put, "counts": dict(self.counts)}
        return Problem(found.status, found.name, detail, headers=found.headers, more=more)


def _decoded(data: bytes, first: int) -> tuple[list[str | Task], Problem | None]:
    """Give the tasks of lines, up to the first line that cannot be read, and what is wrong with that line.

    `first` is the number of the first line.
    """
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found: list[str | NewTask] = _decoder.decode_lines(data)
        if len(found) == _count(data):  # else there are lines with more than one value
            return bodies.tasks_of(found), None
    tasks: list[str | Task] = []
    for number, line in enumerate(data.split(b"\n"), first):
        if not line.strip():
            continue
        try:
            tasks += bodies.tasks_of([_decoder.decode(line)])
        except RecursionError:
            return tasks, _bad(number, "it is nested too deeply", 400)
        except msgspec.ValidationError as error:
            return tasks, _bad(number, bodies.unfit(str | NewTask, error), 422)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return tasks, _bad(number, f"it is not JSON in UTF-8: {error}", 400)
    return tasks, None


def _bad(line: int, why: str, status: int) -> Problem:
    name = "bad-body" if status == 422 else "bad-json"
    return Problem(status, name, f"line {line} cannot be read: {why}", more={"line": line})


def _count(data: bytes) -> int:
    lines = data.count(b"\n") + 1
    if len(data) >= 2 and b"\n\n" not in data and data[0] != 10 and data[-1] != 10:
        return lines
    return sum(1 for line in data.split(b"\n") if line.strip())


def _how(request: Request) -> dict[str, Any]:
    asked = request.only("again", "rerun", "improve", "group", "priority", "durable")
    found: dict[str, Any] = {}
    for name in ("again", "rerun", "improve"):
        if name in asked:
            if asked[name] not in FLAGS:
                raise Problem(422, "bad-body", f"{name}={asked[name]!r:.80} is not true or false")
            found[name] = FLAGS[asked[name]]
    for name in ("priority", "durable"):
        if name in asked:
            try:
                found[name] = int(asked[name][:10])
            except ValueError:
                raise Problem(422, "bad-body", f"{name}={asked[name]!r:.80} is not a whole number") from None
    if "group" in asked:
        found["group"] = asked["group"]
    return found


async def put_lines(request: Request) -> bodies.Lines:
    """Put tasks that come as NDJSON."""
    queue = await request.queue()
    intake = Intake(request, queue)
    request.step_aside()
    return await intake.run()
