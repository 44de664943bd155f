"""What a walk through a queue may find wrong, in words: `lua/repair.lua` finds it, the cleaner and doctor report it."""

from __future__ import annotations

from collections.abc import Mapping

WORDS = {
    "twice": "in two states at once",
    "unleased": "in progress without a lease or an owner",
    "astray": "with a lease or a place in a lane, but in no state",
    "unlocked": "whose lock and lease do not agree",
    "stale": "leased, but not in progress",
    "unqueued": "waiting where no host would hand them over",
    "placeless": "ready or in progress without a place of their host",
    "overrun": "ready though their host has as many visits as it may",
    "haunted": "holding a place of a host that they do not use",
    "leftover": "of tasks in no state",
    "noted": "of tasks in no state, which go if that is still so in a minute",
    "locked": "known by a lock only, which is no lease",
    "turnless": "without a turn, known by a record only",
    "unpacked": "done and kept as ids, on a queue that keeps fingerprints",
    "tickless": "whose next tick is not the one of its record",
    "undefined": "that have lost their definition",
    "unsettled": "whose tasks and record do not agree",
    "ungrouped": "failed, and counted by no kind of failure",
    "mistaken": "counted by a kind of failure that is not theirs",
    "unserved": "waiting for hosts on a queue that is not polite",
}
"""What is wrong with a task, by the word that the script uses."""

NOUNS = {
    "turnless": "host",
    "tickless": "schedule",
    "undefined": "schedule",
    "unsettled": "batch",
    "leftover": "record",
    "noted": "record",
}
"""What is wrong, where it is not a task."""

ODD = "odd "
"""What stands before the key and the field of a value that cannot be read; such a value counts as absent."""

UNMENDED = ("unserved",)
"""What no walk mends: a person has to decide."""

NOTED = "noted"
"""What a walk mends only if it is still wrong a minute later."""


def told(found: Mapping[str, int]) -> str:
    """Say what was found, as in `2 tasks in two states at once, 1 task in progress without a lease or an owner`."""
    return ", ".join(
        f"{n:,} value{'' if n == 1 else 's'} in {what.removeprefix(ODD)} that cannot be read"
        if what.startswith(ODD)
        else f"{n:,} {NOUNS.get(what, 'task')}{'' if n == 1 else 's'} {WORDS.get(what, what)}"
        for what, n in found.items()
    )
