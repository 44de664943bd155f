"""The command that posts the tasks of a queue to a webhook: push. `app.py` runs it."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timeoutq.cli.app import Name, Url, UrlFile, app, server_address
from timeoutq.cli.reading import HealthPort, place, seconds
from timeoutq.cli.serving import (
    DrainDeadline,
    LogJson,
    LogLevel,
    MaxAttempts,
    Retry,
    Timeout,
    as_they_are,
    begin_log,
    end,
    errors_told,
    opened_for_work,
    policy_of,
    shards_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from timeoutq.worker import Worker

log = logging.getLogger(__name__)

HELP = (
    "Post each task of a queue to a webhook, as JSON with a signature of Standard Webhooks.\n\n"
    "HTTP 2xx acks the task. 410 gives it up. On 429, 502, 503 and 504 the task goes back, and nothing is sent for as "
    "long as Retry-After says. All else is a failed attempt: by default a task is sent again after 5s, 5m, 30m, 2h, "
    "5h, 10h, 14h, 20h and 24h. Redirects are not followed.\n\n"
    "SIGTERM and Ctrl-C are heeded as by `timeoutq worker`."
)
CODES = (
    "Exit codes:\n\n0: The queue is drained (--burst), or the command was stopped.\n\n"
    "1: An unexpected error.\n\n2: Wrong usage: an option, the URL, the secret.\n\n"
    "3: The server refuses: a wrong password, missing rights, another schema."
)


@app.command(rich_help_panel="From anywhere", help=HELP, epilog=CODES)
def push(
    queue: Name,
    to: Annotated[
        str, typer.Option("--to", metavar="URL", show_default=False, help="The webhook: https://hook.example/path.")
    ],
    secret_file: Annotated[
        Path,
        typer.Option(
            metavar="FILE", show_default=False,
            help="File with the secret, whsec_ and base64; with several, one a line, each signs.",
        ),
    ],
    concurrency: Annotated[
        int, typer.Option("-c", "--concurrency", min=1, max=1000, help="The most messages that are under way at once.")
    ] = 8,
    timeout: Timeout = "30s",  # type: ignore[assignment]  # typer parses the default
    answer_within: Annotated[
        float,
        typer.Option(parser=seconds, metavar="TIME", help="How long a message and its answer may take, all in all."),
    ] = "15s",  # type: ignore[assignment]  # typer parses the default
    retry: Retry = None,
    max_attempts: MaxAttempts = None,
    patience: Annotated[
        float,
        typer.Option(
            parser=seconds, metavar="TIME",
            help="How long a busy receiver may hold a task up before that is a failed attempt.",
        ),
    ] = "1d",  # type: ignore[assignment]  # typer parses the default
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="Allow receivers on loopback and in private networks.")
    ] = False,
    burst: Annotated[bool, typer.Option("--burst", help="End when the queue is drained.")] = False,
    drain_deadline: DrainDeadline = "25s",  # type: ignore[assignment]  # typer parses the default
    health_port: HealthPort = None,
    url: Url = None, url_file: UrlFile = None, log_level: LogLevel = "info", log_json: LogJson = False,
) -> None:  # fmt: skip
    """Read the options, and post tasks until the command is stopped."""
    from timeoutq import push as room
    from timeoutq import telling
    from timeoutq.process import run_alone
    from timeoutq.worker import Worker

    begin_log(log_level, log_json)
    with errors_told(as_json=log_json):
        target = room.read_target(to, private=allow_private)
        secrets, warning = room.read_secrets(secret_file)
        usual = ",".join(room.RETRIES) if retry is None and max_attempts is None else retry
        policy, checks = policy_of(usual, max_attempts), place(health_port)
        address = server_address(url, url_file)
        open_poster = partial(room.Poster, target, concurrency=concurrency, seconds=answer_within)
        for words in (warning, _plain_words(target), room.check_name(target)):
            if words:
                telling.say(log, logging.WARNING, "%s", words, fields={"queue": queue})
        what = "queue %s: tasks are posted to %s"
        telling.say(log, logging.INFO, what, queue, target.shown, fields={"queue": queue})

        def work(many: Sequence[int | None]) -> tuple[int, str]:
            def make() -> Worker:
                opened = opened_for_work(queue, address, many[0], timeout=timeout, retry=policy)
                return Worker(
                    opened, room.Push(open_poster, secrets, patience=patience), concurrency=concurrency, burst=burst,
                    drain_deadline=drain_deadline,
                )  # fmt: skip

            return run_alone(make, checks), ""

        code, words = as_they_are([queue], work, lambda: [shards_of(queue, address, None)])
        end(code, words, as_json=log_json)


def _plain_words(target: object) -> str:
    from timeoutq.push import Target

    if isinstance(target, Target) and target.scheme == "http" and not target.private:
        return f"--to {target.shown} is not https: whoever is on the way can read the tasks, though not forge them"
    return ""
