"""A slot of a cluster that moves from one node to another, key by key: a call is refused whole, and never torn.

A node that gives a slot away runs a function while all keys that the call declares are still there, and ends it at the
first other key that has gone; the node that takes the slot runs it without the keys that have not come yet. So every
call declares, besides `meta`, a key that is never there, and both nodes refuse the call before it has begun.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis.exceptions import AskError, TryAgainError

from tests.pure.test_scripts import calls
from tests.rig.invariants import check
from tests.rig.nodes import Cluster, Move, slot_of
from timeoutq import Politeness, Queue
from timeoutq.server import scripts
from timeoutq.server.calls import Call
from timeoutq.server.embedded_cluster import ClusterNode
from timeoutq.verbs import sending
from timeoutq.words.durations import Delta
from timeoutq.words.errors import InvalidInput, Unavailable

SLOT = slot_of("timeoutq:{q}:meta")
A, B = "http://a.example/", "http://b.example/"


class Nodes:
    """Two nodes of a cluster: one that has the slot of the queue `q`, and one that may be given it."""

    def __init__(self, cluster: Cluster, here: Any, there: Any) -> None:
        self.url, self.here, self.there = cluster.primary_of(SLOT).url, here, there

    def hold(self) -> dict[bytes, bytes]:
        """Give all keys with what they hold."""
        pages = [(node, node.keys("*")) for node in (self.here, self.there)]
        # a node answers for a key of a slot that moves only to those who ask for it so
        found = {}
        for node, keys in pages:
            for key in keys:
                with node.pipeline(transaction=False) as pipe:
                    pipe.execute_command("ASKING")
                    pipe.execute_command("DUMP", key)
                    found[key] = pipe.execute()[1]
        return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(2, 0) as started:
        yield started


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[Nodes]:
    source = cluster.primary_of(SLOT)
    with cluster.client(source) as here, cluster.client(other(cluster, source)) as there:
        yield Nodes(cluster, here, there)


def other(cluster: Cluster, source: ClusterNode) -> ClusterNode:
    return next(node for node in cluster.nodes if node is not source)


def fill(queue: Queue, nodes: Nodes) -> None:
    """Have most keys be there that a call may need."""

    def run(call: Call[Any]) -> Any:
        return queue.run(sending.answer(queue.talk, call))

    queue.put({f"{A}{i}": i for i in range(5)}, [f"{B}{i}" for i in range(4)], ["1", "2", "3", "4", "5", "6"])
    queue.put("x", group="g.example")
    run(queue.operations.beat("w", {"pid": 1}, Delta(1, {0: 1})))
    done, failing, crashing, given_up = queue.claim(4, max_runtime=600)
    queue.ack(done)
    queue.fail(failing, "no", retry_in=500)
    run(queue.operations.crash([crashing], "died")[0])
    queue.fail(given_up, "no", give_up=True)
    queue.schedule(f"{A}later", after=900)
    assert queue.claim(2, timeout=600, max_runtime=700)
    run(queue.operations.plan(1000))
    # the stroke and the alarm that wake others
    nodes.here.rpush(queue.operations.key("bell"), "1")
    nodes.here.xadd(queue.operations.key("alarm"), {"at": 1})


@pytest.mark.parametrize("meta_first", [True, False], ids=["meta first", "meta last"])
@pytest.mark.parametrize("rules", [None, Politeness(0, 1)], ids=["plain", "polite"])
def test_a_call_is_refused_whole_while_its_slot_moves(
    cluster: Cluster, nodes: Nodes, rules: Politeness | None, *, meta_first: bool
) -> None:
    nodes.here.flushall()
    with Queue("q", nodes.url, timeout=60, keep_done=1000, politeness=rules, deadline=0.5) as queue:
        fill(queue, nodes)
        everything = calls()
        there = set(nodes.here.keys("*"))
        nodes.there.function_load(scripts.library(), replace=True)
        before = nodes.hold()
        move = Move(cluster, SLOT, other(cluster, cluster.primary_of(SLOT)))
        meta = queue.operations.key("meta").encode()
        for key in sorted(there, key=lambda key: ((key == meta) is not meta_first, key)):
            move.carry([key])
            for name, call in everything.items():
                with pytest.raises((TryAgainError, AskError)):
                    nodes.here.execute_command(*call.command())
                with nodes.there.pipeline(transaction=False) as pipe:
                    pipe.execute_command("ASKING")
                    pipe.execute_command(*call.command())
                    _, answer = pipe.execute(raise_on_error=False)
                assert isinstance(answer, TryAgainError), (name, answer)
            with pytest.raises((Unavailable, InvalidInput)):  # this client asks one node, and not the cluster
                queue.put(f"{A}new")
            assert nodes.hold() == before
            if len(nodes.there.keys("*")) > 5:
                break
        move.give_up()
        assert queue.put(f"{A}new").added == 1
        check(nodes.url, "q")
        queue.purge()
