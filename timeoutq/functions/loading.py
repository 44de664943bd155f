"""Finds the app for `timeoutq worker --app module:app`.

The command itself never imports the module of the app, because what the module starts would not survive a fork: the
command asks a process of its own for the queues of the app, and each worker process imports the app.
"""

from __future__ import annotations

import json
import subprocess
import sys

from timeoutq.functions.app import App
from timeoutq.words.errors import HandlerNotFound, TimeoutqError, WorkerBroken
from timeoutq.worker import handlers

_ASK = "import sys; from timeoutq.functions.loading import tell; tell(sys.argv[1])"


def load_app(path: str) -> App:
    """Import `module:app`; raises `HandlerNotFound`, whose message says what is missing."""
    found = handlers.imported(path, "app")
    if not isinstance(found, App):
        raise HandlerNotFound(f"app {path!r} is no App of timeoutq.functions but {type(found).__name__}")
    return found


def ask_queues(path: str) -> tuple[list[str], list[int], str | None]:
    """Give the names of the queues of `module:app`, their weights, if they have no order, and the app's own URL.

    A new process imports the app. Raises `HandlerNotFound`, and `WorkerBroken` if something has killed that process.
    """
    handlers.parts_of(path, "app")
    command = [sys.executable, "-c", _ASK, path]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)  # noqa: S603  # whoever names the app runs it
    said = done.stdout.decode("utf-8", "replace").splitlines()  # the module may print lines of its own before
    if done.returncode < 0:  # it ran out of memory, or somebody ended it: the next try may well succeed
        raise WorkerBroken(f"the process that imported the app {path!r} was killed by signal {-done.returncode}")
    if done.returncode != 0 or not said:
        raise HandlerNotFound(f"app {path!r}: importing it ended the process, with exit code {done.returncode}")
    found = json.loads(said[-1])
    if "error" in found:
        raise HandlerNotFound(found["error"])
    return found["names"], found["weights"], found["url"]


def tell(path: str) -> None:
    """Print the queues of an app for `ask_queues`."""
    found: dict[str, object]
    try:
        app = load_app(path)
        found = {"names": app.queues.names, "weights": app.queues.weights or [], "url": app.url}
    except TimeoutqError as error:
        found = {"error": str(error)}
    print("\n" + json.dumps(found), flush=True)  # noqa: T201  # the process that asks reads this
