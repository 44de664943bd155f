"""`timeoutq doctor` on a queue over several shards: the record, each node once, and each shard by its number."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.rig.command import Say, say
from tests.rig.command import server as server
from tests.rig.nodes import QUICK, Cluster, frozen
from tests.rig.servers import valkey
from tests.rig.waiting import wait_until
from timeoutq import AccessDenied, Politeness, Queue, Task
from timeoutq.client.shards import ShardedQueue
from timeoutq.client.shards.names import tags
from timeoutq.server.cluster import slot_of
from timeoutq.server.rights import every
from timeoutq.verbs import flows
from timeoutq.verbs.sending import answer, ask
from timeoutq.watch import divided
from timeoutq.watch.doctor import QUEUE_CHECKS, Finding, judge
from timeoutq.watch.facts import Facts

__all__ = ["say"]

PAGES = [f"https://h{i}.example/" for i in range(30)]


@pytest.fixture
def queue(url: str, name: str) -> Iterator[ShardedQueue]:
    """A queue over four shards, with some tasks in each."""
    with ShardedQueue(name, url, shards=4, deadline=1.0) as opened:
        opened.put(PAGES)
        yield opened


@pytest.fixture
def client(raw: redis.Redis) -> Any:
    """A foreign hand."""
    return raw


def of(queue: ShardedQueue, check: str) -> Finding:
    (found,) = [finding for finding in divided.examine(queue) if finding.check == check]
    return found


def verdicts(queue: ShardedQueue) -> set[str]:
    return {finding.verdict for finding in divided.examine(queue) if finding.check != "durability"}


def key(queue: ShardedQueue, shard: int, name: str) -> str:
    return queue.shards.talks[shard].operations.key(name)


def test_a_sound_queue_is_examined_once_and_not_once_for_each_shard(queue: ShardedQueue) -> None:
    queue.claim(2)
    findings = divided.examine(queue)
    assert set(Counter(finding.check for finding in findings).values()) == {1}
    assert verdicts(queue) == {"green"}
    assert of(queue, "record").found == "4 shards by host, route v1; all 4 agree with it"
    assert of(queue, "schema").found == "3; library revision 1; 30 tasks known"
    assert of(queue, "leases").found.startswith("2 held, 0 workers alive")


def test_shards_without_tasks_are_sound(url: str, name: str) -> None:
    with ShardedQueue(name, url, shards=4) as queue:
        queue.put("a")
        assert verdicts(queue) == {"green"}
        queue.purge()
        assert divided.examine(queue) == []


def test_what_is_wrong_in_some_shards_names_these(queue: ShardedQueue, client: Any) -> None:
    for shard in (1, 3):
        client.sadd(key(queue, shard, "done"), client.srandmember(key(queue, shard, "todos")))
    client.set(key(queue, 2, "history"), "a string")
    found = of(queue, "tasks")
    assert (found.verdict, found.found) == ("yellow", "shards 1, 3: 1 task in two states at once")
    found = of(queue, "keys")
    assert found.found.startswith("shard 2: history is a string")
    assert f"redis-cli RENAME '{key(queue, 2, 'history')}' elsewhere" in found.cure


def test_leases_that_nobody_takes_back_name_their_shard_and_live_workers_count(queue: ShardedQueue) -> None:
    (lease,) = queue.claim(1, timeout=0.01)
    wait_until(lambda: of(queue, "leases").verdict == "red")
    assert of(queue, "leases").found.startswith(f"shard {lease.shard}: a lease ran out")
    with queue.keeper():
        wait_until(lambda: of(queue, "leases").verdict == "yellow")


def test_a_worker_of_all_shards_counts_once(queue: ShardedQueue) -> None:
    queue.claim(2)
    root = queue.shards.root
    queue.run(answer(root, root.operations.beat("h:1:me", {"tends": [0, 1, 2, 3]})))
    assert of(queue, "leases").found.startswith("2 held, 1 worker alive")


def test_a_pause_of_some_shards_names_them(queue: ShardedQueue) -> None:
    queue.pause()
    assert of(queue, "paused").found == "all 4 shards: nobody is given a task"
    for shard in (0, 2):
        queue.run(flows.configure(queue.shards.talks[shard], {"paused": b"0"}))
    assert of(queue, "paused").found == "shards 1, 3: nobody is given a task"


def test_settings_that_differ_between_shards_are_told_with_the_command_that_sets_them_again(
    say: Say, queue: ShardedQueue, client: Any
) -> None:
    queue.configure(keep_done=10)
    client.hset(key(queue, 2, "meta"), "keep_done", "forever")
    found = of(queue, "record")
    assert (found.verdict, found.found) == (
        "yellow", "the shards do not agree: keep_done is n10 in shards 0, 1, 3; forever in shard 2",
    )  # fmt: skip
    assert f"timeoutq configure {queue.name} --keep-done" in found.cure
    assert say("configure", queue.name, "--keep-done", "10").code == 0
    assert verdicts(queue) == {"green"}


def test_shards_in_which_politeness_still_ends_agree_with_those_in_which_it_has_ended(queue: ShardedQueue) -> None:
    off = {"politeness": b"off"}
    queue.configure(politeness=Politeness(0.0))
    for talk in queue.shards.talks[:3]:
        queue.run(flows.configure(talk, off))
    last = queue.shards.talks[3]
    assert queue.run(answer(last, last.operations.configure(off))) == 2, "its tasks are not in line with it yet"
    assert of(queue, "politeness").found.startswith("shard 3: the politeness of the queue ends")
    assert of(queue, "record").verdict == "green"


def test_when_the_next_lease_ends_is_told_by_the_clock_of_its_own_node() -> None:
    def shard(now: float, left: float) -> Facts:
        known = {"known": 2, "in_progress": 1, "scheduled": 1, "workers": 1, "settings": {"schema": "3"}}
        return Facts("", queue={**known, "now": now, "next_deadline": now + left, "next_due": now + 2 * left})

    # two nodes whose clocks are ten minutes apart
    whole = divided._sum([shard(1000.0, 20.0), shard(1600.0, 30.0)])
    found = {finding.check: finding for finding in judge(whole, QUEUE_CHECKS)}
    assert (found["leases"].verdict, found["leases"].found) == (
        "green",
        "2 held, 1 worker alive, the next one ends in 20.0 s",
    )
    assert (found["scheduled"].verdict, found["scheduled"].found) == ("green", "2 tasks, the next one due in 40.0 s")


def test_tasks_of_other_shards_are_found(queue: ShardedQueue, client: Any, url: str) -> None:
    client.hset(f"timeoutq:{{{queue.name}}}:meta", "shards", "4 id v1")
    with ShardedQueue(queue.name, url) as other:
        found = of(other, "record")
    assert found.verdict == "red"
    assert re.match(r"\d+ of 30 tasks that were looked at, in shards 0, 1, 2, 3, belong to other shards", found.found)


def test_a_record_that_does_not_know_of_groups_is_told(queue: ShardedQueue, client: Any) -> None:
    queue.put(Task("t", group="g.example"))
    assert "tasks with groups were put" in of(queue, "record").found
    record = f"timeoutq:{{{queue.name}}}:meta"
    client.hdel(record, "groups")
    found = of(queue, "record")
    assert (found.verdict, found.cure) == ("yellow", f"redis-cli HSET '{record}' groups 1")
    client.hset(record, "groups", 1)
    assert of(queue, "record").verdict == "green"


def test_a_record_that_a_foreign_hand_has_changed_is_a_finding(say: Say, queue: ShardedQueue, client: Any) -> None:
    record = f"timeoutq:{{{queue.name}}}:meta"
    client.hset(record, "shards", "many")
    done = say("doctor", queue.name)
    assert done.code == 1
    (line,) = [line for line in done.lines if line[0] == "record"]
    assert line[1] == "red"
    assert "a foreign hand has changed the field shards" in line[2]
    assert f"redis-cli HSET '{record}' shards" in line[3]
    client.hset(record, "shards", "4 host v1")
    assert say("doctor", queue.name).code == 0


def test_the_command_shows_it_all_also_as_json(say: Say, queue: ShardedQueue, client: Any) -> None:
    assert {line[0]: line[2] for line in say("doctor", queue.name).lines}["record"].startswith("4 shards by host")
    assert say("doctor", queue.name, "--max-failed", 0).code == 0
    client.sadd(key(queue, 1, "done"), client.srandmember(key(queue, 1, "todos")))
    found = {document["check"]: document for document in say("doctor", queue.name, "--json").documents}
    assert found["tasks"]["found"] == "shard 1: 1 task in two states at once"
    assert found["tasks"]["cure"] == f"timeoutq doctor {queue.name} --repair"
    mended = say("doctor", queue.name, "--repair")
    assert "mended: 1 task in two states at once" in mended.out
    assert "tasks" not in {line[0] for line in mended.lines}


def test_a_user_is_proposed_the_keys_of_all_shards_and_can_work_with_them(queue: ShardedQueue, url: str) -> None:
    def user(*rules: str) -> str:
        with redis.Redis.from_url(url) as raw:
            raw.execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", *rules)
        return re.sub("//[^@/]*@", "//app:secret@", url)

    words = [f"+{name.lower()}" for name in every()]
    with ShardedQueue(queue.name, user(f"~timeoutq:{{{queue.name}}}:*", *words)) as limited:
        found = of(limited, "acl")
    assert found.verdict == "red"
    rules = found.cure.removeprefix("ACL SETUSER app ")
    assert rules == f"~timeoutq:{{{queue.name}[:}}]*"
    with ShardedQueue(queue.name, user(rules, *words)) as limited:
        assert of(limited, "acl").verdict == "green"
        assert limited.ack(limited.claim(5)).ok > 0
    with Queue(f"{queue.name}2", user(rules, *words)) as other, pytest.raises(AccessDenied):
        other.put("a")


# ---- on a cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three primaries without replicas: when one is gone, its slots are."""
    whole = {"cluster-require-full-coverage": False}
    with Cluster(3, 0, node_timeout_ms=QUICK, binary=valkey(), config=whole) as found:
        yield found


def test_on_a_cluster_each_node_is_examined_once(say: Say, cluster: Cluster, name: str) -> None:
    with ShardedQueue(name, cluster.url, shards=6) as queue:
        queue.put(PAGES)
        lines = say("doctor", name, "--url", cluster.url).lines
        checks = Counter(line[0] for line in lines)
        assert set(checks.values()) == {1}, checks
        said = {line[0]: line for line in lines}
        assert said["record"][1:3] == ["green", "6 shards by host, route v1; all 6 agree with it"]
        assert said["schema"][2] == "3; library revision 1; 30 tasks known"
        # nodes that say the same, to the tenth of a millisecond, are told of in one text without their names
        assert {said["version"][2].count(node.place) for node in cluster.nodes} in ({1}, {0})
        here = cluster.nodes[0]
        cluster.say(here, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "maxmemory", "3gb")
        try:
            lines = say("doctor", name, "--url", cluster.url).lines
        finally:
            cluster.say(here, "CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "0")
        (evicting,) = [line for line in lines if line[0] == "eviction"]
        assert evicting[2].startswith(f"{here.place} may throw tasks away")
        queue.purge()


def test_on_a_cluster_each_node_that_lacks_replicas_for_a_durable_queue_is_told(
    say: Say, cluster: Cluster, name: str
) -> None:
    with ShardedQueue(name, cluster.url, shards=6) as queue:
        queue.put(PAGES)
        for talk in queue.shards.talks:
            meta = talk.operations.key("meta")
            queue.run(ask(talk, [("HSET", meta, "uses", "durable", "durable", "1")]))  # the replicas went away since
        lines = say("doctor", name, "--url", cluster.url).lines
        told = [line[2] for line in lines if line[:2] == ["replicas", "red"] and "durable" in line[2]]
        for node in cluster.nodes:
            (line,) = [line for line in told if line.startswith(node.place)]
            assert "0 replicas; the queue is durable=1: no put is confirmed" in line
            assert line.endswith("stand still")
        queue.purge()


@pytest.mark.breaking
def test_shards_whose_node_does_not_answer_are_named_and_the_others_are_examined(
    say: Say, cluster: Cluster, name: str
) -> None:
    with ShardedQueue(name, cluster.url, shards=6) as queue:
        queue.put(PAGES)
        root = cluster.primary_of(slot_of(name))
        gone = next(node for node in cluster.nodes if node is not root)
        theirs = [shard for shard, tag in enumerate(tags(name, 6)) if cluster.primary_of(slot_of(tag)) is gone]
        assert len(theirs) == 2
        with frozen(gone):
            done = say("doctor", name, "--url", cluster.url)
        cluster.wait()
        assert done.code == 1
        (line,) = [line for line in done.lines if line[0] == "shards"]
        assert line[1] == "red"
        assert line[2].startswith(f"shards {theirs[0]}, {theirs[1]} cannot be asked")
        assert gone.place in line[2]
        said = {line[0]: line for line in done.lines}
        assert said["record"][2] == "6 shards by host, route v1; the 4 that answer agree with it"
        assert said["schema"][1] == "green"
        queue.purge()
