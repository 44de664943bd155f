"""The way to the node of a slot: whom a client asks, whom it believes, and what it sends again. No server is needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from redis.exceptions import ClusterDownError, InvalidResponse, MovedError, NoPermissionError

from timeoutq.client.slots import Guide
from timeoutq.server.cluster import SLOTS, Map, Node, slot_of
from timeoutq.server.troubles import NoPort, explain, is_hopeless, is_transient
from timeoutq.verbs.sending import Bell, Flow, Nodes, Send, Sends, Sleep, Step
from timeoutq.words.errors import NotRedis, ServerError

A, B, C = ("a", 1), ("b", 2), ("c", 3)
SLOT = 7
MAP = ("CLUSTER", "SLOTS")


def slots(*ranges: tuple[int, int, Node]) -> list[Any]:
    """Write the reply to CLUSTER SLOTS."""
    return [[first, last, [host.encode(), port, b"id", []]] for first, last, (host, port) in ranges]


def moved(node: Node) -> MovedError:
    """Write what a node says that does not have the slot any more."""
    return MovedError(f"{SLOT} {node[0]}:{node[1]}")


ALL_AT_A, ALL_AT_B = slots((0, SLOTS - 1, A)), slots((0, SLOTS - 1, B))


class Cluster:
    """Carries out the steps: what the nodes answer is said beforehand, what they were sent stands in `log`."""

    def __init__(self, *said: tuple[Node, Any], seeds: Sequence[Node] = (A, B, C)) -> None:
        self.said = list(said)
        self.log: list[tuple[Node, Any]] = []
        self.pauses: list[float] = []
        self.within: list[float | None] = []
        self.moves = 0
        self.map = Map(seeds, 1.5)
        self.tick: Callable[[], None] = lambda: None
        self.guide = Guide(self.map, SLOT, self.count)

    def count(self, slot: int) -> None:
        """Count the moves of the slot."""
        self.moves += 1

    def run(self, step: Step) -> Any:
        """Carry out one step of a flow; give its result, or raise the error that the flow would get."""

        def flow() -> Flow[Any]:
            return (yield step)

        found = self._drive(self.guide.lead(flow()))
        if isinstance(found, Exception):
            raise found
        return found

    def _drive(self, flow: Flow[Any]) -> Any:
        result: Any = None
        while True:
            try:
                step = flow.send(result)
            except StopIteration as end:
                return end.value
            result = None
            if isinstance(step, Sleep):
                self.pauses += [step.seconds] if step.seconds else []
            elif isinstance(step, Sends):
                self.within.append(step.within)
                result = [self._answer(part.at, tuple(part.commands)) for part in step.parts]
            elif isinstance(step, Send):
                result = self._answer(step.at, tuple(step.commands))
            else:
                assert isinstance(step, Bell)
                result = self._answer(step.at, (step.key, round(step.seconds, 3)))

    def _answer(self, there: object, asked: Any) -> Any:
        node, reply = self.said.pop(0)
        self.log.append((node, asked))
        assert node == there
        self.tick()
        return reply

    def send(self, *words: str) -> Any:
        """Send commands of one word each."""
        return self.run(Send([(word,) for word in words]))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that stands still until the test moves it on."""
    now = [100.0]

    def move(seconds: float) -> None:
        now[0] += seconds

    for module in ("timeoutq.server.cluster", "timeoutq.client.slots"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: now[0]))
        monkeypatch.setattr(f"{module}.random", SimpleNamespace(shuffle=lambda _: None, uniform=lambda _, high: high))
    return move


@pytest.mark.parametrize(("tag", "slot"), [("123456789", 0x31C3), ("foo", 12182), ("bar", 5061), ("crawl", 2220)])
def test_the_slot_of_a_queue_is_that_of_its_hash_tag(tag: str, slot: int) -> None:
    assert slot_of(tag) == slot


def test_the_first_node_of_the_url_is_asked_for_the_map_once() -> None:
    nodes = Cluster((A, [ALL_AT_B]), (B, [1]), (B, [2]))
    assert nodes.send("x") == [1]
    assert nodes.send("y") == [2]
    assert nodes.log == [(A, (MAP,)), (B, (("x",),)), (B, (("y",),))]
    assert nodes.moves == 0


def test_a_node_that_is_silent_or_starts_is_passed_over() -> None:
    silent, loading = redis.ConnectionError("refused"), [redis.ResponseError("LOADING the data")]
    nodes = Cluster((A, silent), (B, loading), (C, [ALL_AT_B]), (B, [1]))
    assert nodes.send("x") == [1]


@pytest.mark.parametrize("host", [None, b""])
def test_a_node_without_a_host_is_reached_at_the_host_that_was_asked(host: bytes | None) -> None:
    nodes = Cluster((A, [[[0, SLOTS - 1, [host, 2, b"id", [b"ip", b"10.0.0.2"]]]]]), (("a", 2), [1]))
    assert nodes.send("x") == [1]


GARBLED = [
    b"OK", 5, None, [[0, SLOTS - 1]], [[0, SLOTS - 1, []]], [[0, SLOTS - 1, [b"\xff", 1]]],
    [[0, SLOTS - 1, [b"a", b"x"]]], [[b"0", b"1", [b"a", 1]]], [[0, SLOTS - 1, [b"?", 1, b"id"]]],
]  # fmt: skip


@pytest.mark.parametrize("garbled", GARBLED)
def test_when_no_node_gives_a_map_what_answers_is_not_redis(garbled: Any) -> None:
    nodes = Cluster((A, [garbled]), seeds=(A,))
    with pytest.raises(InvalidResponse) as told:
        nodes.send("x")
    assert isinstance(explain(told.value, "redis+cluster://a:1"), NotRedis)


def test_a_map_without_ports_is_refused_at_once_with_the_cure() -> None:
    nodes = Cluster((A, [slots((0, SLOTS - 1, ("a", 0)))]), seeds=(A,))
    with pytest.raises(NoPort) as told:
        nodes.send("x")
    assert is_hopeless(told.value)
    said = explain(told.value, "rediss+cluster://a:1")
    assert isinstance(said, ServerError)
    assert re.search("node a:1 names .* set tls-cluster yes on all nodes", str(said))


def test_a_caller_waits_for_few_silent_nodes_and_the_next_question_goes_to_others(
    clock: Callable[[float], None],
) -> None:
    silent = redis.TimeoutError("Timeout reading")
    nodes = Cluster((A, silent), (B, silent), (C, [ALL_AT_B]), (B, [1]))
    nodes.tick = lambda: clock(1.0)
    with pytest.raises(redis.TimeoutError):
        nodes.send("x")
    assert nodes.send("x") == [1]


@pytest.mark.parametrize(
    "lasting",
    [[NoPermissionError("cluster|slots")], [redis.ResponseError("ERR This instance has cluster support disabled")],
     redis.AuthenticationError("WRONGPASS")],
)  # fmt: skip
def test_what_will_come_again_is_said_rather_than_who_is_silent(lasting: Any) -> None:
    nodes = Cluster((A, lasting), (B, redis.ConnectionError("refused")), seeds=(A, B))
    with pytest.raises(redis.RedisError) as told:
        nodes.send("x")
    assert is_hopeless(told.value)


def test_a_command_follows_its_slot_at_once_and_the_clock_of_the_server_is_forgotten() -> None:
    nodes = Cluster((A, [ALL_AT_A]), (A, [moved(B)]), (B, [1]), (B, [2]))
    assert nodes.send("x") == [1]
    assert nodes.pauses == []
    assert nodes.moves == 1
    assert nodes.send("y") == [2]


def test_only_those_commands_are_sent_again_that_were_told_to_go_elsewhere() -> None:
    nodes = Cluster((A, [ALL_AT_A]), (A, [1, moved(B), moved(B)]), (B, [2, 3]))
    assert nodes.send("x", "y", "z") == [1, 2, 3]
    assert nodes.log[-1] == (B, (("y",), ("z",)))


def test_replicas_are_waited_for_at_both_nodes_and_the_fewer_count() -> None:
    nodes = Cluster((A, [ALL_AT_A]), (A, [1, moved(B), 0]), (B, [2, 1]))
    assert nodes.send("x", "y", "WAIT") == [1, 2, 0]
    assert nodes.log[-1] == (B, (("y",), ("WAIT",)))


def test_a_slot_that_two_nodes_send_to_each_other_is_followed_for_a_second_and_then_asked_for_later() -> None:
    ends: list[tuple[Node, Any]] = [(A, [moved(B)]), (B, [moved(A)])]
    nodes = Cluster((A, [ALL_AT_A]), *ends * 6)
    (error,) = nodes.send("x")
    assert is_transient(error)
    assert "slot 7 moves from node to node" in str(error)
    assert 0.9 < sum(nodes.pauses) < 1.1
    assert nodes.pauses[0] < 0.01


def test_a_node_that_does_not_answer_is_doubted_and_asked_last(clock: Callable[[float], None]) -> None:
    nodes = Cluster((A, [ALL_AT_A + slots((1, 1, B))]), (A, redis.ConnectionError("reset")), (B, [ALL_AT_B]), (B, [1]))
    with pytest.raises(redis.ConnectionError):
        nodes.send("x")
    clock(1)
    assert nodes.send("x") == [1]
    assert nodes.moves == 1


def test_a_node_that_sends_its_own_slot_to_itself_is_not_believed(clock: Callable[[float], None]) -> None:
    nodes = Cluster((A, [ALL_AT_A]), (A, [moved(A)]), (B, [ALL_AT_B]), (B, [1]))
    nodes.tick = lambda: clock(0.11)
    assert nodes.send("x") == [1]


@pytest.mark.parametrize("said", [ClusterDownError("The cluster is down"), redis.ResponseError("MASTERDOWN Link")])
def test_a_node_without_a_majority_is_not_believed(said: Exception, clock: Callable[[float], None]) -> None:
    nodes = Cluster((A, [ALL_AT_A]), (A, [said]), (B, [ALL_AT_B]), (B, [1]))
    assert nodes.send("x") == [said]
    clock(1)
    assert nodes.send("x") == [1]


# ---- the other steps


def learned(*said: tuple[Node, Any]) -> Cluster:
    """Give a cluster in which node A has the first hundred slots, and nobody has the others, as the client knows."""
    cluster = Cluster(*said, seeds=(A,))
    cluster.map.learn(slots((0, 99, A)), A)
    return cluster


def test_who_waits_follows_the_slot_and_waits_no_longer_than_was_asked(clock: Callable[[float], None]) -> None:
    cluster = learned((A, moved(B)), (B, [b"stroke"]))
    cluster.tick = lambda: clock(4.0)
    assert cluster.run(Bell("bell", 10.0)) == [b"stroke"]
    assert cluster.log == [(A, ("bell", 10.0)), (B, ("bell", 6.0))]


def test_commands_that_two_nodes_send_to_each_other_pause_between_their_attempts() -> None:
    there, back = (A, [moved(B)]), (B, [moved(A)])
    cluster = learned(there, back, there, back, (A, [1]))
    assert cluster.send("x") == [1]
    assert cluster.pauses == [0.002, 0.004, 0.008]


def test_of_several_parts_only_those_commands_are_sent_again_that_were_told_to_go_elsewhere() -> None:
    cluster = learned((A, [1]), (A, [2, moved(B)]), (B, [3]))
    assert cluster.run(Sends([Send([("x",)], 8), Send([("y",), ("z",)], SLOT)])) == [[1], [2, 3]]
    assert cluster.log == [(A, (("x",),)), (A, (("y",), ("z",))), (B, (("z",),))]


def test_a_part_that_is_sent_again_has_the_short_deadline_of_all() -> None:
    cluster = learned((A, [moved(B)]), (B, [3]))
    assert cluster.run(Sends([Send([("x",)])], within=0.5)) == [[3]]
    assert cluster.within == [0.5, 0.5]


def test_a_node_that_was_silent_is_asked_last() -> None:
    cluster = learned((B, [2]), (A, [1]))
    cluster.map.learn(slots((0, 99, A), (100, 199, B)), A)
    cluster.map.ask_late(A)
    assert cluster.run(Sends([Send([("x",)], SLOT), Send([("y",)], 100)])) == [[1], [2]]


def test_a_part_whose_slot_no_node_has_gets_an_error_and_the_others_their_replies(
    clock: Callable[[float], None],
) -> None:
    clock(1.0)
    cluster = learned((A, [slots((0, 99, A))]), (A, [1]))
    first, second = cluster.run(Sends([Send([("x",)], SLOT), Send([("y",), ("z",)], 200)]))
    assert first == [1]
    assert [str(error) for error in second] == ["no node of the cluster has slot 200"] * 2
    assert all(map(is_transient, second))


def test_a_step_that_names_a_node_goes_there_whatever_the_map_says() -> None:
    cluster = learned((C, [1]), (C, [2]))
    assert cluster.run(Send([("x",)], C)) == [1]
    assert cluster.run(Sends([Send([("y",)], C)])) == [[2]]
    assert cluster.run(Nodes()) == {A: True}
