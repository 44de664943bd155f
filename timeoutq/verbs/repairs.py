"""Words for what a walk through a queue (`lua/verbs/repair.lua`) may find wrong: the cleaner and doctor report it."""

from __future__ import annotations

from collections.abc import Mapping

WORDS = {
    "twice": "in two states at once",
    "unleased": "in progress without a lease or an owner",
    "astray": "with a lease or an entry in a lane, but in no state",
    "stale": "with a lease, a place or an entry in a lane that they do not use",
    "placeless": "without a place at their host, or waiting where no host would hand them over",
    "leftover": "that no task uses",
    "noted": "of tasks in no state, which go if that is still so in a minute",
    "unserved": "waiting for hosts on a queue that is not polite",
    "undue": "scheduled for a time that is none",
    "tickless": "whose definition, record and next tick do not agree",
    "unsettled": "that will not end, though all tasks have",
}
"""What is wrong with a task, by the word that the script uses."""

NOUNS = {"tickless": "schedule", "unsettled": "batch", "leftover": "record", "noted": "record"}
"""What is wrong, where it is not a task."""

CURES = {
    "unserved": "timeoutq configure {queue} --delay TIME, or --impolite",
    "undue": "schedule the task again (timeoutq schedule {queue} TASK --after TIME)",
    "tickless": "set the schedule again (timeoutq schedules set), or let the code that declares it start again",
    "unsettled": "forget the batch (queue.batches.forget), then retry its callback",
}
"""What no walk mends, and what a person can do about it."""

NOTED = "noted"
"""What a walk mends only if it is still wrong a minute later."""


def told(found: Mapping[str, int]) -> str:
    """Say what was found, as in `2 tasks in two states at once, 1 task in progress without a lease or an owner`."""
    return ", ".join(
        f"{n:,} {_plural(NOUNS.get(what, 'task'), n)} {WORDS.get(what, what)}" for what, n in found.items()
    )


def _plural(noun: str, n: int) -> str:
    return noun if n == 1 else f"{noun}{'es' if noun.endswith('ch') else 's'}"
