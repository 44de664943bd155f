"""The death of a primary on the way, where the queue is in a private cluster: `--cluster 3+3 --kill`.

One primary that holds a part of the queue is killed with SIGKILL. Its replica takes over, and then the node comes back
as a replica, so that each write of a durable queue finds a replica again. `course.py` calls this.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from demo.processes import DemoError, Interrupts
from timeoutq.client.shards import AnyQueue, talks_of
from timeoutq.server.cluster import slot_of
from timeoutq.server.embedded_cluster import ClusterNode, EmbeddedCluster, Member

PATIENCE = 60.0
"""How long the replica may take, seconds. Mostly it takes little more than the two seconds after which a node that is
silent counts as failed."""


class Outage:
    """One primary of a cluster that is killed on the way, and all that follows."""

    def __init__(
        self, cluster: EmbeddedCluster, queue: AnyQueue, interrupts: Interrupts, say: Callable[[str], None]
    ) -> None:
        """Prepare to kill a primary of the `cluster` that holds a part of the `queue`; `say` prints a line."""
        self._say = say
        self._cluster = cluster
        self._slots = [talk.at if isinstance(talk.at, int) else slot_of(queue.name) for talk in talks_of(queue)]
        self._interrupts = interrupts
        self._killed: ClusterNode | None = None
        self._slot = 0
        """A slot of the node that was killed: who has it now, has taken over."""
        self._at = 0.0
        self._seconds: float | None = None

    @property
    def lasts(self) -> bool:
        """Whether a primary is dead, and no replica has taken over yet."""
        return self._killed is not None and self._seconds is None

    def look(self) -> None:
        """Kill the primary; and when this is called again, bring the node back as soon as a replica has taken over.

        Raises `DemoError` when no replica takes over.
        """
        if self._killed is None:
            self._kill()
        elif self.lasts:
            self._bring_back()

    def end(self) -> None:
        """Wait until the cluster is whole again. Raises `DemoError`, `Unavailable`."""
        while self.lasts:
            self._bring_back()
            time.sleep(0.05)
        self._cluster.wait()

    def figures(self) -> dict[str, Any]:
        """Give what happened, as a part of the result in JSON."""
        return {
            "primaries": self._cluster.primaries,
            "replicas": self._cluster.replicas,
            "killed": self._killed.place if self._killed is not None else None,
            "replaced_after": round(self._seconds, 2) if self._seconds is not None else None,
        }

    def _kill(self) -> None:
        self._slot = random.choice(self._slots)  # noqa: S311  # any of them
        port = _holder(self._cluster.members(), self._slot)
        with self._interrupts.whole():
            self._killed = next(node for node in self._cluster.nodes if node.port == port)
            self._at = time.monotonic()
            self._killed.kill()
        self._say(f"killed the primary {self._killed.place} with SIGKILL; a part of the queue is there")

    def _bring_back(self) -> None:
        assert self._killed is not None
        passed = time.monotonic() - self._at
        if _holder(self._cluster.members(), self._slot) not in (self._killed.port, None):
            # not before: without its data, the node would come back as a primary that holds nothing
            self._killed.start()
            self._seconds = passed
            self._say(f"a replica has taken over after {passed:.1f} s; {self._killed.place} comes back as a replica")
        elif passed > PATIENCE:
            raise DemoError(f"{self._killed.place} was killed, and after {PATIENCE:g} s no replica has taken over")


def _holder(members: Sequence[Member], slot: int) -> int | None:
    """Give the port of the node that has a slot."""
    return next((member.port for member in members if any(slot in part for part in member.slots)), None)
