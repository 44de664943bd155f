"""Functions: a call is a task. `send.delay("a@example.com")` puts a call, and a worker runs the function.

    app = App("mail")

    @app.task(retry=[10, 30, 60], key="welcome:{to}")
    async def send(to: str, *, subject: str = "Hi") -> int: ...

Callers and workers import the module in which the app stands. The core never imports this room.

The modules, in reading order: each imports only from those above it.

    errors      The errors of functions, one class for each thing that a caller or a worker would do differently.
    models      Values and types as JSON: what msgspec knows, and the models of pydantic, if the program uses pydantic.
                No I/O.
    outcomes    The result of a call as JSON, or the reason why the call failed. No I/O.
    context     The context of a running call: `ctx`, which the worker makes and callers do not see.
    signature   The parameters of a function, read when it is decorated: arguments become JSON, and JSON arguments. No
                I/O.
    ids         The ids of calls: random ones, those that a `key=` makes of the arguments, and those of calls that
                follow a call.
    envelope    The payload of a call: JSON that any language can write, and an optional signature. No I/O.
    options     The options of decorators and of callers, checked: queues, ids, times, limits of calls. No I/O.
    tracing     Spans of OpenTelemetry: one where a call is made, one around each run of its function, both in one
                trace.
    limits      How the limits of functions are kept: each limit is a group of a polite queue, with rules of its own. No
                I/O.
    client      `Sender` puts the calls of an app, and `Result` stands for the result of a call.
    task        A function as it was decorated, and a call of it that a worker has read. No I/O.
    calls       Calls as values, the functions that make them, and the program that puts them: an app without its
                workers.
    scheduling  `app.schedules`, calls that are put again and again, and the schedules that decorators declare.
    threads     Threads in which a worker calls functions that are a plain `def`, while a coroutine of the worker waits
                for each.
    processes   Pool processes, in which a worker calls functions with `executor="process"`: it can end such a call at
                any moment.
    running     `Calls(app)`: the handler by which a worker runs the calls of an app.
    testing     `app.test()`: an app on queues in memory, with a clock that the test advances. Nothing skips the wire.
    app         `App`: the functions of a program, with all that its workers, schedules and tests need.
"""

from timeoutq.words.errors import MissingExtra

try:
    import msgspec as msgspec  # all files of this room need it
except ImportError as error:
    raise MissingExtra(
        f"functions need the package {error.name}, which is missing: pip install 'timeoutq[functions]'"
    ) from error

from timeoutq.functions.app import App
from timeoutq.functions.calls import Batched, Decorator, FunctionCall, TaskFunction
from timeoutq.functions.client import Result, Sender
from timeoutq.functions.context import CallNext, Context
from timeoutq.functions.errors import (
    BadArguments,
    BadFunction,
    BadResult,
    BatchIncomplete,
    CallCancelled,
    CallExpired,
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
from timeoutq.functions.task import Opened

__all__ = [
    "App",
    "BadArguments",
    "BadFunction",
    "BadResult",
    "BatchIncomplete",
    "Batched",
    "CallCancelled",
    "CallExpired",
    "CallFailed",
    "CallGone",
    "CallNext",
    "CallTooLarge",
    "Calls",
    "Context",
    "Decorator",
    "Forged",
    "FunctionCall",
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
