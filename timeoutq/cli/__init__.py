"""The command `timeoutq`: every command opens a queue, calls one thing, and prints it.

Tables for people on a terminal, tab-separated lines elsewhere, JSON with --json. Modules that take long to import are
imported by the commands that need them, so that --help and completion are quick.

The modules, in reading order: each imports only from those above it.

    completion  What a shell shows when somebody presses Tab: names of queues, and sides of a comparison. Silent and
                quick.
    app         The command itself: the typer app, the options that commands share, its exit codes, and `main`.
    printing    What commands print: tables for people on a terminal, tab-separated lines elsewhere, JSON with --json.
    reading     What commands read: lengths of time, moments, ids, lines of files and of stdin.
    lines       What the dashboard shows, as lines with tabs for programs: the first word of a line says what the line
                is about.
    intake      What `timeoutq put` makes of URLs on their way in: one form for each, pages of sitemaps, groups; and
                what it refuses.
    tasks       The commands that bring tasks in: put and schedule, from arguments, files, stdin and sitemaps.
    leases      The commands about leases: claim, ack, extend, release, fail, and pull, which takes no lease.
    serving     The commands that run until they are stopped: worker, cleaner and server (a private one, or a cluster).
    push        The command that posts the tasks of a queue to a webhook: push. `app.py` runs it.
    looking     The commands that look and change nothing: status, dashboard, list, inspect, drained, doctor, bench.
    events      The command about the event log: log.
    reporting   The command report: pictures of a crawl in one file, or the same as JSON.
    hosts       The commands about the hosts of a polite queue: hosts, host, block, unblock, ban; and why, which names
                hosts too.
    calling     The commands about calls of functions: call, result, functions.
    scheduling  The commands about schedules: schedules list, set, move, pause, resume, cancel.
    sets        The commands that compare: diff and intersect, of states of queues and files of ids.
    moving      The commands that move tasks by the million: requeue, within a queue; export and import, between queues
                and servers.
    operating   The commands of an operator: retry, cancel, forget, pause, resume, configure, purge.
    protocol    The commands that write the protocol and the library: protocol, library.
    failures    The command about failed tasks by kind: failures. It lists the kinds, or retries or forgets all tasks of
                one.
    tokens      The commands about tokens for the gateway: token new, list, revoke.
    pages       The command that shows the help pages: help. It needs no server and no network.
    trying      The command that tries a spider of Scrapy on one page before its crawl: check.
    web         The command `timeoutq web`: serves the gateway, which is the API over HTTP and the page for browsers.
"""

try:
    from timeoutq.cli.app import app, main

    # importing a module hangs its commands into `app`: the order here is that of --help
    # isort: off
    from timeoutq.cli import tasks as tasks
    from timeoutq.cli import leases as leases
    from timeoutq.cli import serving as serving
    from timeoutq.cli import push as push
    from timeoutq.cli import looking as looking
    from timeoutq.cli import events as events
    from timeoutq.cli import reporting as reporting
    from timeoutq.cli import hosts as hosts
    from timeoutq.cli import calling as calling
    from timeoutq.cli import scheduling as scheduling
    from timeoutq.cli import sets as sets
    from timeoutq.cli import moving as moving
    from timeoutq.cli import operating as operating
    from timeoutq.cli import protocol as protocol
    from timeoutq.cli import failures as failures
    from timeoutq.cli import tokens as tokens
    from timeoutq.cli import trying as trying
    from timeoutq.cli import web as web
    from timeoutq.cli import pages as pages
    # isort: on
except KeyboardInterrupt:  # Ctrl-C while the command is still being loaded
    raise SystemExit(130) from None

__all__ = ["app", "main"]
