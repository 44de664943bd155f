"""Functions: a call is a task. `send.delay("a@example.com")` puts a call, and a worker runs the function.

    app = App("mail")

    @app.task(retry=[10, 30, 60], key="welcome:{to}")
    async def send(to: str, *, subject: str = "Hi") -> int: ...

Callers and workers import the module in which the app stands. `signature.py` and `envelope.py` say how a call travels,
`ids.py` which id it has, `calls.py` and `task.py` what callers hold, `app.py` how functions are found. `sender.py` says
what an app needs of a server, `posting.py` puts calls there, and `running.py` runs them in a worker. The core never
imports this room.
"""

from timeoutq.errors import MissingExtra

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
