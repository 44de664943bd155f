"""A cluster of real nodes, and what happens to clusters: nodes die and come back, replicas take over, slots move, nodes
are added and removed. Methods that change the cluster wait until the living nodes agree on the change.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from redis.crc import key_slot

from tests.rig.waiting import wait_until
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.server.embedded_cluster import ClusterNode, EmbeddedCluster, Member

QUICK = 1000
"""A node timeout for tests in which nodes die, ms: a replica takes over two or three seconds after its primary died."""


def slot_of(key: str | bytes) -> int:
    return int(key_slot(key.encode() if isinstance(key, str) else key))


@contextmanager
def frozen(server: EmbeddedServer) -> Iterator[None]:
    """Let a server, or a node, answer nothing meanwhile, as a machine that the network has lost."""
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Cluster(EmbeddedCluster):
    @property
    def password(self) -> str:
        return str(self._settings.get("requirepass", ""))

    # ---- who is who

    def client(self, node: ClusterNode) -> Any:
        """Give a plain client of one node, which follows no MOVED; `with` closes it."""
        return redis.Redis.from_url(node.url, socket_timeout=10)

    def say(self, node: ClusterNode, *words: object) -> Any:
        with self.client(node) as client:
            return client.execute_command(*words)

    def living(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.pid is not None]

    def member(self, node: ClusterNode) -> Member:
        """Say what a node is, as the first living node sees it."""
        return next(member for member in self.members() if member.port == node.port)

    def primary_of(self, slot: int) -> ClusterNode:
        port = next(member.port for member in self.members() if any(slot in part for part in member.slots))
        return next(node for node in self.nodes if node.port == port)

    def primary_nodes(self) -> list[ClusterNode]:
        ports = {member.port for member in self.members() if member.slots}
        return [node for node in self.nodes if node.port in ports]

    def replicas_of(self, primary: ClusterNode) -> list[ClusterNode]:
        mine = self.member(primary).id
        ports = {member.port for member in self.members() if member.follows == mine}
        return [node for node in self.nodes if node.port in ports]

    def agree(self, is_so: Callable[[Sequence[Member]], bool], timeout: float = 30) -> None:
        """Wait until `is_so` holds for what each living node says of the cluster, and each takes commands."""

        def all_see() -> bool:
            return all(
                is_so(node.members()) and b"cluster_state:ok" in node.ask("CLUSTER INFO") for node in self.living()
            )

        wait_until(all_see, timeout)

    # ---- death and succession

    def revive(self, node: ClusterNode) -> None:
        """Start a node that was killed, and wait until the cluster is whole again.

        Without a directory, the node is empty. So if it was a primary, a replica must have succeeded it.
        """
        node.start()
        self.wait()

    def succeeded(self, replica: ClusterNode) -> None:
        """Wait until a replica has taken over from its primary."""
        self.agree(lambda seen: any(member.port == replica.port and member.slots for member in seen))

    def fail_over(self, replica: ClusterNode) -> None:
        """Let a replica and its primary change roles, which loses nothing."""
        self.say(replica, "CLUSTER", "FAILOVER")
        self.succeeded(replica)
        self.wait()

    # ---- slots

    def move(self, slots: range, target: ClusterNode) -> None:
        """Move slots of one primary, all at once and with all keys in them; Valkey can do this since version 9."""
        words = ("SLOTSRANGE", slots[0], slots[-1], "NODE", self.member(target).id)
        self.say(self.primary_of(slots[0]), "CLUSTER", "MIGRATESLOTS", *words)
        self.settle(slots, target)

    def move_by_keys(self, slot: int, target: ClusterNode) -> None:
        """Move a slot key by key, as all versions can."""
        Move(self, slot, target).finish()

    def move_each_by_keys(self, slots: range, target: ClusterNode) -> None:
        """Move slots that are one primary's, one after the other, as all versions can."""
        source = self.primary_of(slots[0])
        with self.client(source) as client, client.pipeline(transaction=False) as pipe:
            for slot in slots:
                pipe.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot)
            full = [slot for slot, keys in zip(slots, pipe.execute(), strict=True) if keys]
        for slot in full:
            self.move_by_keys(slot, target)
        old, new = self.member(source).id, self.member(target).id
        empty = [slot for slot in slots if slot not in full]
        for node, word, other in [
            (target, "IMPORTING", old),
            (source, "MIGRATING", new),
            *((node, "NODE", new) for node in [target, source, *self.primary_nodes()]),
        ]:
            with self.client(node) as client, client.pipeline(transaction=False) as pipe:
                for slot in empty:
                    pipe.execute_command("CLUSTER", "SETSLOT", slot, word, other)
                pipe.execute()
        self.settle(slots, target)

    def settle(self, slots: range, target: ClusterNode) -> None:
        """Wait until each living node says that the target has these slots."""
        wanted = set(slots)

        def has_them(seen: Sequence[Member]) -> bool:
            theirs = next((member.slots for member in seen if member.port == target.port), ())
            return wanted <= {slot for part in theirs for slot in part}

        self.agree(has_them)
        self.wait()

    # ---- nodes that come and go

    def add(self, follows: ClusterNode | None = None) -> ClusterNode:
        """Add a node: a replica of a primary, or a primary without slots."""
        node = self._node(1 + len(self.nodes))
        node.start()
        for other in self.nodes:
            node.ask(f"CLUSTER MEET 127.0.0.1 {other.port} {other.bus}")
        self.nodes.append(node)
        if follows is not None:
            self._attach(node, follows)
        self.wait()
        self._count()
        return node

    def remove(self, node: ClusterNode) -> None:
        """Remove a node that has no slots: the others forget it, and it ends."""
        member = self.member(node)
        assert not member.slots, "move its slots to other nodes first"
        assert self._kept is None, "the folders of a cluster that is kept are numbered without a gap"
        node.kill()
        self.nodes.remove(node)
        for other in self.living():
            other.ask(f"CLUSTER FORGET {member.id}")  # a node may have heard of it already
        node.stop()
        self.wait()
        self._count()

    def _count(self) -> None:
        self.replicas = sum(bool(member.follows) for member in self.members())
        self.primaries = len(self.nodes) - self.replicas


class Move:
    """A slot on its way from one primary to another, key by key, as all versions can; the keys may go in any order."""

    def __init__(self, cluster: Cluster, slot: int, target: ClusterNode) -> None:
        """Begin to move the slot; as yet, all keys stay."""
        self.cluster, self.slot = cluster, slot
        self.source, self.target = cluster.primary_of(slot), target
        self._old, self._new = cluster.member(self.source).id, cluster.member(target).id
        cluster.say(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self._old)
        cluster.say(self.source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self._new)

    def left(self) -> list[bytes]:
        return self._keys(self.source)

    def carry(self, keys: Iterable[bytes]) -> None:
        self._migrate(self.source, self.target, keys)

    def finish(self) -> None:
        """Move the keys that are left, and tell all primaries that the target has the slot."""
        while left := self.left():
            self.carry(left)
        for node in dict.fromkeys([self.target, self.source, *self.cluster.primary_nodes()]):
            self.cluster.say(node, "CLUSTER", "SETSLOT", self.slot, "NODE", self._new)
        self.cluster.settle(range(self.slot, self.slot + 1), self.target)

    def give_up(self) -> None:
        """Bring back what has moved: all is as before."""
        self.cluster.say(self.source, "CLUSTER", "SETSLOT", self.slot, "STABLE")
        self._migrate(self.target, self.source, self._keys(self.target))
        self.cluster.say(self.target, "CLUSTER", "SETSLOT", self.slot, "STABLE")

    def _keys(self, node: ClusterNode) -> list[bytes]:
        return list(self.cluster.say(node, "CLUSTER", "GETKEYSINSLOT", self.slot, 1_000_000))

    def _migrate(self, source: ClusterNode, target: ClusterNode, keys: Iterable[bytes]) -> None:
        password = self.cluster.password
        auth = ("AUTH", password) if password else ()
        with self.cluster.client(source) as client:
            for key in keys:
                said = client.execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000, *auth)
                assert said in (b"OK", b"NOKEY"), said  # a lock may have run out meanwhile
