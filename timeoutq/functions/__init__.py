"""Functions: a call is a task. `send.delay("a@example.com")` puts a call, and a worker runs the function.

    app = App("mail")

    @app.task(retry=[10, 30, 60], key="welcome:{to}")
    async def send(to: str, *, subject: str = "Hi") -> int: ...

Callers and workers import the module in which the app stands. The core never imports this room.

The modules, in reading order: each imports only from those above it.

    errors      The errors of functions, one class for each thing that a caller or a worker would do differently.
    context     What a running call may know of itself: `ctx`, which the worker makes and callers do not see. No I/O.
    kinds       Which types can travel as JSON, and which values arrive as they were sent where a type says nothing.
                Pure.
    signature   What a function takes, read when the function is decorated: how arguments become JSON, and JSON becomes
                arguments.
    ids         The ids of calls: random ones, those that a `key=` makes of the arguments, and those of calls that
                follow a call.
    options     What decorators and callers choose, checked: queues, ids, times, limits of calls. No I/O.
    outcomes    What is kept of a call that has ended: the JSON of what it returned, or why it failed. Workers write,
                callers read.
    envelope    The payload of a call: JSON that any language can write, and an optional signature. No I/O.
    tracing     Spans of OpenTelemetry: one where a call is made, one around each run of its function, both in one
                trace.
    sender      The one door between functions and a server: what a call is when it is put, and what carries it there.
    answering   What stands for the result of a call: it waits for the end of the call, and reads what is kept of it.
    limits      How the limits of functions are kept: each limit is a group of a polite queue, with rules of its own.
    posting     What puts calls into queues: `Posting`, the sender that an app makes for itself.
    calls       A call as a value: which function, with which arguments, when, under which id, and what follows. No I/O.
    batching    Batches of calls: what is put, what a caller holds of it, and what the callback reads of the calls
                before it.
    task        A function that is a task: it stays the function that it was, and `.delay` and its like make calls of
                it. No I/O.
    scheduling  `app.schedules`, calls that are put again and again, and the schedules that decorators declare.
    threads     Threads in which a worker calls functions that are a plain `def`, while a coroutine of the worker waits
                for each.
    noting      What a call says and hears while it runs: it says how far it is, and hears whether it was cancelled.
    running     What a worker runs for the calls of an app: `Calls(app)` is the handler.
    testing     `app.test()`: an app on queues in memory, with a clock that the test advances. Nothing skips the wire.
    app         An app: functions by their names, the queues that their calls go to, and the secrets that sign calls. No
                I/O.
    loading     Finds the app for `timeoutq worker --app module:app`.
"""

from timeoutq.words.errors import MissingExtra

try:
    import msgspec as msgspec  # all files of this room need it
except ImportError as error:
    raise MissingExtra(
        f"functions need the package {error.name}, which is missing: pip install 'timeoutq[functions]'"
    ) from error

from timeoutq.functions.app import App, Decorator
from timeoutq.functions.batching import Batched
from timeoutq.functions.calls import Call
from timeoutq.functions.context import CallNext, Context
from timeoutq.functions.errors import (
    BadArguments,
    BadFunction,
    BadResult,
    BatchIncomplete,
    CallCancelled,
    CallFailed,
    CallGone,
    CallTooLarge,
    Forged,
    NewerCall,
    NotACall,
    UnknownFunction,
    UnknownSecret,
)
from timeoutq.functions.options import Limit, Unique
from timeoutq.functions.running import Calls
from timeoutq.functions.sender import Result, Sender
from timeoutq.functions.task import Opened, TaskFunction

__all__ = [
    "App",
    "BadArguments",
    "BadFunction",
    "BadResult",
    "BatchIncomplete",
    "Batched",
    "Call",
    "CallCancelled",
    "CallFailed",
    "CallGone",
    "CallNext",
    "CallTooLarge",
    "Calls",
    "Context",
    "Decorator",
    "Forged",
    "Limit",
    "NewerCall",
    "NotACall",
    "Opened",
    "Result",
    "Sender",
    "TaskFunction",
    "Unique",
    "UnknownFunction",
    "UnknownSecret",
]
