"""How many files and connections this process may have open: the gateway has many clients."""

from __future__ import annotations

import sys
from contextlib import suppress

WANTED = 65_536


def allow_many() -> None:
    """Let this process have many files and connections open at once, as far as its user may."""
    if sys.platform == "win32":  # it has no such limit
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
