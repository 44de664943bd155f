"""`manage.py timeoutq_worker`: runs the tasks of a backend, with all options of `timeoutq worker`."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.tasks import DEFAULT_TASK_BACKEND_ALIAS

from timeoutq.django.backend import backend_of

THREADS = 10  # tasks that run at once in a process: each may need a connection to the database


class Command(BaseCommand):
    """Becomes `timeoutq worker`, which starts Django anew in each of its processes."""

    help = (
        f"Run the tasks of a backend. All other options are those of `timeoutq worker`: -p --processes N, "
        f"-c --concurrency N ({THREADS} by default), --burst, --max-tasks N, --health-port PORT, names of queues, …"
    )

    def create_parser(self, *args: Any, **kwargs: Any) -> CommandParser:
        """Make a parser that leaves alone what it does not know."""
        parser = super().create_parser(*args, **kwargs)

        def parse(args: Any = None, namespace: Any = None) -> Any:
            found, found.rest = parser.parse_known_args(args, namespace)
            return found

        parser.parse_args = parse
        return parser

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the name of the backend."""
        parser.add_argument("--backend", default=DEFAULT_TASK_BACKEND_ALIAS, help="The backend in TASKS.")

    def handle(self, *args: Any, backend: str, rest: list[str], **options: Any) -> None:
        """Become the worker: the process keeps its id."""
        timeout = backend_of(backend).options.get("timeout")
        usual = ["-c", str(THREADS), *([] if timeout is None else ["--timeout", f"{timeout}s"])]
        os.environ["TIMEOUTQ_DJANGO_BACKEND"] = backend
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # also if manage.py lies elsewhere
        command = [sys.executable, "-m", "timeoutq", "worker", "--app", "timeoutq.django.worker:app", *usual, *rest]
        os.execv(sys.executable, command)  # noqa: S606  # no shell: the words are arguments
