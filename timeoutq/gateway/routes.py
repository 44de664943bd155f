"""The table of the verbs and looks of the API: the application, its OpenAPI description and its tests read it.

`app.py` adds the fixed paths and the login, `page/routes.py` the page; `Gateway.table` has all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from timeoutq.gateway import bodies, intake, looks, verbs
from timeoutq.gateway.callers import Needs
from timeoutq.words.model import State


@dataclass(frozen=True, slots=True)
class Parameter:
    """What may stand behind the `?` of a URL."""

    name: str
    about: str
    kind: str = "string"
    required: bool = False
    choices: Sequence[str] = ()

    @property
    def schema(self) -> dict[str, Any]:
        """Its type, as OpenAPI says it."""
        return {"type": self.kind, **({"enum": list(self.choices)} if self.choices else {})}


@dataclass(frozen=True, slots=True)
class Route:
    """One thing that the gateway answers."""

    method: str
    path: str
    """With `{queue}` where the name of a queue stands."""
    needs: Needs | None
    """What the caller must be allowed to do; None: anybody may."""
    endpoint: Callable[..., Awaitable[Any]]
    """Takes the `Request`, and the body if there is one. If `by_starlette`: takes the request of Starlette."""
    body: type[Any] | None = None
    answer: Any = dict[str, Any]
    parameters: Sequence[Parameter] = ()
    lines: Callable[..., Awaitable[Any]] | None = None
    """Takes the `Request` when its body is NDJSON."""
    lines_answer: Any = None
    """What a body of NDJSON is answered."""
    by_starlette: bool = False
    """Whether Starlette answers it: pages and what belongs to them, `/metrics` and `/readyz`."""

    @property
    def about(self) -> str:
        """What it does, in a sentence."""
        return (self.endpoint.__doc__ or "").strip().partition("\n")[0]


def verb(needs: Needs, endpoint: Callable[..., Awaitable[Any]], body: Any, answer: Any, **more: Any) -> Route:
    """Make the route of a verb: its name is that of the function."""
    return Route("POST", f"/v1/{{queue}}/{endpoint.__name__}", needs, endpoint, body, answer, **more)


def look(endpoint: Callable[..., Awaitable[Any]], *parameters: Parameter) -> Route:
    """Make the route of a look: its name is that of the function."""
    return Route("GET", f"/v1/{{queue}}/{endpoint.__name__}", "look", endpoint, parameters=parameters)


CURSOR = Parameter("cursor", "The cursor that the last page ended with")
ID = (Parameter("id", "The id of the task"), Parameter("b64", "Or its bytes, as base64"))

OF_LINES = (
    *(Parameter(name, "For all tasks of a body of NDJSON", "boolean") for name in ("again", "rerun", "improve")),
    *(Parameter(name, "For all tasks of a body of NDJSON", "integer") for name in ("priority", "durable")),
    Parameter("group", "For all tasks of a body of NDJSON"),
)
"""What a put of NDJSON takes behind the `?`. A body of JSON has fields for these."""

API: Sequence[Route] = (
    verb(
        "put", verbs.put, bodies.Put, bodies.Answers,
        lines=intake.put_lines, lines_answer=bodies.Lines, parameters=OF_LINES,
    ),
    verb("put", verbs.schedule, bodies.Schedule, bodies.Answers),
    verb("work", verbs.claim, bodies.Claim, bodies.Leases),
    verb("work", verbs.extend, bodies.Extend, bodies.Answers),
    verb("work", verbs.ack, bodies.Ack, bodies.Answers),
    verb("work", verbs.fail, bodies.Fail, bodies.Answers),
    verb("work", verbs.release, bodies.Release, bodies.Answers),
    verb("work", verbs.note, bodies.Note, bodies.Answers),
    verb("work", verbs.pull, bodies.Pull, bodies.Pulled),
    verb("look", verbs.states, bodies.Ids, bodies.Answers),
    verb("manage", verbs.requeue, bodies.Ids, bodies.Answers),
    verb("manage", verbs.forget, bodies.Ids, bodies.Answers),
    verb("manage", verbs.cancel, bodies.Cancel, bodies.Answers),
    verb("manage", verbs.retry, bodies.Retry, bodies.Count),
    verb("manage", verbs.pause, bodies.Nothing, bodies.Done),
    verb("manage", verbs.resume, bodies.Nothing, bodies.Done),
    verb("manage", verbs.purge, bodies.Nothing, bodies.Done),
    verb("manage", verbs.block, bodies.Block, bodies.Done),
    verb("manage", verbs.unblock, bodies.Unblock, bodies.Done),
    verb("manage", verbs.ban, bodies.Ban, bodies.Done),
    look(looks.stats),
    look(
        looks.tasks, Parameter("state", "Where the tasks are", required=True, choices=[*map(str, State)]),
        Parameter("n", "About how many", "integer"), CURSOR,
    ),
    look(looks.task, *ID),
    look(looks.why, *ID),
    look(looks.hosts, Parameter("n", "About how many", "integer"), CURSOR, Parameter("host", "One host only")),
    look(looks.workers),
    look(looks.errors, Parameter("n", "How many, 50 at most", "integer")),
    look(looks.history, Parameter("by", "minute or hour", choices=("minute", "hour"))),
    look(
        looks.failures, Parameter("kind", "One kind only: its id or its text"), CURSOR,
        Parameter("n", "About how many", "integer"),
    ),
    look(
        looks.events, Parameter("after", "A cursor, or Unix seconds"), Parameter("n", "How many", "integer"), *ID
    ),
)  # fmt: skip
