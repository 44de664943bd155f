"""What the endpoints of the API share: `Gateway.shared`. The pages find some of it in `app.state`."""

from __future__ import annotations

from dataclasses import dataclass

from timeoutq.gateway.fairness import Memory, Places
from timeoutq.gateway.polls import Polls
from timeoutq.gateway.queues import Queues
from timeoutq.gateway.settings import Settings
from timeoutq.gateway.tending import Tending


@dataclass(slots=True)
class State:
    """The settings and the open queues of one application."""

    settings: Settings
    queues: Queues
    places: Places
    heavy_places: Places
    """The places of requests with large bodies, which take many times their bytes of memory while they are read."""
    memory: Memory
    polls: Polls
    tending: Tending

    @classmethod
    def of(cls, settings: Settings) -> State:
        """Make what an application begins with."""
        queues = Queues(settings)
        polls = Polls(queues, settings)
        tending = Tending(queues, settings.cleaned_for, polls.is_busy)
        queues.busy = lambda name: polls.is_busy(name) or tending.tends(name)
        return cls(
            settings,
            queues,
            Places(settings.most_at_once, settings.most_in_line),
            Places(settings.most_heavy, settings.most_in_line),
            Memory(settings.most_bytes),
            polls,
            tending,
        )
