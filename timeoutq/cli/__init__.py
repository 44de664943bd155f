"""The command `timeoutq`: every command opens a queue, calls one thing, and prints it.

Tables for people on a terminal, tab-separated lines elsewhere, JSON with --json. Modules that take long to import are
imported by the commands that need them, so that --help and completion are quick.
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
