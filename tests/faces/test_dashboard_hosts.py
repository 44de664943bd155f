"""The dashboard of a polite queue: who waits, for which host, and why that is not visited; a plain one shows none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from rich.cells import cell_len

from tests.faces.test_dashboard import NOW, drawn, hand_made, stats
from tests.rig import canary
from tests.rig.corpus import CORPUS, as_id, stray
from timeoutq import HostInfo, Politeness, Queue
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.watch.snapshot import Memory, Snapshot, snapshot, to_json

WIDTHS = [80, 140, 200]


def host(name: str, **given: Any) -> HostInfo:
    values: dict[str, Any] = {
        "waiting": 40, "in_flight": [f"https://{name}/now"], "busy": 1, "turn": None, "delay": 1.0, "per_host": 1,
        "budget": None,
        "visits": 12, "failures": 0, "next_allowed": None, "blocked_until": None, "blocked_by": "", "banned": None,
    }  # fmt: skip
    return HostInfo(name, **{**values, **given})


HOSTS = [
    host("soon.example", waiting=41, in_flight=[], busy=0, turn=NOW + 0.4, next_allowed=NOW + 0.4),
    host("overdue.example", waiting=5, in_flight=[], busy=0, turn=NOW - 3),
    host("busy.example", failures=7),
    host("blocked.example", in_flight=[], busy=0, turn=NOW + 90, blocked_until=NOW + 90, blocked_by="Retry-After"),
    host("was-blocked.example", blocked_until=NOW - 1, blocked_by="Retry-After"),
    host("banned.example", waiting=0, in_flight=[], busy=0, banned="they asked"),
    host("used.example", in_flight=[], busy=0, visits=3, budget=3, waiting=1_234_567),
    host("spent.example", in_flight=[], busy=0, visits=3, budget=3, waiting=0),
]


def polite(hosts: list[HostInfo] | None = None, **given: Any) -> Snapshot:
    counted = stats(
        waiting=1_234_700,
        hosts=len(hosts or HOSTS),
        settings={"uses": "politeness", "politeness": "1000 1"},
        next_turn=NOW + 0.4,
    )
    return hand_made(
        stats=counted, hosts=HOSTS if hosts is None else hosts, host_rates={"busy.example": 1.25}, leases=[], due=[],
        errors=[], **given,
    )  # fmt: skip


def rows(lines: list[str]) -> dict[str, list[str]]:
    """Read the table of hosts: the cells behind each name."""
    text = [line.strip("│ ") for line in lines]
    head = next(i for i, line in enumerate(text) if line.startswith("hosts "))
    cells = [re.split(r" {2,}", line) for line in text[head:]]
    table: dict[str, list[str]] = {}
    for name, *behind in cells:
        if behind:
            table.setdefault(name, behind)  # errors stand below, with their hosts in front
    return table


# ---- what is drawn


@pytest.mark.parametrize("width", WIDTHS)
def test_each_host_says_what_it_waits_for(width: int) -> None:
    lines = drawn(polite(), width, 40)
    assert all(cell_len(line) == width for line in lines)
    found = rows(lines)
    head = found.pop("hosts 8")
    turns = {name: cells[head.index("turn")] for name, cells in found.items()}
    assert turns == {
        "soon.example": "0.4 s", "overdue.example": "0.0 s", "busy.example": "—", "blocked.example": "⊘ 90 s",
        "was-blocked.example": "—", "banned.example": "banned", "used.example": "used up", "spent.example": "—",
    }  # fmt: skip
    assert found["used.example"][head.index("waiting")] == "1.2M"
    assert found["busy.example"][head.index("/s")] == "1.2"
    assert ("errors" in head) == (width != 140), "there the tables are narrow, and names matter more"


def test_hosts_with_most_to_do_come_first_and_keep_their_place() -> None:
    def order(hosts: list[HostInfo]) -> list[str]:
        return [name for name in rows(drawn(polite(hosts), 80, 40)) if name.endswith(".example")]

    first = [host("b.example", waiting=100), host("a.example", waiting=90), host("z.example", waiting=5000)]
    later = [host("z.example", waiting=4998), host("a.example", waiting=91), host("b.example", waiting=70)]
    assert order(first) == order(later) == ["z.example", "a.example", "b.example"]
    assert order(HOSTS)[-2:] == ["banned.example", "spent.example"]
    assert "hosts" not in "\n".join(drawn(hand_made(hosts=HOSTS), 80, 40))  # it was polite a moment ago


def test_the_rate_of_a_host_is_measured_since_the_oldest_of_the_last_looks_that_has_seen_the_host() -> None:
    memory = Memory()

    def look(at: float, **visits: int) -> dict[str, float]:
        hosts = [host(f"{name}.example", visits=count) for name, count in visits.items()]
        return dict(memory.add(hand_made(stats=stats(now=at), hosts=hosts)).host_rates)

    assert look(1000.0, old=0) == {}
    assert look(1001.0, old=50, new=7) == {"old.example": 50.0}
    assert look(1002.0, old=50, new=7) == {"old.example": 25.0, "new.example": 0.0}
    assert look(1005.0, old=50, new=15) == {"old.example": 10.0, "new.example": 2.0}


# ---- hostile names


NAMES = [as_id(text) for text in CORPUS.values()]


def test_hostile_hosts_are_shown_and_steer_nothing() -> None:
    for start, width in product(range(0, len(NAMES), 10), WIDTHS):
        some = NAMES[start : start + 10]
        seen = polite([host(name, banned=name, blocked_by=name, in_flight=[name]) for name in some])
        lines = drawn(seen, width, 40)
        assert stray("\n".join(lines)) == []
        assert all(cell_len(line) == width for line in lines), some
        json.dumps(to_json(seen), ensure_ascii=True)


# ---- for programs


# ---- on a server


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(config={"requirepass": canary.PASSWORD}) as running:
        yield running


def fill(queue: Queue) -> None:
    for name in ("a", "used", "blocked", "banned"):
        queue.put(f"http://{name}.example/{i}" for i in range(5))
    queue.hosts.set("used.example", budget=0)
    queue.hosts.block("blocked.example", for_=600)
    queue.hosts.ban("banned.example", "they asked")
    queue.put("no host")


def test_a_snapshot_of_a_polite_queue_has_its_hosts(server: EmbeddedServer) -> None:
    with Queue("polite", server.url, politeness=Politeness(3600)) as queue:
        fill(queue)
        seen = snapshot(queue)
        text = "\n".join(drawn(seen, 80, 40))
        assert "14 waiting + 2 todos + 0 scheduled + 0 in_progress + 0 done + 5 failed" in text
        found = rows(drawn(seen, 80, 40))
        turn = found["hosts 4"].index("turn")
        assert found["a.example"][turn] == "—"
        assert found["used.example"][turn] == "used up"
        assert re.fullmatch(r"⊘ (10|9) min", found["blocked.example"][turn])
        assert found["banned.example"][turn] == "banned"
        assert len(snapshot(queue, rows=2).hosts) == 2
        queue.configure(politeness="off")
        assert list(snapshot(queue).hosts) == []
        queue.purge()
