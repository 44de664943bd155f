"""A slot of a cluster that moves from one node to another, key by key: a script is refused whole, and never torn.

A node that gives a slot away runs a script while all keys that the script declares are still there, and ends the script
at the first other key that has gone. So every script declares `lock`, a key that is never there, and the node refuses
the script before it has begun.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from redis.exceptions import AskError, TryAgainError

from tests.hosts.test_polite_servers import free_port
from tests.pure.test_scripts import calls
from tests.rig.invariants import check
from tests.rig.servers import valkey
from tests.rig.waiting import wait_until
from timeoutq import Politeness, Queue, sending
from timeoutq.calls import Call
from timeoutq.durations import Delta
from timeoutq.embedded import EmbeddedServer
from timeoutq.errors import Unavailable
from timeoutq.scripts import script

A, B = "http://a.example/", "http://b.example/"


def say(node: Any, *words: object) -> Any:
    """Send a command to a node."""
    return node.execute_command(*words)


def ready(node: Any) -> bool:
    """Say whether a node of the cluster knows the other one, and that all slots are given."""
    said = say(node, "CLUSTER INFO")
    return bool(said["cluster_state"] == "ok" and said["cluster_known_nodes"] == "2")


class Nodes:
    """Two nodes of a cluster: one that has all slots, and one that may be given the slot of the queue `q`."""

    def __init__(self, here: EmbeddedServer, there: EmbeddedServer, busses: tuple[int, int]) -> None:
        self.url = here.url
        self.here: Any = redis.Redis.from_url(here.url)
        self.there: Any = redis.Redis.from_url(there.url)
        self._ports = (here.port, there.port)
        say(self.here, "CLUSTER", "ADDSLOTS", *range(16384))
        say(self.here, "CLUSTER", "MEET", "127.0.0.1", str(there.port), str(busses[1]))
        nodes: list[Any] = [self.here, self.there]
        wait_until(lambda: all(ready(node) for node in nodes), 20)
        self._ids: list[str] = [say(node, "CLUSTER", "MYID") for node in nodes]
        self._slot = say(self.here, "CLUSTER", "KEYSLOT", "timeoutq:{q}:meta")

    def begin(self) -> None:
        """Begin to move the slot."""
        self.there.execute_command("CLUSTER", "SETSLOT", self._slot, "IMPORTING", self._ids[0])
        self.here.execute_command("CLUSTER", "SETSLOT", self._slot, "MIGRATING", self._ids[1])

    def move(self, key: bytes) -> None:
        """Move one key."""
        assert self.here.execute_command("MIGRATE", "127.0.0.1", self._ports[1], key, 0, 5000) == b"OK"

    def give_up(self) -> None:
        """End the move of the slot, and bring back what has moved."""
        self.here.execute_command("CLUSTER", "SETSLOT", self._slot, "STABLE")
        for key in self.there.keys("*"):
            assert self.there.execute_command("MIGRATE", "127.0.0.1", self._ports[0], key, 0, 5000) == b"OK"
        self.there.execute_command("CLUSTER", "SETSLOT", self._slot, "STABLE")

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
def nodes() -> Iterator[Nodes]:
    with ExitStack() as stack:
        busses = (free_port(), free_port())
        here, there = (
            stack.enter_context(EmbeddedServer(binary=valkey(), config={"cluster-enabled": True, "cluster-port": port}))
            for port in busses
        )
        found = Nodes(here, there, busses)
        stack.callback(found.here.close)
        stack.callback(found.there.close)
        yield found


def fill(queue: Queue, nodes: Nodes) -> None:
    """Have every key be there that a script declares, except for `lock`."""

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


@pytest.mark.parametrize("rules", [None, Politeness(0, 1)], ids=["plain", "polite"])
def test_a_script_is_refused_whole_while_its_slot_moves(nodes: Nodes, rules: Politeness | None) -> None:
    nodes.here.flushall()
    with Queue("q", nodes.url, timeout=60, keep_done=1000, politeness=rules, deadline=0.5) as queue:
        fill(queue, nodes)
        everything = calls()
        there = set(nodes.here.keys("*"))
        for name in everything:
            nodes.here.script_load(script(name).text)
            nodes.there.script_load(script(name).text)
            absent = {key for key in script(name).keys if queue.operations.key(key).encode() not in there}
            assert absent == ({"probe", "lock"} if name == "probe" else {"lock"}), name
        declared = {queue.operations.key(key).encode() for name in everything for key in script(name).keys}
        before = nodes.hold()
        nodes.begin()
        # keys that no script declares go first: a script that has begun would be torn by them
        for key in sorted(there, key=lambda key: (key in declared, key)):
            nodes.move(key)
            for name, call in everything.items():
                with pytest.raises((TryAgainError, AskError)):
                    nodes.here.execute_command(*call.command())
                with nodes.there.pipeline(transaction=False) as pipe:
                    pipe.execute_command("ASKING")
                    pipe.execute_command(*call.command())
                    _, answer = pipe.execute(raise_on_error=False)
                assert isinstance(answer, TryAgainError), (name, answer)
            with pytest.raises(Unavailable):
                queue.put(f"{A}new")
            assert nodes.hold() == before
            if len(nodes.there.keys("*")) > 5:
                break
        nodes.give_up()
        assert queue.put(f"{A}new").added == 1
        check(nodes.url, "q")
        queue.purge()
