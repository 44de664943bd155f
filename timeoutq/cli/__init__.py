"""The command `timeoutq`: every command opens a queue, calls one thing, and prints it.

Tables for people on a terminal, tab-separated lines elsewhere, JSON with --json. Modules that take long to import are
imported by the commands that need them, so that --help and completion are quick.

The modules, in reading order: each imports only from those above it.

    logs        How the command's log lines look: one event, one line of text that is safe to read.
    bench       `timeoutq bench`: how many tasks a second a server gives here, and how soon an idle worker picks up a
                task.
    app         The command itself: the typer app, what commands say and ask, their exit codes, and `main`.
    printing    What commands print: tables for people on a terminal, tab-separated lines elsewhere, JSON with --json.
    reading     What commands read: lengths of time, moments, ids, lines of files and of stdin.
    command     What commands ask for: the decorator `command`, the server, arguments that commands share, what a shell
                completes.
    tasks       The commands that bring tasks in: put and schedule, from arguments, files, stdin and sitemaps.
    leases      The commands about leases: claim, ack, extend, release, fail, and pull, which takes no lease.
    serving     The commands that run until they are stopped: worker; cleaner; push, to a webhook; server, a private
                Valkey.
    looking     The commands that look and change nothing: queues, status, dashboard, list, inspect, drained, log.
    examining   The commands that examine: doctor, a server and a queue; report, a crawl; check, a spider; bench, this
                package.
    hosts       The commands about the hosts of a polite queue: hosts, host, block, unblock, ban; and why, which names
                hosts too.
    calling     The commands about functions: call, result, functions; and schedules, what is put again and again.
    moving      The commands about many tasks: states, requeue, export and import; and diff and intersect, which compare
                sets.
    operating   The commands of an operator: retry, cancel, forget, pause, resume, configure, purge; and failures, by
                kind.
    web         The commands about the gateway: web, which serves the API over HTTP and the page; and token new, list,
                revoke.
    pages       The commands that print what comes with the package: help, its pages; protocol; library, which a server
                can load.
"""

try:
    from timeoutq.cli import calling, examining, hosts, leases, looking, moving, operating, pages, serving, tasks, web
    from timeoutq.cli.app import app, main
    from timeoutq.cli.command import PANEL_OF
except KeyboardInterrupt:  # Ctrl-C while the command is still being loaded
    raise SystemExit(130) from None

app.registered_commands.sort(key=lambda one: [*PANEL_OF].index(one.name or ""))

__all__ = [
    "app", "calling", "examining", "hosts", "leases", "looking", "main", "moving", "operating", "pages", "serving",
    "tasks", "web",
]  # fmt: skip
