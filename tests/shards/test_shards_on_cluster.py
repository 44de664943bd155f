"""One queue over several shards on a real cluster: every node has its part, and a node that is away takes only that."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.functions.running import twice_failing
from tests.rig.faces import Blocking
from tests.rig.nodes import QUICK, Cluster
from tests.rig.servers import valkey
from timeoutq import ShardsUnavailable, UnsafeServer, Worker
from timeoutq.client.shards import AsyncShardedQueue, ShardedQueue, open_async_queue
from timeoutq.client.shards.route import key_of, route, tags
from timeoutq.functions import App, Calls
from timeoutq.server.cluster import slot_of
from timeoutq.server.link import AsyncLink, Link

SHARDS = 6
TASKS = [f"https://h{i}.example/" for i in range(120)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three primaries without replicas: when one is gone, its slots are."""
    whole = {"cluster-require-full-coverage": False}
    with Cluster(3, 0, node_timeout_ms=QUICK, binary=valkey(), config=whole) as found:
        yield found


@pytest.fixture(params=["sync", "async"])
def queue(request: pytest.FixtureRequest, cluster: Cluster, name: str) -> Iterator[Any]:
    """A queue on the cluster, behind either face."""
    kind: Any = ShardedQueue if request.param == "sync" else Blocking
    more = {} if request.param == "sync" else {"kind": AsyncShardedQueue}
    with kind(name, cluster.url, shards=SHARDS, timeout=30, deadline=20.0, **more) as found:
        yield found
        found.purge()
        for node in cluster.nodes:
            with cluster.client(node) as client:
                left = [key for key in client.keys("timeoutq:*") if f"{{{name}" in key.decode()]
                assert left == []


def test_the_shards_lie_on_all_nodes_alike_and_a_task_goes_its_way(cluster: Cluster, queue: Any) -> None:
    nodes = Counter(cluster.primary_of(slot_of(tag)).port for tag in tags(queue.name, SHARDS))
    assert set(nodes.values()) == {2}
    assert queue.put(TASKS, {"p": 1}).added == 121
    met: list[str] = []
    while leases := queue.claim(50):
        met += [lease.task for lease in leases]
        assert queue.extend(leases, 60).ok == len(leases)
        assert queue.ack(leases).ok == len(leases)
    assert sorted(met) == sorted([*TASKS, "p"])
    assert queue.drained()
    assert queue.stats().done == 121
    assert sorted(entry.task for entry in queue.each("done")) == sorted(met)
    assert queue.states(TASKS).counts() == {"done": 120}


def test_each_node_gets_one_flush(queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.put(TASKS)
    queue.states(TASKS)
    queue.drained()  # all nodes know the scripts now
    sent: list[int] = []
    for link in (Link, AsyncLink):
        send: Any = link.send

        def noting(self: Any, commands: Any, send: Any = send) -> Any:
            sent.append(len(commands))
            return send(self, commands)

        monkeypatch.setattr(link, "send", noting)
    assert queue.states(TASKS).counts() == {"todos": 120}
    assert sent == [2, 2, 2]
    assert queue.put(TASKS).counts() == {"todos": 120}
    assert sent == [2] * 6
    assert not queue.drained()
    assert sent == [2] * 9, "one pass is enough to see that a shard is busy"


def test_a_shard_that_moves_to_another_node_is_followed(cluster: Cluster, queue: Any) -> None:
    queue.put(TASKS[:60])
    slots = [slot_of(tag) for tag in tags(queue.name, SHARDS)]
    home = cluster.primary_of(slots[0])
    target = next(node for node in cluster.primary_nodes() if node is not home)
    cluster.move(range(slots[0], slots[0] + 1), target)
    try:
        assert queue.put(TASKS).counts() == {"added": 60, "todos": 60}
        assert queue.states(TASKS).counts() == {"todos": 120}
        met: list[str] = []
        while leases := queue.claim(100):
            met += [lease.task for lease in leases]
            queue.ack(leases)
        assert sorted(met) == sorted(TASKS)
        assert queue.drained()
    finally:
        cluster.move(range(slots[0], slots[0] + 1), home)


def test_a_client_is_refused_if_any_node_evicts(cluster: Cluster, queue: Any) -> None:
    queue.put("a")
    node = next(node for node in cluster.primary_nodes() if node is not cluster.primary_of(slot_of(queue.name)))
    with cluster.client(node) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            with ShardedQueue(queue.name, cluster.url) as other, pytest.raises(UnsafeServer, match="allkeys-lru"):
                other.put("b")
            with ShardedQueue(queue.name, cluster.url, allow_eviction=True) as other:
                assert other.put("b").added == 1
        finally:
            client.config_set("maxmemory-policy", "noeviction")


@pytest.mark.breaking
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_node_that_is_gone_fails_the_ids_of_its_shards_alone(kind: str, name: str) -> None:
    settings = {"cluster-require-full-coverage": False}
    face: Any = ShardedQueue if kind == "sync" else Blocking
    more = {} if kind == "sync" else {"kind": AsyncShardedQueue}
    with (
        Cluster(3, 0, node_timeout_ms=QUICK, binary=valkey(), config=settings) as cluster,
        face(name, cluster.url, shards=SHARDS, deadline=0.7, **more) as queue,
    ):
        root = cluster.primary_of(slot_of(name))
        gone = next(node for node in cluster.primary_nodes() if node is not root)
        away = {i for i, tag in enumerate(tags(name, SHARDS)) if cluster.primary_of(slot_of(tag)) is gone}
        queue.put(TASKS[:60])
        held = queue.claim(60)
        gone.kill()

        def is_away(task: str) -> bool:
            return route(key_of(task.encode()), SHARDS) in away

        with pytest.raises(
            ShardsUnavailable, match=f"shards .* of queue {name} did not answer, and 4 others did"
        ) as met:
            queue.put(TASKS)
        assert set(met.value.shards) == away
        wanted = {task: "unanswered" if is_away(task) else "todos" for task in TASKS}
        found = {task: str(answer) for task, answer in met.value.outcome.items()}
        for lease in held:
            wanted[lease.task] = "unanswered" if is_away(lease.task) else "in_progress"
        for task in TASKS[60:]:
            wanted[task] = "unanswered" if is_away(task) else "added"
        assert found == wanted
        with pytest.raises(ShardsUnavailable) as ended:
            queue.ack(held)
        codes = [str(answer) for answer in ended.value.outcome]
        assert codes == ["unanswered" if lease.shard in away else "ok" for lease in held]
        with pytest.raises(ShardsUnavailable, match="shards"):
            queue.stats()
        with face(name, cluster.url, deadline=2.0, **more) as newcomer, pytest.raises(ShardsUnavailable) as new:
            newcomer.put(TASKS)
        assert set(new.value.shards) == away, "a new client works with the shards that answer"
        living = next(task for task in TASKS[60:] if not is_away(task))
        assert queue.states(living).counts() == {"todos": 1}
        claimed: list[str] = []
        for _ in range(20):
            try:
                claimed += [lease.task for lease in queue.claim(100)]
            except ShardsUnavailable:
                break
        assert {task for task, answer in wanted.items() if answer in ("added", "todos")} == set(claimed)


def test_a_record_is_in_the_slot_of_its_call_and_the_list_of_ended_calls_is_that_of_all_shards(
    cluster: Cluster, queue: Any
) -> None:
    queue.configure(max_crashes=5)
    app = App(queue.name, url=cluster.url)

    async def burst(options: dict[str, Any]) -> None:
        async with await open_async_queue(queue.name, cluster.url, timeout=5) as opened:
            await Worker(opened, Calls(app), burst=True, **options).run()

    def work(app: App, **options: Any) -> None:
        asyncio.run(burst(options))

    call = twice_failing(app, work)

    @app.task(keep_result=60)
    async def number(at: int) -> int:
        return at

    calls = app.put(number.call(at) for at in range(20))
    work(app)
    app.close()
    found = queue.results.ended()
    assert [one.ended for one in found] == sorted((one.ended for one in found), reverse=True)
    assert {one.task for one in found} == {call.id, *(one.id for one in calls)}
    (flaky,) = [one for one in found if one.task == call.id]
    assert flaky == queue.inspect(call.id).record
    assert [one.how for one in flaky.attempts] == ["failed", "failed", "done"]
    assert len({one.worker for one in flaky.attempts}) == 2
    assert len(queue.results.ended(5)) == 5
