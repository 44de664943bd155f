"""Transcripts that both languages play: the same calls get the same answers, on a real server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from tests.rig.invariants import check
from tests.rig.node import node, play, write_protocol
from tests.rig.proxy import Fault, Proxy
from tests.rig.transcripts import FILES, Player, read
from timeoutq import Queue
from timeoutq.gateway.protocol import headers
from timeoutq.server import scripts

Play = Callable[[str, str], dict[str, str | None]]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_protocol(tmp_path_factory.mktemp("protocol"))


def test_there_are_thirty_transcripts_and_they_call_most_verbs() -> None:
    assert len(FILES) >= 30
    called = {step["call"] for path in FILES for step in read(path)}
    assert len(called & headers().keys()) >= 20, called


def test_python_plays_each_transcript(url: str, name: str) -> None:
    for number, path in enumerate(FILES):
        with Queue(f"{name}-{number}", url) as queue:
            Player(queue).play(read(path))
            queue.purge()


@pytest.mark.parametrize("library", ["redis", "ioredis"])
def test_node_plays_each_transcript(url: str, document: Path, name: str, library: str) -> None:
    node()
    said = play(url, document, library, f"{name}-", FILES)
    assert {file: words for file, words in said.items() if words is not None} == {}
    assert set(said) == {path.name for path in FILES}
    for number in range(len(FILES)):
        check(url, f"{name}-{number}")


UNDER_FAULTS = [
    {"call": "put", "args": {"tasks": ["a", "b"]}, "expect": "*"},
    {"call": "claim", "args": {"n": 2, "as": "x"}, "expect": ["*", "*"]},
    {"call": "extend", "args": {"leases": {"of": "x"}, "timeout": 30}, "expect": "OO"},
    {"call": "ack", "args": {"leases": {"of": "x", "tasks": ["a"]}, "put": ["c"]}, "expect": "*"},
    {"call": "fail", "args": {"leases": {"of": "x", "tasks": ["b"]}, "ends": [{"error": "no"}]}, "expect": "*"},
    {"call": "states", "args": {"ids": ["a", "b", "c"]}, "expect": "dft"},
    {"call": "stats", "expect": {"counters": {"put": 3, "claimed": 2, "acked": 1, "failed": 1}}},
]


@pytest.mark.parametrize(
    ("library", "fault", "verbs"),
    [
        ("redis", Fault.RESET_AFTER, ["claim", "ack"]),
        pytest.param("redis", Fault.RESET_BEFORE, ["claim", "ack"], marks=pytest.mark.breaking),
        pytest.param("ioredis", Fault.RESET_AFTER, ["put", "claim", "ack", "fail"], marks=pytest.mark.breaking),
    ],
)
def test_node_sends_a_call_again_whose_reply_was_lost_and_it_counts_once(
    url: str, document: Path, name: str, raw: redis.Redis, tmp_path: Path, fault: Fault, library: str, verbs: list[str]
) -> None:
    node()
    raw.function_load(scripts.library(), replace=True)  # a call that the server does not know would not be carried out
    (tmp_path / "faults.jsonl").write_text("\n".join(map(json.dumps, UNDER_FAULTS)))
    for number, verb in enumerate(verbs):
        with Proxy(url) as proxy:
            proxy.arm(fault, scripts.function(verb).encode())
            said = play(proxy.url, document, library, f"{name}-{verb}{number}-", [tmp_path / "faults.jsonl"])
        assert said == {"faults.jsonl": None}, verb


def test_node_does_not_send_a_pull_again(url: str, raw: redis.Redis, document: Path, name: str, tmp_path: Path) -> None:
    node()
    raw.function_load(scripts.library(), replace=True)
    lines = [{"call": "put", "args": {"tasks": ["a"]}}, {"call": "pull", "args": {"n": 1}}]
    (tmp_path / "pull.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with Proxy(url) as proxy:
        proxy.arm(Fault.RESET_AFTER, scripts.function("pull").encode())
        said = play(proxy.url, document, "redis", name, [tmp_path / "pull.jsonl"])
    assert "Unavailable: pull may have run, and is not sent again" in str(said["pull.jsonl"])


def test_node_loads_the_library_that_the_server_has_lost(url: str, document: Path, name: str, raw: redis.Redis) -> None:
    node()
    raw.function_flush()
    assert play(url, document, "redis", name, FILES[:2]) == {path.name: None for path in FILES[:2]}
