"""The exit codes of the command by name, and what each code means for `timeoutq worker`."""

from __future__ import annotations

from timeoutq.words.errors import InvalidInput, LeaseLost, TimeoutqError, WorkerBroken

DONE = 0
NOTHING = 1
DIED = 1
USAGE = 2
SERVER = 3
LOST = 4
LATE = 5
"""What was waited for has not ended in the time of --wait."""
INTERRUPTED = 130

HOPELESS = (USAGE, SERVER)
"""A worker that ends with one of these codes would end with it again: a person must mend something first."""

WORKER = {
    DONE: "The queue is drained (--burst), or the worker was stopped by SIGTERM or SIGINT. "
    "With --no-supervise also: --max-tasks is reached.",
    DIED: "The command ended, but one of its processes died or was killed during the stop, or closing the lifespan "
    "raised an error. With --no-supervise also: an unexpected error.",
    USAGE: "Wrong usage: an option, the handler or the lifespan. Nothing is started again.",
    SERVER: "The server refuses: a wrong password, missing rights, data of another version of timeoutq, an unsafe "
    "eviction policy. Nothing is started again.",
}
"""What each exit code of `timeoutq worker` means."""


def of(error: TimeoutqError) -> int:
    """Give the exit code of a command that ends with an error."""
    if isinstance(error, LeaseLost):
        return LOST
    if isinstance(error, WorkerBroken):
        return DIED
    # an import fails because an argument is wrong, or because an extra is not installed
    return USAGE if isinstance(error, InvalidInput | ImportError) else SERVER
