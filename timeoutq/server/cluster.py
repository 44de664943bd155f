"""The map of a cluster: which node has which slot.

redis-py's own client for clusters is not used: it sends WAIT to all primaries and adds up their answers, so that
`durable=` would mean nothing.
"""

from __future__ import annotations

import binascii
import random
import time
from collections.abc import Sequence
from typing import Any, cast

from redis.exceptions import AskError, ClusterDownError, InvalidResponse, MovedError, ResponseError, TryAgainError

from timeoutq.server.troubles import NoPort, is_hopeless, is_transient

Node = tuple[str, int]
"""The host and the port of a node."""
Where = int | Node | None
"""Where in a cluster: a slot, or a node; None is the slot of the queue. A link to a single server ignores it."""

SLOTS = 16384
ASK_EVERY = 0.1
"""Seconds between two questions for the map of a cluster."""


def slot_of(tag: str) -> int:
    """Give the slot of keys by their hash tag, such as a queue's name: its CRC-16/XMODEM (Redis Cluster's rule)."""
    return binascii.crc_hqx(tag.encode(), 0) % SLOTS


class Map:
    """Which node has which slot, as far as this process knows."""

    def __init__(self, seeds: Sequence[Node], patience: float) -> None:
        """Prepare; once nodes have been asked in vain for `patience` seconds, no further node is asked."""
        self._seeds = tuple(seeds)
        self.patience = patience
        self.nodes: dict[Node, bool] = {}
        """The nodes that the cluster counts as alive, and for each whether it is a primary with slots."""
        self._owners: list[Node | None] = [None] * SLOTS
        self._asked = -ASK_EVERY
        self.doubted = True
        """Whether the map is to be asked for again before it is used."""
        self._silent: dict[Node, float] = {}  # when each node last gave no map, or no answer

    def owner(self, slot: int) -> Node | None:
        """Give the node that has the slot; None if no node is known to have it."""
        return self._owners[slot]

    def doubt(self, node: Node) -> None:
        """Note that this node does not answer, or that the map is wrong about it."""
        self.doubted = True
        self.ask_late(node)

    def silent_since(self, node: Node) -> float:
        """Give when the node was last silent, by the monotonic clock; 0 if it was not."""
        return self._silent.get(node, 0.0)

    def ask_late(self, node: Node) -> None:
        """Note that other nodes are to be asked for the map before this one."""
        self._silent[node] = time.monotonic()

    def judge(self, replies: Any, node: Node, slot: int) -> list[Any]:
        """Give the replies of a node that was asked about a slot, and learn from errors. Raises that of the network."""
        if isinstance(replies, Exception):
            raise self.heed(replies, node, slot)
        return [self.heed(reply, node, slot) if isinstance(reply, ResponseError) else reply for reply in replies]

    def heed(self, error: Exception, node: Node, slot: int) -> Exception:
        """Learn from an error of a node that was asked about a slot; give it as the caller is to see it."""
        if isinstance(error, MovedError):  # first: to redis-py, each MovedError is an AskError, too
            where: Any = error
            if where.host == NO_HOSTNAME:
                self.doubted = True  # the map tells the address of the node, too
            else:
                there = _node(where.host, where.port, node)
                if there == self.owner(slot):
                    self.doubt(node)
                self._owners[slot] = there
        elif isinstance(error, AskError):
            # the other node has only some of the keys as yet, so a script cannot run there either
            error = TryAgainError(f"slot {slot} is being moved")
        elif isinstance(error, ResponseError):
            if is_transient(error) and not isinstance(error, TryAgainError):
                self.doubt(node)  # no majority, or a replica: the slot may be elsewhere by now
        elif not is_hopeless(error):
            self.doubt(node)
        return with_node(error, node, slot)

    def may_ask(self) -> bool:
        """Say whether the map may be asked for again; if so, the question counts as asked now."""
        now = time.monotonic()
        if now - self._asked < ASK_EVERY:
            return False
        self._asked = now
        return True

    def to_ask(self) -> list[Node]:
        """Give all known nodes in the order in which they are to be asked for the map."""
        nodes = list(dict.fromkeys((*self.nodes, *self._seeds)))
        if self.nodes:
            random.shuffle(nodes)  # the first question goes to the nodes of the URL, in the order of the URL
        return sorted(nodes, key=self.silent_since)

    def learn(self, reply: Any, asked: Node) -> None:
        """Take the reply to CLUSTER SLOTS of the node `asked`. Raises the error of a reply that is no map."""
        owners: list[Node | None] = [None] * SLOTS
        nodes: dict[Node, bool] = {}
        try:
            for first, last, *servers in reply:
                found = [_node(_host(server), server[1], asked) for server in servers]
                if any(not port for _, port in found):
                    raise NoPort(
                        f"node {asked[0]}:{asked[1]} names other nodes of the cluster without a port for clients, as "
                        "nodes do that take TLS alone: set tls-cluster yes on all nodes, or give each one a port"
                    )
                nodes.update((node, node == found[0]) for node in found)
                owners[first : last + 1] = [found[0]] * (last + 1 - first)
        except (TypeError, ValueError, LookupError, AttributeError):
            raise InvalidResponse(f"the reply to CLUSTER SLOTS is {str(reply)[:80]!r}") from None
        if not nodes:
            # a node that is new, or has come back empty, knows of no other node: it does not speak for the cluster
            raise ClusterDownError("CLUSTERDOWN the node knows of no node that has slots yet")
        self._owners, self.nodes, self.doubted = owners, nodes, False
        self._silent.pop(asked, None)


NO_HOSTNAME = "?"
"""What stands for a node that has no hostname where nodes are to be called by their hostnames."""


def _host(server: Any) -> Any:
    if server[0] != NO_HOSTNAME.encode():
        return server[0]
    more = server[3]  # names and values in turn, such as the address
    return dict(zip(more[::2], more[1::2], strict=True)).get(b"ip")


def _node(host: Any, port: Any, asked: Node) -> Node:
    # no host means that this node is reached at the same host as the node that was asked: because nodes behind a load
    # balancer do not know its name (cluster-preferred-endpoint-type), or because a node does not know its own name
    name = host.decode() if isinstance(host, bytes) else str(host or "")
    return name or asked[0], int(port)


def with_node(error: Exception, node: Node, slot: int) -> Exception:
    """Note in an error which node was asked; `Server.explain` tells the note to the caller."""
    if not getattr(error, "__notes__", None):
        error.add_note(f"node {node[0]}:{node[1]}, slot {slot}")
    return error


def is_moved(reply: object) -> bool:
    """Say whether a node has replied that the slot is elsewhere."""
    return isinstance(reply, MovedError)


def are_fine(replies: object) -> bool:
    """Say whether these are replies of a node, and none of them is an error."""
    if not isinstance(replies, list):
        return False
    return not any(isinstance(reply, ResponseError) for reply in cast("list[object]", replies))


def nowhere(slot: int) -> Exception:
    """Make the error that says that no node has the slot."""
    return ClusterDownError(f"no node of the cluster has slot {slot}")


def restless(slot: int) -> Exception:
    """Make the error that says that the nodes send a command to and fro."""
    return TryAgainError(f"slot {slot} moves from node to node")
