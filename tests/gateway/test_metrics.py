"""What Prometheus is told: one scrape for all queues, numbers that only grow, and no labels that tasks could make."""

from __future__ import annotations

import math
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

import timeoutq
from tests.rig import series
from timeoutq import Politeness, Queue, open_queue
from timeoutq.gateway import metrics
from timeoutq.gateway.metrics import EVENTS, Facts, Look, Watcher, exposition, histogram
from timeoutq.gateway.settings import Settings
from timeoutq.verbs import sending
from timeoutq.words.counts import Stats
from timeoutq.words.durations import Delta, bound, bucket

PROMTOOL = shutil.which("promtool")
EMPTY = Stats(1000.0, 0, 0, 0, 0, 0, paused=False, counters={})
Samples = dict[tuple[str, tuple[str, ...]], float]


def samples(text: bytes) -> Samples:
    """Give each series by its name and the values of its labels, the queue first."""
    return {
        (sample.name, tuple(sample.labels[label] for label in sorted(sample.labels, key="queue".__ne__))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def checked(text: bytes) -> None:
    """Have Prometheus's own tool read a scrape, and criticise its names and types."""
    if PROMTOOL is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    found = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")


@pytest.fixture
async def watcher(url: str) -> AsyncIterator[Watcher]:
    found = Watcher(Settings(url))
    yield found
    await found.close()


async def scrape(watcher: Watcher) -> Samples:
    watcher.shared.forget()
    text, media_type = exposition(await watcher.shared.get())
    assert media_type.startswith("text/plain")
    return samples(text)


# ---- from facts to metrics


def test_an_empty_queue_has_as_many_series_as_a_full_one_and_promtool_has_nothing_to_say() -> None:
    full = Stats(
        1000.0, 5, 4, 3, 2, 1, paused=True, counters={"put": 15, "claimed": 7, "of a foreign hand": 3},
        next_due=990.0, next_deadline=991.0, todos_since=900.0, workers=2, waiting=8, hosts=10_000,
        ran={bound(bucket(2.0**power)): 3 for power in range(-13, 17)},
    )  # fmt: skip
    found = [exposition(Look(True, [Facts("q", stats)]))[0] for stats in (EMPTY, full)]
    assert len(samples(found[0])) == len(samples(found[1])) <= 200
    assert samples(found[0]).keys() == samples(found[1]).keys()
    for text in (*found, exposition(Look(False))[0], exposition(Look(True, [Facts("q", None)]))[0]):
        checked(text)
    told = samples(found[1])
    assert told["timeoutq_tasks", ("q", "waiting")] == 8
    assert told["timeoutq_oldest_ready_seconds", ("q",)] == 100
    assert told["timeoutq_lease_overdue_seconds", ("q",)] == 9
    assert told["timeoutq_due_overdue_seconds", ("q",)] == 10
    assert told["timeoutq_paused", ("q",)] == 1
    assert told["timeoutq_task_events_total", ("q", "put")] == 15


def test_each_counter_of_the_scripts_is_told_and_nothing_else() -> None:
    package = Path(timeoutq.__file__).parent
    texts = [path.read_text("utf-8") for path in (package / "lua").rglob("*.lua")]
    counted = {name for text in texts for name in re.findall(r"count_up\(key\.stats, '(\w+)'", text)}
    assert counted - {"logged"} == set(EVENTS)


def test_every_run_is_counted_below_its_bound() -> None:
    ran = {bound(bucket(seconds)): runs for runs, seconds in enumerate((0.0001, 0.0009, 0.3, 1.0, 1.2, 80_000.0), 1)}
    buckets, total = histogram(ran)
    told = {float(name): runs for name, runs in buckets}
    assert told[2.0**-10] == 1 + 2
    assert told[0.25] == 3
    assert told[0.5] == 6
    assert told[1.0] == 6  # what took 1 s exactly falls into the bucket above
    assert told[2.0] == 6 + 4 + 5
    assert told[2.0**16] == 15
    assert told[math.inf] == 21
    assert total == pytest.approx(sum(end * runs for end, runs in ran.items()))
    assert histogram({})[0][-1] == ("+Inf", 0)


# ---- looking


async def test_one_scrape_tells_of_all_queues_of_every_kind(url: str, watcher: Watcher) -> None:
    with Queue("plain", url) as plain, Queue("polite", url, politeness=Politeness(1)) as polite:
        plain.put("a", "b", "c")
        plain.ack(plain.claim(1))
        plain.run(sending.answer(plain.talk, plain.operations.beat("w:1:a", {"pid": 1}, Delta(1, {bucket(0.5): 4}))))
        polite.put("http://a.example/1", "http://b.example/1", "http://c.example/1")
        polite.hosts.block("a.example", for_=50, reason="me")
        polite.hosts.set("b.example", delay=9)
        polite.hosts.ban("c.example")
    with open_queue("divided", url, shards=4) as divided:
        divided.put([f"t{i}" for i in range(20)])
        told = await scrape(watcher)
    assert told["timeoutq_up", ()] == 1
    assert {name for (kind, names) in told if kind == "timeoutq_queue_up" for name in names} == {
        "plain", "polite", "divided",
    }  # fmt: skip
    assert told["timeoutq_tasks", ("plain", "todos")] == 2
    assert told["timeoutq_task_events_total", ("plain", "acked")] == 1
    assert told["timeoutq_handler_seconds_count", ("plain",)] == 4
    assert told["timeoutq_workers", ("plain",)] == 1
    assert told["timeoutq_hosts", ("polite",)] >= 1
    assert told["timeoutq_hosts_blocked", ("polite",)] == 2
    assert told["timeoutq_tasks", ("divided", "todos")] == 20
    assert told["timeoutq_shards", ("divided",)] == 4
    assert told["timeoutq_shards_silent", ("divided",)] == 0


async def test_a_queue_that_disappears_or_cannot_be_read_breaks_no_scrape(
    url: str, watcher: Watcher, raw: redis.Redis
) -> None:
    with Queue("gone", url) as gone, Queue("stays", url) as stays:
        gone.put("a")
        stays.put("a")
        raw.hset("timeoutq:{later}:meta", "schema", "99")
        raw.set("timeoutq:{odd}:meta", "a foreign hand")
        told = await scrape(watcher)
        assert {key[1][0]: up for key, up in told.items() if key[0] == "timeoutq_queue_up"} == {
            "gone": 1, "stays": 1, "later": 0, "odd": 0,
        }  # fmt: skip
        gone.purge()
        told = await scrape(watcher)
    assert ("timeoutq_queue_up", ("gone",)) not in told
    assert told["timeoutq_tasks", ("stays", "todos")] == 1


async def test_while_redis_is_away_a_scrape_says_so_and_ends_soon() -> None:
    with socket.socket() as silent:  # it takes connections, and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        watcher = Watcher(Settings(f"redis://127.0.0.1:{silent.getsockname()[1]}/0"))
        look = await watcher.shared.get()
        assert watcher.shared.rests <= 1, "the next scrape looks anew, although this look took long"
        await watcher.close()
    assert not look.is_up
    assert look.seconds < metrics.PATIENCE + 1
    text, _ = exposition(look)
    assert b"timeoutq_up 0.0" in text
    checked(text)


def test_many_hosts_and_tasks_make_no_more_series() -> None:
    few, many = (series.measure(hosts, hosts * 10) for hosts in (3, 300))
    assert few.series == many.series
    assert many.good, many
