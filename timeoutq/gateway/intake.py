"""Put of any number of tasks as NDJSON: each line is an id in quotes, or a task as an object, as in the list of a put.

Lines are put by the thousand while more come, so nothing grows with the length of the body. When it ends early, the
problem says how many lines are in: a put is safe to repeat.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from timeoutq.client.shards import AnyAsyncQueue
from timeoutq.gateway import bodies
from timeoutq.gateway.access import unauthorized
from timeoutq.gateway.bodies import NewTask
from timeoutq.gateway.problems import Problem, problem_of
from timeoutq.gateway.requests import ClientGone, Request
from timeoutq.words.model import Task

AT_ONCE = 4000
"""How many lines are put in one go, at most."""
SIZE = 1024 * 1024
"""How many bytes of lines are put in one go, if the lines are long."""

_decoder = msgspec.json.Decoder(str | NewTask)


class Intake:
    """One put of lines. They stay bytes until it is their turn: as tasks they take many times the memory."""

    def __init__(self, request: Request, queue: AnyAsyncQueue, how: dict[str, Any]) -> None:
        self._request = request
        self._queue = queue
        self._how = how
        self._passed = 0
        """How many lines have been read, blank ones among them."""
        self.put = 0
        """How many of them are in."""
        self.counts = Counter[str]()

    async def run(self) -> bodies.Lines:
        """Read all lines and put them; give how many there were, and how often each answer was given."""
        data, newlines = bytearray(), 0
        try:
            async for part in self._request.parts():
                data += part
                newlines += part.count(b"\n")
                self._request.count_bytes(len(data))
                if newlines >= AT_ONCE or (newlines and len(data) >= SIZE):
                    whole, _, data = data.rpartition(b"\n")
                    newlines = 0
                    await self._put_lines(bytes(whole))
                if len(data) > self._request.state.settings.body_limit:
                    raise Problem(413, "too-large", f"line {self._passed + 1} is longer than a body may be")
            await self._put_lines(bytes(data))
        except ClientGone:
            raise
        except Exception as error:
            found = problem_of(error)
            detail = f"{found.detail}. The first {self.put:,} lines are in; to go on, send the others, or all again"
            more = {**found.more, "lines": self.put, "counts": dict(self.counts)}
            raise Problem(found.status, found.name, detail, headers=found.headers, more=more) from error
        return bodies.Lines(self.put, dict(self.counts))

    async def _put_lines(self, data: bytes) -> None:
        """Put whole lines; those before one that cannot be read, too."""
        request = self._request
        places, who = request.state.places, request.caller.name
        if not await request.answer.still_counts():
            raise unauthorized()
        await places.take(who)
        try:
            tasks, bad = self._decoded(data)
            for at in range(0, len(tasks), AT_ONCE):
                outcome = await self._queue.put(tasks[at : at + AT_ONCE], **self._how)
                self.put += len(outcome)
                self.counts.update(outcome.counts())
        finally:
            places.give(who)
        if bad is not None:
            raise bad

    def _decoded(self, data: bytes) -> tuple[list[str | Task], Problem | None]:
        """Give the tasks of lines, up to the first line that cannot be read, and the problem of that line."""
        tasks: list[str | Task] = []
        for line in data.split(b"\n"):
            self._passed += 1
            if not line.strip():
                continue
            try:
                tasks += bodies.tasks_of([_decoder.decode(line)])
            except RecursionError:
                return tasks, self._bad(400, "bad-json", "it is nested too deeply")
            except msgspec.ValidationError as error:
                return tasks, self._bad(422, "bad-body", bodies.unfit(str | NewTask, error))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                return tasks, self._bad(400, "bad-json", f"it is not JSON in UTF-8: {error}")
        return tasks, None

    def _bad(self, status: int, name: str, why: str) -> Problem:
        return Problem(status, name, f"line {self._passed} cannot be read: {why}", more={"line": self._passed})


async def put_lines(
    request: Request, *, again: bool = False, rerun: bool = False, improve: bool = False, group: str | None = None,
    priority: int | None = None, durable: int = 0,
) -> bodies.Lines:  # fmt: skip
    """Put tasks that come as NDJSON; the options are for all of them."""
    how = {"again": again, "rerun": rerun, "improve": improve, "group": group, "priority": priority, "durable": durable}
    queue = await request.queue()
    request.step_aside()
    return await Intake(request, queue, how).run()
