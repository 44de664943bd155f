"""The errors of functions, one class for each thing that a caller or a worker would do differently."""

from __future__ import annotations

from typing import Any

from timeoutq.words.errors import InvalidInput, TimeoutqError


class _WithFields(TimeoutqError):
    """An error that also has the fields which its class names; a pickle keeps them."""

    def __init__(self, words: str, /, **fields: Any) -> None:
        super().__init__(words)
        vars(self).update(fields)


class BadFunction(InvalidInput, TypeError):
    """A function cannot be a task as it is written: mend its signature, or the options of its decorator.

    Raised where the function is decorated, so that a program with such a function does not start.
    """


class BadArguments(_WithFields, InvalidInput, TypeError):
    """Arguments do not fit a function: mend the call. In a worker: the caller knows another version of the function."""

    function: str = ""  # its name
    parameter: str | None = None  # the parameter that does not fit; None if the arguments as a whole do not


class CallTooLarge(_WithFields, InvalidInput):
    """A call has more bytes than a queue should carry: store the data elsewhere, and pass its address."""

    size: int = 0  # bytes of JSON
    limit: int = 0


class NotACall(TimeoutqError):
    """The payload of a task is no call of a function: somebody else put the task, or put it into the wrong queue."""


class NewerCall(TimeoutqError):
    """A newer version of timeoutq wrote the call, in a form that this one cannot read: upgrade the workers."""


class UnknownFunction(_WithFields, LookupError):
    """No function of this name is registered here: the worker runs an older program, or has not imported the module."""

    function: str = ""  # the name


class NoProcess(_WithFields):
    """No pool process, or no thread, begins now: the machine has no file handle, process, memory or time for it."""

    function: str = ""  # the name of the function; empty if no thread begins


class UnknownSecret(TimeoutqError):
    """The call is signed with a secret that this program does not have: give it to the workers before the callers."""


class Forged(TimeoutqError):
    """The call is not signed, or its signature does not fit: nobody who has a secret of the app put this call here."""


class BadResult(TimeoutqError, TypeError):
    """The result of a function cannot travel as the type that it says: mend the function, or its annotation."""


class CallFailed(_WithFields):
    """The call was given up, or what it returned does not fit what the function says here."""

    id: str = ""  # the call's
    error: str = ""  # the name of the class of the exception in the worker, which need not exist in this program
    message: str = ""  # its text
    traceback: str | None = None  # where it was raised, as text, if that is known


class CallCancelled(CallFailed):
    """Somebody cancelled the call: nobody runs it any more, and nothing came of it."""


class CallExpired(CallFailed):
    """The call had not begun by the time that its `expires=` says: nobody runs it any more, and nothing came of it."""


class BatchIncomplete(CallFailed):
    """The results of a batch are not complete: the other fields are those of the first call without a result."""

    failed: int = 0  # how many calls have failed, or were forgotten
    lost: int = 0  # how many results of calls that are done are not there


class CallGone(_WithFields, LookupError):
    """Nothing is known of the call any more: it was forgotten, or its result is not kept any longer."""

    id: str = ""  # the call's


MAY_FIT_LATER = (BadArguments, NewerCall, UnknownFunction, UnknownSecret)
"""A worker with a newer program, or with a newer secret, may be able to carry out these calls."""
