"""The command `timeoutq`: every command opens a queue, calls one thing, and prints it.

Tables for people on a terminal, tab-separated lines elsewhere, JSON with --json. Modules that take long to import are
imported by the commands that need them, so that --help and completion are quick.

The modules, in reading order: each imports only from those above it.

    saying      What commands say to people, on stderr: complaints, hints, questions, how far long work is; and their
                exit codes.
    lines       What commands print and read: tables, tabs or JSON; lengths of time, moments, ids, lines of files and of
                stdin.
    logs        What a command logs, and how its log lines look: one event, one line of text that is safe to read.
    bench       `timeoutq bench`: how many tasks a second a server gives here, and how soon an idle worker picks up a
                task.
    command     The command itself: its typer app, the decorator `command`, what commands ask for and share, and `main`.
    tasks       The commands that bring tasks in: put and schedule, from arguments, files, stdin and sitemaps.
    leases      The commands about leases: claim, ack, extend, release, fail, and pull, which takes no lease.
    serving     The commands that run until they are stopped: worker; cleaner; push, to a webhook; server, a private
                Valkey.
    looking     The commands that look: queues, status, dashboard, list, hosts, inspect, why, drained, log; report, as
                HTML.
    about       The commands about the package and its server: help, its pages; doctor; bench; check, a spider;
                protocol; library.
    calling     The commands about functions: call, result, functions; and schedules, what is put again and again.
    moving      The commands about many tasks: states, requeue, export and import; and diff and intersect, which compare
                sets.
    operating   The commands of an operator: retry … purge; configure; failures, by kind; the rules, block or ban of a
                host.
    web         The commands about the gateway: web, which serves the API over HTTP and the page; and token new, list,
                revoke.
"""

try:
    from timeoutq.cli import about, calling, leases, looking, moving, operating, serving, tasks, web
    from timeoutq.cli.command import PANEL_OF, app, main
except KeyboardInterrupt:  # Ctrl-C while the command is still being loaded
    raise SystemExit(130) from None

app.registered_commands.sort(key=lambda one: [*PANEL_OF].index(one.name or ""))

__all__ = ["about", "app", "calling", "leases", "looking", "main", "moving", "operating", "serving", "tasks", "web"]
